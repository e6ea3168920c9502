"""Structured control flow: regions become selections and loops with phis.

A loop has one exit, at its head. What a loop carries are phis of its header, so they are also its results; a `for`
that can break carries
"go on" as well, beside its known bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.codegen.spirv.emitter import HANDLERS, Emitter
from qd_core.codegen.spirv.fault import LOOP_ENDED, report
from qd_core.ir.nodes import Node

__all__ = ["loop"]

Phis = list[int]


def _if(em: Emitter, node: Node) -> None:
    then, other, merge = em.label(), em.label(), em.label()
    condition = em.value(node.operands[0])
    em.do("SelectionMerge", merge, 0)
    em.choose(condition, then, other)
    ends: list[tuple[list[int], int]] = []
    for label, region in zip((then, other), node.regions, strict=True):
        em.start(label)
        yields = em.nodes(region)
        ends.append((yields, em.block))
        em.jump(merge)
    em.start(merge)
    (a, a_end), (b, b_end) = ends
    for result, x, y in zip(node.results, a, b, strict=True):
        em.env[result] = em.op("Phi", em.type(result.type), x, a_end, y, b_end)


def loop(
    em: Emitter,
    types: Sequence[int],
    inits: Sequence[int],
    test: Callable[[Phis], int],
    body: Callable[[Phis], list[int]],
) -> Phis:
    """Write a loop.

    Parameters
    ----------
    em : Emitter
        Where it goes.
    types, inits : sequence of int
        Type and first value of each carried value.
    test : callable
        Writes the condition under which the body runs, from the carried values.
    body : callable
        Writes the body and returns the next carried values.

    Returns
    -------
    list of int
        The carried values after the loop.
    """
    header, check, start, following, merge = (em.label() for _ in range(5))
    before = em.block
    em.jump(header)
    em.start(header)
    phis = [em.module.id() for _ in types]
    places: list[int] = []
    for phi, type_id, init in zip(phis, types, inits, strict=True):
        em.do("Phi", type_id, phi, init, before, 0, following)
        places.append(len(em.out) - 2)
    em.do("LoopMerge", merge, following, 0)
    em.jump(check)
    em.start(check)
    em.choose(test(phis), start, merge)
    em.start(start)
    for place, value in zip(places, body(phis), strict=True):
        em.out[place] = value
    em.jump(following)
    em.start(following)
    em.jump(header)
    em.start(merge)
    if em.target.loop_limit:
        with em.when(test(phis)):
            report(em, em.u64(LOOP_ENDED))
    return phis


def _for(em: Emitter, node: Node) -> None:
    start, stop, *inits = em.values(node.operands)
    index, carried = node.operands[0].type, [r.type for r in node.results]
    region, breaks, reverse = node.regions[0], node.attrs["breaks"], node.attrs["reverse"]
    kind, signed = em.type(index), "S" if index.is_signed else "U"

    def test(phis: Phis) -> int:
        more = (start, phis[0]) if reverse else (phis[0], stop)
        going = em.op(f"{signed}LessThan", em.bool, *more)
        return em.op("LogicalAnd", em.bool, going, phis[-1]) if breaks else going

    def body(phis: Phis) -> list[int]:
        step = em.op("ISub" if reverse else "IAdd", kind, phis[0], em.const(index, 1))
        own = step if reverse else phis[0]
        em.env.update(zip(region.args, (own, *phis[1 : 1 + len(carried)]), strict=True))
        return [step, *em.nodes(region)]

    types = [kind, *map(em.type, carried), *([em.bool] if breaks else [])]
    first = [stop if reverse else start, *inits, *([em.const(dt.u1, True)] if breaks else [])]
    phis = loop(em, types, first, test, body)
    em.env.update(zip(node.results, phis[1 : 1 + len(carried)], strict=True))


def _while(em: Emitter, node: Node) -> None:
    condition, region = node.regions
    carried = [r.type for r in node.results]

    def test(phis: Phis) -> int:
        em.env.update(zip(condition.args, phis, strict=True))
        return em.nodes(condition)[0]

    def body(phis: Phis) -> list[int]:
        em.env.update(zip(region.args, phis, strict=True))
        return em.nodes(region)

    phis = loop(em, [em.type(t) for t in carried], em.values(node.operands), test, body)
    em.env.update(zip(node.results, phis, strict=True))


HANDLERS.update({"if": _if, "for": _for, "while": _while})
