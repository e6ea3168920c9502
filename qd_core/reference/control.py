"""Constants, conversions and control flow of the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from qd_core.errors import InvalidIRError
from qd_core.ir.convert import convert
from qd_core.ir.nodes import Node
from qd_core.reference.lanes import Array, Execute, Lanes, Mask

__all__ = ["CONTROL"]


# -- values ---------------------------------------------------------------------------------------------------------
def _const(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = np.asarray(node.attrs["value"], node.type.numpy)


def _cast(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = convert(x.env[node.operands[0]], node.type)


def _bitcast(x: Lanes, node: Node, mask: Mask) -> None:
    x.env[node] = (
        np.ascontiguousarray(x.env[node.operands[0]]).reshape(x.env[node.operands[0]].shape).view(node.type.numpy)
    )


def _extent(x: Lanes, node: Node, mask: Mask) -> None:
    _, view = x.array(node.operands[0])
    x.env[node] = np.asarray(view.shape[node.attrs["axis"]], np.int32)


# -- control --------------------------------------------------------------------------------------------------------
def _if(x: Lanes, node: Node, mask: Mask) -> None:
    condition = x.env[node.operands[0]]
    if condition.ndim == 0:
        values = x.region(node.regions[0 if condition else 1], mask)
    else:
        then = condition if mask is None else condition & mask
        other = ~condition if mask is None else ~condition & mask
        sides = [x.region(r, m) if m.any() else None for r, m in zip(node.regions, (then, other), strict=True)]
        values = _merge(condition, *sides)
    x.env.update(zip(node.results, values, strict=True))


def _merge(condition: Array, then: list[Any] | None, other: list[Any] | None) -> list[Any]:
    """Values of an ``if`` whose sides may not have run because no lane took them."""
    if then is None or other is None:
        return then or other or []
    return [np.where(condition, a, b) for a, b in zip(then, other, strict=True)]


class _Loop:
    """Lanes that are still in a loop, and their carried values."""

    def __init__(self, mask: Mask, carried: list[Any]) -> None:
        self.mask, self.carried, self.partial = mask, carried, False

    def advance(self, values: list[Any]) -> None:
        """Take over a body's yields for the lanes that ran it; before any lane has left, for all at once."""
        if self.mask is None or not self.partial:
            self.carried = values
        else:
            mask = self.mask
            self.carried = [np.where(mask, new, old) for new, old in zip(values, self.carried, strict=True)]

    def stay(self, condition: Array) -> bool:
        """Keep the lanes where ``condition`` holds; whether any is left."""
        if condition.ndim == 0:
            return bool(condition)
        mask = condition if self.mask is None else condition & self.mask
        before = mask.size if self.mask is None else np.count_nonzero(self.mask)
        left = np.count_nonzero(mask)
        if left < before:
            self.mask, self.partial = mask, True
        return bool(left > 0)


def _for(x: Lanes, node: Node, mask: Mask) -> None:
    start, stop, *carried = x.values(node.operands)
    body, reverse, one = node.regions[0], node.attrs["reverse"], start.dtype.type(1)
    loop = _Loop(mask, carried)
    going = loop.stay(np.less(start, stop))
    index, last = (stop - one, start) if reverse else (start, stop - one)
    while going:
        x.env.update(zip(body.args, (np.asarray(index), *loop.carried), strict=True))
        values = x.region(body, loop.mask)
        going = values.pop() if node.attrs["breaks"] else None
        loop.advance(values)
        going = (going is None or loop.stay(going)) and loop.stay(np.asarray(index != last))
        index = index - one if reverse else index + one
    x.env.update(zip(node.results, loop.carried, strict=True))


def _while(x: Lanes, node: Node, mask: Mask) -> None:
    condition, body = node.regions
    loop = _Loop(mask, x.values(node.operands))
    while True:
        x.env.update(zip(condition.args, loop.carried, strict=True))
        (going,) = x.region(condition, loop.mask)
        if not loop.stay(going):
            break
        x.env.update(zip(body.args, loop.carried, strict=True))
        loop.advance(x.region(body, loop.mask))
    x.env.update(zip(node.results, loop.carried, strict=True))


def _parallel_for(x: Lanes, node: Node, mask: Mask) -> None:
    raise InvalidIRError("parallel_for inside a task", span=node.span)


CONTROL: dict[str, Execute] = {
    "const": _const,
    "cast": _cast,
    "bitcast": _bitcast,
    "extent": _extent,
    "if": _if,
    "for": _for,
    "while": _while,
    "parallel_for": _parallel_for,
}
"""Execution of the operations of this module by name."""
