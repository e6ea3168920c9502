"""`qd.algorithms`: reduce, scan, select, sort, reduce_by_key against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError

pytestmark = pytest.mark.usefixtures("device")

A = qd.algorithms
SIZES = [0, 1, 255, 256, 257, 5000]


def numbers(dtype, n, seed=0):
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype.numpy)
    if dtype.is_real:
        return rng.normal(size=n).astype(kind)
    return rng.integers(0 if not dtype.is_signed else -1000, 1000, n).astype(kind)


def types_of(device, *names):
    """Those types that the device has."""
    return [getattr(qd, d) for d in names if device.capabilities.has(f"type.{d}")]


def scratch_of(dtype, slots):
    return qd.field(qd.u64 if dtype.nbytes == 8 else qd.u32, max(slots, 1))


def test_reductions_and_scans(device):
    @qd.kernel
    def run(
        x: qd.Tensor, out: qd.Tensor, totals: qd.Tensor, scratch: qd.Tensor, count: qd.Tensor, dtype: qd.template()
    ):
        A.reduce_add(x, totals, scratch, count[0], dtype, 2)
        totals[1] = totals[0]
        A.reduce_min(x, totals, scratch, count[0], dtype, 2)
        totals[2] = totals[0]
        A.reduce_max(x, totals, scratch, count[0], dtype, 2)
        A.exclusive_scan_add(x, out, scratch, count[0], dtype, 2)

    @qd.kernel
    def scan_max(x: qd.Tensor, scratch: qd.Tensor, n: qd.i32, dtype: qd.template()):
        A.exclusive_scan_max(x, x, scratch, n, dtype, 2)

    capacity = max(SIZES) + 7
    for dtype in types_of(device, "u32", "f32", "i64"):
        x, out, totals = qd.ndarray(dtype, capacity), qd.field(dtype, capacity), qd.field(dtype, 3)
        count = qd.field(qd.i32, 1)
        scratch = scratch_of(dtype, A.reduce_scratch_slots(capacity, 2))
        data = numbers(dtype, capacity)
        close = {"rtol": 1e-4, "atol": 1e-2} if dtype is qd.f32 else {"rtol": 1e-10, "atol": 1e-9}
        for n in SIZES:
            x.from_numpy(data)
            out.fill(3)
            count[0] = n
            run(x, out, totals, scratch, count, dtype)
            head = data[:n]
            got, high = out.to_numpy(), totals[0]
            assert np.allclose(totals[1], head.sum(), **close)
            sums = np.concatenate([[0], np.cumsum(head, dtype=dtype.numpy)])[:n]
            assert np.allclose(got[:n], sums, **close)
            assert (got[n:] == 3).all()
            if n:
                assert (totals[2], high) == (head.min(), head.max())
            scan_max(x, scratch, n, dtype)
            lowest = -np.inf if dtype.is_real else np.iinfo(dtype.numpy).min
            wanted = np.concatenate([[lowest], np.maximum.accumulate(head)])[:n].astype(dtype.numpy)
            assert np.array_equal(x.to_numpy(), np.concatenate([wanted, data[n:]]))


def test_selection_and_runs():
    @qd.kernel
    def run(
        x: qd.Tensor, flags: qd.Tensor, keys: qd.Tensor, out: qd.Tensor, keys_out: qd.Tensor, sums: qd.Tensor,
        counts: qd.Tensor, runs: qd.Tensor, scratch: qd.Tensor, n: qd.i32
    ):  # fmt: skip
        A.select(x, flags, out, counts, scratch, n, 2)
        A.reduce_by_key_add(keys, x, keys_out, sums, runs, scratch, n, qd.i32, 2)

    capacity = max(SIZES)
    x, keys_out, sums = (qd.field(qd.i32, capacity) for _ in range(3))
    flags, keys, out = (qd.ndarray(qd.i32, capacity) for _ in range(3))
    counts, runs = qd.field(qd.i32, 1), qd.field(qd.i32, 1)
    scratch = qd.field(qd.u32, A.reduce_by_key_scratch_slots(capacity))
    data, flag = numbers(qd.i32, capacity), np.random.default_rng(1).integers(0, 2, capacity).astype(np.int32)
    key = np.repeat(np.arange(capacity), np.random.default_rng(2).integers(1, 300, capacity))[:capacity]
    x.from_numpy(data)
    flags.from_numpy(flag)
    keys.from_numpy(key.astype(np.int32))
    for n in SIZES:
        run(x, flags, keys, out, keys_out, sums, counts, runs, scratch, n)
        wanted = data[:n][flag[:n] == 1]
        assert counts[0] == len(wanted)
        assert np.array_equal(out.to_numpy()[: len(wanted)], wanted)
        found, first = np.unique(key[:n], return_index=True)
        assert runs[0] == len(found)
        assert np.array_equal(keys_out.to_numpy()[: len(found)], found)
        if n:
            assert np.array_equal(sums.to_numpy()[: len(found)], np.add.reduceat(data[:n], first))


def test_sorting(device):
    n = 100
    for dtype in types_of(device, "f32", "i64"):
        data = numbers(dtype, n)
        data[50:80] = data[:30]
        if dtype.is_real:
            data[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.nan]
        keys, values = qd.ndarray(dtype, n), qd.field(qd.i32, n)
        keys.from_numpy(data)
        values.from_numpy(np.arange(n))
        A.parallel_sort(keys, values)
        assert np.array_equal(keys.to_numpy(), np.sort(data, kind="stable"), equal_nan=True)
        assert np.array_equal(values.to_numpy(), np.argsort(data, kind="stable"))


def test_sorting_in_a_kernel_by_some_bits():
    @qd.kernel
    def run(keys: qd.Tensor, tmp: qd.Tensor, scratch: qd.Tensor, count: qd.Tensor, bits: qd.template()):
        A.sort(keys, tmp, keys, tmp, scratch, count[0], qd.u32, False, bits, 2)

    n = 1030
    keys, tmp, count = qd.field(qd.u32, n + 5), qd.field(qd.u32, n + 5), qd.field(qd.i32, 1)
    scratch = qd.field(qd.u32, A.sort_scratch_slots(n + 5, 2))
    count[0] = n
    data = np.random.default_rng(3).integers(0, 2**24, n + 5).astype(np.uint32)
    for bits in (16, 8):
        keys.from_numpy(data)
        run(keys, tmp, scratch, count, bits)
        order = np.argsort(data[:n] & np.uint32(2**bits - 1), kind="stable")
        assert np.array_equal(keys.to_numpy(), np.concatenate([data[:n][order], data[n:]]))
    with pytest.raises(qd.QuadrantsCompilationError, match="end_bit"):
        run(keys, tmp, scratch, count, 40)


def test_older_forms():
    x = qd.field(qd.i32, 1000)
    data = numbers(qd.i32, 1000)
    x.from_numpy(data)
    sums = A.PrefixSumExecutor(1000)
    sums.run(x)
    assert np.array_equal(x.to_numpy(), np.cumsum(data))
    for bad in (
        lambda: sums.run(qd.field(qd.i32, 10)),
        lambda: A.PrefixSumExecutor(3).run(qd.ndarray(qd.i8, 3)),
        lambda: A.parallel_sort(qd.field(qd.i32, (2, 2))),
        lambda: A.parallel_sort(x, qd.field(qd.i32, 3)),
    ):
        with pytest.raises(ArgumentValueError):
            bad()
    A.parallel_sort(qd.ndarray(qd.f32, 0))
