"""Checks a CUDA device in one process: results, messages, tensors of torch, launch overhead; prints one JSON line."""

from __future__ import annotations

import json
import time
import traceback
from typing import Any

import numpy as np

import qd_core as qd

N1 = qd.types.ndarray(dtype=qd.f32, ndim=1)
N2 = qd.types.ndarray(dtype=qd.f32, ndim=2)


@qd.kernel
def axpy(a: qd.f32, x: N1, y: N1):
    for i in range(x.shape[0]):
        y[i] += a * x[i]


@qd.kernel
def stencil(x: N2, y: N2):
    for i, j in qd.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
        y[i, j] = x[i, j] + 2 * x[i - 1, j] + 3 * x[i + 1, j] + 4 * x[i, j - 1] + 5 * x[i, j + 1]


@qd.kernel
def total(x: N1, s: N1):
    for i in range(x.shape[0]):
        s[0] += x[i]


@qd.kernel
def count(k: qd.types.ndarray(dtype=qd.i32, ndim=1), h: qd.types.ndarray(dtype=qd.i32, ndim=1)):
    for i in range(k.shape[0]):
        h[k[i]] += 1


@qd.kernel
def loop(x: N1, a: N1, s: N1, n: qd.i32):
    for i in range(x.shape[0]):
        v = x[i]
        for t in range(n):
            v = a[i] * qd.sin(v) + 0.1
        s[0] += v


@qd.kernel
def tiny(x: N1):
    for i in range(x.shape[0]):
        x[i] += 1.0


@qd.kernel
def sums(b: N2, y: N1, z: qd.types.ndarray(dtype=qd.i64, ndim=1)):
    for i in range(y.shape[0]):
        total, n = b[i, 0] * 0.5, qd.i64(3)
        for j in range(1, i % b.shape[1]):
            total += b[i, j] * b[0, j]
            n += j
        y[i] += total
        z[i] = n


@qd.kernel
def splat(
    k: qd.types.ndarray(dtype=qd.i32, ndim=1), v: N2, g: qd.types.ndarray(dtype=qd.types.vector(2, qd.f32), ndim=1)
):
    for i in range(k.shape[0]):
        g[k[i]] += qd.Vector([v[i, 0], v[i, 1]])


def check_sums(out: dict[str, Any]) -> None:
    for n, m in ((1, 1), (7, 40), (100, 1000), (3000, 333), (200000, 9)):
        b0 = np.random.rand(n, m).astype(np.float32)
        b, y, z = qd.ndarray(qd.f32, (n, m)), qd.ndarray(qd.f32, n), qd.ndarray(qd.i64, n)
        b.from_numpy(b0)
        for _ in range(2):
            sums(b, y, z)
        ends = np.maximum(np.arange(n) % m, 1)
        wide = b0.astype(float)
        partial = np.cumsum(wide[:, 1:] * wide[0, 1:], axis=1) if m > 1 else np.zeros((n, 1))
        wanted = 0.5 * wide[:, 0] + np.where(ends > 1, partial[np.arange(n), np.maximum(ends - 2, 0)], 0)
        np.testing.assert_allclose(y.to_numpy(), 2 * wanted, rtol=2e-5)
        assert np.array_equal(z.to_numpy(), 3 + ends * (ends - 1) // 2), (n, m)


def check_splat(out: dict[str, Any]) -> None:
    n, cells = 100_000, 777
    k0, v0 = np.random.randint(0, cells, n).astype(np.int32), np.random.randint(0, 9, (n, 2)).astype(np.float32)
    k, v, g = qd.ndarray(qd.i32, n), qd.ndarray(qd.f32, (n, 2)), qd.Vector.ndarray(2, qd.f32, cells)
    k.from_numpy(k0)
    v.from_numpy(v0)
    splat(k, v, g)
    wanted = np.stack([np.bincount(k0, v0[:, c], cells) for c in range(2)], 1)
    assert np.array_equal(g.to_numpy(), wanted)


def check_axpy(out: dict[str, Any]) -> None:
    for n in (1, 31, 1000, 1024, 5000, 1 << 20):
        x0, y0 = np.random.rand(n).astype(np.float32), np.random.rand(n).astype(np.float32)
        x, y = qd.ndarray(qd.f32, n), qd.ndarray(qd.f32, n)
        x.from_numpy(x0)
        y.from_numpy(y0)
        for _ in range(3):
            axpy(0.5, x, y)
        np.testing.assert_allclose(y.to_numpy(), y0 + 1.5 * x0, rtol=1e-5)
        axpy(0.5, x0, y0)


def check_stencil(out: dict[str, Any]) -> None:
    for shape in ((3, 3), (40, 70), (300, 1500), (7, 5000), (2000, 2050)):
        x0 = np.random.rand(*shape).astype(np.float32)
        x, y = qd.ndarray(qd.f32, shape), qd.ndarray(qd.f32, shape)
        x.from_numpy(x0)
        stencil(x, y)
        c = x0[1:-1, 1:-1] + 2 * x0[:-2, 1:-1] + 3 * x0[2:, 1:-1] + 4 * x0[1:-1, :-2] + 5 * x0[1:-1, 2:]
        np.testing.assert_allclose(y.to_numpy()[1:-1, 1:-1], c, rtol=1e-5)


def check_total(out: dict[str, Any]) -> None:
    for n in (1, 77, 5000, 1 << 24):
        x, s = qd.ndarray(qd.f32, n), qd.ndarray(qd.f32, 1)
        x.fill(0.75)
        total(x, s)
        assert abs(s.to_numpy()[0] / (0.75 * n) - 1) < 1e-6, (n, s.to_numpy())


def check_count(out: dict[str, Any]) -> None:
    for n, bins in ((100, 7), (1 << 20, 1024), (1 << 20, 5000)):
        k0 = np.random.randint(0, bins, n).astype(np.int32)
        k, h = qd.ndarray(qd.i32, n), qd.ndarray(qd.i32, bins)
        k.from_numpy(k0)
        count(k, h)
        assert np.array_equal(h.to_numpy(), np.bincount(k0, minlength=bins)), (n, bins)


def check_gradient(out: dict[str, Any]) -> None:
    n, trips = 5000, 40
    x, a, s = (qd.ndarray(qd.f32, m, needs_grad=True) for m in (n, n, 1))
    x0, a0 = np.random.rand(n), 1 + 0.5 * np.random.rand(n)
    x.from_numpy(x0.astype(np.float32))
    a.from_numpy(a0.astype(np.float32))
    s.grad.fill(1.0)
    loop(x, a, s, trips)
    loop.grad(x, a, s, trips)
    v, dx, da = x0.astype(np.float32).astype(float), np.ones(n), np.zeros(n)
    a0 = a0.astype(np.float32).astype(float)
    for _ in range(trips):
        dx, da, v = a0 * np.cos(v) * dx, np.sin(v) + a0 * np.cos(v) * da, a0 * np.sin(v) + np.float32(0.1)
    out["gradient_error"] = [
        float(np.abs(x.grad.to_numpy() - dx).max() / np.abs(dx).max()),
        float(np.abs(a.grad.to_numpy() - da).max() / np.abs(da).max()),
    ]
    assert max(out["gradient_error"]) < 1e-3


def check_torch(out: dict[str, Any]) -> None:
    import torch

    x, y = torch.rand(5000, device="cuda"), torch.rand(5000, device="cuda")
    wanted = y + 0.5 * x
    axpy(0.5, x, y)
    assert torch.allclose(y, wanted)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            z = torch.zeros(1 << 22, device="cuda")
            z += 1
            tiny(z)
            z *= 3
            assert bool((z == 6).all())
    p = torch.rand(100, device="cuda", requires_grad=True)
    s = torch.zeros(1, device="cuda", requires_grad=True)
    total.grad  # noqa: B018
    s.grad = torch.ones(1, device="cuda")
    total.grad(p, s)
    assert torch.allclose(p.grad, torch.ones(100, device="cuda"))
    five = [torch.zeros(1, device="cuda") for _ in range(5)]
    out["torch_5_us"] = per_call(lambda: five_tensors(*five))
    assert five[0].item() > 0


@qd.kernel
def five_tensors(a: N1, b: N1, c: N1, d: N1, e: N1):
    for i in range(a.shape[0]):
        a[i] += 1.0
        b[i] += 1.0
        c[i] += 1.0
        d[i] += 1.0
        e[i] += 1.0


def per_call(call: Any, times: int = 3000) -> float:
    for _ in range(20):
        call()
    qd.sync()
    best = 1e9
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times // 5):
            call()
        best = min(best, (time.perf_counter() - begin) / (times // 5))
        qd.sync()
    return round(best * 1e6, 3)


def check_launch(out: dict[str, Any]) -> None:
    x = qd.ndarray(qd.f32, 1)
    out["launch_1_us"] = per_call(lambda: tiny(x))


def check_out_of_memory(out: dict[str, Any]) -> None:
    try:
        qd.ndarray(qd.f32, 1 << 40)
    except qd.QuadrantsRuntimeError as error:
        out["out_of_memory"] = str(error)[:200]
    else:
        raise AssertionError("4 TiB were allocated")
    check_total(out)


def main() -> None:
    out: dict[str, Any] = {}
    begin = time.perf_counter()
    qd.init(arch=qd.cuda, enable_fallback=False)
    out["init_s"] = round(time.perf_counter() - begin, 3)
    from qd_core.runtime.context import current

    out["device"], out["target"] = current().info.name, current().info.target.name
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check(out)
                out[name] = "ok"
            except Exception:
                out[name] = traceback.format_exc()[-1200:]
    print(json.dumps(out))


if __name__ == "__main__":
    main()
