"""Pin the values that atomic minima and maxima compare.

The derivative of a minimum goes to the element that equals it, computed again: in the bits, or the gradient would be
lost. So where a kernel combines reals by `min` or `max`, all its real arithmetic is marked strict, and every launch
computes the same numbers.
"""

from __future__ import annotations

from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Node, Region
from qd_core.ir.rewrite import Copier, walk

__all__ = ["is_extremum", "pin_extrema"]


def is_extremum(node: Node) -> bool:
    """Whether a node is an atomic minimum or maximum of reals."""
    return node.op.name == "atomic" and node.attrs["kind"] in ("min", "max") and node.operands[-1].type.is_real


def pin_extrema(function: Function) -> Function:
    """Return ``function`` with strict real arithmetic if it has atomic minima or maxima of reals; else as it is."""
    if not any(is_extremum(n) for n in walk(function.body)):
        return function

    def rule(copier: Copier, node: Node) -> bool:
        if node.op.numpy is None or not getattr(node.type, "is_real", False):
            return False
        copier.builder.exact = "strict"
        copier.mapping[node] = copier.builder.emit(node.op.name, *copier.values(node.operands))
        copier.builder.exact = None
        return True

    body = Region()
    Copier(Builder(body), {p: p for p in function.params}, rule).nodes(function.body.nodes)
    return Function(function.name, function.params, body, function.span, dict(function.attrs))
