"""Functions, methods, messages, and how refusals look."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from frontend_run import lowered, qd, refuse, run

from qd_core.errors import QuadrantsCompilationError, QuadrantsSyntaxError, QuadrantsTypeError
from qd_core.frontend.signature import function_info, kernel_info

X = qd.types.ndarray(qd.f32, 1)
vec2 = qd.types.vector(2, qd.f32)


# -- functions --------------------------------------------------------------------------------------------------------
@qd.func
def square(x):
    return x * x


@qd.func
def clamped(x, low=0, high=1):
    x = qd.max(x, low)  # arguments are passed by value and can be assigned
    return min(x, high)


@qd.func
def shift_all(x: qd.template(), amount: qd.f32):
    for i in x:
        x[i] += amount


def test_functions_are_inlined_by_value() -> None:
    def k(a: qd.f32) -> qd.f32:
        b = a
        c = square(b) + clamped(b, high=2)
        return c * 10 + b

    assert run(k, 3.0).result == 113


def test_a_loop_at_the_root_of_a_function_is_parallel() -> None:
    def k(x: X):
        shift_all(x, 2)

    x = np.zeros(3, np.float32)
    kernel, _ = lowered(k, x)
    assert any(n.op.name == "parallel_for" for n in kernel.function.body.nodes)
    run(k, x)
    assert x.tolist() == [2, 2, 2]


def test_functions_return_tuples_and_vectors() -> None:
    @qd.func
    def polar(v):
        r = v.norm()
        return r, v / r

    def k(v: vec2) -> qd.f32:
        r, n = polar(v)
        return r * 100 + n.x * 10

    assert run(k, [3.0, 4.0]).result == 506


def test_annotated_functions_convert() -> None:
    @qd.func
    def f(x: qd.i32) -> qd.f32:
        return x / 2

    def k(a: qd.f32) -> qd.f32:
        return f(a)

    assert run(k, 3.9).result == 1.5


def test_template_arguments_are_known_at_compile_time() -> None:
    @qd.func
    def power(x, n: qd.template()):
        y = x
        for _ in qd.static(range(n - 1)):
            y *= x
        return y

    def k(a: qd.f32) -> qd.f32:
        return power(a, 3)

    assert run(k, 2.0).result == 8


def test_template_recursion_ends() -> None:
    @qd.func
    def total(n: qd.template()):
        result = 0
        if qd.static(n > 0):
            result = n + total(n - 1)
        return result

    def k() -> qd.i32:
        return total(4)

    assert run(k).result == 10


def test_recursion_names_the_cycle() -> None:
    def k(n: qd.i32) -> qd.i32:
        return even(n)

    error = refuse(k, 3)
    assert isinstance(error, QuadrantsSyntaxError)
    assert "Recursion of @qd.func is not supported: even -> odd -> even" in str(error)
    assert len(error.callers) == 2


@qd.func
def even(n):
    return odd(n - 1)


@qd.func
def odd(n):
    return even(n - 1)


def test_methods_and_attributes_of_objects() -> None:
    class Solver:
        def __init__(self, n: int) -> None:
            self.n = n
            self.options = {"scale": 2.5}

        @qd.func
        def scaled(self, x):
            return x * self.options["scale"] + self.n

    solver = Solver(3)

    def k(x: qd.f32) -> qd.f32:
        return solver.scaled(x)

    assert run(k, 2.0).result == 8


def test_functions_check_their_arguments() -> None:
    def many(a: qd.f32) -> qd.f32:
        return square(a, a)

    def missing() -> qd.f32:
        return square()

    def unexpected(a: qd.f32) -> qd.f32:
        return square(a, y=1)

    assert "Too many arguments for 'square': takes 1, got 2" in str(refuse(many, 1.0))
    assert "Missing argument 'x' of 'square'" in str(refuse(missing))
    assert "Unexpected argument 'y' for 'square'" in str(refuse(unexpected, 1.0))


def test_functions_cannot_be_called_outside_kernels() -> None:
    with pytest.raises(QuadrantsSyntaxError, match="cannot be called outside of kernels"):
        square(2)


def test_pyfunc_works_in_both_scopes() -> None:
    @qd.pyfunc
    def f(x):
        return qd.sqrt(x) + 1

    def k(x: qd.f32) -> qd.f32:
        return f(x)

    assert f(4.0) == run(k, 4.0).result == 3


def test_python_functions_run_at_compile_time() -> None:
    def table(n: int) -> list[float]:
        return [math.sqrt(i) for i in range(n)]

    def k() -> qd.f32:
        t = qd.static(table(5))
        return t[4] + math.pi * 0

    def wrong(x: qd.f32) -> qd.f32:
        return math.sin(x)

    assert run(k).result == 2
    assert "the Python function 'sin' is called with a run-time value" in str(refuse(wrong, 1.0))


def test_exceptions_at_compile_time_are_chained() -> None:
    def table() -> int:
        raise RuntimeError("no table")

    def k() -> qd.i32:
        return qd.static(table())

    error = refuse(k)
    assert "table(...) raised RuntimeError: no table" in str(error)
    assert isinstance(error.__cause__, RuntimeError)


def test_return_inside_a_block_is_refused() -> None:
    def k(n: qd.i32) -> qd.i32:
        if n > 0:
            return 1
        return 2

    assert "Return inside non-static if/for is not supported" in str(refuse(k, 1))


def test_missing_returns_are_refused() -> None:
    def no_return(n: qd.i32) -> qd.i32:
        n + 1

    def no_annotation(n: qd.i32):
        return n

    assert "Kernel has a return type but does not have a return statement" in str(refuse(no_return, 1))
    assert "has no return annotation" in str(refuse(no_annotation, 1))


# -- messages ---------------------------------------------------------------------------------------------------------
def test_print() -> None:
    def k(x: qd.f32, n: qd.i32):
        print("x =", x, n, sep="|", end="!\n")
        print(f"{x:.2f} {n:04d}", qd.Vector([n, 2]), "a" + "b", (n, x))
        print()

    assert run(k, 2.5, 7).text == "x =|2.500000|7!\n2.50 0007 [7, 2] ab (7, 2.500000)\n\n"


def test_assert_only_in_debug_mode() -> None:
    def k(n: qd.i32):
        assert n > 3, f"n is {n}"
        assert n < 100

    assert run(k, 1, debug=True).failures == ["assert: Assertion failed: n is 1"]
    assert run(k, 100, debug=True).failures == ["assert: Assertion failed: n < 100"]
    assert not run(k, 1).failures


def test_static_assert_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    def k(n: qd.i32):
        qd.static_print("n is", n, 3)
        qd.static_assert(n.dtype == qd.i32, "an i32")

    def fails():
        qd.static_assert(1 > 2, "never")

    lowered(k, 1)
    assert capsys.readouterr().out == "n is i32 3\n"
    assert "Static assertion failed: never" in str(refuse(fails))


# -- refusals ---------------------------------------------------------------------------------------------------------
def test_an_error_shows_line_and_caret() -> None:
    def k(a: qd.f32) -> qd.i32:
        return 1 + (a & 3)  # the caret stands under the operation

    error = refuse(k, 1.0)
    excerpt = str(error).splitlines()
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "the caret stands" in text)
    assert error.span is not None
    assert error.span.line == line
    assert excerpt[2].startswith(f"{line:>5} |         return 1 + (a & 3)")
    assert excerpt[3].index("^") == excerpt[2].index("a & 3")
    assert excerpt[3].count("^") == 5


def test_an_error_in_a_function_shows_its_callers() -> None:
    @qd.func
    def inner(x):
        return x & 1

    @qd.func
    def outer(x):
        return inner(x)

    def k(a: qd.f32) -> qd.i32:
        return outer(a)

    error = refuse(k, 1.0)
    assert error.span is not None
    assert error.span.function == "inner"
    assert [c.function for c in error.callers] == ["outer", "k"]


def _try(a: qd.i32):
    try:
        a + 1
    except ValueError:
        a + 2


def _raise(a: qd.i32):
    raise ValueError


def _with(a: qd.i32):
    with a:
        a + 1


def _lambda(a: qd.i32):
    f = lambda x: x  # noqa: E731
    f(a)


def _import(a: qd.i32):
    import os

    os.getcwd()


def _delete(a: qd.i32):
    b = a
    del b


def _global(a: qd.i32):
    global line
    line = a


def _set(a: qd.i32):
    {1, 2}  # noqa: B018


def _generator(a: qd.i32):
    (x for x in range(3))


def _nested(a: qd.i32):
    def f():
        pass

    f()


@pytest.mark.parametrize(
    ("f", "node"),
    [
        (_try, "Try"), (_raise, "Raise"), (_with, "With"), (_lambda, "Lambda"), (_import, "Import"),
        (_delete, "Delete"), (_global, "Global"), (_set, "Set"), (_generator, "GeneratorExp"),
        (_nested, "FunctionDef"),
    ],
)  # fmt: skip
def test_python_outside_the_language_is_refused_by_name(f, node: str) -> None:
    error = refuse(f, 1)
    assert isinstance(error, QuadrantsSyntaxError)
    assert f'Unsupported node "{node}"' in str(error)
    assert error.hint


def _for_else(a: qd.i32):
    for _ in range(a):
        pass
    else:
        a + 1


def _while_else(a: qd.i32):
    while a > 3:
        pass
    else:
        a + 1


def _is(a: qd.i32) -> qd.i32:
    return a is a


def _in(a: qd.i32) -> qd.i32:
    return a in (1, 2)


def _starargs(a: qd.i32, *rest: qd.i32):
    pass


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (_for_else, "'else' of a for loop is not supported"),
        (_while_else, "'else' of a while loop is not supported"),
        (_is, "Operator 'is' is only supported in qd.static"),
        (_in, "Operator 'in' is only supported in qd.static"),
        (_starargs, "Variable parameters (*rest) are not supported"),
    ],
)
def test_other_refusals(f, message: str) -> None:
    with pytest.raises(QuadrantsSyntaxError) as caught:
        lowered(f, 1)
    assert message in str(caught.value)


def test_static_allows_identity_and_membership() -> None:
    names = ("a", "b")

    def k() -> qd.i32:
        return qd.static("a" in names) + 2 * qd.static(names is None)

    assert run(k).result == 1


def test_parameters_must_be_annotated() -> None:
    def k(x: X, a):
        x[0] = a

    with pytest.raises(QuadrantsSyntaxError, match="Kernel parameter 'a' must be annotated") as caught:
        kernel_info(k)
    assert caught.value.span is not None
    assert caught.value.span.column == 16


def test_annotations_must_be_types_of_the_language() -> None:
    def k(a: str):
        pass

    with pytest.raises(QuadrantsSyntaxError, match="Invalid type annotation of kernel parameter 'a'"):
        kernel_info(k)


def test_source_that_cannot_be_read() -> None:
    space: dict[str, object] = {}
    exec("def k(a: int):\n    pass\n", space)
    with pytest.raises(QuadrantsSyntaxError, match="the source of 'k' cannot be read"):
        kernel_info(space["k"])  # type: ignore[arg-type]
    with pytest.raises(QuadrantsSyntaxError, match="no Python function"):
        kernel_info(math.sin)


def test_lambdas_have_no_usable_source() -> None:
    f = lambda x: x  # noqa: E731
    with pytest.raises(QuadrantsSyntaxError, match="must be written with `def`"):
        function_info(f)


def test_assigning_something_outside() -> None:
    table = [1, 2]

    def k():
        table[0] = 3

    def name():
        print(1)
        _COUNT += 1  # noqa: F821

    assert "cannot assign to" in str(refuse(k))
    assert isinstance(refuse(name), QuadrantsCompilationError)


def test_an_array_is_no_value() -> None:
    def k(x: X) -> qd.f32:
        return x + 1

    error = refuse(k, np.zeros(2, np.float32))
    assert isinstance(error, QuadrantsTypeError)
    assert "array 'x' of 1 axes is no value" in str(error)
    assert error.hint == "index it, as in `x[i]`"


def test_source_of_multi_line_headers_and_strings() -> None:
    @qd.func
    def odd_layout(
        a,
        b=(1),
    ):
        """Text
        that starts at the margin.
        """
        return a + b

    def k(a: qd.i32) -> qd.i32:
        return odd_layout(a)

    assert run(k, 2).result == 3


# -- by reference ------------------------------------------------------------------------------------------------------
@qd.func
def swap(a: qd.template(), b: qd.template()):
    t = a
    a = b
    b = t


def test_template_arguments_are_passed_by_reference() -> None:
    def k(x: X) -> qd.f32:
        p, q = 1.0, 2.0
        swap(p, q)
        v = qd.Vector([3.0, 4.0])
        swap(v.x, v.y)
        swap(b=x[0], a=x[1])
        return p * 1000 + q * 100 + v.x * 10 + v.y

    x = np.array([5, 6], np.float32)
    assert run(k, x).result == 2143
    assert x.tolist() == [6, 5]


def test_references_changed_in_a_loop_are_carried() -> None:
    @qd.func
    def step(a: qd.template(), n):
        a = a * 2 + n

    def k(n: qd.i32) -> qd.i32:
        s = 1
        qd.loop_config(serialize=True)
        for i in range(n):
            step(s, i)
        return s

    assert run(k, 3).result == 12


def test_methods_of_structs_change_self() -> None:
    @qd.func
    def advance(self, dt):
        self.x += self.v * dt
        return self.x

    particle = qd.types.struct(x=qd.f32, v=qd.f32, __struct_methods={"advance": advance})

    def k(n: qd.i32) -> qd.f32:
        p = particle(x=1, v=2)
        last = 0.0
        for _ in range(n):
            last = p.advance(0.5)
        return p.x * 100 + last

    def serial(n: qd.i32) -> qd.f32:
        p = particle(x=1, v=2)
        last = 0.0
        qd.loop_config(serialize=True)
        for _ in range(n):
            last = p.advance(0.5)
        return p.x * 100 + last

    assert run(serial, 3).result == 404
    assert "is read after a parallel loop" in str(refuse(k, 3))


def test_branches_that_are_known_are_not_both_lowered() -> None:
    nothing = None

    def k(x: qd.f32) -> qd.f32:
        y = x
        if nothing is not None:
            y = nothing.scale * x
        else:
            y += 1
        return y

    assert run(k, 2.0).result == 3


def test_builtins_outside_the_language_are_unknown() -> None:
    def k():
        open("f")

    assert "this builtin function is not part of the kernel language" in str(refuse(k))


# -- early return -----------------------------------------------------------------------------------------------------
@qd.real_func
def first_above(x: X, limit: qd.f32) -> qd.i32:
    for i in range(x.shape[0]):
        if x[i] < 0:
            continue
        for j in range(2):
            if x[i] + j > limit:
                return 10 * i + j
    return -1


def test_real_functions_return_from_loops() -> None:
    def k(x: X, limit: qd.f32) -> qd.i32:
        return first_above(x, limit)

    x = np.array([1, -9, 3, 5], np.float32)
    assert [run(k, x, limit).result for limit in (0.5, 1.5, 3.5, 9.0)] == [0, 1, 21, -1]


def test_nothing_is_executed_after_a_return() -> None:
    @qd.real_func
    def f(x: X, n: qd.i32) -> vec2:
        if n > 0:
            x[0] = 1
            if n > 5:
                return [n, 1]
            x[0] += 1
        k = 0
        while k < 100:
            k += 1
            if k == n:
                return [k, 2]
        x[0] += 10
        return [k, 3]

    def kernel(x: X, n: qd.i32) -> vec2:
        return f(x, n)

    for n, wanted, left in ((7, [7, 1], 1), (3, [3, 2], 2), (-1, [100, 3], 10)):
        x = np.zeros(1, np.float32)
        assert run(kernel, x, n).result.tolist() == wanted
        assert x[0] == left


def test_real_functions_with_several_results_and_none() -> None:
    @qd.real_func
    def split(n: qd.i32) -> tuple[qd.i32, qd.f32]:
        if n > 2:
            return n, 0.5
        return 0, 1.5

    @qd.real_func
    def limit(x: X, i: qd.i32):
        if x[i] < 3:
            return
        x[i] = 3

    def k(x: X) -> qd.f32:
        for i in x:
            a, b = split(i)
            limit(x, i)
            x[i] += a * 100 + b
        return x[0]

    x = np.array([1, 2, 3, 4], np.float32)
    run(k, x)
    assert x.tolist() == [2.5, 3.5, 4.5, 303.5]
