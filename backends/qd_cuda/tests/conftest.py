"""Fixtures: an open device on the fake driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_driver import FakeDriver
from qd_cuda.backend import CudaBackend
from qd_cuda.device import CudaDevice
from qd_cuda.facts import target_of

from qd_core.backend.contract import DeviceInfo
from qd_core.runtime.context import Options, Runtime, set_active
from qd_core.runtime.log import Log


@pytest.fixture
def fake() -> FakeDriver:
    """A driver library without a device."""
    return FakeDriver()


@pytest.fixture
def device(fake: FakeDriver) -> Iterator[CudaDevice]:
    """A device on it."""
    device = CudaDevice(fake.driver(), 0, DeviceInfo(0, "Fake GPU 0", target_of(90), fake.total))
    yield device
    device.close()


@pytest.fixture
def runtime(device: CudaDevice) -> Iterator[Runtime]:
    """The active runtime on it."""
    backend = CudaBackend()
    runtime = Runtime(backend, device.info, device, backend.compiler(device.info.target), Options(offline_cache=False))
    runtime.log = Log(device)
    set_active(runtime)
    yield runtime
    set_active(None)
