"""Atomic operations of a grid: combined before they reach memory where nobody asks for the old value.

==============================  ================================================================================
element                         how
==============================  ================================================================================
the same for all iterations     each thread combines in a register, the subgroup by shuffles, the block through
                                shared memory; one atomic a block
of a short array                counted in shared memory while a block runs, then added to memory (where
                                the launch has enough iterations to be worth it)
any other                       an atomic each
==============================  ================================================================================

The first two apply to arrays that the task does not touch otherwise. Which iteration comes first is open in a parallel
loop, so the order of additions is too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.llvm.atomics import combine_lanes, identity, update
from qd_core.codegen.llvm.emitter import HANDLERS as EXACT
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.grid_state import GridState, evaluate, is_invariant
from qd_core.codegen.llvm.memory import from_memory, place, pointer, to_memory
from qd_core.codegen.llvm.types import LLVM, MEMORY
from qd_core.dtypes import DType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Param, Region, Value, indices_of
from qd_core.ir.ops import ORDERED_KINDS
from qd_core.ir.rewrite import walk

__all__ = ["HANDLERS", "Bins", "close_reductions", "combine", "open_reductions", "reduces", "shuffle"]

BINS = 4096
"""Elements of the longest array that is counted in shared memory."""

MOST_ACCUMULATORS = 24
_BIN_TYPES = (dt.i32, dt.u32, dt.f32)


@dataclass(slots=True, eq=False)
class Bins:
    """An array that is counted in shared memory.

    ``use`` (i1) says whether it is in this launch; ``memory`` names the block's copy.
    """

    param: Param
    dtype: DType
    memory: str
    use: str
    extent: str


def _carrier(d: DType) -> DType:
    """Type in which values are combined: registers of 32 or 64 bits."""
    if d is dt.f16:
        return dt.f32
    if d.is_real or d.bits == 64:
        return d
    return dt.i32 if d.is_signed else dt.u32


# -- what can be combined ----------------------------------------------------------------------------------------------
def _candidates(body: Region, used: set[Value]) -> list[Node]:
    """Atomics whose array has no other access than atomics of the same kind whose old values nobody asks for."""
    by_param: dict[Value, list[Node]] = {}
    for node in walk(body):
        if node.op.name in ("load", "store", "atomic"):
            by_param.setdefault(node.operands[0], []).append(node)
    found: list[Node] = []
    for nodes in by_param.values():
        kinds = {n.attrs.get("kind") for n in nodes}
        if len(kinds) == 1 and None not in kinds and kinds.isdisjoint(ORDERED_KINDS) and used.isdisjoint(nodes):
            found += nodes
    return found


def reduces(body: Region, owned: set[Node]) -> bool:
    """Whether a task has atomics that are combined, so that its blocks should be few and live long."""
    used: set[Value] = set()
    for node in walk(body):
        used.update(node.operands)
    nodes = [n for n in _candidates(body, used) if n not in owned]
    return any(all(map(is_invariant, n.operands[1:-1])) or _fits_bins(n) for n in nodes)


def open_reductions(em: Emitter, body: Region) -> None:
    """Reserve accumulators and shared memory, before the walk."""
    state = GridState.of(em)
    nodes = [n for n in _candidates(body, em.used) if n not in em.owned]
    uniform = [n for n in nodes if all(map(is_invariant, n.operands[1:-1]))]
    for node in uniform[:MOST_ACCUMULATORS]:
        _open_accumulator(em, state, node, top=node in body.nodes)
    rest = [n for n in nodes if n not in state.accumulators and _fits_bins(n)]
    if state.facts.add_pair:
        state.pairs = _pairs(body, em.used)
    params = {n.operands[0] for n in rest}
    if len(params) == 1:
        _open_bins(em, state, rest[0])


def _fits_bins(node: Node) -> bool:
    kind = node.operands[0].type
    return node.attrs["kind"] == "add" and kind.rank == 1 and kind.ndim == 1 and kind.dtype in _BIN_TYPES


def _open_accumulator(em: Emitter, state: GridState, node: Node, *, top: bool) -> None:
    d = node.operands[-1].type
    carrier = _carrier(d)
    slot = em.label("%acc")
    em.entry.append(f"  {slot} = alloca {LLVM[carrier]}, align 8")
    em.line(f"store {LLVM[carrier]} {_neutral(node.attrs['kind'], d)}, ptr {slot}, align 8")
    state.accumulators[node] = slot, carrier
    if not top:
        flag = state.flags[node] = em.label("%ran")
        em.entry.append(f"  {flag} = alloca i32, align 4")
        em.line(f"store i32 0, ptr {flag}, align 4")


def _neutral(kind: str, d: DType) -> str:
    if d is dt.u1:
        return "1" if kind == "and" else "0"
    return identity(kind, _carrier(d)) if d is dt.f16 else identity(kind, d)


def _open_bins(em: Emitter, state: GridState, node: Node) -> None:
    param = node.operands[0]
    assert isinstance(param, Param)
    d = param.type.dtype
    memory, space = f"@bins_{state.number}", state.facts.shared_space
    state.globals.append(f"{memory} = internal addrspace({space}) global [{BINS} x {MEMORY[d]}] undef, align 16")
    extent = em.extent(param, 0)
    few = em.new(f"icmp ule i64 {extent}, {BINS}")
    # Clearing and adding costs each block two passes over the array.
    grid = em.new(f"zext i32 {state.grid} to i64")
    price = em.new(f"mul i64 {em.new(f'mul i64 {extent}, {grid}')}, 4")
    worth = em.new(f"icmp uge i64 {state.count}, {price}")
    state.bins = Bins(param, d, memory, em.new(f"and i1 {few}, {worth}"), extent)
    _each_bin(em, state, state.bins, clear=True)


# -- while walking -----------------------------------------------------------------------------------------------------
def combine(em: Emitter, kind: str, d: DType, a: str, b: str) -> str:
    """Combine two values; reals in any order."""
    t = LLVM[d]
    if kind == "add":
        return em.new(f"{'fadd reassoc' if d.is_real else 'add'} {t} {a}, {b}")
    if kind in ("and", "or", "xor"):
        return em.new(f"{kind} {t} {a}, {b}")
    name = f"{kind}num" if d.is_real else f"{'s' if d.is_signed else 'u'}{kind}"
    suffix = f"{'f' if d.is_real else 'i'}{d.bits}"
    return em.new(f"call {t} @llvm.{name}.{suffix}({t} {a}, {t} {b})")


def _to_carrier(em: Emitter, ref: str, d: DType) -> str:
    carrier = _carrier(d)
    if LLVM[carrier] == LLVM[d]:
        return ref
    how = "fpext" if d.is_real else "sext" if d.is_signed else "zext"
    return em.new(f"{how} {LLVM[d]} {ref} to {LLVM[carrier]}")


def _from_carrier(em: Emitter, ref: str, d: DType) -> str:
    carrier = _carrier(d)
    if LLVM[carrier] == LLVM[d]:
        return ref
    return em.new(f"{'fptrunc' if d.is_real else 'trunc'} {LLVM[carrier]} {ref} to {LLVM[d]}")


def _atomic(em: Emitter, node: Node) -> None:
    state = GridState.of(em)
    if node in em.owned:
        EXACT["atomic"](em, node)
    elif node in state.accumulators:
        _accumulate(em, state, node)
    elif state.bins is not None and node.operands[0] is state.bins.param:
        _count(em, state, state.bins, node)
    else:
        _plain(em, node)


def _accumulate(em: Emitter, state: GridState, node: Node) -> None:
    value, kind = node.operands[-1], node.attrs["kind"]
    d, lane = value.type, em.env[value]
    slot, carrier = state.accumulators[node]
    if em.lanes > 1 and em.varying:
        one = combine_lanes(em, kind, lane, d) if d is not dt.f16 else ""
        parts = [one] if one else [ref for _, ref in _by_lane(em, lane, d)]
    else:
        parts = [lane.ref]
    total = em.new(f"load {LLVM[carrier]}, ptr {slot}, align 8")
    for part in parts:
        total = combine(em, kind, carrier, total, _to_carrier(em, part, d))
    em.line(f"store {LLVM[carrier]} {total}, ptr {slot}, align 8")
    if node in state.flags:
        em.line(f"store i32 1, ptr {state.flags[node]}, align 4")


def _by_lane(em: Emitter, lane: Lane, d: DType) -> list[tuple[int, str]]:
    wide = em.widen(lane, d)
    return [(n, em.new(f"extractelement {em.vector[d]} {wide}, i64 {n}")) for n in range(em.lanes)]


def _is_wide(em: Emitter, node: Node) -> bool:
    """Whether several iterations are being written at once: all of them do their atomic."""
    return em.lanes > 1 and bool(em.varying)


def _pairs(body: Region, used: set[Value]) -> dict[Node, Node]:
    """Additions to neighbouring components of one element that may be one operation, each by the other."""
    found: dict[Node, Node] = {}
    for region in _regions(body):
        open_: dict[tuple[Value, ...], Node] = {}
        for node in region.nodes:
            if node.op.name == "atomic" and node.attrs["kind"] == "add" and node not in used and _may_pair(node):
                *rest, last, _ = node.operands
                component = int(constant_of(last))
                first = open_.pop((*rest, component - 1), None) if component % 2 else None  # type: ignore[arg-type]
                if first is not None:
                    found[first], found[node] = node, first
                elif component % 2 == 0:
                    open_[(*rest, component)] = node  # type: ignore[index]
    return found


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for node in region.nodes:
        for inner in node.regions:
            yield from _regions(inner)


def _may_pair(node: Node) -> bool:
    """Whether components lie side by side and elements start at even places."""
    kind = node.operands[0].type
    shape = kind.element_shape
    return kind.dtype is dt.f32 and bool(shape) and shape[-1] % 2 == 0 and constant_of(node.operands[-2]) is not None


def _pair(em: Emitter, state: GridState, first: Node, second: Node) -> None:
    """Add to two components at once where the array's address allows; both values are known at the second."""
    param, *indices, value = first.operands
    values = [em.env[value].ref, em.env[second.operands[-1]].ref]
    p = pointer(em, place(em, param, indices), "float")
    address = em.new(f"ptrtoint {em.target.pointer} {em.address(param)} to i64")
    even = em.new(f"icmp eq i64 {em.new(f'and i64 {address}, 7')}, 0")
    both, single, done = em.label("both"), em.label("single"), em.label("added")
    em.branch(even, both, single)
    em.start(both)
    em.line(state.facts.add_pair.format(pointer=f"{em.target.pointer} {p}", a=values[0], b=values[1]))
    em.jump(done)
    em.start(single)
    for n, one in enumerate(values):
        update(em, "add", dt.f32, em.new(f"getelementptr float, {em.target.pointer} {p}, i64 {n}"), one)
    em.jump(done)
    em.start(done)


def _plain(em: Emitter, node: Node) -> None:
    state = GridState.of(em)
    other = None if _is_wide(em, node) else state.pairs.get(node)
    if other is not None:
        if other in state.half:
            _pair(em, state, other, node)
        else:
            state.half.add(node)
        return
    param, indices = node.operands[0], indices_of(node)
    kind, d = node.attrs["kind"], node.type
    lanes = [em.env[v] for v in reversed(node.operands[1 + len(indices) :])]  # the value, then what `cas` expects
    if not _is_wide(em, node):
        p = pointer(em, place(em, param, indices), MEMORY[d])
        refs = [to_memory(em, lane.ref, d, False) for lane in lanes]
        em.env[node] = Lane(from_memory(em, update(em, kind, d, p, *refs), d, False))
        return
    olds = "zeroinitializer"
    values = zip(*([to_memory(em, ref, d, False) for _, ref in _by_lane(em, lane, d)] for lane in lanes), strict=True)
    for n, (p, refs) in enumerate(zip(_pointers(em, param, indices, d), values, strict=True)):
        old = from_memory(em, update(em, kind, d, p, *refs), d, False)
        olds = em.new(f"insertelement {em.vector[d]} {olds}, {LLVM[d]} {old}, i64 {n}")
    em.env[node] = Lane(olds, True)


def _offsets(em: Emitter, param: Value, indices: Sequence[Value]) -> tuple[str, list[str]]:
    """Address of the array and each lane's offset in scalars (i64)."""
    at = place(em, param, indices)
    refs: list[str] = []
    for n in range(em.lanes):
        offset = at.offset
        if at.vector is not None:
            own = em.new(f"extractelement {em.vector[dt.i64]} {at.vector}, i64 {n}")
            offset = own if offset == "0" else em.new(f"add i64 {offset}, {own}")
        if n and at.step:
            offset = em.new(f"add i64 {offset}, {em.new(f'mul i64 {at.step}, {n}')}")
        refs.append(offset)
    return at.base, refs


def _pointers(em: Emitter, param: Value, indices: Sequence[Value], d: DType) -> list[str]:
    base, refs = _offsets(em, param, indices)
    return [em.new(f"getelementptr {MEMORY[d]}, {em.target.pointer} {base}, i64 {ref}") for ref in refs]


# -- bins --------------------------------------------------------------------------------------------------------------
def _count(em: Emitter, state: GridState, bins: Bins, node: Node) -> None:
    param, *indices, value = node.operands
    d, lane = value.type, em.env[value]
    if _is_wide(em, node):
        base, refs = _offsets(em, param, indices)
        values = [ref for _, ref in _by_lane(em, lane, d)]
    else:
        at = place(em, param, indices)
        base, refs, values = at.base, [at.offset], [lane.ref]
    near, far, done = em.label("near"), em.label("far"), em.label("counted")
    em.branch(bins.use, near, far)
    em.start(near)
    for ref, one in zip(refs, values, strict=True):
        _update_bin(em, state, bins, ref, one)
    em.jump(done)
    em.start(far)
    for ref, one in zip(refs, values, strict=True):
        update(em, "add", d, em.new(f"getelementptr {MEMORY[d]}, {em.target.pointer} {base}, i64 {ref}"), one)
    em.jump(done)
    em.start(done)


def _bin(em: Emitter, state: GridState, bins: Bins, at: str) -> str:
    return em.new(
        f"getelementptr {MEMORY[bins.dtype]}, ptr addrspace({state.facts.shared_space}) {bins.memory}, i64 {at}"
    )


def _update_bin(em: Emitter, state: GridState, bins: Bins, at: str, value: str) -> None:
    d, space = bins.dtype, state.facts.shared_space
    p = _bin(em, state, bins, at)
    scope = f" {state.facts.block_scope}" if state.facts.block_scope else ""
    name = "fadd" if d.is_real else "add"
    em.new(f"atomicrmw {name} ptr addrspace({space}) {p}, {MEMORY[d]} {value}{scope} monotonic, align {d.nbytes}")


def _each_bin(em: Emitter, state: GridState, bins: Bins, *, clear: bool) -> None:
    """Clear the block's bins, or add them to memory; nothing where they are not used."""
    run, head, body, done = em.label("bins"), em.label("bin"), em.label("one"), em.label("binned")
    em.branch(bins.use, run, done)
    em.start(run)
    em.line(state.facts.barrier)
    first = em.new(f"zext i32 {state.thread} to i64")
    step = em.new(f"zext i32 {state.size} to i64")
    em.jump(head)
    em.start(head)
    at = em.new("")
    phi = len(em.lines) - 1
    more, last = em.new(f"icmp ult i64 {at}, {bins.extent}"), em.label("last")
    em.branch(more, body, last)
    em.start(body)
    (_clear_bin if clear else _flush_bin)(em, state, bins, at)
    after = em.new(f"add i64 {at}, {step}")
    em.lines[phi] += f"phi i64 [ {first}, %{run} ], [ {after}, %{em.block} ]"
    em.jump(head)
    em.start(last)
    em.line(state.facts.barrier)
    em.jump(done)
    em.start(done)


def _clear_bin(em: Emitter, state: GridState, bins: Bins, at: str) -> None:
    space, t = state.facts.shared_space, MEMORY[bins.dtype]
    zero = identity("add", bins.dtype)
    em.line(f"store {t} {zero}, ptr addrspace({space}) {_bin(em, state, bins, at)}, align {bins.dtype.nbytes}")


def _flush_bin(em: Emitter, state: GridState, bins: Bins, at: str) -> None:
    d, space = bins.dtype, state.facts.shared_space
    value = em.new(f"load {MEMORY[d]}, ptr addrspace({space}) {_bin(em, state, bins, at)}, align {d.nbytes}")
    bits = em.new(f"bitcast float {value} to i32") if d.is_real else value
    touched = em.new(f"icmp ne i32 {bits}, {-(2**31) if d.is_real else 0}")
    yes, no = em.label("touched"), em.label("untouched")
    em.branch(touched, yes, no)
    em.start(yes)
    p = em.new(f"getelementptr {MEMORY[d]}, {em.target.pointer} {em.address(bins.param)}, i64 {at}")
    update(em, "add", d, p, value)
    em.jump(no)
    em.start(no)


# -- after the walk ----------------------------------------------------------------------------------------------------
def close_reductions(em: Emitter) -> None:
    """Bring what was combined to memory."""
    state = GridState.of(em)
    if state.bins is not None:
        _each_bin(em, state, state.bins, clear=False)
    if not state.accumulators:
        return
    lane = em.new(f"and i32 {state.thread}, {state.facts.subgroup - 1}")
    group = em.new(f"udiv i32 {state.thread}, {state.facts.subgroup}")
    groups = em.new(f"udiv i32 {em.new(f'add i32 {state.size}, {state.facts.subgroup - 1}')}, {state.facts.subgroup}")
    parts = [_Part(n, k, node, em, state) for n, (node, k) in enumerate(state.accumulators.items())]
    _store_partials(em, state, parts, lane, group)
    em.line(state.facts.barrier)
    _join(em, state, parts, lane, groups)


class _Part:
    """One accumulator on its way to memory."""

    def __init__(self, number: int, slot: tuple[str, DType], node: Node, em: Emitter, state: GridState) -> None:
        self.node, self.carrier = node, slot[1]
        self.kind, self.dtype = node.attrs["kind"], node.operands[-1].type
        self.rows = [self._row(em, state, number, "v", slot[0], self.carrier, self.kind)]
        flag = state.flags.get(node)
        if flag is not None:
            self.rows.append(self._row(em, state, number, "f", flag, dt.u32, "or"))

    def _row(
        self, em: Emitter, state: GridState, number: int, mark: str, slot: str, d: DType, kind: str
    ) -> tuple[str, DType, str, str]:
        name = f"@partial_{state.number}_{number}{mark}"
        kept = f"internal addrspace({state.facts.shared_space}) global [32 x {LLVM[d]}] undef, align 8"
        state.globals.append(f"{name} = {kept}")
        return slot, d, kind, name


def _reduce(em: Emitter, state: GridState, kind: str, d: DType, value: str) -> str:
    """Combine over the subgroup; lane 0 has the result."""
    delta = state.facts.subgroup // 2
    while delta:
        value = combine(em, kind, d, value, shuffle(em, state, value, d, delta))
        delta //= 2
    return value


def shuffle(em: Emitter, state: GridState, value: str, d: DType, delta: int, mask: str = "-1") -> str:
    """Return the value of the lane ``delta`` further; ``mask`` names the lanes that take part."""
    t, bits = LLVM[d], d.bits
    whole = em.new(f"bitcast {t} {value} to i{bits}") if d.is_real else value
    if bits == 32:
        moved = em.new(state.facts.shuffle.format(value=whole, delta=delta, mask=mask))
    else:
        halves = [whole, em.new(f"lshr i64 {whole}, 32")]
        low, high = (
            em.new(state.facts.shuffle.format(value=em.new(f"trunc i64 {h} to i32"), delta=delta, mask=mask))
            for h in halves
        )
        low, high = em.new(f"zext i32 {low} to i64"), em.new(f"zext i32 {high} to i64")
        moved = em.new(f"or i64 {low}, {em.new(f'shl i64 {high}, 32')}")
    return em.new(f"bitcast i{bits} {moved} to {t}") if d.is_real else moved


def _store_partials(em: Emitter, state: GridState, parts: Sequence[_Part], lane: str, group: str) -> None:
    totals = [
        (_reduce(em, state, kind, d, em.new(f"load {LLVM[d]}, ptr {slot}, align {d.nbytes}")), d, name)
        for part in parts
        for slot, d, kind, name in part.rows
    ]
    yes, no = em.label("leads"), em.label("stored")
    em.branch(em.new(f"icmp eq i32 {lane}, 0"), yes, no)
    em.start(yes)
    space = f"ptr addrspace({state.facts.shared_space})"
    for total, d, name in totals:
        at = em.new(f"getelementptr {LLVM[d]}, {space} {name}, i32 {group}")
        em.line(f"store {LLVM[d]} {total}, {space} {at}, align {d.nbytes}")
    em.jump(no)
    em.start(no)


def _join(em: Emitter, state: GridState, parts: Sequence[_Part], lane: str, groups: str) -> None:
    """The first subgroup combines the partial results; its first lane brings them to memory."""
    yes, no = em.label("join"), em.label("joined")
    em.branch(em.new(f"icmp ult i32 {state.thread}, {state.facts.subgroup}"), yes, no)
    em.start(yes)
    inside = em.new(f"icmp ult i32 {lane}, {groups}")
    totals: list[list[str]] = []
    space = f"ptr addrspace({state.facts.shared_space})"
    for part in parts:
        row: list[str] = []
        for _, d, kind, name in part.rows:
            at = em.new(f"getelementptr {LLVM[d]}, {space} {name}, i32 {lane}")
            raw = em.new(f"load {LLVM[d]}, {space} {at}, align {d.nbytes}")
            neutral = "0" if kind == "or" else _neutral(kind, part.dtype)
            value = em.new(f"select i1 {inside}, {LLVM[d]} {raw}, {LLVM[d]} {neutral}")
            row.append(_reduce(em, state, kind, d, value))
        totals.append(row)
    ran = em.new(f"zext i32 {em.new(f'mul i32 {state.block}, {state.size}')} to i64")
    first = em.new(f"icmp eq i32 {state.thread}, 0")
    worked = em.new(f"icmp ult i64 {ran}, {state.count}")
    write = em.label("write")
    em.branch(em.new(f"and i1 {first}, {worked}"), write, no)
    em.start(write)
    for part, row in zip(parts, totals, strict=True):
        _deliver(em, part, row)
    em.jump(no)
    em.start(no)


def _deliver(em: Emitter, part: _Part, row: Sequence[str]) -> None:
    d = part.dtype
    yes, no = em.label("any"), em.label("none")
    if len(row) > 1:
        em.branch(em.new(f"icmp ne i32 {row[1]}, 0"), yes, no)
        em.start(yes)
    param, *indices, _ = part.node.operands
    with em.scope():
        for index in indices:
            evaluate(em, index)
        p = pointer(em, place(em, param, indices), MEMORY[d])
        update(em, part.kind, d, p, to_memory(em, _from_carrier(em, row[0], d), d, False))
    if len(row) > 1:
        em.jump(no)
        em.start(no)


HANDLERS = {"atomic": _atomic}
