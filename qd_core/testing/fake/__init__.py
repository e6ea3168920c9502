"""Fake devices: strict about what core promises a plugin, and lying ones that the conformance kit must catch.

:class:`FakeBackend` is a device like any other, except that its addresses mean nothing to the host and that every
promise of core is checked on each launch. Register it where a test needs it::

    registry().register("fake", FakeBackend)
"""

from __future__ import annotations

from qd_core.testing.fake.device import FakeBackend, FakeCompiler, FakeDevice, FakeStream
from qd_core.testing.fake.memory import Allocation, FakeViolation

__all__ = ["Allocation", "FakeBackend", "FakeCompiler", "FakeDevice", "FakeStream", "FakeViolation"]
