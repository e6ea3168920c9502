"""Shifts by amounts of 64 bits, on targets whose shifts take 32.

The amount is masked before it is narrowed: otherwise one outside the width may become one inside it.
"""

from __future__ import annotations

from collections.abc import Callable

from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import HANDLERS as GENERAL
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.ir.nodes import Node

__all__ = ["HANDLERS"]


def _handler(name: str, instruction: str) -> Callable[[Emitter, Node], None]:
    def write(em: Emitter, node: Node) -> None:
        d = node.type
        if d.bits != 64:
            GENERAL[name](em, node)
            return
        wide = any(em.env[v].wide for v in node.operands)
        typed = Typed(em, d, wide)
        a, b = (em.as_wide(v, wide) for v in node.operands)
        inside = typed.compare("icmp ult", b, typed.lit(64))
        shifted = typed.op(instruction, a, typed.op("and", b, typed.lit(63)))
        em.env[node] = Lane(typed.select(inside, shifted, typed.lit(0)), wide)

    return write


def _sar(em: Emitter, node: Node) -> None:
    """Of unsigned types like `shr`; the amount of signed ones is clamped anyway."""
    (GENERAL["sar"] if node.type.is_signed else HANDLERS["shr"])(em, node)


HANDLERS = {"shl": _handler("shl", "shl"), "shr": _handler("shr", "lshr"), "sar": _sar}
