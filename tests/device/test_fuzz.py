"""Random kernels of fixed seeds on every backend, and that fuzzing finds, shrinks and keeps what is wrong."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from qd_core.backend.registry import registry
from qd_core.testing.device import DeviceUnderTest, open_device
from qd_core.testing.fake.broken import BROKEN
from qd_core.testing.fuzz_run import fuzz
from qd_core.testing.plugin import in_slice


def test_random_kernels(device: DeviceUnderTest, tmp_path: Path) -> None:
    result = fuzz(device, 3, tmp_path, seed=20)
    assert result.kernels > 3
    assert not result.failures, [p.read_text() for p in result.failures]


@in_slice("full")
def test_random_kernels_for_two_minutes(device: DeviceUnderTest, tmp_path: Path) -> None:
    result = fuzz(device, 120, tmp_path, seed=100)
    assert not result.failures, [p.read_text() for p in result.failures]


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wrong_backend_is_found_and_its_kernel_kept(tmp_path: Path) -> None:
    name = "loses_updates"
    registry().register(name, lambda: BROKEN[name](name))
    try:
        device = open_device(name)
        result = fuzz(device, 60, tmp_path, seed=1, failures=1)
        assert result.failures
        module = load(result.failures[0])
        assert "total after a forward run" in module.__doc__ or "AssertionError" in module.__doc__
        assert len(module.KERNEL.splitlines()) < 40, "the kernel was not shrunk"
        with pytest.raises(AssertionError):
            module.test_fuzzed(device)
        device.close()
        whole = open_device("fake")
        module.test_fuzzed(whole)
        whole.close()
    finally:
        registry().unregister(name)
