"""From an executable to the plan that the native launch entry follows.

The plan repeats what `Executable.launch` does for the argument types that were just launched; whatever it cannot say
stays on the Python path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qd_core.backend.contract import Access
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Node, Param, Value
from qd_core.ir.program import Fixed, HostExpr
from qd_core.passes.draws import RANDOM
from qd_core.runtime.arguments import ArrayLeaf, ArrayView, ScalarLeaf, no_overlap
from qd_core.runtime.array import Ndarray
from qd_core.runtime.field import Field
from qd_core.runtime.launch import NO_OVERLAP, Executable
from qd_core.runtime.native import (
    NEVER,
    Argument,
    Axis,
    FixedArray,
    HeaderArgument,
    LaunchCounter,
    LaunchPlan,
    NumpyArgument,
    ResultWord,
    ScalarArgument,
    Variant,
    WordExtent,
    supports_result,
    supports_scalar,
)
from qd_core.runtime.native_formula import formula_of
from qd_core.runtime.tensor import Tensor

__all__ = ["Origin", "plan_of"]

HOST_ADDRESS = "memory.host_address"
_WRITES = (Access.WRITE, Access.READ_WRITE)
_OURS = (Ndarray, Field, Tensor)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a leaf's value comes from: argument ``position``, and ``hop`` (``""``, ``"grad"``, ``"dual"``) from it."""

    position: int
    hop: str = ""


class _Unsupported(Exception):
    """The native entry cannot do this launch."""


def plan_of(
    executable: Executable,
    values: Sequence[Any],
    origins: Mapping[str, Origin],
    constants: Mapping[str, ArrayView] | None = None,
) -> LaunchPlan | None:
    """Return a plan for launches with arguments of the same types as ``values``, or None when only Python can do them.

    Parameters
    ----------
    executable : Executable
        Launched at least once with ``values``, so that its code is compiled.
    values : sequence
        The positional arguments.
    origins : mapping
        Origin of every leaf that the caller passes, by path.
    constants : mapping, optional
        Arrays by path that are the same at every launch.
    """
    try:
        return _plan(executable, values, origins, constants or {})
    except _Unsupported:
        return None


def _plan(
    executable: Executable, values: Sequence[Any], origins: Mapping[str, Origin], constants: Mapping[str, ArrayView]
) -> LaunchPlan:
    fixed_only = all(a.path in constants or a.path in executable.supplied for a in executable.table.arrays)
    if fixed_only and _share_memory(executable, constants):
        raise _Unsupported
    watched = frozenset[str]() if fixed_only else _watched(executable, values, origins)
    variants = _variants(executable, _disjoint(executable, constants) if fixed_only else None)
    leaves: list[Argument] = []
    words = [0] * executable.table.size
    for leaf in executable.table.leaves:
        if leaf.path == RANDOM:
            continue
        supplied = executable.supplied.get(leaf.path)
        if supplied is not None:
            assert isinstance(leaf, ArrayLeaf)
            _write_words(executable, leaf, supplied, words)
            continue
        fixed = constants.get(leaf.path)
        if fixed is not None:
            assert isinstance(leaf, ArrayLeaf)
            address = _write_words(executable, leaf, fixed, words)
            if not fixed_only:
                written = leaf.access in _WRITES or leaf.path in watched
                leaves.append(FixedArray(0, leaf.word, address, fixed.ref.nbytes, leaf.type.ndim, written))
            continue
        origin = origins.get(leaf.path)
        if origin is None:
            raise _Unsupported
        leaves.append(
            _scalar(leaf, origin)
            if isinstance(leaf, ScalarLeaf)
            else _array(executable, leaf, origin, values[origin.position], leaf.path in watched)
        )
    exclusive = any(leaf.type.fixed_shape is not None for leaf in executable.table.arrays)
    return LaunchPlan(
        arguments=len(values),
        leaves=tuple(leaves),
        words=words,
        tasks=_tasks(executable),
        variants=variants,
        partial=bool(variants[-1].guards),
        # A launch that uses buffers of the executable must not meet another one: it keeps the interpreter's lock.
        **({"release": NEVER} if exclusive or _is_brief(executable) else {}),
        log=_log(executable),
        counter=_counter(executable),
        after=executable.finish,
        **_result(executable),
        owners=(executable,),
    )


def _counter(executable: Executable) -> LaunchCounter | None:
    """The word that the key of the launch's random stream goes to."""
    if executable.draws is None:
        return None
    draws, step = executable.draws
    word = next(leaf.word for leaf in executable.table.leaves if leaf.path == RANDOM)
    return LaunchCounter(word, draws.address, step)


def _write_words(executable: Executable, leaf: ArrayLeaf, view: ArrayView, words: list[int]) -> int:
    """Put the words of an array that is the same at every launch in the template; return its address."""
    address, ndim = int(executable.runtime.device.address(view.ref)), leaf.type.ndim
    words[leaf.word : leaf.word + leaf.words] = [address, *view.shape[:ndim], *view.strides[:ndim]]
    return address


def _variants(executable: Executable, disjoint: bool | None) -> tuple[Variant, ...]:
    """Every variant natively, the right-for-all one last; a native launch never compiles.

    Where it is known beforehand whether arrays overlap, one variant is enough.
    """
    wanted = [frozenset({NO_OVERLAP}), frozenset[str]()] if executable.guarded else [frozenset[str]()]
    if executable.guarded and disjoint is not None:
        wanted = wanted[:1] if disjoint else wanted[1:]
    if executable.disjoint and disjoint is None:
        wanted = wanted[:1]  # launches with overlapping arrays go through Python, which knows what is right for them
    variants: list[Variant] = []
    for guards in wanted:
        entry = executable.module(guards).native()
        if entry is None:
            raise _Unsupported
        needed = (
            frozenset[str]() if disjoint is not None else frozenset({NO_OVERLAP}) if executable.disjoint else guards
        )
        variants.append(Variant(entry.function, entry.context, needed, entry.owner))
    return tuple(variants)


def _is_brief(executable: Executable) -> bool:
    """Whether an entry only enqueues work and counts on the interpreter's lock."""
    entries = [module.native() for module in executable.modules.values()]
    return any(entry is not None and entry.brief for entry in entries)


def _disjoint(executable: Executable, constants: Mapping[str, ArrayView]) -> bool:
    """Whether no written array shares memory with another one, all of them known."""
    views = [constants[a.path] if a.path in constants else executable.supplied[a.path] for a in executable.table.arrays]
    return no_overlap(executable.table, views, [int(executable.runtime.device.address(v.ref)) for v in views])


def _share_memory(executable: Executable, constants: Mapping[str, ArrayView]) -> bool:
    """Whether two arrays that must be disjoint are not."""
    spans = {p: (int(executable.runtime.device.address(v.ref)), v.ref.nbytes) for p, v in constants.items()}
    pairs = [(spans[a], spans[b]) for a, b in executable.disjoint if a in spans and b in spans]
    return any(a < b + n and b < a + m for (a, m), (b, n) in pairs)


def _watched(executable: Executable, values: Sequence[Any], origins: Mapping[str, Origin]) -> frozenset[str]:
    """Arrays to be compared with all others as if they were written, so that every pair that must be disjoint is.

    An array that the code does not use is not seen. Arrays of ours share memory only when they are the same, and then
    their gradients are too: those stand for them.
    """
    used = {a.path for a in executable.table.arrays}
    watched: set[str] = set()
    for pair in executable.disjoint:
        if not used.issuperset(pair):
            if any(p not in origins or not isinstance(values[origins[p].position], _OURS) for p in pair):
                raise _Unsupported
            pair = tuple(f"{p.removesuffix('.grad')}.grad" for p in pair)
            if not used.issuperset(pair):
                raise _Unsupported
        watched.add(pair[0])
    return frozenset(watched)


def _scalar(leaf: ScalarLeaf, origin: Origin) -> ScalarArgument:
    if not supports_scalar(leaf.dtype) or origin.hop:
        raise _Unsupported
    accepts = (int, float, bool) if leaf.dtype.is_real else (int, bool)
    return ScalarArgument(origin.position, leaf.word, leaf.dtype, accepts)


def _array(executable: Executable, leaf: ArrayLeaf, origin: Origin, value: Any, watched: bool) -> Argument:
    written = watched or leaf.access in _WRITES
    kind = leaf.type
    if isinstance(value, _OURS):
        owner = getattr(value, origin.hop) if origin.hop else value
        key = int(owner._header[0])
        if key == 0:
            raise _Unsupported
        return HeaderArgument(origin.position, leaf.word, type(value), "_header", key, kind.ndim, origin.hop, written)
    if type(value) is np.ndarray and not origin.hop and executable.runtime.device.capabilities.has(HOST_ADDRESS):
        return NumpyArgument(origin.position, leaf.word, kind.dtype, kind.ndim, kind.element_shape, written)
    raise _Unsupported


def _tasks(executable: Executable) -> tuple[tuple[Axis, ...], ...]:
    return tuple(tuple(_axis(executable, e) for e in task.extents) for task in executable.program.tasks)


def _axis(executable: Executable, extent: Any) -> Axis:
    if isinstance(extent, Fixed):
        return extent.count
    if not isinstance(extent, HostExpr):
        return -1
    value, offset = _strip(extent.body.yields[0])
    leaves = {p: leaf for p, leaf in zip(executable.table.params, executable.table.leaves, strict=True)}
    if isinstance(value, Node) and value.op.name == "extent":
        leaf = leaves[_param(value.operands[0])]
        return WordExtent(leaf.word + 1 + value.attrs["axis"], offset=offset)
    if isinstance(value, Param) and isinstance(leaves.get(value), ScalarLeaf) and value.type.name == "i32":
        return WordExtent(leaves[value].word, signed32=True, offset=offset)
    formula = formula_of(extent.body.yields[0], lambda p, axis: leaves[p].word + (0 if axis is None else 1 + axis))
    if formula is None:
        raise _Unsupported
    return formula


def _strip(value: Value) -> tuple[Value, int]:
    """Split ``cast(x) + constant`` (64-bit) into x and the constant."""
    offset = 0
    if isinstance(value, Node) and value.op.name == "add" and constant_of(value.operands[1]) is not None:
        offset = int(constant_of(value.operands[1]))
        value = value.operands[0]
    while (
        isinstance(value, Node)
        and value.op.name == "cast"
        and value.type.name in ("i64", "i32")
        and _is_i32(value.operands[0])
    ):
        value = value.operands[0]
    return value, offset


def _is_i32(value: Value) -> bool:
    return value.type.name == "i32"


def _param(value: Value) -> Param:
    assert isinstance(value, Param)
    return value


def _log(executable: Executable) -> tuple[int, ...]:
    """Host words that say whether a launch logged anything: cursor, dropped records, first error."""
    log = executable.runtime.log
    if log is None or not executable.program.sites:
        return ()
    if not log.header_address:
        raise _Unsupported
    return (log.header_address, log.header_address + 16, log.header_address + 24)


def _result(executable: Executable) -> dict[str, Any]:
    """A scalar result is decoded natively where it lies in host memory; anything else by `Executable.finish`."""
    if executable.returns is None:
        return {}
    shared = (
        executable.runtime.device.host_view(executable.supplied["return"].ref)
        if "return" in executable.supplied
        else None
    )
    dtype = getattr(executable.returns, "scalar", None)
    if shared is not None and dtype is not None and supports_result(dtype):
        return {"result": ResultWord(dtype, shared.address)}
    return {"finish": executable.finish}
