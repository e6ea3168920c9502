"""Check derivatives: reverse and forward mode against each other and against central differences in f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.autodiff.forward import forward
from qd_core.autodiff.reverse import reverse
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region, Value
from qd_core.ir.rewrite import Copier

__all__ = ["Agreement", "Direction", "compare", "in_double"]

Array = np.ndarray[Any, Any]
Execute = Callable[[Function, Mapping[str, Any]], None]
"""``execute(function, values)`` runs a function on arrays (changed in place) and scalars by path."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One random direction d and weight w: three numbers that must agree.

    Attributes
    ----------
    reverse, forward, difference : float
        ``<Jᵀw, d>`` by reverse mode, ``<w, J d>`` by forward mode and by the central difference.
    scale : float
        Sum of the magnitudes of the products that ``reverse`` and ``forward`` add up.
    """

    reverse: float
    forward: float
    difference: float
    scale: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """What `compare` found.

    Attributes
    ----------
    directions : tuple of Direction
        One for every random direction.
    transpose_error : float
        Largest ``|reverse - forward| / scale``: rounding only, when the modes agree.
    difference_error : float
        Largest ``|forward - difference| / scale``: error of the difference included.
    """

    directions: tuple[Direction, ...]
    transpose_error: float
    difference_error: float

    def within(self, transpose: float = 1e-10, difference: float = 1e-6) -> bool:
        """Whether both errors are within tolerances (NaN is not)."""
        return self.transpose_error <= transpose and self.difference_error <= difference


def compare(
    function: Function,
    values: Mapping[str, Any],
    execute: Execute,
    *,
    without: Sequence[str] = (),
    step: float = 1e-6,
    directions: int = 2,
    seed: int = 0,
) -> Agreement:
    """Compare the derivatives of a kernel at one point, all in f64.

    Parameters
    ----------
    function : Function
        A kernel; it is not changed.
    values : mapping of str to ndarray or number
        Arguments by path; not changed. Real arrays are converted to f64.
    execute : callable
        Runs a function; `Execute`. It gets a function of its own each time.
    without : sequence of str
        Real arrays that are constants.
    step : float
        Step of the central difference.
    directions : int
        Number of random directions.
    seed : int
        Seed of the directions.

    Returns
    -------
    Agreement
        The errors; see `Agreement.within`.

    Raises
    ------
    NotDifferentiableError
        See `reverse` and `forward`.
    """
    double = in_double(function)
    point = {k: _widened(v) for k, v in values.items()}
    paths = [p.path for p in double.params if _differentiated(p, without)]
    random = np.random.default_rng(seed)
    found = tuple(_Probe(double, point, paths, execute, step).direction(random) for _ in range(directions))
    transpose = [_relative(d.reverse - d.forward, d.scale) for d in found]
    difference = [_relative(d.forward - d.difference, d.scale) for d in found]
    return Agreement(found, float(np.max(transpose, initial=0.0)), float(np.max(difference, initial=0.0)))


def in_double(function: Function) -> Function:
    """Return the function with every real type replaced by f64; constants keep the values that they were rounded to."""
    params = [Param(_double_type(p.type), p.path, p.role) for p in function.params]
    mapping: dict[Value, Value] = dict(zip(function.params, params, strict=True))
    body = Region()
    _Widener(Builder(body), mapping).copier.nodes(function.body.nodes)
    return Function(function.name, params, body, function.span, dict(function.attrs))


class _Widener:
    """Copies operations that name a type, and region arguments, with their real types widened."""

    def __init__(self, builder: Builder, mapping: dict[Value, Value]) -> None:
        self.b = builder
        self.copier = _WideCopier(builder, mapping, self.rule)

    def rule(self, copier: Copier, node: Node) -> bool:
        typed = _TYPED.get(node.op.name)
        if typed is None:
            return False
        copier.mapping[node] = typed(self.b, node, copier.values(node.operands))
        return True


def _bitcast(b: Builder, node: Node, x: Sequence[Value]) -> Value:
    """The bits are those of the type that the kernel has."""
    narrow = b.bitcast(b.cast(x[0], node.operands[0].type), node.type)
    return b.cast(narrow, _double_type(node.type))


_TYPED: Mapping[str, Callable[[Builder, Node, Sequence[Value]], Value]] = {
    "const": lambda b, n, x: b.const(_double_type(n.type), n.attrs["value"]),
    "cast": lambda b, n, x: b.cast(x[0], _double_type(n.type)),
    "bitcast": _bitcast,
    "stop_grad": lambda b, n, x: b.stop_grad(x[0]),
    "atomic": lambda b, n, x: b.atomic(n.attrs["kind"], x[0], (), *x[1:]),
    "scratch": lambda b, n, x: b.scratch(_double_type(n.attrs["to"]), x[0]),
    "scratch_load": lambda b, n, x: b.scratch_load(*x),
}
"""Operations whose result's type does not follow from their operands, but for `load`."""


class _WideCopier(Copier):
    __slots__ = ()

    def region(self, region: Region, *, loop: bool) -> Region:
        with self.builder.inside([(_double_type(a.type), a.name) for a in region.args], loop=loop) as new:
            self.mapping.update(zip(region.args, new.args, strict=True))
            self.builder.span = region.terminator.span
            self.builder.yield_(*self.body(region))
        return new


def _double_type(kind: Any) -> Any:
    if isinstance(kind, ArrayType):
        return replace(kind, dtype=_double_type(kind.dtype))
    return dt.f64 if isinstance(kind, DType) and kind.is_real else kind


def _differentiated(param: Param, without: Sequence[str]) -> bool:
    return isinstance(param.type, ArrayType) and param.type.dtype.is_real and param.path not in without


def _widened(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype.kind == "f" else value.copy()
    return value


def _relative(error: float, scale: float) -> float:
    return abs(error) / scale if scale > 0 else abs(error)


@dataclass(frozen=True, slots=True)
class _Probe:
    """Derivatives of one function at one point."""

    function: Function
    point: Mapping[str, Any]
    paths: Sequence[str]
    execute: Execute
    step: float

    def direction(self, random: np.random.Generator) -> Direction:
        move = {p: np.asarray(random.normal(size=self.point[p].shape)) for p in self.paths}
        weight = {p: np.asarray(random.normal(size=self.point[p].shape)) for p in self.paths}
        adjoints, tangents, slopes = self.adjoints(weight), self.tangents(move), self.difference(move)
        terms = [adjoints[p] * move[p] for p in self.paths] + [weight[p] * tangents[p] for p in self.paths]
        return Direction(
            _inner(adjoints, move),
            _inner(weight, tangents),
            _inner(weight, slopes),
            sum(float(np.abs(t).sum()) for t in terms),
        )

    def run(self, function: Function, extra: Mapping[str, Array], at: Mapping[str, Any]) -> dict[str, Any]:
        values = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in {**at, **extra}.items()}
        self.execute(function, values)
        return values

    def adjoints(self, weight: Mapping[str, Array]) -> dict[str, Array]:
        after = self.run(in_double(self.function), {}, self.point)
        gradients = {f"{p}.grad": weight[p] for p in self.paths}
        done = self.run(reverse(self.function, self.paths), gradients, after)
        return {p: done[f"{p}.grad"] for p in self.paths}

    def tangents(self, move: Mapping[str, Array]) -> dict[str, Array]:
        done = self.run(forward(self.function, self.paths), {f"{p}.dual": move[p] for p in self.paths}, self.point)
        return {p: done[f"{p}.dual"] for p in self.paths}

    def difference(self, move: Mapping[str, Array]) -> dict[str, Array]:
        ends: list[dict[str, Any]] = []
        for sign in (1.0, -1.0):
            moved = {p: np.asarray(self.point[p] + sign * self.step * move[p]) for p in self.paths}
            ends.append(self.run(in_double(self.function), moved, self.point))
        return {p: (ends[0][p] - ends[1][p]) / (2 * self.step) for p in self.paths}


def _inner(a: Mapping[str, Array], b: Mapping[str, Array]) -> float:
    return sum(float(np.sum(a[p] * b[p])) for p in a)
