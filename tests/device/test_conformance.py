"""The conformance suite on every backend at hand."""

from qd_core.testing.suite import *  # noqa: F403
