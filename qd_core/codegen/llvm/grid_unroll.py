"""Serial loops inside an iteration: short innermost ones are unrolled, so that their loads are under way together."""

from __future__ import annotations

from qd_core.codegen.llvm.emitter import HANDLERS as GENERAL
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.ir.nodes import Node

__all__ = ["HANDLERS", "is_short", "mark"]

TRIPS = 4
MOST_NODES = 48
_FIRST = 1_000_000
"""Numbers of metadata from here on are free."""


def is_short(node: Node) -> bool:
    """Whether a loop is an innermost one with a short body."""
    body = node.regions[0].nodes
    return not node.attrs["breaks"] and len(body) <= MOST_NODES and not any(n.regions for n in body)


def _for(em: Emitter, node: Node) -> None:
    GENERAL["for"](em, node)
    if em.lanes == 1 and em.lines[-1].endswith(":"):
        mark(em, node, at=-2)


def mark(em: Emitter, node: Node, at: int = -1) -> None:
    """Ask for unrolling where line ``at`` is the jump back of a short loop."""
    if is_short(node) and em.lines[at].startswith("  br label"):
        em.lines[at] += f", !llvm.loop !{_note(em)}"


def _note(em: Emitter) -> int:
    notes: list[str] = em.module.loop_notes
    number = _FIRST + 1 + len(notes)
    if not notes:
        em.module.metadata(f'!{_FIRST} = !{{!"llvm.loop.unroll.count", i32 {TRIPS}}}')
    notes.append(f"!{number}")
    em.module.metadata(f"!{number} = distinct !{{!{number}, !{_FIRST}}}")
    return number


HANDLERS = {"for": _for}
