"""Debug mode: integer arithmetic that wraps is reported with kernel, line and iteration, and wraps as ever."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

EDGES = (0, 1, 2, 3, 1 << 15, 1 << 16, 1 << 31, 1 << 62)


def edges(dtype) -> list[int]:
    near = {int(dtype.min), int(dtype.min) + 1, int(dtype.max) - 1, int(dtype.max), -1, -2}
    return sorted(v for v in {*EDGES, *near} if dtype.min <= v <= dtype.max)


@pytest.mark.qd_options(debug=True)
@pytest.mark.parametrize("dtype", [qd.i32, qd.u32, qd.i64, qd.u64])
def test_reports_are_exact(device, capfd, dtype):
    if not device.has(f"type.{dtype.name}"):
        pytest.skip(f"the device has no {dtype.name}")
    array = qd.types.ndarray(dtype=dtype, ndim=1)

    @qd.kernel
    def combine(x: array, y: array, out: qd.types.ndarray(dtype=dtype, ndim=2)):
        for i in x:
            out[0, i] = x[i] + y[i]
            out[1, i] = x[i] - y[i]
            out[2, i] = x[i] * y[i]
            out[3, i] = x[i] << y[i]

    values = edges(dtype)
    x, y = (np.array(v, dtype.numpy) for v in zip(*((a, b) for a in values for b in values), strict=True))
    out = np.zeros((4, len(x)), dtype.numpy)
    combine(x, y, out)
    exact = np.zeros((4, len(x)), object)
    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        exact[:, i] = a + b, a - b, a * b, a << b if 0 <= b < 200 else (0 if a == 0 else 1 << 300)
    wrapped = (exact > int(dtype.max)) | (exact < int(dtype.min))
    modulus = 1 << dtype.bits
    assert all((int(g) - int(e)) % modulus == 0 for g, e in zip(out.ravel(), exact.ravel(), strict=True))
    text = capfd.readouterr().out
    for row, word in zip(wrapped, ("Addition", "Subtraction", "Multiplication", "Shift"), strict=True):
        count = int(row.sum())
        more = f", and {count - 1} times more" if count > 1 else ""
        assert (f"{word} overflow detected" in text) == bool(count)
        if count:
            report = text[text.index(f"{word} overflow") :]
            first, *_, last = report.split("\n")[:5]
            assert f"({dtype.name})" in first
            assert "in combine" in report.split("\n")[1]
            assert last.endswith(more)
            assert last.startswith("  in iteration ")


@pytest.mark.qd_options(debug=True)
def test_negation_and_what_does_not_wrap(device, capfd):
    @qd.kernel
    def negate(a: int, b: qd.u8) -> (int, qd.u8):
        return -a, b + b

    assert negate(5, 255) == (-5, 254)
    assert capfd.readouterr().out == ""
    assert negate(-(2**31), 1) == (-(2**31), 2)
    assert "0 - -2147483648 became -2147483648 (i32)" in capfd.readouterr().out


def test_without_debug_mode_nothing_is_reported(device, capfd):
    @qd.kernel
    def add(a: int) -> int:
        return a + 1

    assert add(2**31 - 1) == -(2**31)
    assert capfd.readouterr().out == ""
