"""The backend on the fake device: residency, sizes, and what the device refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from qd_metal.compiler import unpack
from qd_metal.device import MetalModule

import qd_core as qd
from qd_core.errors import DeviceFault, QuadrantsError, UnsupportedError

pytestmark = pytest.mark.usefixtures("metal")

COUNT, N = 300, 7
A = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def square(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


@qd.kernel
def many_steps(x: A, y: A):
    for i in range(x.shape[0]):
        s = x[i]
        for _ in range(40):
            s = qd.sin(s) * x[i] + 0.5 * s * s
        y[i] = s


def _arrays() -> tuple[Any, Any]:
    x, y = (qd.ndarray(qd.f32, N, needs_grad=True) for _ in range(2))
    x.from_numpy(np.arange(N, dtype=np.float32))
    y.fill(0)
    return x, y


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[MetalModule]:
    """Modules that are loaded from now on."""
    from qd_metal.device import MetalDevice

    loaded: list[MetalModule] = []
    load = MetalDevice.load

    def keep(self: MetalDevice, artifact: Any) -> Any:
        module = load(self, artifact)
        loaded.append(module)
        return module

    monkeypatch.setattr(MetalDevice, "load", keep)
    return loaded


def test_an_array_that_a_task_does_not_declare_stops_it(modules: list[MetalModule]) -> None:
    x, y = _arrays()
    square(x, y)
    np.testing.assert_array_equal(y.to_numpy(), np.arange(N, dtype=np.float32) ** 2)
    for module in modules:
        tasks = tuple(replace(t, uses=t.uses[:1]) for t in module.artifact.tasks)
        module.artifact = replace(module.artifact, tasks=tasks)
    square(x, y)
    with pytest.raises(DeviceFault, match=r"argument 'y' \(data\) of 'square\S*' is not declared for") as error:
        qd.sync()
    assert "kernels since the last synchronisation: square" in str(error.value)


def test_300_arrays_with_gradients(tmp_path: Path, modules: list[MetalModule]) -> None:
    names = [f"x{k}" for k in range(COUNT)]
    terms = "\n".join(f"        s += {k}.0 * {name}[i] * {name}[i]" for k, name in enumerate(names))
    file = tmp_path / "many.py"
    file.write_text(
        f"import qd_core as qd\nA = qd.types.ndarray(dtype=qd.f32, ndim=1)\n@qd.kernel\n"
        f"def weighted({', '.join(f'{n}: A' for n in [*names, 'y'])}):\n"
        f"    for i in range(y.shape[0]):\n        s = 0.0\n{terms}\n        y[i] = s\n"
    )
    module = ModuleType("many")
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    inputs = [qd.ndarray(qd.f32, N, needs_grad=True) for _ in range(COUNT)]
    y = qd.ndarray(qd.f32, N, needs_grad=True)
    for k, x in enumerate(inputs):
        x.fill(1 + k / COUNT)
    module.weighted(*inputs, y)
    np.testing.assert_allclose(y.to_numpy(), sum(k * (1 + k / COUNT) ** 2 for k in range(COUNT)), rtol=1e-5)
    y.grad.fill(2.0)
    module.weighted.grad(*inputs, y)
    for k, x in enumerate(inputs):
        np.testing.assert_allclose(x.grad.to_numpy(), 4 * k * (1 + k / COUNT), rtol=1e-5)
    assert all(m.artifact.blob.count(b"[[buffer(") == len(m.code.tasks) for m in modules)


@pytest.mark.parametrize("kernel", [square, many_steps], ids=["square", "many_steps"])
def test_a_reverse_kernel_has_at_most_three_times_the_text(kernel: Any, modules: list[MetalModule]) -> None:
    x, y = _arrays()
    kernel(x, y)
    forward = _nbytes(modules)
    y.grad.fill(1)
    kernel.grad(x, y)
    qd.sync()
    assert _nbytes(modules) <= 3 * forward


def _nbytes(modules: list[MetalModule]) -> int:
    """Bytes of the functions of the modules so far, which are forgotten."""
    from qd_metal.language import PRELUDE

    texts = [unpack(m.artifact).text.removeprefix(PRELUDE) for m in modules]
    modules.clear()
    assert texts
    return sum(map(len, texts))


def test_names_of_the_user_are_kept(modules: list[MetalModule]) -> None:
    x, y = _arrays()
    square(x, y)
    (text,) = (unpack(m.artifact).text for m in modules)
    assert "const uint64_t x = words[0];" in text
    assert "const int i = int(linear);" in text


def test_f64_is_refused_with_the_reason() -> None:
    @qd.kernel
    def doubled(x: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(x.shape[0]):
            x[i] = 2.0 * x[i]

    with pytest.raises((UnsupportedError, QuadrantsError), match=r"type\.f64"):
        doubled(np.ones(3))


def test_private_memory_that_fits_nowhere_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_METAL_POOL_NBYTES", "256")
    qd.init(arch="metal", enable_fallback=False, offline_cache=False)

    @qd.kernel
    def power(n: qd.i32, x: A, y: A):
        for i in range(x.shape[0]):
            s = x[i]
            for _ in range(n):
                s = qd.sin(s)
            y[i] = s

    x, y = _arrays()
    y.grad.fill(1)
    with pytest.raises(DeviceFault, match="bytes of private memory"):
        power.grad(5000, x, y)
        qd.sync()
