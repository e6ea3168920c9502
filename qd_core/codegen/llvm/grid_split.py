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

__all__ = ["HANDLERS", "PARTS", "divide_threads", "loaded_arrays", "splittable"]

PARTS = 16
_SHIFT = 4
TRIPS = 4
"""Trips that a thread does one after the other: its loads of neighbours become wide ones where addresses allow."""


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


def loaded_arrays(loop: Node) -> list[Value]:
    """Arrays that a loop reads."""
    return list(dict.fromkeys(n.operands[0] for n in loop.regions[0].nodes if n.op.name == "load"))


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
    body = node.regions[0]
    start, stop = (_wide(em, v) for v in node.operands[:2])
    run = TRIPS if grid_unroll.is_short(node) else 1
    leads = em.new(f"icmp eq i64 {state.part}, 0")
    inits = [_init(em, v, leads) for v in node.operands[2:]]
    first = em.new(f"add i64 {start}, {_times(em, state.part, run)}")
    types = [LLVM[v.type] for v in body.yields]
    loop = _Carrying(em, first, stop, types, inits)
    with loop as (at, *carried):
        end = em.new(f"add i64 {at}, {run}")
        whole, rest, joined = em.label("whole"), em.label("rest"), em.label("next")
        em.branch(em.new(f"icmp sle i64 {end}, {stop}"), whole, rest)
        em.start(whole)
        full, full_end = _run(em, node, at, run, carried), em.block
        em.jump(joined)
        em.start(rest)
        inner = _Carrying(em, at, stop, types, carried)
        with inner as (trip, *values):
            inner.advance("1", _run(em, node, trip, 1, values))
        rest_end = em.block
        em.jump(joined)
        em.start(joined)
        nexts = [
            em.new(f"phi {t} [ {a}, %{full_end} ], [ {b}, %{rest_end} ]")
            for t, a, b in zip(types, full, inner.refs[1:], strict=True)
        ]
        loop.advance(_times(em, state.parts, run), nexts)
    for result, total in zip(node.results, _totals(em, state, loop.refs[1:], body.yields), strict=True):
        em.env[result] = Lane(total)
    go, state.split_end = em.label("lead"), em.label("shared_end")
    em.branch(leads, go, state.split_end)
    em.start(go)


def _times(em: Emitter, ref: str, factor: int) -> str:
    return ref if factor == 1 else em.new(f"mul i64 {ref}, {factor}")


def _run(em: Emitter, node: Node, first: str, trips: int, carried: Sequence[str]) -> list[str]:
    """Write trips that follow each other; return what they carry on."""
    body, d = node.regions[0], node.operands[0].type
    values = list(carried)
    for n in range(trips):
        with em.scope():
            at = first if n == 0 else em.new(f"add i64 {first}, {n}")
            index = at if d.bits == 64 else em.new(f"trunc i64 {at} to {LLVM[d]}")
            em.known_as(("i64", index), at)
            for arg, ref in zip(body.args, [index, *values], strict=True):
                em.env[arg] = Lane(ref)
            em.nodes(body)
            values = [em.env[v].ref for v in body.yields]
    return values


class _Carrying:
    """A counting loop over signed i64 that carries values; ``with`` gives the counter and these, for afterwards too."""

    def __init__(self, em: Emitter, start: str, stop: str, types: Sequence[str], inits: Sequence[str]) -> None:
        self.em, self.stop = em, stop
        self.carried = [("i64", start), *zip(types, inits, strict=True)]
        self.head, self.done = em.label("trips"), em.label("done")

    def __enter__(self) -> list[str]:
        em = self.em
        body, self.before = em.label("trip"), em.block
        em.jump(self.head)
        em.start(self.head)
        self.phis = len(em.lines)
        self.refs = [em.new("") for _ in self.carried]
        em.branch(em.new(f"icmp slt i64 {self.refs[0]}, {self.stop}"), body, self.done)
        em.start(body)
        return self.refs

    def advance(self, step: str, values: Sequence[str]) -> None:
        """Write the end of a trip."""
        em = self.em
        nexts = [em.new(f"add nsw i64 {self.refs[0]}, {step}"), *values]
        for n, ((t, init), value) in enumerate(zip(self.carried, nexts, strict=True)):
            em.lines[self.phis + n] += f"phi {t} [ {init}, %{self.before} ], [ {value}, %{em.block} ]"
        em.jump(self.head)

    def __exit__(self, *error: object) -> None:
        self.em.start(self.done)


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
