"""Which private memory (`scratch`) fits a variable of the function, and which needs the pool."""

from __future__ import annotations

from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Region
from qd_core.ir.rewrite import walk

__all__ = ["is_pooled", "uses_pool"]

LOCAL_NBYTES = 256
"""Private memory of a constant length up to this lives in a variable of the function."""


def is_pooled(node: Node) -> bool:
    """Whether a node is a `scratch` that does not fit a Function variable."""
    if node.op.name != "scratch":
        return False
    length = constant_of(node.operands[0])
    return length is None or length * node.type.dtype.nbytes > LOCAL_NBYTES


def uses_pool(region: Region) -> bool:
    """Whether a task's body needs the pool."""
    return any(map(is_pooled, walk(region)))
