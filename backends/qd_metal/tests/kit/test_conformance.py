"""The conformance suite."""

from qd_core.testing.suite import *  # noqa: F403
