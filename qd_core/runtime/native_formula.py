"""From an extent's IR to the formula that the native launch entry evaluates."""

from __future__ import annotations

from collections.abc import Callable

from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Param, Value
from qd_core.runtime.native_spec import Formula
from qd_core.runtime.native_tables import FORMULA_DEPTH

__all__ = ["formula_of"]

MAX_STEPS = 64

_BINARY = frozenset({"add", "sub", "mul", "min", "max", "floordiv"})

WordOf = Callable[[Param, int | None], int]


class _Unsupported(Exception):
    """The stack machine has no such operation."""


def formula_of(value: Value, word_of: WordOf) -> Formula | None:
    """Return the formula of an integer ``value``, or None when the stack machine cannot compute it.

    Parameters
    ----------
    value : Value
        What a `HostExpr` yields: integer operations on constants, scalar parameters and extents.
    word_of : callable
        Word of a scalar parameter (axis None), or of an array parameter's extent of an axis.
    """
    steps: list[tuple[str, int]] = []
    try:
        _push(value, word_of, steps)
    except _Unsupported:
        return None
    formula = Formula(tuple(steps))
    return formula if formula.depth() <= FORMULA_DEPTH else None


def _push(value: Value, word_of: WordOf, steps: list[tuple[str, int]]) -> None:
    """Append the steps that push ``value``, extended to 64 bits as its type says."""
    _check_type(value.type)
    if len(steps) > MAX_STEPS:  # a value used often is computed often
        raise _Unsupported
    if isinstance(value, Param):
        steps.append(("word", word_of(value, None)))
    elif isinstance(value, Node):
        _push_node(value, word_of, steps)
    else:
        raise _Unsupported
    if value.type.bits < 64:
        steps.append(("signed" if value.type.is_signed else "unsigned", value.type.bits))


def _push_node(node: Node, word_of: WordOf, steps: list[tuple[str, int]]) -> None:
    name = node.op.name
    if name == "const":
        steps.append(("constant", int(node.attrs["value"])))
    elif name == "extent" and isinstance(node.operands[0], Param):
        steps.append(("word", word_of(node.operands[0], node.attrs["axis"])))
    elif name == "cast":
        _push(node.operands[0], word_of, steps)
    elif name == "neg":
        steps.append(("constant", 0))
        _push(node.operands[0], word_of, steps)
        steps.append(("sub", 0))
    elif name in _BINARY:
        for operand in node.operands:
            _push(operand, word_of, steps)
        steps.append((name, 0))
    else:
        raise _Unsupported


def _check_type(kind: object) -> None:
    # u64 has another order than the signed 64 bits of the stack
    if not isinstance(kind, DType) or kind.kind not in "iu" or (kind.kind == "u" and kind.bits == 64):
        raise _Unsupported
