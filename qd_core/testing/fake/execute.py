"""Execution of memory operations under the fake device's watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qd_core.ir.nodes import Node, indices_of
from qd_core.reference.interpreter import EXECUTE
from qd_core.reference.lanes import Execute, Lanes, Mask
from qd_core.reference.log import HEADER
from qd_core.reference.memory import check_indices
from qd_core.testing.fake.memory import FakeMemory

__all__ = ["WATCHED"]


def _places(x: Lanes, node: Node, indices: Sequence[Any], mask: Mask) -> tuple[FakeMemory, Any, tuple[Any, ...]]:
    """Memory, parameter and the checked places that the active lanes touch."""
    assert isinstance(x.memory, FakeMemory)
    param, view = x.array(node.operands[0])
    uniform = all(x.env[i].ndim == 0 for i in indices)
    lanes = np.zeros(1, np.int64) if uniform else x.active(mask)
    places = tuple(x.spread(x.env[i], lanes).astype(np.int64) for i in indices)
    check_indices(param, view, places, node.span)
    return x.memory, param, places


def _load(x: Lanes, node: Node, mask: Mask) -> None:
    memory, param, places = _places(x, node, node.operands[1:], mask)
    memory.check_read(param, places)
    EXECUTE["load"](x, node, mask)


def _store(x: Lanes, node: Node, mask: Mask) -> None:
    memory, param, places = _places(x, node, node.operands[1:-1], mask)
    memory.mark_written(param, places)
    EXECUTE["store"](x, node, mask)


def _atomic(x: Lanes, node: Node, mask: Mask) -> None:
    memory, param, places = _places(x, node, indices_of(node), mask)
    memory.check_read(param, places)
    memory.mark_written(param, places)
    EXECUTE["atomic"](x, node, mask)


def _message(name: str) -> Execute:
    """Watch a message: the header must have been written, and records become so."""

    def execute(x: Lanes, node: Node, mask: Mask) -> None:
        log = x.prepared.log
        if log is None:
            EXECUTE[name](x, node, mask)
            return
        assert isinstance(x.memory, FakeMemory)
        _, view = x.array(log)
        shadow = x.memory.shadows[log]
        if not shadow[:HEADER].all():
            raise x.memory.fail(log, "has no header: it was never cleared")
        EXECUTE[name](x, node, mask)
        shadow[: HEADER + int(view[0])] = np.iinfo(shadow.dtype).max

    return execute


WATCHED: dict[str, Execute] = {
    **EXECUTE,
    "load": _load,
    "store": _store,
    "atomic": _atomic,
    "check": _message("check"),
    "print": _message("print"),
}
"""Execution of every operation, by name."""
