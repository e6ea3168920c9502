"""Kernels in IR as Python expressions, run on the reference interpreter, their derivatives against differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.autodiff.forward import forward
from qd_core.autodiff.reverse import reverse
from qd_core.errors import Span
from qd_core.ir.build import Builder
from qd_core.ir.hostexpr import evaluate_host
from qd_core.ir.nodes import ArrayType, Function, Param, Region, Role, Value
from qd_core.ir.program import HostExpr
from qd_core.ir.verify import verify
from qd_core.passes.offload import offload
from qd_core.reference.interpreter import Interpreter, Prepared
from qd_core.reference.memory import Memory

Array = np.ndarray[Any, Any]


class E:
    """An SSA value with Python's operators."""

    def __init__(self, k: Kernel, value: Value) -> None:
        self.k, self.v = k, value

    def _op(self, name: str, other: Any, swap: bool = False) -> E:
        pair = (self, self.k.like(self, other))
        return self.k.op(name, *(reversed(pair) if swap else pair))

    def __add__(self, o: Any) -> E:
        return self._op("add", o)

    def __radd__(self, o: Any) -> E:
        return self._op("add", o, True)

    def __sub__(self, o: Any) -> E:
        return self._op("sub", o)

    def __rsub__(self, o: Any) -> E:
        return self._op("sub", o, True)

    def __mul__(self, o: Any) -> E:
        return self._op("mul", o)

    def __rmul__(self, o: Any) -> E:
        return self._op("mul", o, True)

    def __truediv__(self, o: Any) -> E:
        return self._op("div", o)

    def __mod__(self, o: Any) -> E:
        return self._op("mod", o)

    def __neg__(self) -> E:
        return self.k.op("neg", self)

    def __lt__(self, o: Any) -> E:
        return self._op("lt", o)

    def __gt__(self, o: Any) -> E:
        return self._op("gt", o)

    def eq(self, o: Any) -> E:
        return self._op("eq", o)

    def __and__(self, o: Any) -> E:
        return self._op("and", o)


class A:
    """An array parameter."""

    def __init__(self, k: Kernel, param: Param) -> None:
        self.k, self.p = k, param

    def _indices(self, index: Any) -> list[Value]:
        return [self.k.wrap(i).v for i in (index if isinstance(index, tuple) else (index,))]

    def __getitem__(self, index: Any) -> E:
        return E(self.k, self.k.b.load(self.p, self._indices(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.k.mark()
        self.k.b.store(self.p, self._indices(index), self.k.real(self.p.type.dtype, value).v)

    def add(self, index: Any, value: Any, kind: str = "add") -> E:
        self.k.mark()
        return E(self.k, self.k.b.atomic(kind, self.p, self._indices(index), self.k.real(self.p.type.dtype, value).v))


class Kernel:
    """A kernel under construction. Every store and load gets its own line number, so that errors can be told apart."""

    def __init__(self, **params: str) -> None:
        """``x="f64[2]"`` is an array of rank 2, ``x="f64[1x3]"`` one of 3-vectors, ``n="i32"`` a scalar."""
        self.body = Region()
        self.b = Builder(self.body)
        self.line = 0
        self.params = [Param(_type(t), name) for name, t in params.items()]
        self.mark()

    def mark(self) -> None:
        self.line += 1
        self.b.span = Span("<test>", self.line)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("params", "b"):
            raise AttributeError(name)
        param = next((p for p in self.params if p.path == name), None)
        if param is not None:
            return A(self, param) if isinstance(param.type, ArrayType) else E(self, param)
        return lambda *args: self.op(name, *args)

    def op(self, name: str, *args: Any) -> E:
        like = next(a for a in reversed(args) if isinstance(a, E))
        return E(self, self.b.emit(name, *(self.like(like, a).v for a in args)))

    def like(self, like: E, value: Any) -> E:
        return value if isinstance(value, E) else E(self, self.b.const(like.v.type, value))

    def wrap(self, value: Any) -> E:
        return (
            value
            if isinstance(value, E)
            else E(self, self.b.const(dt.f64 if isinstance(value, float) else dt.i32, value))
        )

    def real(self, dtype: Any, value: Any) -> E:
        return value if isinstance(value, E) else E(self, self.b.const(dtype, value))

    def cast(self, value: E, to: Any) -> E:
        return E(self, self.b.cast(value.v, to))

    def extent(self, array: A, axis: int = 0) -> E:
        return E(self, self.b.extent(array.p, axis))

    def parallel(self, *bounds: Any, body: Callable[..., Any]) -> None:
        pairs = [
            (self.wrap(0).v, self.wrap(s).v) if not isinstance(s, tuple) else (self.wrap(s[0]).v, self.wrap(s[1]).v)
            for s in bounds
        ]
        with self.b.inside([(p[0].type, "i") for p in pairs], loop=True) as region:
            body(*(E(self, a) for a in region.args))
            self.b.yield_()
        self.b.parallel_for(pairs, region)

    def loop(
        self,
        start: Any,
        stop: Any,
        inits: Sequence[Any],
        body: Callable[..., Any],
        *,
        reverse: bool = False,
        breaks: bool = False,
    ) -> Any:
        """``body(t, *carried)`` returns the next carried values (and whether to go on with ``breaks``)."""
        lo, hi, first = self.wrap(start), self.wrap(stop), [self.wrap(v) for v in inits]
        with self.b.inside([(lo.v.type, "t"), *((v.v.type, "c") for v in first)], loop=True) as region:
            nexts = body(*(E(self, a) for a in region.args))
            self.b.yield_(*(self.wrap(n).v for n in nexts or ()))
        return self._out(self.b.for_(lo.v, hi.v, [v.v for v in first], region, reverse=reverse, breaks=breaks))

    def while_(self, inits: Sequence[Any], condition: Callable[..., E], body: Callable[..., Any]) -> Any:
        first = [self.wrap(v) for v in inits]
        args = [(v.v.type, "c") for v in first]
        with self.b.inside(args, loop=True) as test:
            self.b.yield_(condition(*(E(self, a) for a in test.args)).v)
        with self.b.inside(args, loop=True) as region:
            self.b.yield_(*(self.wrap(n).v for n in body(*(E(self, a) for a in region.args))))
        return self._out(self.b.while_([v.v for v in first], test, region))

    def if_(self, condition: E, then: Callable[[], Any], otherwise: Callable[[], Any] = lambda: ()) -> Any:
        regions = []
        for branch in (then, otherwise):
            with self.b.inside() as region:
                self.b.yield_(*(self.wrap(v).v for v in branch() or ()))
            regions.append(region)
        return self._out(self.b.if_(condition.v, *regions))

    def _out(self, results: Sequence[Value]) -> Any:
        out = [E(self, r) for r in results]
        return out[0] if len(out) == 1 else out

    def done(self) -> Function:
        self.b.yield_()
        function = Function("kernel", self.params, self.body)
        verify(function)
        return function


def _type(text: str) -> Any:
    name, _, shape = text.rstrip("]").partition("[")
    if not shape:
        return dt.by_name(name)
    ndim, *element = shape.split("x")
    return ArrayType(dt.by_name(name), int(ndim), tuple(map(int, element)))


class Named(Memory):
    """Arguments by path, without packing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(b"")
        self.values = values
        self.temporaries: dict[Param, Array] = {}

    def locate(self, param: Param, word: int) -> Array:
        raise AssertionError("arrays are found by name")

    def scalar(self, param: Param, offset: int) -> Array:
        return np.asarray(self.values[param.path], param.type.numpy)

    def array(self, param: Param, offset: int) -> Array:
        if param.role is Role.TEMP:
            shape = (param.type.fixed_shape or ()) + param.type.element_shape
            return self.temporaries.setdefault(param, np.full(shape, 77, param.type.dtype.numpy))
        return self.values[param.path]


def run(function: Function, values: Mapping[str, Any]) -> None:
    """Verify, offload and execute a function on named arrays (changed in place) and scalars."""
    verify(function)
    program = offload(function)
    verify(program)
    memory = Named(values)
    extents = [_extent(e, values) if isinstance(e, HostExpr) else -1 for t in program.tasks for e in t.extents]
    Interpreter(Prepared(program), memory).run(extents)


def _extent(extent: HostExpr, values: Mapping[str, Any]) -> int:
    return evaluate_host(extent.body, lambda p: int(values[p.path]), lambda p, axis: values[p.path].shape[axis])


def copies(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in values.items()}


def real_arrays(values: Mapping[str, Any], without: Sequence[str] = ()) -> list[str]:
    return [k for k, v in values.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and k not in without]


def gradient(
    make: Callable[[], Function], values: Mapping[str, Any], seeds: Mapping[str, Array], without: Sequence[str] = ()
) -> dict[str, Array]:
    """Run the kernel, then its reverse with the adjoints ``seeds`` of its outputs; return all adjoints."""
    paths = real_arrays(values, without)
    after = copies(values)
    run(make(), after)
    for p in paths:
        after[f"{p}.grad"] = np.array(seeds[p]) if p in seeds else np.zeros_like(values[p])
    kept = copies(after)
    run(reverse(make(), paths), after)
    for name in values:
        np.testing.assert_array_equal(after[name], kept[name], err_msg=f"the reverse launch changed {name}")
    return {p: after[f"{p}.grad"] for p in paths}


def tangent(
    make: Callable[[], Function], values: Mapping[str, Any], duals: Mapping[str, Array], without: Sequence[str] = ()
) -> dict[str, Array]:
    """Run the forward-mode kernel from the tangents ``duals``; return all tangents. Primal results are compared."""
    paths = real_arrays(values, without)
    plain, both = copies(values), copies(values)
    run(make(), plain)
    for p in paths:
        both[f"{p}.dual"] = np.array(duals[p])
    run(forward(make(), paths), both)
    for name in values:
        np.testing.assert_array_equal(both[name], plain[name], err_msg=f"forward mode changed {name}")
    return {p: both[f"{p}.dual"] for p in paths}


def difference(
    make: Callable[[], Function], values: Mapping[str, Any], duals: Mapping[str, Array], step: float = 1e-6
) -> dict[str, Array]:
    """Central difference of all real arrays along ``duals``."""
    ends = []
    for sign in (1, -1):
        moved = copies(values)
        for p, d in duals.items():
            moved[p] = np.asarray(moved[p] + sign * step * d)
        run(make(), moved)
        ends.append(moved)
    return {p: (ends[0][p] - ends[1][p]) / (2 * step) for p in duals}


def check(
    make: Callable[[], Function], values: Mapping[str, Any], without: Sequence[str] = (), tolerance: float = 1e-6
) -> dict[str, Array]:
    """Reverse, forward and differences agree on ``<w, J d>`` and ``<J^T w, d>``. Returns the adjoints of w."""
    random = np.random.default_rng(1)
    paths = real_arrays(values, without)
    duals = {p: random.normal(size=values[p].shape) for p in paths}
    seeds = {p: random.normal(size=values[p].shape) for p in paths}
    adjoints = gradient(make, values, seeds, without)
    tangents = tangent(make, values, duals, without)
    differences = difference(make, values, duals)
    for p in paths:
        np.testing.assert_allclose(
            tangents[p], differences[p], rtol=tolerance, atol=tolerance, err_msg=f"tangent of {p}"
        )
    inner = sum(float(np.sum(seeds[p] * tangents[p])) for p in paths)
    outer = sum(float(np.sum(adjoints[p] * duals[p])) for p in paths)
    np.testing.assert_allclose(outer, inner, rtol=1e-9, atol=1e-9, err_msg="reverse against forward")
    return adjoints


def operations(function: Function) -> str:
    """Names of all operations of a function."""
    stack, names = [function.body], []
    while stack:
        for node in stack.pop().nodes:
            names.append(node.op.name)
            stack.extend(node.regions)
    return " ".join(names)
