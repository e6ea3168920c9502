"""Literals, promotion, casts and operators of the kernel language (API section 0)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from frontend_run import qd, refuse, run

from qd_core.errors import QuadrantsTypeError

OUT_I = qd.types.ndarray(qd.i32, 1)
OUT_F = qd.types.ndarray(qd.f32, 1)
OUT_U = qd.types.ndarray(qd.u32, 1)


def test_division_and_modulo_follow_python() -> None:
    def k(out: OUT_F, a: qd.i32, b: qd.i32):
        out[0] = a / b
        out[1] = a // b
        out[2] = a % b
        out[3] = qd.raw_div(a, b)
        out[4] = qd.raw_mod(a, b)
        out[5] = -7.5 % (b * 1.0)
        out[6] = qd.cast(a, qd.f32) // b

    out = np.zeros(7, np.float32)
    run(k, out, -7, 2)
    assert out.tolist() == [-3.5, -4, 1, -3, -1, 0.5, -4]
    run(k, out, 7, -2)
    assert out[:5].tolist() == [-3.5, -4, -1, -3, 1]


def test_integer_division_by_zero_gives_zero_and_a_report() -> None:
    def k(a: int, b: int) -> int:
        return a // b + a % b

    done = run(k, 7, 0)
    assert done.result == 0
    assert done.failures[0] == "division: integer division by zero: 7 by 0"
    assert not run(k, 7, 2).failures


def test_a_constant_divisor_is_not_checked() -> None:
    def k(a: int) -> int:
        return a // 3

    assert run(k, -7).result == -3


def test_promotion() -> None:
    def unsigned(a: qd.u32, b: qd.i32) -> qd.u1:
        return a < b

    assert run(unsigned, 1, -1).result  # compared as u32

    def bytes_wrap(a: qd.u8, b: qd.u8) -> qd.i32:
        return a + b

    assert run(bytes_wrap, 255, 255).result == 254

    def literal_is_i32(a: qd.u8) -> qd.i32:
        return a + 255

    assert run(literal_is_i32, 255).result == 510

    def literal_in_real(a: qd.f32) -> qd.f64:
        return a * 16777217

    assert run(literal_in_real, 1.0).result == 16777216.0


def test_truth_values_count_as_integers() -> None:
    def k(a: qd.i32) -> qd.i32:
        return (a > 0) + (a > 1) - (-(a > 2))

    assert run(k, 3).result == 3


def test_shifts() -> None:
    def k(out: OUT_I, a: qd.i32, n: qd.i32):
        out[0] = a << n
        out[1] = a >> n
        out[2] = qd.bit_shr(a, n)

    out = np.zeros(3, np.int32)
    run(k, out, -8, 1)
    assert out.tolist() == [-16, -4, 0x7FFFFFFC]
    run(k, out, -8, 40)
    assert out.tolist() == [0, -1, 0]


def test_a_wide_shift_amount_is_not_wrapped_into_range() -> None:
    def k(a: qd.u8, n: qd.i32) -> qd.i32:
        return a << n

    assert run(k, 1, 256).result == 0


def test_powers() -> None:
    def k(out: OUT_F, x: qd.f32, n: qd.i32):
        out[0] = x**2
        out[1] = x**n
        out[2] = x**0.5
        out[3] = 2**n
        out[4] = x**3.0

    out = np.zeros(5, np.float32)
    run(k, out, 4.0, 3)
    assert out.tolist() == [16, 64, 2, 8, 64]


def test_power_of_an_integer_keeps_its_type() -> None:
    def k(a: qd.i32, n: qd.i32) -> qd.f32:
        return a**n / 2

    assert run(k, 3, 2).result == 4.5


def test_a_negative_constant_exponent_of_an_integer_is_refused() -> None:
    def k(a: qd.i32) -> qd.i32:
        return a**-1

    error = refuse(k, 2)
    assert isinstance(error, QuadrantsTypeError)
    assert "Negative exponent in pow(int, int) is not allowed." in str(error)


def test_chained_comparison_and_logic_give_operand_values() -> None:
    def k(out: OUT_I, a: qd.i32, b: qd.i32):
        out[0] = 0 < a <= b
        out[1] = a and b
        out[2] = a or b
        out[3] = not a

    out = np.zeros(4, np.int32)
    run(k, out, 2, 4)
    assert out.tolist() == [1, 4, 2, 0]
    run(k, out, 0, 4)
    assert out.tolist() == [0, 0, 4, 1]


def test_logic_does_not_evaluate_what_does_not_matter() -> None:
    def k(x: OUT_F, i: qd.i32) -> qd.i32:
        return i < x.shape[0] and x[i] > 0

    assert run(k, np.ones(2, np.float32), 5).result == 0  # the reference refuses an index outside
    assert run(k, np.ones(2, np.float32), 1).result == 1


@pytest.mark.parametrize("text", ["a and b", "not a", "a if a else b"])
def test_logic_on_reals_is_refused(text: str) -> None:
    def conjunction(a: qd.f32, b: qd.f32) -> qd.i32:
        return a and b

    def negation(a: qd.f32, b: qd.f32) -> qd.i32:
        return not a

    def choice(a: qd.f32, b: qd.f32) -> qd.f32:
        return a if a else b

    f = {"a and b": conjunction, "not a": negation, "a if a else b": choice}[text]
    assert isinstance(refuse(f, 1.0, 2.0), QuadrantsTypeError)


def test_bit_operations_need_integers() -> None:
    def k(a: qd.f32) -> qd.i32:
        return a & 1

    assert "bit operations need integers" in str(refuse(k, 1.0))


def test_casts() -> None:
    def k(out: OUT_I, x: qd.f32, n: qd.i32):
        out[0] = qd.i32(x)
        out[1] = int(-x)
        out[2] = qd.u8(n)
        out[3] = qd.i8(n)
        out[4] = qd.u1(4)
        out[5] = bool(x)
        out[6] = qd.bit_cast(x, qd.i32)

    out = np.zeros(7, np.int32)
    run(k, out, 2.9, 300)
    assert out.tolist() == [2, -2, 44, 44, 1, 1, int(np.float32(2.9).view(np.int32))]


def test_a_typed_literal_keeps_its_value() -> None:
    def k() -> qd.f64:
        return qd.f64(0.1)

    assert run(k).result == 0.1

    def wide() -> qd.i64:
        return qd.i64(1099511627776)

    assert run(wide).result == 2**40


def test_a_literal_outside_default_ip_is_refused_where_it_stands() -> None:
    def k() -> qd.i64:
        return 4294967296

    error = refuse(k)
    assert isinstance(error, QuadrantsTypeError)
    assert "Integer literal 4294967296 exceeded the range of default_ip: i32" in str(error)
    assert run(k, default_ip=qd.i64).result == 2**32


def test_default_types() -> None:
    def k() -> qd.f64:
        return 0.1 + 0.0

    assert run(k).result == float(np.float32(0.1))
    assert run(k, default_fp=qd.f64).result == 0.1


def test_rounding() -> None:
    def k(out: OUT_F, x: qd.f32):
        out[0] = round(x)
        out[1] = qd.round(-x)
        out[2] = qd.floor(-x)
        out[3] = qd.ceil(x)
        out[4] = qd.floor(x, qd.i32) / 2

    out = np.zeros(5, np.float32)
    run(k, out, 2.5)
    assert out.tolist() == [3, -3, -3, 3, 1]


def test_extrema_of_many_and_of_nan() -> None:
    def k(out: OUT_F, x: qd.f32, y: qd.f32):
        out[0] = qd.max(x, y, 1)
        out[1] = min(x, y)
        out[2] = max(x, qd.sqrt(-1.0))

    out = np.zeros(3, np.float32)
    run(k, out, 2.0, 3.0)
    assert out.tolist() == [3, 2, 2]


def test_functions_of_reals() -> None:
    def k(out: OUT_F, x: qd.f32, n: qd.i32):
        out[0] = qd.sin(x)
        out[1] = qd.sqrt(n)
        out[2] = qd.atan2(x, 2.0)
        out[3] = qd.exp(n)
        out[4] = qd.log(n)
        out[5] = qd.tanh(x)
        out[6] = abs(-x)
        out[7] = qd.rsqrt(n)

    out = np.zeros(8, np.float32)
    run(k, out, 0.5, 4)
    want = [math.sin(0.5), 2, math.atan2(0.5, 2), math.exp(4), math.log(4), math.tanh(0.5), 0.5, 0.5]
    np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["sin", "cos", "tan", "tanh", "asin", "acos", "floor", "ceil", "round"])
def test_functions_that_need_a_real_refuse_integers(name: str) -> None:
    f = getattr(qd, name)

    def k(n: qd.i32) -> qd.f32:
        return f(n)

    error = refuse(k, 1)
    assert isinstance(error, QuadrantsTypeError)
    assert f"{name} needs a real operand, got i32" in str(error)


def test_select_and_ternary() -> None:
    def k(out: OUT_F, a: qd.i32):
        out[0] = qd.select(a > 0, 1, 2.5)
        out[1] = 1 if a > 0 else 2.5
        v = qd.Vector([a, -a]) if a > 0 else qd.Vector([0.5, 0.5])
        out[2] = v[0]
        out[3] = v[1]

    out = np.zeros(4, np.float32)
    run(k, out, 3)
    assert out.tolist() == [1, 1, 3, -3]
    run(k, out, 0)
    assert out.tolist() == [2.5, 2.5, 0.5, 0.5]


def test_ternary_is_lazy() -> None:
    def k(x: OUT_F, i: qd.i32) -> qd.f32:
        return x[i] if i < x.shape[0] else -1.0

    assert run(k, np.ones(2, np.float32), 7).result == -1


def test_compile_time_arithmetic_is_python_arithmetic() -> None:
    size = 1 << 40

    def k() -> qd.i32:
        return size >> 38

    assert run(k).result == 4
