"""Checks and prints: records in the log, written out of line.

The log is an array of i64 words: cursor, capacity, dropped, first error (site + 1), then records {site, iteration,
payload}. The body only tests; one function a site writes the record.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.codegen.llvm.convert import convert
from qd_core.codegen.llvm.elementwise import Typed
from qd_core.codegen.llvm.emitter import HANDLERS, Emitter, Lane
from qd_core.dtypes import DType
from qd_core.ir.nodes import Node

__all__: list[str] = []

_HEADER_WORDS = 4

_CHECK = """  %first.at = getelementptr i64, {ptr} %log, i64 3
  %swap = cmpxchg {ptr} %first.at, i64 0, i64 {error} monotonic monotonic
  %won = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %won, label %record, label %done
record:
"""

_RECORD = """  %at = atomicrmw add {ptr} %log, i64 {words} monotonic
  %end = add i64 %at, {words}
  %capacity.at = getelementptr i64, {ptr} %log, i64 1
  %capacity = load i64, {ptr} %capacity.at
  %fits = icmp sle i64 %end, %capacity
  %records = getelementptr i64, {ptr} %log, i64 {header}
  %r = getelementptr i64, {ptr} %records, i64 %at
  br i1 %fits, label %write, label %drop
write:
{stores}
  br label %done
drop:
  %dropped.at = getelementptr i64, {ptr} %log, i64 2
  %dropped = atomicrmw add {ptr} %dropped.at, i64 1 monotonic
  %inside = icmp slt i64 %at, %capacity
  br i1 %inside, label %torn, label %done
torn:
  ; no site has this number: the reader stops here, not at what an earlier launch left
  store i64 -1, {ptr} %r
  br label %done
done:
  ret void
}}
"""


def _writer(em: Emitter, node: Node, payload: int) -> str:
    """Return the name of the site's function, defining it at the first use."""
    site, ptr = node.attrs["site"], em.target.pointer
    name = f"@record_{site}"
    if site in em.module.sites:
        return name
    em.module.sites.add(site)
    values = [str(site), "%iteration", *(f"%p{i}" for i in range(payload))]
    stores: list[str] = []
    for i, value in enumerate(values):
        stores.append(f"  %r{i} = getelementptr i64, {ptr} %r, i64 {i}\n  store i64 {value}, {ptr} %r{i}")
    parameters = ", ".join(["i64 %iteration", *(f"i64 %p{i}" for i in range(payload))])
    head = f"define internal void {name}({ptr} %log, {parameters}) noinline cold {em.module.attributes} {{\nentry:\n"
    guard = _CHECK.format(ptr=ptr, error=site + 1) if node.op.name == "check" else ""
    record = _RECORD.format(ptr=ptr, words=len(values), header=_HEADER_WORDS, stores="\n".join(stores))
    em.module.functions.append(head + guard + record)
    return name


def _word(em: Emitter, ref: str, d: DType) -> str:
    """Return a scalar as a word of the log."""
    if d.is_real:
        wide = convert(Typed(em, d, False), ref, dt.f64)
        return em.new(f"bitcast double {wide} to i64")
    return convert(Typed(em, d, False), ref, dt.i64)


def _lane_value(em: Emitter, lane: Lane, d: DType, number: str) -> str:
    if not lane.wide:
        return lane.ref
    wide = em.widen(lane, d)
    return em.new(f"extractelement {em.vector[d]} {wide}, i32 {number}")


def _iteration(em: Emitter, number: str) -> str:
    if number == "0":
        return em.linear.ref
    return em.new(f"add i64 {em.linear.ref}, {em.new(f'zext i32 {number} to i64')}")


def _record(em: Emitter, node: Node, number: str) -> None:
    """Call the site's function for lane ``number``."""
    values = node.operands[1:] if node.op.name == "check" else node.operands
    words = [_iteration(em, number), *(_word(em, _lane_value(em, em.env[v], v.type, number), v.type) for v in values)]
    arguments = ", ".join(f"i64 {w}" for w in words)
    log = f"{em.target.pointer} {em.address(em.module.log(node))}"
    em.line(f"call void {_writer(em, node, len(values))}({log}, {arguments})")


def _check(em: Emitter, node: Node) -> None:
    ok = em.env[node.operands[0]]
    fail, done = em.label("fail"), em.label("checked")
    bad = em.mask
    if ok.wide:
        bad = em.both(em.mask, em.new(f"xor {em.mask_type} {ok.ref}, splat (i1 true)"))
        em.branch(em.any(bad), fail, done)
    else:
        em.branch(ok.ref, done, fail)
    em.start(fail)
    with em.scope():
        # Only the first failure of all is recorded, so the first lane's will do.
        _record(em, node, "0" if bad is None else em.first_active(bad))
    em.jump(done)
    em.start(done)


def _print(em: Emitter, node: Node) -> None:
    if em.lanes == 1:
        _record(em, node, "0")
        return
    n = em.lanes
    active = em.bits(em.mask) if em.mask is not None else str((1 << n) - 1)
    # Vectors of the operands are written before the loop: `scope` forgets what the loop's block writes.
    for v in node.operands:
        em.widen(em.env[v], v.type)
    head, done, before = em.label("print"), em.label("printed"), em.block
    em.jump(head)
    em.start(head)
    left = em.new("")
    at = len(em.lines) - 1
    zeros = em.new(f"call i{n} @llvm.cttz.i{n}(i{n} {left}, i1 true)")
    with em.scope():
        _record(em, node, em.lane_number(zeros))
    rest = em.new(f"and i{n} {left}, {em.new(f'sub i{n} {left}, 1')}")
    em.lines[at] += f"phi i{n} [ {active}, %{before} ], [ {rest}, %{head} ]"
    em.branch(em.new(f"icmp eq i{n} {rest}, 0"), done, head)
    em.start(done)


HANDLERS.update({"check": _check, "print": _print})
