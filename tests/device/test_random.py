"""Random numbers: the same on every device, new at every launch, the forward's own in a derivative."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.testing.compare import run_kernel

REALS = qd.types.ndarray(dtype=qd.f32, ndim=1)
GRID = qd.types.ndarray(dtype=qd.f32, ndim=2)
WORDS = qd.types.ndarray(dtype=qd.u32, ndim=2)


def philox(key: int, block: int, iteration: int, task: int) -> list[int]:
    """Philox4x32-10 in Python integers, after its authors' description."""
    keys = [key & 0xFFFFFFFF, key >> 32]
    c = [block, iteration & 0xFFFFFFFF, iteration >> 32, task]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ keys[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@qd.func
def rejected(limit: float) -> float:
    """Draws in the test of a loop, as often as it takes."""
    r = 1.0
    while r > limit or qd.random() > 0.9:
        r = qd.random()
    return r


@qd.kernel
def everything(x: GRID, total: REALS) -> float:
    first = qd.random()
    for i, j in x:
        s = 0.0
        for k in range(j):
            if k % 2 == 0:
                s += qd.random()
            else:
                s -= rejected(0.5)
            if s > 1.2:
                break
        x[i, j] = s + (qd.random() if s > 0 else 10 * qd.randn())
    for i in range(7):
        total[i] = qd.random() + x[0, i]
    return first + qd.random()


def test_control_flow_draws_as_the_reference_does(device):
    for _ in range(4):  # the first through Python, later ones natively where that is possible
        run_kernel(everything, np.zeros((5, 9), np.float32), np.zeros(9, np.float32))


def test_numbers_are_those_of_philox(device):
    @qd.kernel
    def words(out: WORDS):
        for i, j in qd.ndrange((3, 6), 2):
            a = qd.random(qd.u32)
            b = qd.random(qd.u32)
            out[2 * (i - 3) + j, 0] = a
            out[2 * (i - 3) + j, 1] = b
            for k in range(5):
                out[2 * (i - 3) + j, 2 + k] = qd.random(qd.u32)
        for i in range(6):
            out[i, 7] = qd.random(qd.u32)

    out = np.zeros((6, 8), np.uint32)
    for _ in range(3):
        words(out)
    (draws,) = words._draws.values()
    key = draws.last
    for i in range(6):
        first = philox(key, 0, i, 1)
        wanted = first[:2] + [philox(key, 1 + k, i, 1)[0] for k in range(5)] + philox(key, 0, i, 2)[:1]
        assert out[i].tolist() == wanted


def test_types_and_distributions(device):
    types = (qd.f32, qd.f64, qd.f16, qd.i32, qd.u8, qd.i64, qd.u1)
    types = tuple(t for t in types if device.has(f"type.{t.name}"))
    out = {t.name: qd.ndarray(qd.f32, 4096) for t in types}

    @qd.kernel
    def draw(a: REALS, scale: qd.f32, t: qd.template()):
        for i in a:
            a[i] = qd.cast(qd.random(t), qd.f32) * scale

    for t in types:
        draw(out[t.name], 1.0 if t.is_real or t.bits == 1 else 2.0**-t.bits, t)
    for name, array in out.items():
        values = array.to_numpy()
        middle, spread = (0.0, 1.0) if name[0] == "i" else (0.5, 1.0)
        if name == "u1":
            assert set(values) == {0.0, 1.0}
            assert abs(values.mean() - 0.5) < 0.05
            continue
        assert middle - spread / 2 <= values.min() < middle - 0.49 * spread, name
        assert middle + 0.49 * spread < values.max() <= middle + spread / 2, name
        assert abs(values.mean() - middle) < 0.03, name
        assert abs(values.var() - spread / 12) < 0.01, name


@qd.kernel
def noisy(x: REALS, y: REALS, w: REALS):
    for i in range(x.shape[0]):
        r = qd.random()
        for k in range(3):
            r = r * x[i] + qd.random()
        y[i] = r
        w[i] = qd.random()


def test_a_derivative_draws_the_numbers_of_its_launch(device):
    n = 12
    x, y, w = qd.ndarray(qd.f32, n, needs_grad=True), qd.ndarray(qd.f32, n, needs_grad=True), qd.ndarray(qd.f32, n)
    at = np.linspace(0.5, 1.5, n).astype(np.float32)
    seen = []
    for _ in range(4):  # natively in the end; another kernel's launches between do not matter
        x.from_numpy(at)
        noisy(x, y, w)
        x.grad.fill(0)
        y.grad.fill(1)
        everything(np.zeros((2, 8), np.float32), np.zeros(9, np.float32))
        noisy.grad(x, y, w)
        seen.append((y.to_numpy(), x.grad.to_numpy()))
        (draws,) = noisy._draws.values()
        u = np.array([philox(draws.last, 0, i, 1)[0] for i in range(n)], np.uint64)
        u = (u >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
        v = np.array([[philox(draws.last, 1 + k, i, 1)[0] for k in range(3)] for i in range(n)], np.uint64)
        v = (v >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
        np.testing.assert_allclose(seen[-1][1], 3 * u * at**2 + 2 * v[:, 0] * at + v[:, 1], rtol=1e-5)
    assert len({y.tobytes() for y, _ in seen}) == 4
    qd.ad.gradcheck(noisy, (x, y, w))


def test_a_tape_goes_back_over_the_numbers_of_every_launch(device):
    x, y, w = qd.ndarray(qd.f32, 4, needs_grad=True), qd.ndarray(qd.f32, 4, needs_grad=True), qd.ndarray(qd.f32, 4)
    loss = qd.ndarray(qd.f32, 1, needs_grad=True)

    @qd.kernel
    def add(y: REALS, loss: REALS):
        for i in range(y.shape[0]):
            loss[0] += y[i]

    x.fill(1)
    wanted = np.zeros(4)
    with qd.ad.Tape(loss):
        for _ in range(3):
            noisy(x, y, w)
            add(y, loss)
            (draws,) = noisy._draws.values()
            for i in range(4):
                u = philox(draws.last, 0, i, 1)[0] >> 8
                v = [philox(draws.last, 1 + k, i, 1)[0] >> 8 for k in range(2)]
                wanted[i] += (3 * u + 2 * v[0] + v[1]) / 2**24
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=1e-5)


def test_the_seed_and_the_launch_choose_the_numbers(device):
    def numbers(seed: int, launches: int) -> list[bytes]:
        qd.init(getattr(qd, device.name, None) or device.name, random_seed=seed)
        y, w = np.zeros(4, np.float32), np.zeros(4, np.float32)
        found = []
        for _ in range(launches):
            noisy(np.zeros(4, np.float32), y, w)
            found.append(w.tobytes())
        return found

    first, again, other = numbers(3, 4), numbers(3, 4), numbers(4, 4)
    assert first == again
    assert len({*first, *other}) == 8


def test_outside_of_kernels_there_are_no_streams():
    with pytest.raises(qd.QuadrantsSyntaxError, match="only available in kernels"):
        qd.random()
    with pytest.raises(qd.QuadrantsSyntaxError, match="only available in kernels"):
        qd.randn(qd.f32)


def test_what_cannot_be_drawn_is_refused_at_the_line(device):
    @qd.kernel
    def integers(x: REALS):
        for i in x:
            x[i] = qd.randn(qd.i32)

    @qd.kernel
    def several(x: REALS):
        for i in x:
            x[i] = qd.random(qd.f32, 3)

    for kernel, text in ((integers, "randn gives reals"), (several, "at most a scalar type")):
        with pytest.raises(qd.QuadrantsTypeError, match=text) as caught:
            kernel(np.zeros(3, np.float32))
        assert "^" in str(caught.value)
