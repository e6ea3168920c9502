"""Derivative rules: exactly one entry for every operation of the table.

A rule is written once, as partial derivatives in IR over operands and result, and both modes derive from it: `pull`
maps the adjoint of a result to contributions to its operands, `push` maps tangents of operands to the tangent of the
result. What primal values a rule reads is not declared but found by tracing it (`uses`).

Conventions at points where no derivative exists (tested in ``tests/unit/test_autodiff_rules.py``):

* a partial derivative that is infinite where the function itself is finite is 0 there: ``sqrt`` at 0 (so the gradient
  of a norm at the origin is 0), ``pow`` of 0 to an exponent below 1, ``asin`` and ``acos`` at the ends, ``atan2`` at
  the origin, ``abs`` at 0;
* where the function is infinite too (``log`` at 0, division by 0, ``rsqrt`` at 0), the derivative is the infinite or
  NaN IEEE value;
* ``min`` and ``max`` pass everything to the operand whose value the result is, at a tie to the second; a NaN operand
  gets nothing;
* the logarithm in the exponent's partial of ``pow`` is 0 for a base that is not positive;
* ``floor``, ``ceil``, ``trunc``, ``round``, ``sgn``, ``floordiv`` and ``raw_div`` have derivative 0; casts pass from
  real to real only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qd_core import dtypes as dt
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Arg, Region, Value
from qd_core.ir.ops import OPS
from qd_core.ir.rewrite import operands_deep

__all__ = [
    "RULES",
    "Choice",
    "Linear",
    "NotDifferentiable",
    "Partials",
    "Rule",
    "Structural",
    "Zero",
    "differentiable",
    "pull",
    "push",
    "uses",
]

Operands = Sequence[Any]
Partial = Callable[[Builder, Operands, Any], Value]
"""``partial(builder, operands, result)`` emits one partial derivative, of the operands' type."""


@dataclass(frozen=True, slots=True)
class Partials:
    """An elementwise function: one partial derivative an operand, None where an operand has none."""

    partials: tuple[Partial | None, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """The result is the sum of the operands with these signs, converted to the result's type."""

    signs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The result is operand ``first`` where ``takes_first(...)`` holds, else operand ``second``."""

    takes_first: Partial
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Zero:
    """The result does not depend differentiably on the operands: its derivative is 0 or it is not real."""


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """A derivative would be wrong or cannot be formed; asking for it is an error that states ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Structural:
    """Memory and control: the transposition is `reverse`'s and `forward`'s own."""


Rule = Partials | Linear | Choice | Zero | NotDifferentiable | Structural


def _c(like: Value, value: float, b: Builder) -> Value:
    return b.const(like.type, value)


def _mul(b: Builder, *factors: Value) -> Value:
    result = factors[0]
    for f in factors[1:]:
        result = b.emit("mul", result, f)
    return result


def _reciprocal(b: Builder, x: Value) -> Value:
    return b.emit("div", _c(x, 1.0, b), x)


def _sqrt(b: Builder, x: Operands, r: Any) -> Value:
    zero = _c(r, 0.0, b)
    return b.select(b.emit("gt", r, zero), b.emit("div", _c(r, 0.5, b), r), zero)


def _rsqrt(b: Builder, x: Operands, r: Any) -> Value:
    return _mul(b, _c(r, -0.5, b), r, _mul(b, r, r))


def _tan(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("add", _c(r, 1.0, b), _mul(b, r, r))


def _tanh(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("sub", _c(r, 1.0, b), _mul(b, r, r))


def _asin(b: Builder, x: Operands, r: Any) -> Value:
    one = _c(x[0], 1.0, b)
    slack = _mul(b, b.emit("sub", one, x[0]), b.emit("add", one, x[0]))
    zero = _c(x[0], 0.0, b)
    return b.select(b.emit("gt", slack, zero), b.emit("div", one, b.emit("sqrt", slack)), zero)


def _acos(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("neg", _asin(b, x, r))


def _atan2(which: int) -> Partial:
    """Partial of atan2(y, x): x/(x²+y²) for y, -y/(x²+y²) for x; 0 at the origin."""

    def partial(b: Builder, x: Operands, r: Any) -> Value:
        square = b.emit("add", _mul(b, x[0], x[0]), _mul(b, x[1], x[1]))
        zero = _c(x[0], 0.0, b)
        top = x[1] if which == 0 else b.emit("neg", x[0])
        return b.select(b.emit("gt", square, zero), b.emit("div", top, square), zero)

    return partial


def _pow_base(b: Builder, x: Operands, r: Any) -> Value:
    """b·a^(b-1); 0 for exponent 0, and at base 0 for exponents in (0, 1), where only the slope is infinite."""
    base, e = x
    zero, one = _c(base, 0.0, b), _c(base, 1.0, b)
    cusp = b.emit("and", b.emit("eq", base, zero), b.emit("lt", e, one))
    flat = b.emit("or", b.emit("eq", e, zero), b.emit("and", cusp, b.emit("gt", e, zero)))
    return b.select(flat, zero, b.emit("mul", e, b.emit("pow", base, b.emit("sub", e, one))))


def _pow_exponent(b: Builder, x: Operands, r: Any) -> Value:
    zero = _c(r, 0.0, b)
    positive = b.emit("gt", x[0], zero)
    logarithm = b.emit("log", b.select(positive, x[0], _c(r, 1.0, b)))
    return b.emit("mul", r, logarithm)


def _powi_base(b: Builder, x: Operands, r: Any) -> Value:
    base, n = x
    slope = b.emit("mul", b.cast(n, base.type), b.emit("powi", base, b.emit("sub", n, b.const(n.type, 1))))
    return b.select(b.emit("eq", n, b.const(n.type, 0)), _c(base, 0.0, b), slope)


def _div_divisor(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("neg", b.emit("mul", r, _reciprocal(b, x[1])))


def _floor_quotient(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("neg", b.emit("floor", b.emit("div", x[0], x[1])))


def _trunc_quotient(b: Builder, x: Operands, r: Any) -> Value:
    return b.emit("neg", b.emit("trunc", b.emit("div", x[0], x[1])))


def _one(b: Builder, x: Operands, r: Any) -> Value:
    """The partial is 1; `pull` passes the adjoint as it is."""
    raise AssertionError("not emitted")


def _result_is_first(b: Builder, x: Operands, r: Any) -> Value:
    """For min and max: differing from the second operand, the result is the first (right with NaN on either side)."""
    return b.emit("ne", r, x[1])


RULES: dict[str, Rule] = {
    "cast": Linear((1,)), "neg": Linear((-1,)), "add": Linear((1, 1)), "sub": Linear((1, -1)),
    "select": Choice(lambda b, x, r: x[0], 1, 2),
    "min": Choice(_result_is_first, 0, 1), "max": Choice(_result_is_first, 0, 1),
    "mul": Partials((lambda b, x, r: x[1], lambda b, x, r: x[0])),
    "div": Partials((lambda b, x, r: _reciprocal(b, x[1]), _div_divisor)),
    "mod": Partials((_one, _floor_quotient)), "raw_mod": Partials((_one, _trunc_quotient)),
    "abs": Partials((lambda b, x, r: b.emit("sgn", x[0]),)),
    "sqrt": Partials((_sqrt,)), "rsqrt": Partials((_rsqrt,)),
    "sin": Partials((lambda b, x, r: b.emit("cos", x[0]),)),
    "cos": Partials((lambda b, x, r: b.emit("neg", b.emit("sin", x[0])),)),
    "tan": Partials((_tan,)), "tanh": Partials((_tanh,)), "asin": Partials((_asin,)), "acos": Partials((_acos,)),
    "exp": Partials((lambda b, x, r: r,)), "log": Partials((lambda b, x, r: _reciprocal(b, x[0]),)),
    "atan2": Partials((_atan2(0), _atan2(1))),
    "pow": Partials((_pow_base, _pow_exponent)), "powi": Partials((_powi_base, None)),
    "bitcast": NotDifferentiable("the bits of a real number have no derivative"),
    "scratch_load": NotDifferentiable("private memory of an iteration is not differentiated"),
}  # fmt: skip
_ZERO = """const extent sgn not floor ceil trunc round isnan isinf popcnt clz floordiv raw_div and or xor shl sar shr
lt le gt ge eq ne scratch check print random
stop_grad"""
_STRUCTURAL = "load store atomic scratch_store if for while parallel_for yield"
RULES.update(dict.fromkeys(_ZERO.split(), Zero()))
RULES.update(dict.fromkeys(_STRUCTURAL.split(), Structural()))


def check_table(rules: dict[str, Rule], operations: Sequence[str]) -> None:
    """Raise `LookupError` unless ``rules`` has one entry for every operation; runs when the module is imported."""
    missing, unknown = sorted(set(operations) - set(rules)), sorted(set(rules) - set(operations))
    if missing or unknown:
        raise LookupError(f"derivative rules: no entry for {missing}, entries without an operation: {unknown}")


check_table(RULES, list(OPS))


def differentiable(name: str, operand: int) -> bool:
    """Whether the result of operation ``name`` can depend differentiably on operand ``operand``."""
    rule = RULES[name]
    if isinstance(rule, Partials):
        return rule.partials[operand] is not None
    if isinstance(rule, Choice):
        return operand in (rule.first, rule.second)
    return isinstance(rule, (Linear, NotDifferentiable))


def pull(
    b: Builder, name: str, x: Operands, r: Any, operand: int, adjoint: Value, to: Any, *, masked: bool = False
) -> Value:
    """Contribution of a result's adjoint to the adjoint of one operand.

    Parameters
    ----------
    b : Builder
        Where the contribution is emitted.
    name : str
        Operation.
    x, r : sequence of Value, Value
        Primal operands and result; those that `uses` does not list may be None.
    operand : int
        Which operand.
    adjoint : Value
        Adjoint of the result.
    to : DType
        Type of the operand.
    masked : bool
        The contribution of a zero adjoint is exactly zero, even where the partial derivative is not finite: for
        values that a selection may discard.
    """
    rule = RULES[name]
    if isinstance(rule, Linear):
        return b.cast(adjoint if rule.signs[operand] > 0 else b.emit("neg", adjoint), to)
    zero = b.const(to, 0.0)
    if isinstance(rule, Choice):
        pair = (adjoint, zero) if operand == rule.first else (zero, adjoint)
        return b.select(rule.takes_first(b, x, r), *pair)
    assert isinstance(rule, Partials)
    partial = rule.partials[operand]
    assert partial is not None
    if partial is _one:
        return adjoint
    product = b.emit("mul", adjoint, partial(b, x, r))
    return b.select(b.emit("eq", adjoint, zero), zero, product) if masked else product


def push(
    b: Builder, name: str, x: Operands, r: Value, tangents: Sequence[Value | None], *, masked: bool = False
) -> Value | None:
    """Tangent of a result from the tangents of its operands (None: zero); None when it is zero."""
    rule = RULES[name]
    if isinstance(rule, Choice):
        first, second = (tangents[i] for i in (rule.first, rule.second))
        if first is None and second is None:
            return None
        zero = b.const(r.type, 0.0)
        return b.select(rule.takes_first(b, x, r), zero if first is None else first, zero if second is None else second)
    masked = masked or name in _SINGULAR
    total: Value | None = None
    for i, t in enumerate(tangents):
        if t is not None and differentiable(name, i):
            term = _push_term(b, name, x, r, i, t, masked)
            total = term if total is None else b.emit("add", total, term)
    return total


_SINGULAR = frozenset(("div", "pow", "atan2"))
"""Of several operands, with infinite partials: a zero tangent of one must not spoil the term of another."""


def _push_term(b: Builder, name: str, x: Operands, r: Value, operand: int, tangent: Value, masked: bool) -> Value:
    return pull(b, name, x, r, operand, tangent, r.type, masked=masked)


@cache
def uses(name: str, operand: int) -> tuple[tuple[int, ...], bool]:
    """Primal operands, and whether the result, that the contribution to ``operand`` reads: traced."""
    rule = RULES[name]
    if not isinstance(rule, (Partials, Choice)):
        return (), False
    operands = [Arg(t) for t in _trace_types(name)]
    adjoint, result, region = Arg(dt.f64), Arg(dt.f64), Region()
    out = pull(Builder(region), name, operands, result, operand, adjoint, dt.f64)
    read = {out, *(v for node in region.nodes for v in operands_deep(node))}
    return tuple(i for i, v in enumerate(operands) if v in read), result in read


def _trace_types(name: str) -> tuple[Any, ...]:
    if name == "select":
        return dt.u1, dt.f64, dt.f64
    return (dt.f64, dt.i32) if name == "powi" else (dt.f64,) * OPS[name].arity
