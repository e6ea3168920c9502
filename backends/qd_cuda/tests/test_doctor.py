"""What the doctor says where something of an NVIDIA device is missing: each absence is made in turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import qd_cuda.probe as probe
from fake_driver import FakeDriver
from qd_cuda.backend import CudaBackend

from qd_core.backend.registry import Registry
from qd_core.cli.doctor import examine

STATUS = {
    "CUDA_ERROR_NO_DEVICE": (100, "nvidia-smi"),
    "CUDA_ERROR_OPERATING_SYSTEM": (304, "permissions of /dev/nvidia"),
    "CUDA_ERROR_NOT_PERMITTED": (800, "permissions of /dev/nvidia"),
    "CUDA_ERROR_SYSTEM_NOT_READY": (802, "fabric manager"),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (803, "restart"),
}


def failing(name: str) -> Callable[[], str]:
    """Return what stands for a driver that does not start."""
    return lambda: f"the NVIDIA driver did not start: no ({name})"


ABSENCES: dict[str, tuple[Callable[[], Any], dict[str, str], str, str]] = {
    "library": (
        lambda: "the NVIDIA driver library could not be loaded (libcuda.so.1: cannot open shared object file)",
        {},
        r"library could not be loaded \(libcuda",
        "install the NVIDIA driver",
    ),
    "device": (lambda: FakeDriver(devices=0).driver(), {}, "finds no device", "nvidia-smi lists a device"),
    "new enough driver": (
        lambda: FakeDriver(version=8000).driver(),
        {},
        "takes PTX up to",
        r"driver for CUDA 9 \(found: 8\.0\)",
    ),
    "chosen device": (
        lambda: FakeDriver().driver(),
        {"QD_VISIBLE_DEVICE": "7"},
        "no device is among QD_VISIBLE_DEVICE='7'",
        "unset it",
    ),
    **{name: (failing(name), {}, name, remedy) for name, (_, remedy) in STATUS.items()},
}


@pytest.mark.parametrize("name", ABSENCES)
def test_the_doctor_says_what_is_missing_and_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, environment, reason, remedy = ABSENCES[name]
    monkeypatch.delenv("QD_VISIBLE_DEVICE", raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(probe, "driver", driver)
    backends = Registry(lambda: ())
    backends.register(CudaBackend.name, CudaBackend)
    (section,) = examine(backends, [CudaBackend.name])
    assert section.state == "unavailable", section
    assert re.search(reason, section.reason), section.reason
    assert re.search(remedy, section.remedy), section.remedy
    assert not section.devices


@pytest.mark.parametrize("name", STATUS)
def test_a_driver_that_fails_later_gets_the_same_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    fake.fail["cuDeviceGetCount"] = STATUS[name][0]
    monkeypatch.setattr(probe, "driver", fake.driver)
    found = probe.find_devices()
    assert name in found.reason
    assert STATUS[name][1] in found.remedy


def test_a_library_that_cannot_be_loaded_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qd_core", "doctor", "cuda"],
        env={**os.environ, "QD_CUDA_LIBRARY": "libno_such_driver.so"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout
    assert re.search("  why +.*libno_such_driver", done.stdout), done.stdout
    assert re.search("  do +install the NVIDIA driver", done.stdout), done.stdout
