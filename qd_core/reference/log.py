"""Messages of interpreted programs: `check` and `print` append records to the log array.

The log is a 1-D i64 array: a header {words used, capacity in words, records dropped, number of the first failed site
+ 1}, then records {site, iteration, payload words}. The header's counts exclude the header itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Node
from qd_core.reference.lanes import Array, Execute, Lanes, Mask
from qd_core.reference.memory import InterpreterError

__all__ = ["HEADER", "MESSAGES", "payload_words"]

HEADER = 4
"""Words before the first record."""

_CURSOR, _CAPACITY, _DROPPED, _FIRST_ERROR = range(HEADER)


def payload_words(value: Array) -> Array:
    """Return values as 64-bit words: integers extended by their sign, truth values as 0 or 1, reals as the bits of
    their f64.
    """
    if value.dtype.kind == "f":
        return value.astype(np.float64).view(np.int64)
    return value.astype(np.int64)


def _log(x: Lanes, node: Node) -> Array:
    param = x.prepared.log
    if param is None or "site" not in node.attrs:
        raise InvalidIRError(f"{node.op.name} has no log or no site", span=node.span)
    return x.array(param)[1]


def _append(log: Array, site: int, iteration: int, payload: list[Any]) -> None:
    """Append a record, or count it as dropped where it does not fit."""
    at, length = int(log[_CURSOR]), 2 + len(payload)
    if at + length > log[_CAPACITY]:
        log[_DROPPED] += 1
        return
    if HEADER + at + length > log.size:
        raise InterpreterError(f"the log's capacity of {log[_CAPACITY]} words exceeds its array of {log.size}")
    log[HEADER + at : HEADER + at + length] = [site, iteration, *payload]
    log[_CURSOR] = at + length


def _records(x: Lanes, node: Node, operands: Any, lanes: Array) -> Array:
    """Iteration and payload words of each of ``lanes``: (lanes, 1 + operands)."""
    linear = np.zeros(lanes.size, np.int64) if x.linear is None else x.linear[lanes]
    return np.stack([linear, *(payload_words(x.spread(x.env[v], lanes)) for v in operands)], axis=1)


def _check(x: Lanes, node: Node, mask: Mask) -> None:
    lanes = x.active(mask)
    failed = lanes[~x.spread(x.env[node.operands[0]], lanes)]
    if not failed.size:
        return
    log, site = _log(x, node), node.attrs["site"]
    if log[_FIRST_ERROR] == 0:
        log[_FIRST_ERROR] = site + 1
        ((iteration, *payload),) = _records(x, node, node.operands[1:], failed[:1]).tolist()
        _append(log, site, iteration, payload)


def _print(x: Lanes, node: Node, mask: Mask) -> None:
    log = _log(x, node)
    for iteration, *payload in _records(x, node, node.operands, x.active(mask)).tolist():
        _append(log, node.attrs["site"], iteration, payload)


MESSAGES: dict[str, Execute] = {"check": _check, "print": _print}
"""Execution of the operations of this module by name."""
