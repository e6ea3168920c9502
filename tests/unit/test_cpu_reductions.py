"""Reductions and scatters of several threads on the CPU: right, and totals the same in every run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import qd_core as qd

N = 60_000
Reals = qd.types.ndarray(dtype=qd.f32, ndim=1)
Keys = qd.types.ndarray(dtype=qd.i32, ndim=1)
Steps = qd.types.ndarray(dtype=qd.f32, ndim=3)
Grid = qd.types.ndarray(dtype=qd.f32, ndim=2)


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    qd.init(arch=qd.cpu, cpu_max_num_threads=request.param, offline_cache=False, log_level="error")
    yield request.param
    qd.init(arch=qd.cpu, cpu_max_num_threads=1, offline_cache=False, log_level="error")
    qd.reset()


@qd.kernel
def moments(x: Reals, s: Reals):
    for i in range(x.shape[0]):
        s[0] += x[i]
        s[1] += x[i] * x[i]
        qd.atomic_max(s[2], x[i])


@qd.kernel
def histogram(k: Keys, h: Keys):
    for i in range(k.shape[0]):
        h[k[i]] += 1


@qd.kernel
def spread(k: Keys, w: Reals, g: Grid):
    for i in range(k.shape[0]):
        for j in range(2):
            g[k[i], j] += w[i]
        g[k[i], 1] += 1.0


def values(n: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=n).astype(np.float32)


def keys(n: int, bins: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, bins, n, np.int32)


totals_of_one_thread: dict[int, np.ndarray] = {}


@pytest.mark.parametrize("n", [0, 1, 37, N])
def test_totals_are_the_same_in_every_run_and_with_any_number_of_threads(threads: int, n: int) -> None:
    x = values(n)
    results = []
    for _ in range(5):
        s = np.array([1, 2, -9], np.float32)
        moments(x, s)
        results.append(s)
    wanted = [1 + x.sum(dtype=np.float64), 2 + (x.astype(np.float64) ** 2).sum(), max(-9, *x) if n else -9]
    np.testing.assert_allclose(results[0], wanted, rtol=2e-6, atol=2e-5)
    first = totals_of_one_thread.setdefault(n, results[0])
    assert all(np.array_equal(s, first) for s in results)


@pytest.mark.parametrize("bins", [1, 64, 1000, 300_000])
def test_histograms_count_everything(threads: int, bins: int) -> None:
    k, h = keys(N, bins), np.full(bins, 5, np.int32)
    for turn in range(1, 4):  # the first launch does not know the number of threads yet
        histogram(k, h)
        np.testing.assert_array_equal(h, 5 + turn * np.bincount(k, minlength=bins))


@pytest.mark.parametrize("columns", [2, 3])
def test_scatters_into_parts_of_an_array_leave_the_rest_alone(threads: int, columns: int) -> None:
    k, w = keys(N, 50), np.ones(N, np.float32)
    whole = np.full((50, columns), -0.0, np.float32)
    g = qd.ndarray(qd.f32, (50, columns))
    g.from_numpy(whole)
    for turn in range(1, 4):
        spread(k, w, g)
        counts = np.bincount(k, minlength=50).astype(np.float32)
        wanted = np.zeros((50, columns), np.float32)
        wanted[:, 0], wanted[:, 1] = turn * counts, 2 * turn * counts
        np.testing.assert_array_equal(g.to_numpy(), wanted)


@qd.kernel
def one_step(k: Keys, steps: Steps, t: qd.i32):
    for i in range(k.shape[0]):
        if t < steps.shape[0]:
            steps[t, k[i], 0] += 1.0
            steps[t, k[i], 2] += 2.0


def test_rows_of_a_large_array_get_copies(threads: int) -> None:
    """The array is larger than what is copied; the row after the last is not touched."""
    k, steps = keys(N, 40), qd.ndarray(qd.f32, (2000, 50, 3))
    counts = np.bincount(k, minlength=50).astype(np.float32)
    for t in (3, 3, 1999, 2000, 0, 3):
        one_step(k, steps, t)
    found = steps.to_numpy()
    for t, turns in ((0, 1), (3, 3), (1999, 1)):
        np.testing.assert_array_equal(found[t], turns * counts[:, None] * [1, 0, 2])
        found[t] = 0
    assert not found.any()


def test_keys_and_counts_in_one_array(threads: int) -> None:
    k = qd.ndarray(qd.i32, N)
    k.from_numpy(np.zeros(N, np.int32))

    @qd.kernel
    def bump(k: Keys, h: Keys):
        for i in range(1, k.shape[0]):
            h[k[i]] += 1

    for turn in range(1, 4):
        bump(k, k)  # one array: there must be no copies, whose values the keys would not see
        assert k.to_numpy()[0] == turn * (N - 1)


def test_launches_from_several_python_threads(threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    k = keys(N, 200)
    wanted = np.bincount(k, minlength=200)

    def one(_: int) -> bool:
        h = np.zeros(200, np.int32)
        for _ in range(5):
            histogram(k, h)
        return np.array_equal(h, 5 * wanted)

    histogram(k, np.zeros(200, np.int32))
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(one, range(6)))


@qd.kernel
def running(x: Reals, s: Reals):
    qd.loop_config(serialize=True)
    for i, j in qd.ndrange(10, x.shape[0] // 10):
        s[0] += x[i * (x.shape[0] // 10) + j]
        x[i * (x.shape[0] // 10) + j] = s[0]


def test_a_serial_loop_runs_in_order(threads: int) -> None:
    x, s = np.ones(5000, np.float32), np.zeros(1, np.float32)
    running(x, s)
    assert np.array_equal(x, np.arange(1, 5001))
    assert s[0] == 5000


@qd.kernel
def add_and_look(s: Reals, x: Reals, out: Reals):
    for i in range(out.shape[0]):
        s[0] += 2.0
        out[i] = x[0]


@qd.kernel
def add_and_look_at(k: Keys, s: Reals, x: Reals, out: Reals):
    for i in range(out.shape[0]):
        s[k[i]] += 2.0
        out[i] = x[k[i]]


def test_an_iteration_sees_its_own_additions_under_another_name(threads: int) -> None:
    s, out = np.zeros(3, np.float32), np.zeros(1, np.float32)
    for turn in range(1, 4):
        add_and_look(s, s, out)
        assert out[0] == s[0] == 2 * turn
    n = 20_000
    s, out = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for turn in range(1, 4):
        add_and_look_at(np.arange(n, dtype=np.int32)[::-1].copy(), s, s, out)
        assert (s == 2 * turn).all()
        assert (out == 2 * turn).all()
