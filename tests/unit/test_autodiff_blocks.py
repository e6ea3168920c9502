"""Long loops recorded in blocks: the same gradients, memory within a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, run

import qd_core as qd
from qd_core.autodiff.reverse import reverse
from qd_core.ir.nodes import Function
from qd_core.reference import effects

N = 3


def gradient(function: Function, values: dict[str, Any], budget: int) -> np.ndarray[Any, Any]:
    """The gradient of the sum of ``out`` with respect to ``x``, by reverse mode with this budget."""
    back = reverse(function, ["x", "out"], residual_bytes=budget)
    arrays = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in values.items()}
    arrays |= {"x.grad": np.zeros(N), "out.grad": np.ones(N)}
    run(back, arrays)
    return arrays["x.grad"]


def upward() -> Function:
    k = Kernel(x="f64[1]", out="f64[1]", n="i32", start="i32")

    def body(i: E) -> None:
        v, _ = k.loop(k.start, k.n, [k.x[i], k.x[i]], lambda t, v, w: [k.sin(v) + w * k.x[i], v])
        k.out[i] = v

    return finish(k, body)


def downward() -> Function:
    k = Kernel(x="f64[1]", out="f64[1]", n="i32", start="i32")

    def body(i: E) -> None:
        v, _ = k.loop(k.start, k.n, [k.x[i], k.x[i]], lambda t, v, w: [k.sin(v) + w * k.x[i], v * 0.9], reverse=True)
        k.out[i] = v * v

    return finish(k, body)


def nested() -> Function:
    k = Kernel(x="f64[1]", out="f64[1]", n="i32", start="i32")

    def body(i: E) -> None:
        def outer(t: E, v: E) -> list[E]:
            return [k.loop(k.start, k.n, [v], lambda s, u: [k.sin(u) * 1.1]) + k.x[i] * v * 0.1]

        k.out[i] = k.loop(k.start, k.n, [k.x[i]], outer)

    return finish(k, body)


def finish(k: Kernel, body: Callable[[E], None]) -> Function:
    k.parallel(k.extent(k.x), body=body)
    return k.done()


@pytest.mark.parametrize("make", [upward, downward, nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("trips", [0, 1, 2, 15, 16, 17, 18, 31, 32, 33, 50])
def test_blocks_change_no_bit(make: Callable[[], Function], trips: int) -> None:
    values = {"x": np.array([0.3, 0.8, 1.2]), "out": np.zeros(N), "n": trips - 2, "start": -2}
    whole, cut = gradient(make(), values, 1 << 20), gradient(make(), values, 1)
    np.testing.assert_array_equal(whole, cut)
    assert trips == 0 or np.all(whole != 0)


@pytest.mark.parametrize(("trips", "most"), [(400, 2 * 21), (6400, 2 * 81)])
def test_memory_grows_with_the_root(trips: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def spy(lanes: int, length: Any, dtype: Any) -> Any:
        asked.append(int(np.max(length)))
        return original(lanes, length, dtype)

    original = effects.Scratch
    monkeypatch.setattr(effects, "Scratch", spy)
    values = {"x": np.array([0.3, 0.8, 1.2]), "out": np.zeros(N), "n": trips, "start": 0}
    gradient(contraction(), values, 1)
    assert sum(asked) <= most


def contraction() -> Function:
    k = Kernel(x="f64[1]", out="f64[1]", n="i32", start="i32")

    def body(i: E) -> None:
        k.out[i] = k.loop(k.start, k.n, [k.x[i]], lambda t, v: [k.sin(v)])

    return finish(k, body)


@qd.kernel
def decay(x: qd.types.ndarray(dtype=qd.f32, ndim=1), y: qd.types.ndarray(dtype=qd.f32, ndim=1), n: qd.i32):
    for i in x:
        a = x[i]
        for _ in range(n):
            a = a - qd.sin(a) * 1e-6
        y[i] = a


def test_the_peak_of_residuals_is_reported_and_bounded():
    """A million trips would record 4 MB a lane; a processor works on several lanes."""
    qd.init(arch="cpu", cpu_max_num_threads=1)
    x, y = (qd.ndarray(qd.f32, 8, needs_grad=True) for _ in range(2))
    x.fill(0.5)
    y.grad.fill(1.0)
    decay(x, y, 1_000_000)
    before = qd.ad.residual_nbytes()
    decay.grad(x, y, 1_000_000)
    after = qd.ad.residual_nbytes()
    assert after >= 65536
    assert after - before <= 2 << 20
    # 0.388 by the differential equation; a million roundings to f32 in each factor's last bits move it.
    np.testing.assert_allclose(x.grad.to_numpy(), np.full(8, 0.388), rtol=0.1)
