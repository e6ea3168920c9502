"""Variables, scope, loops, branches, reductions."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_run import lowered, qd, refuse, run

from qd_core.errors import QuadrantsNameError, QuadrantsSyntaxError
from qd_core.ir.rewrite import walk

X = qd.types.ndarray(qd.f32, 1)
I1 = qd.types.ndarray(qd.i32, 1)
X2 = qd.types.ndarray(qd.f32, 2)


def ops(f, *args):
    """Names of the operations that a kernel becomes, outermost first."""
    kernel, _ = lowered(f, *args)
    return [n.op.name for n in walk(kernel.function.body)]


# -- variables --------------------------------------------------------------------------------------------------------
def test_the_first_assignment_fixes_the_type() -> None:
    def k() -> int:
        x = 1
        x = 2.9
        x += 1.9
        return x

    assert run(k).result == 3  # 2, then 3.9 -> 3


def test_assignment_copies_vectors() -> None:
    def k() -> int:
        x = qd.Vector([1, 2])
        y = x
        y[0] = 9
        return x[0] * 10 + y[0]

    assert run(k).result == 19


def test_names_end_with_their_block() -> None:
    def k(a: int) -> int:
        if a > 0:
            b = 1
        return b

    error = refuse(k, 1)
    assert isinstance(error, QuadrantsNameError)
    assert "Name 'b' is not defined" in str(error)
    assert "first assigned inside a block" in str(error)
    assert error.span is not None
    assert error.span.function == "k"


def test_the_loop_variable_ends_with_the_loop() -> None:
    def k(n: int) -> int:
        s = 0
        qd.loop_config(serialize=True)
        for i in range(n):
            s += i
        return i

    assert isinstance(refuse(k, 1), QuadrantsNameError)


def test_arguments_are_immutable() -> None:
    def k(a: int):
        a = 2  # noqa: F841

    assert 'Kernel argument "a" is immutable in the kernel' in str(refuse(k, 1))


def test_a_loop_variable_cannot_be_assigned() -> None:
    def k(x: X):
        for i in range(3):
            i = 2
            x[i] = 1

    assert "Loop variable 'i' cannot be assigned" in str(refuse(k, np.zeros(3, np.float32)))


def test_tuples_swap() -> None:
    def k(n: int) -> int:
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    def serial(n: int) -> int:
        a, b = 0, 1
        qd.loop_config(serialize=True)
        for _ in range(n):
            a, b = b, a + b
        return a

    assert run(serial, 10).result == 55
    assert "'a' is read after a parallel loop" in str(refuse(k, 10))


# -- parallel loops ---------------------------------------------------------------------------------------------------
def test_top_level_loops_are_parallel_and_others_serial() -> None:
    def k(x: X, n: int):
        for i in range(n):
            for j in range(3):
                x[i] += j
        if n > 2:
            for i in range(n):
                x[i] = 2 * x[i]

    names = ops(k, np.zeros(4, np.float32), 4)
    assert names.count("parallel_for") == 1
    assert names.count("for") == 2
    x = np.zeros(4, np.float32)
    run(k, x, 4)
    assert x.tolist() == [6, 6, 6, 6]


def test_ndrange_keeps_its_axes() -> None:
    def k(x: X2):
        for i, j in qd.ndrange(x.shape[0], (1, x.shape[1])):
            x[i, j] = 10 * i + j

    x = np.zeros((2, 3), np.float32)
    kernel, _ = lowered(k, x)
    (loop,) = [n for n in kernel.function.body.nodes if n.op.name == "parallel_for"]
    assert len(loop.operands) == 4
    run(k, x)
    assert x.tolist() == [[0, 1, 2], [0, 11, 12]]


def test_ndrange_axes_and_grouped() -> None:
    def k(x: X2):
        for i, j in qd.ndrange(x.shape[0], x.shape[1], axes=(1, 0)):
            x[i, j] = 10 * i + j
        for p in qd.grouped(qd.ndrange(2, 2)):
            x[p] += 100
            x[p + 1] += 1000

    x = np.zeros((3, 3), np.float32)
    run(k, x)
    assert x.tolist() == [[100, 101, 2], [110, 1111, 1012], [20, 1021, 1022]]


def test_loops_over_arrays() -> None:
    def k(x: X2, y: X):
        for i in y:
            y[i] = i
        for i, j in x:
            x[i, j] = i + j
        for p in qd.grouped(x):
            x[p] *= 2

    x, y = np.zeros((2, 2), np.float32), np.zeros(3, np.float32)
    run(k, x, y)
    assert y.tolist() == [0, 1, 2]
    assert x.tolist() == [[0, 2], [2, 4]]


def test_wide_bounds_give_wide_indices() -> None:
    def k(n: qd.i64) -> qd.i64:
        s = qd.i64(0)
        for i in range(n - 3, n):
            s += i
        return s

    assert run(k, 2**40).result == 3 * 2**40 - 6


def test_a_real_bound_is_truncated() -> None:
    def k(x: X, b: float):
        for i in range(b):
            x[i] = 1

    x = np.zeros(4, np.float32)
    run(k, x, 2.9)
    assert x.tolist() == [1, 1, 0, 0]


def test_break_in_the_outermost_loop_is_refused() -> None:
    def k(x: X):
        for i in range(3):
            if x[i] > 0:
                break

    assert "Cannot break in the outermost loop" in str(refuse(k, np.zeros(3, np.float32)))


def test_continue_in_a_parallel_loop() -> None:
    def k(x: X):
        for i in x:
            if i % 2 == 0:
                continue
            x[i] = i

    x = np.zeros(5, np.float32)
    run(k, x)
    assert x.tolist() == [0, 1, 0, 3, 0]


def test_a_loop_over_a_list_is_refused() -> None:
    def k(x: X):
        for v in [1, 2]:
            x[v] = 1

    assert "cannot loop over list of 2" in str(refuse(k, np.zeros(3, np.float32)))


# -- reductions -------------------------------------------------------------------------------------------------------
def test_accumulating_into_an_outer_variable() -> None:
    def k(x: X) -> float:
        s = 1.0
        v = qd.Vector([0.0, 0.0])
        m = 0.0
        for i in x:
            s += x[i]
            v -= qd.Vector([x[i], 1.0])
            qd.atomic_max(m, x[i])
        return s + 10 * v[1] + 100 * m + v[0]

    assert run(k, np.array([1, 2, 3], np.float32)).result == 1 + 6 - 30 + 300 - 6


def test_a_private_copy_is_not_visible_after_the_loop() -> None:
    def k(x: X) -> float:
        s = 1.0
        for i in x:
            s = x[i]
            x[i] = s * 2
        return s

    error = refuse(k, np.ones(2, np.float32))
    assert isinstance(error, QuadrantsSyntaxError)
    assert "'s' is read after a parallel loop that assigns it" in str(error)


def test_a_private_copy_starts_from_the_outer_value() -> None:
    def k(x: X):
        s = 1.0
        for i in x:
            s = s + i
            x[i] = s

    x = np.zeros(3, np.float32)
    run(k, x)
    assert x.tolist() == [1, 2, 3]


# -- serial loops -----------------------------------------------------------------------------------------------------
def test_break_and_continue() -> None:
    def k(x: X, n: int) -> int:
        count = 0
        qd.loop_config(serialize=True)
        for i in range(n):
            if x[i] < 0:
                continue
            if x[i] > 10:
                break
            count += 1
        return count

    assert run(k, np.array([1, -1, 2, 11, 3], np.float32), 5).result == 2


def test_break_leaves_only_its_loop() -> None:
    def k(x: I1):
        for i in x:
            for j in range(100):
                if j == i:
                    break
                for m in range(5):
                    if m > 1:
                        break
                    x[i] += 1

    x = np.zeros(4, np.int32)
    run(k, x)
    assert x.tolist() == [0, 2, 4, 6]


def test_break_in_a_serial_nest_leaves_all_axes() -> None:
    def k() -> int:
        n = 0
        qd.loop_config(serialize=True)
        for i, j in qd.ndrange(3, 3):
            if i == 1 and j == 1:
                break
            n += 1
        return n

    assert run(k).result == 4


def test_while() -> None:
    def k(a: int) -> int:
        steps = 0
        while a_copy(a) != 1 and steps < 1000:
            steps += 1
        return steps

    def collatz(start: int) -> int:
        a = start
        steps = 0
        while a != 1:
            a = a // 2 if a % 2 == 0 else 3 * a + 1
            steps += 1
        return steps

    def a_copy(a):
        return a

    assert run(collatz, 27).result == 111
    with pytest.raises(Exception, match=r"decorate it with @qd\.func"):
        run(k, 1)


def test_while_true_with_break() -> None:
    def k(n: int) -> int:
        a = 1
        while True:
            if a > n:
                break
            a *= 2
            if a == 4:
                continue
            a += 1
        return a

    def python(n: int) -> int:
        a = 1
        while True:
            if a > n:
                break
            a *= 2
            if a == 4:
                continue
            a += 1
        return a

    for n in (0, 1, 5, 100):
        assert run(k, n).result == python(n)


def test_while_does_not_test_after_a_break() -> None:
    def k(x: X) -> int:
        i = 0
        while x[i] > 0:
            i += 1
            if i == x.shape[0]:
                break
        return i

    assert run(k, np.ones(3, np.float32)).result == 3  # the reference refuses an index outside


def test_unchanged_variables_are_not_carried() -> None:
    def k(x: X, n: int) -> float:
        a = 2.0
        s = 0.0
        qd.loop_config(serialize=True)
        for i in range(n):
            if qd.static(False):
                a = 3.0
            s += a * x[i]
        return s

    kernel, _ = lowered(k, np.ones(3, np.float32), 3)
    (loop,) = [n for n in kernel.function.body.nodes if n.op.name == "for"]
    assert len(loop.results) == 1
    assert run(k, np.ones(3, np.float32), 3).result == 6


def test_atomics_on_locals_in_a_loop_are_carried() -> None:
    def k(n: int) -> int:
        s = 0
        last = 0
        qd.loop_config(serialize=True)
        for i in range(n):
            last = qd.atomic_add(s, i)
        return 100 * last + s

    assert run(k, 4).result == 306


# -- static -----------------------------------------------------------------------------------------------------------
def test_static_loops_unroll() -> None:
    def k(x: X):
        for i in x:
            for j in qd.static(range(0, 6, 2)):
                x[i] += j
            for a, b in qd.static(zip([1, 2], [3, 4], strict=True)):
                x[i] += a * b
            for n, c in qd.static(enumerate([5, 6])):
                x[i] += n * c

    x = np.zeros(2, np.float32)
    assert "for" not in ops(k, x)
    run(k, x)
    assert x.tolist() == [23, 23]


def test_loops_inside_static_loops_are_parallel() -> None:
    def k(x: X):
        for j in qd.static(range(2)):
            if qd.static(j == 1):
                for i in x:
                    x[i] += j

    assert ops(k, np.zeros(2, np.float32)).count("parallel_for") == 1


def test_run_time_jumps_in_unrolled_loops() -> None:
    def k(n: int, m: int) -> int:
        s = 0
        for i in qd.static(range(6)):
            if i == m:
                continue
            if i == n:
                break
            s += 10**i
        return s

    assert run(k, 4, 1).result == 1101
    assert run(k, 0, 3).result == 0
    assert run(k, 9, 9).result == 111111


def test_static_break_stops_unrolling() -> None:
    def k() -> int:
        s = 0
        for i in qd.static(range(10**6)):
            if qd.static(i == 3):
                break
            s += 1
        return s

    with pytest.warns(UserWarning, match="unrolled 1000000 times"):
        assert run(k).result == 3


def test_static_if_has_no_scope_of_its_own() -> None:
    flag = True

    def k() -> int:
        if qd.static(flag):
            a = 1
        else:
            a = 2.5
        return a

    assert run(k).result == 1


def test_static_conditions_must_be_known() -> None:
    def k(n: int) -> int:
        s = 0
        if qd.static(n > 1):
            s = 1
        return s

    assert "only known at run time" in str(refuse(k, 1))


def test_comprehensions_make_lists() -> None:
    def k() -> int:
        v = qd.Vector([i * i for i in range(4) if i != 1])
        w = [v * k for k in qd.static(range(3))]
        return w[2][2] + len(w)

    assert run(k).result == 21


@pytest.mark.parametrize("bound", ["3 arguments", "step"])
def test_range_takes_two_arguments(bound: str) -> None:
    def k(x: X):
        for i in range(0, 4, 2):
            x[i] = 1

    assert "Range should have 1 or 2 arguments, found 3" in str(refuse(k, np.zeros(4, np.float32)))
