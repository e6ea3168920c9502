"""Validation is on, and every test ends without a message of the validation layer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "msl_host")]
os.environ.setdefault("QD_VULKAN_VALIDATION", "1")


@pytest.fixture(autouse=True)
def _silent_validation() -> Iterator[None]:
    from harness import silent

    with silent():
        yield


@pytest.fixture(scope="session")
def opened() -> Iterator[object]:
    """An open device, with staging as the device itself has it."""
    from qd_vulkan import VulkanBackend

    backend = VulkanBackend()
    there = backend.probe()
    if not there.available:
        pytest.skip(f"no Vulkan device: {there.reason}")
    device = backend.open(backend.devices()[0], {"offline_cache": False})
    yield device
    device.close()
