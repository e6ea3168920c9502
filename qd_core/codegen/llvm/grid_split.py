"""Sums over a serial loop, shared by several threads where there are few iterations.

A task whose iterations each sum over a long loop leaves most of a device idle when they are fewer than its threads. So
`PARTS` neighbouring threads take every `PARTS`-th trip of one iteration's loop, and the first one gets the sum of all
by shuffles and goes on alone. The launcher decides by the number of threads that it starts. Reals are only split where
the user allows another order of additions.
"""

from __future__ import annotations

from collections.abc import Sequence

from qd_core.codegen.llvm import grid_unroll
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.grid_atomics import combine, shuffle
from qd_core.codegen.llvm.grid_state import GridState
from qd_core.codegen.llvm.types import LLVM, literal
from qd_core.ir.nodes import Node, Region, Value

__all__ = ["HANDLERS", "PARTS", "divide_threads", "splittable"]

PARTS = 8
_SHIFT = 3


def splittable(body: Region, fast: bool) -> Node | None:
    """Return the loop of a body that threads may share: its only one, a sum without effects, before all effects."""
    loops = [n for n in body.nodes if n.regions]
    if len(loops) != 1 or loops[0].op.name != "for":
        return None
    loop = loops[0]
    before = body.nodes[: body.nodes.index(loop)]
    if any(n.op.writes for n in before) or any(n.op.name == "scratch" for n in body.nodes):
        return None
    inner = loop.regions[0]
    if loop.attrs["breaks"] or loop.attrs["reverse"] or any(n.op.writes or n.regions for n in inner.nodes[:-1]):
        return None
    return loop if _sums(inner, fast) else None


def _sums(inner: Region, fast: bool) -> bool:
    """Whether every carried value is only added to."""
    carried = inner.args[1:]
    uses: dict[Value, int] = dict.fromkeys(carried, 0)
    for node in inner.nodes:
        for value in node.operands:
            if value in uses:
                uses[value] += 1
    for arg, value in zip(carried, inner.yields, strict=True):
        if uses[arg] != 1 or not isinstance(value, Node) or value.op.name != "add" or arg not in value.operands:
            return False
        if value.type.bits < 32 or (value.type.is_real and (not fast or value.attrs.get("exact") is not None)):
            return False
    return bool(carried)


def divide_threads(em: Emitter, loop: Node) -> None:
    """Let `PARTS` threads be one where as many were started."""
    state = GridState.of(em)
    wanted = em.new(f"shl i64 {state.count}, {_SHIFT}")
    several = em.new(f"icmp uge i64 {state.threads}, {wanted}")
    shift = em.new(f"select i1 {several}, i64 {_SHIFT}, i64 0")
    parts = em.new(f"shl i64 1, {shift}")
    part = em.new(f"and i64 {state.first}, {em.new(f'sub i64 {parts}, 1')}")
    state.split, state.several, state.parts, state.part = loop, several, parts, part
    state.first = em.new(f"lshr i64 {state.first}, {shift}")
    state.threads = em.new(f"lshr i64 {state.threads}, {shift}")


def _for(em: Emitter, node: Node) -> None:
    if GridState.of(em).split is node:
        _shared_for(em, GridState.of(em), node)
    else:
        grid_unroll.HANDLERS["for"](em, node)


def _shared_for(em: Emitter, state: GridState, node: Node) -> None:
    body, d = node.regions[0], node.operands[0].type
    start, stop = (_wide(em, v) for v in node.operands[:2])
    first = em.new(f"add i64 {start}, {state.part}")
    leads = em.new(f"icmp eq i64 {state.part}, 0")
    inits = [_init(em, v, leads) for v in node.operands[2:]]
    head, run, done, before = em.label("shared"), em.label("body"), em.label("done"), em.block
    em.jump(head)
    em.start(head)
    refs = [em.new("") for _ in range(1 + len(inits))]
    phis = range(len(em.lines) - len(refs), len(em.lines))
    em.branch(em.new(f"icmp slt i64 {refs[0]}, {stop}"), run, done)
    em.start(run)
    with em.scope():
        index = refs[0] if d.bits == 64 else em.new(f"trunc i64 {refs[0]} to {LLVM[d]}")
        em.known_as(("i64", index), refs[0])
        for arg, ref in zip(body.args, [index, *refs[1:]], strict=True):
            em.env[arg] = Lane(ref)
        em.nodes(body)
        nexts = [em.new(f"add i64 {refs[0]}, {state.parts}"), *(em.env[v].ref for v in body.yields)]
        types = ["i64", *(LLVM[v.type] for v in body.yields)]
        for at, t, init, value in zip(phis, types, [first, *inits], nexts, strict=True):
            em.lines[at] += f"phi {t} [ {init}, %{before} ], [ {value}, %{em.block} ]"
        em.jump(head)
        grid_unroll.mark(em, node)
    em.start(done)
    for result, total in zip(node.results, _totals(em, state, refs[1:], body.yields), strict=True):
        em.env[result] = Lane(total)
    go, state.split_end = em.label("lead"), em.label("shared_end")
    em.branch(leads, go, state.split_end)
    em.start(go)


def _wide(em: Emitter, value: Value) -> str:
    ref, d = em.env[value].ref, value.type
    if d.bits == 64:
        return ref
    return em.new(f"{'sext' if d.is_signed else 'zext'} {LLVM[d]} {ref} to i64")


def _init(em: Emitter, value: Value, leads: str) -> str:
    t, d = LLVM[value.type], value.type
    zero = literal(d, -0.0) if d.is_real else "0"
    return em.new(f"select i1 {leads}, {t} {em.env[value].ref}, {t} {zero}")


def _totals(em: Emitter, state: GridState, partial: Sequence[str], values: Sequence[Value]) -> list[str]:
    """Sums of all parts, in the first thread of each group."""
    join, joined, before = em.label("join"), em.label("joined"), em.block
    em.branch(state.several, join, joined)
    em.start(join)
    lane = em.new(f"and i32 {state.thread}, {(state.facts.subgroup - 1) & -PARTS}")
    group = em.new(f"shl i32 {(1 << PARTS) - 1}, {lane}")
    sums: list[str] = []
    for ref, value in zip(partial, values, strict=True):
        delta = PARTS // 2
        while delta:
            ref = combine(em, "add", value.type, ref, shuffle(em, state, ref, value.type, delta, group))
            delta //= 2
        sums.append(ref)
    em.jump(joined)
    em.start(joined)
    return [
        em.new(f"phi {LLVM[v.type]} [ {alone}, %{before} ], [ {total}, %{join} ]")
        for v, alone, total in zip(values, partial, sums, strict=True)
    ]


HANDLERS = {"for": _for}
assert 1 << _SHIFT == PARTS
