"""What kernels say: `print`, `assert`, bounds and division by zero reach the user, and none stops the process."""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import QuadrantsAssertionError, QuadrantsRuntimeError
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import in_slice, requires

__all__ = [
    "test_a_failed_assertion_names_kernel_line_and_values",
    "test_a_wrong_index_names_array_index_and_shape_and_writes_nothing",
    "test_checks_cost_nothing_that_release_does_not_ask_for",
    "test_integer_division_by_zero_is_reported_everywhere",
    "test_messages_beyond_the_log_are_counted",
    "test_messages_come_before_the_failure",
    "test_prints_arrive_once_and_formatted",
    "test_the_device_works_after_a_failed_check",
]

I1 = qd.types.ndarray(dtype=qd.i32, ndim=1)


@qd.kernel
def shout(x: I1):
    """Print from parallel iterations."""
    for i in range(x.shape[0]):
        if x[i] > 2:
            print("big", i, x[i] * 0.5, f"and {x[i]:5d}", sep="|", end=";\n")


@qd.kernel
def serial_shout(n: qd.i32, r: qd.f32):
    """Print from serial code."""
    print(n, -n, r)
    print("done")


@qd.kernel
def small(x: I1, y: I1):
    """Check what each iteration reads."""
    for i in range(x.shape[0]):
        assert x[i] < 3, f"x[{i}] = {x[i]} is too large"
        y[i] = x[i] + 1


@qd.kernel
def shifted(x: I1, y: I1, by: qd.i32):
    """Read and write beyond the end, or before the start."""
    for i in range(x.shape[0]):
        y[i + by] = x[i]


@qd.kernel
def quotient(x: I1, y: I1, z: I1):
    """Divide by what may be zero."""
    for i in range(x.shape[0]):
        y[i] = 10 // x[i]
        z[i] = 10 % x[i]


@qd.kernel
def talk_and_fail(x: I1):
    """A message, then a failure."""
    for _ in range(1):
        print("before")
        assert x[0] == 0, "not zero"


def numbers(*values: int) -> Any:
    """Return an array of i32."""
    return np.array(values, np.int32)


@in_slice("smoke")
@requires("log.records")
def test_prints_arrive_once_and_formatted(device: DeviceUnderTest, capfd: pytest.CaptureFixture[str]) -> None:
    """Each print is one piece of text; parallel ones come in any order."""
    capfd.readouterr()
    for _ in range(2):
        shout(numbers(0, 1, 2, 3, 4))
    serial_shout(7, 0.25)
    qd.sync()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines[:4]) == ["big|3|1.500000|and     3;"] * 2 + ["big|4|2.000000|and     4;"] * 2
    assert lines[4:] == ["7 -7 0.250000", "done"]


@requires("log.records")
def test_messages_beyond_the_log_are_counted(device: DeviceUnderTest, capfd: pytest.CaptureFixture[str]) -> None:
    """What does not fit is dropped with a notice; no line is torn."""
    capfd.readouterr()
    count = 40_000
    shout(np.full(count, 3, np.int32))
    qd.sync()
    *lines, notice = capfd.readouterr().out.splitlines()
    assert all(re.fullmatch(r"big\|\d+\|1\.500000\|and     3;", line) for line in lines)
    assert len(set(lines)) == len(lines)
    dropped = re.search(r"(\d+) log records", notice)
    assert dropped is not None
    assert int(dropped[1]) + len(lines) == count


@in_slice("smoke")
@requires("log.records")
@pytest.mark.qd_options(debug=True)
def test_a_failed_assertion_names_kernel_line_and_values(device: DeviceUnderTest) -> None:
    """One of the failures is reported with its own values; the others' work is done."""
    x, y = numbers(*range(40)), np.zeros(40, np.int32)
    with pytest.raises(QuadrantsAssertionError) as caught:
        small(x, y)
    text = str(caught.value)
    match = re.search(r"x\[(\d+)\] = (\d+) is too large", text)
    assert match is not None, text
    assert 3 <= int(match[1]) == int(match[2]) < 40
    assert f"iteration {match[1]}" in text
    assert "messages.py" in text
    assert "in small" in text
    assert "assert x[i] < 3" in text
    assert y.tolist() == list(range(1, 41)), "iterations after a failed check did not go on"


@requires("log.records")
@pytest.mark.qd_options(check_out_of_bound=True)
def test_a_wrong_index_names_array_index_and_shape_and_writes_nothing(device: DeviceUnderTest) -> None:
    """Above the end and below the start."""
    for by, wanted in ((3, {4, 5, 6}), (-2, {-2, -1})):
        x, y = numbers(1, 2, 3, 4), numbers(0, 0, 0, 0)
        with pytest.raises(QuadrantsAssertionError) as caught:
            shifted(x, y, by)
        match = re.search(r"y\[(-?\d+)\] of shape \(4,\)", str(caught.value))
        assert match is not None, str(caught.value)
        assert int(match[1]) in wanted
        assert "y[i + by] = x[i]" in str(caught.value)
        assert y.tolist() == ([0, 0, 0, 1] if by == 3 else [3, 4, 0, 0])


@requires("log.records")
def test_integer_division_by_zero_is_reported_everywhere(device: DeviceUnderTest) -> None:
    """In release too; the quotient and the remainder are 0, the other iterations' are right."""
    y, z = numbers(9, 9, 9), numbers(9, 9, 9)
    with pytest.raises(QuadrantsRuntimeError, match="integer division by zero"):
        quotient(numbers(3, 0, -4), y, z)
    assert (y.tolist(), z.tolist()) == ([3, 0, -3], [1, 0, -2])


def test_checks_cost_nothing_that_release_does_not_ask_for(device: DeviceUnderTest) -> None:
    """Without debug, assertions are not compiled."""
    y = np.zeros(5, np.int32)
    small(numbers(*range(5)), y)
    assert y.tolist() == [1, 2, 3, 4, 5]


@requires("log.records")
@pytest.mark.qd_options(debug=True)
def test_messages_come_before_the_failure(device: DeviceUnderTest, capfd: pytest.CaptureFixture[str]) -> None:
    """What was printed in the failing launch is shown."""
    capfd.readouterr()
    with pytest.raises(QuadrantsAssertionError, match="not zero"):
        talk_and_fail(numbers(1))
    assert capfd.readouterr().out.splitlines() == ["before"]


@requires("log.records")
@pytest.mark.qd_options(debug=True)
def test_the_device_works_after_a_failed_check(device: DeviceUnderTest) -> None:
    """A failure is reported once, and the next launch is a clean one."""
    y = np.zeros(3, np.int32)
    for _ in range(2):
        with pytest.raises(QuadrantsAssertionError):
            small(numbers(5, 6, 7), y)
        small(numbers(0, 1, 2), y)
        assert y.tolist() == [1, 2, 3]
