"""Operations for which a target names faster functions, used where fast math allows."""

from __future__ import annotations

from collections.abc import Callable

from qd_core.codegen.llvm.emitter import HANDLERS as EXACT
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.types import LLVM
from qd_core.ir.nodes import Node

__all__ = ["HANDLERS"]


def _handler(name: str) -> Callable[[Emitter, Node], None]:
    def write(em: Emitter, node: Node) -> None:
        call = em.target.form.facts.fast.get(f"{name}.{node.type.name}")  # type: ignore[attr-defined]
        lanes = [em.env[v] for v in node.operands]
        # A literal divisor becomes a factor.
        if call is None or not em.flags or node.attrs.get("exact") is not None or lanes[-1].ref[0] != "%":
            EXACT[name](em, node)
        elif any(lane.wide for lane in lanes):
            em.env[node] = Lane(_by_lane(em, node, call), True)
        else:
            em.env[node] = Lane(em.new(call.format(*(lane.ref for lane in lanes))))

    return write


def _by_lane(em: Emitter, node: Node, call: str) -> str:
    t, one = em.vector[node.type], LLVM[node.type]
    wide = [em.widen(em.env[v], v.type) for v in node.operands]
    result = "poison"
    for n in range(em.lanes):
        parts = [em.new(f"extractelement {t} {w}, i64 {n}") for w in wide]
        result = em.new(f"insertelement {t} {result}, {one} {em.new(call.format(*parts))}, i64 {n}")
    return result


HANDLERS = {name: _handler(name) for name in ("div", "sqrt", "rsqrt")}
