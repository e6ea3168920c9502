"""Structured control flow: branches where lanes agree, masks where they do not.

A loop whose lanes may leave at different iterations runs until none is active; what it carries is blended, so that a
lane keeps the values it had when it left. Inside, active lanes move in step: a counter that all started alike stays a
scalar.
"""

from __future__ import annotations

from dataclasses import dataclass

from qd_core.codegen.llvm.cost import is_cheap
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.codegen.llvm.types import LLVM
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node, Region, Value

__all__: list[str] = []


# -- if ----------------------------------------------------------------------------------------------------------------
def _if(em: Emitter, node: Node) -> None:
    condition = em.env[node.operands[0]]
    if condition.wide:
        _masked_if(em, node, condition.ref)
    else:
        _branch_if(em, node, condition.ref)


def _branch_if(em: Emitter, node: Node, condition: str) -> None:
    labels = em.label("then"), em.label("else")
    merge = em.label("merge")
    wide = [r in em.varying for r in node.results]
    em.branch(condition, *labels)
    ends: list[tuple[list[str], str]] = []
    for label, region in zip(labels, node.regions, strict=True):
        em.start(label)
        with em.scope():
            em.nodes(region)
            ends.append(([em.as_wide(v, w) for v, w in zip(region.yields, wide, strict=True)], em.block))
        em.jump(merge)
    em.start(merge)
    (then, then_end), (other, other_end) = ends
    for result, w, a, b in zip(node.results, wide, then, other, strict=True):
        ref = em.new(f"phi {em.typed(result.type, w)} [ {a}, %{then_end} ], [ {b}, %{other_end} ]")
        em.env[result] = Lane(ref, w)


def _masked_if(em: Emitter, node: Node, condition: str) -> None:
    negation = em.new(f"xor {em.mask_type} {condition}, splat (i1 true)")
    values = [
        _arm(em, region, em.both(em.mask, m)) for region, m in zip(node.regions, (condition, negation), strict=True)
    ]
    for result, a, b in zip(node.results, *values, strict=True):
        t = em.vector[result.type]
        em.env[result] = Lane(em.new(f"select {em.mask_type} {condition}, {t} {a}, {t} {b}"), True)


def _arm(em: Emitter, region: Region, mask: str) -> list[str]:
    """Write one side under its mask, jumped over when no lane is active; return its yields as vectors."""
    if len(region.nodes) == 1:
        return [em.as_wide(v, True) for v in region.yields]
    if is_cheap(region):
        with em.masked(mask):
            em.nodes(region)
        return [em.as_wide(v, True) for v in region.yields]
    run, skip, before = em.label("arm"), em.label("skip"), em.block
    em.branch(em.any(mask), run, skip)
    em.start(run)
    with em.scope(), em.masked(mask):
        em.nodes(region)
        yields = [em.as_wide(v, True) for v in region.yields]
    end = em.block
    em.jump(skip)
    em.start(skip)
    # Zero, not poison: lanes that never take this side may go on to divide by it.
    types = [em.vector[v.type] for v in region.yields]
    return [
        em.new(f"phi {t} [ {y}, %{end} ], [ zeroinitializer, %{before} ]") for t, y in zip(types, yields, strict=True)
    ]


# -- carried values ----------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Carried:
    """One value that a loop carries: its phi, and another one for lanes that have left, where these may differ."""

    result: Value
    type: str
    wide: bool
    init: str
    phi: str = ""
    kept_type: str = ""
    kept: str = ""
    kept_init: str = ""
    next: str = ""
    kept_next: str = ""


class _Loop:
    """Writes the phis of a loop's header; their second operands are known at its end."""

    def __init__(self, em: Emitter, node: Node, inits: tuple[Value, ...], args: tuple[Value, ...]) -> None:
        self.em, self.node, self.divergent = em, node, node in em.divergent
        self.carried = [self._make(i, a, r) for i, a, r in zip(inits, args, node.results, strict=True)]
        self.entry = em.block
        self.patches: list[tuple[int, str, str]] = []

    def _make(self, init: Value, arg: Value, result: Value) -> _Carried:
        em, wide = self.em, arg in self.em.varying
        c = _Carried(result, em.typed(arg.type, wide), wide, em.as_wide(init, wide))
        if self.divergent and not wide and result in em.used:
            c.kept_type, c.kept_init = em.vector[arg.type], em.as_wide(init, True)
        return c

    def phi(self, type: str, init: str) -> str:
        """Write a phi whose value from the loop's end is filled in by `close`."""
        ref = self.em.new("")
        self.patches.append((len(self.em.lines) - 1, type, init))
        return ref

    def open(self) -> None:
        """Write the phis of what is carried."""
        for c in self.carried:
            c.phi = self.phi(c.type, c.init)
            if c.kept_type:
                c.kept = self.phi(c.kept_type, c.kept_init)

    def bind(self, args: tuple[Value, ...]) -> None:
        """Let region arguments be the phis."""
        for c, arg in zip(self.carried, args, strict=True):
            self.em.env[arg] = Lane(c.phi, c.wide)

    def advance(self, yields: tuple[Value, ...], mask: str | None) -> None:
        """Work out the next values; under a divergent loop's mask, inactive lanes keep theirs."""
        em = self.em
        for c, value in zip(self.carried, yields, strict=False):
            c.next = em.as_wide(value, c.wide)
            if self.divergent and c.wide:
                c.next = self._blend(mask, c.type, c.next, c.phi)
            elif c.kept:
                c.kept_next = self._blend(mask, c.kept_type, em.as_wide(value, True), c.kept)

    def _blend(self, mask: str | None, type: str, new: str, old: str) -> str:
        return self.em.new(f"select {self.em.mask_type} {mask}, {type} {new}, {type} {old}")

    def close(self, nexts: list[str]) -> None:
        """Fill in the phis: ``nexts`` for those that `phi` made before `open`, then the carried ones."""
        values = list(nexts)
        for c in self.carried:
            values += [c.next, c.kept_next] if c.kept else [c.next]
        for (at, type, init), value in zip(self.patches, values, strict=True):
            self.em.lines[at] += f"phi {type} [ {init}, %{self.entry} ], [ {value}, %{self.em.block} ]"

    def results(self, pairs: list[str] | None = None) -> None:
        """Bind the loop's results to the header's phis (or to ``pairs``, merged after the loop)."""
        for i, c in enumerate(self.carried):
            wide = c.wide or bool(c.kept)
            self.em.env[c.result] = Lane(pairs[i] if pairs is not None else c.kept or c.phi, wide)


# -- for ---------------------------------------------------------------------------------------------------------------
def _for(em: Emitter, node: Node) -> None:
    if node in em.divergent:
        _masked_for(em, node)
    else:
        _plain_for(em, node)


def _plain_for(em: Emitter, node: Node) -> None:
    body, reverse, breaks = node.regions[0], node.attrs["reverse"], node.attrs["breaks"]
    d = node.operands[0].type
    start, stop = (em.env[v].ref for v in node.operands[:2])
    head, run, done = em.label("for"), em.label("body"), em.label("done")
    loop = _Loop(em, node, node.operands[2:], body.args[1:])
    em.jump(head)
    em.start(head)
    counter = loop.phi(LLVM[d], stop if reverse else start)
    going = loop.phi("i1", "true") if breaks else ""
    loop.open()
    sign = "s" if d.is_signed else "u"
    more = em.new(f"icmp {sign}{'gt' if reverse else 'lt'} {LLVM[d]} {counter}, {start if reverse else stop}")
    em.branch(em.new(f"and i1 {more}, {going}") if breaks else more, run, done)
    em.start(run)
    with em.scope():
        index, after = _step(em, d, counter, reverse)
        em.env[body.args[0]] = Lane(index)
        loop.bind(body.args[1:])
        em.nodes(body)
        if after is None:
            after = em.new(f"add {_no_wrap(d)} {LLVM[d]} {counter}, 1")
        loop.advance(body.yields, None)
        goes_on = em.as_wide(body.yields[-1], False) if breaks else ""
    em.jump(head)
    loop.close([after, goes_on] if breaks else [after])
    em.start(done)
    loop.results()


def _no_wrap(d: DType) -> str:
    return "nsw" if d.is_signed else "nuw"


def _step(em: Emitter, d: DType, counter: str, reverse: bool) -> tuple[str, str | None]:
    """Index of this iteration and, downward, the next counter (the same). No bound is the end of its type on the inner
    side, so nothing wraps.
    """
    if not reverse:
        return counter, None
    index = em.new(f"sub {_no_wrap(d)} {LLVM[d]} {counter}, 1")
    return index, index


def _masked_for(em: Emitter, node: Node) -> None:
    """Lanes count in step from their own start; a lane is active until it reaches its own stop or asks to leave."""
    body, reverse, breaks = node.regions[0], node.attrs["reverse"], node.attrs["breaks"]
    d = node.operands[0].type
    first, last = (node.operands[1], node.operands[0]) if reverse else (node.operands[0], node.operands[1])
    wide = body.args[0] in em.varying
    t, vector = em.typed(d, wide), em.vector[d]
    begin, bound = em.as_wide(first, wide), em.as_wide(last, True)
    predicate = f"icmp {'s' if d.is_signed else 'u'}{'gt' if reverse else 'lt'} {vector}"
    entered = em.both(em.mask, em.new(f"{predicate} {em.as_wide(first, True)}, {bound}"))
    loop = _Loop(em, node, node.operands[2:], body.args[1:])
    run, done = em.label("body"), em.label("done")
    em.branch(em.any(entered), run, done)
    em.start(run)
    counter = loop.phi(t, begin)
    mask = loop.phi(em.mask_type, entered)
    loop.open()
    with em.scope(), em.masked(mask):
        one = em.constant(d, 1, wide)
        after = em.new(f"{'sub' if reverse else 'add'} {t} {counter}, {one}")
        em.env[body.args[0]] = Lane(after if reverse else counter, wide)
        loop.bind(body.args[1:])
        em.nodes(body)
        loop.advance(body.yields, mask)
        more = em.new(f"{predicate} {after if wide else em.splat(after, d)}, {bound}")
        active = em.both(mask, more)
        if breaks:
            active = em.both(active, em.as_wide(body.yields[-1], True))
        again = em.any(active)
    end = em.block
    em.branch(again, run, done)
    loop.close([after, active])
    em.start(done)
    _merge(em, loop, end)


def _merge(em: Emitter, loop: _Loop, end: str) -> None:
    merged: list[str] = []
    for c in loop.carried:
        if c.wide or c.kept:
            t, init, last = (c.type, c.init, c.next) if c.wide else (c.kept_type, c.kept_init, c.kept_next)
            merged.append(em.new(f"phi {t} [ {init}, %{loop.entry} ], [ {last}, %{end} ]"))
        else:
            merged.append("poison")  # nobody uses it
    loop.results(merged)


# -- while -------------------------------------------------------------------------------------------------------------
def _while(em: Emitter, node: Node) -> None:
    condition, body = node.regions
    divergent = node in em.divergent
    loop = _Loop(em, node, node.operands, condition.args)
    head, run, done = em.label("while"), em.label("body"), em.label("done")
    em.jump(head)
    em.start(head)
    outer = em.mask
    mask = loop.phi(em.mask_type, em.mask_or_all()) if divergent else outer
    loop.open()
    loop.bind(condition.args)
    with em.scope():
        with em.masked(mask):
            em.nodes(condition)
        test = em.as_wide(condition.yields[0], divergent)
        if divergent:
            assert mask is not None
            mask = em.both(mask, test)
            test = em.any(mask)
        em.branch(test, run, done)
        em.start(run)
        loop.bind(body.args)
        with em.scope(), em.masked(mask):
            em.nodes(body)
            loop.advance(body.yields, mask)
        em.jump(head)
        loop.close([mask] if divergent and mask is not None else [])
    em.start(done)
    loop.results()


HANDLERS.update({"if": _if, "for": _for, "while": _while})
