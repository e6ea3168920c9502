"""300 arrays with gradients, forward and backward, on a driver and through translation: no slot is counted anywhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from translated import TranslatedBackend

import qd_core as qd
from qd_core.backend.registry import registry

COUNT, N = 300, 7


@pytest.fixture(params=["vulkan", "vulkan_translated"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    if name == TranslatedBackend.name and name not in registry().names():
        registry().register(name, TranslatedBackend)
    there = registry().probe(name)
    if not there.available:
        pytest.skip(there.reason)
    qd.init(arch=name, enable_fallback=False, offline_cache=False)
    yield name
    qd.reset()


def _kernel(folder: Path) -> Any:
    """``y[i] = sum of k * x_k[i] ** 2`` with one parameter an array."""
    names = [f"x{k}" for k in range(COUNT)]
    parameters = ", ".join(f"{name}: A" for name in [*names, "y"])
    terms = "\n".join(f"        s += {k}.0 * {name}[i] * {name}[i]" for k, name in enumerate(names))
    text = f"""import qd_core as qd

A = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def weighted({parameters}):
    for i in range(y.shape[0]):
        s = 0.0
{terms}
        y[i] = s
"""
    file = folder / "many.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("many", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.weighted


@pytest.mark.slow
def test_300_arrays_with_gradients(backend: str, tmp_path: Path) -> None:
    kernel = _kernel(tmp_path)
    inputs = [qd.ndarray(qd.f32, N, needs_grad=True) for _ in range(COUNT)]
    y = qd.ndarray(qd.f32, N, needs_grad=True)
    for k, x in enumerate(inputs):
        x.from_numpy(np.full(N, 1 + k / COUNT, np.float32))
    kernel(*inputs, y)
    want = sum(k * (1 + k / COUNT) ** 2 for k in range(COUNT))
    np.testing.assert_allclose(y.to_numpy(), want, rtol=1e-5)
    y.grad.fill(2.0)
    kernel.grad(*inputs, y)
    for k, x in enumerate(inputs):
        np.testing.assert_allclose(x.grad.to_numpy(), 4 * k * (1 + k / COUNT), rtol=1e-5)
