"""The source cache: kernels that an earlier process lowered, found without the front end.

An entry's name says all that is known before lowering: the kernel's text, its arguments' types, every option, the
compiler, and the files of this package and of the backend's. It holds what each lowering under that name saw of the
rest (`frontend.evidence`), the members it read (`frontend.members`) and the outline of its program. Where all of that
is the same now, the outline is launched with the code that the artifact cache has; in any other case the kernel is
lowered as if there were no entry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.api.binding import Bound, bind_argument
from qd_core.api.specialize import Specialisation, forget
from qd_core.frontend.evidence import Evidence, confirmed
from qd_core.frontend.members import Member, Members, member_annotations
from qd_core.frontend.portrait import kernel_portrait, type_portrait
from qd_core.frontend.signature import EMPTY, ArgType, KernelInfo
from qd_core.ir.nodes import Region
from qd_core.ir.print import print_program
from qd_core.ir.program import Task
from qd_core.runtime.arguments import ArgumentTable, ArrayLeaf
from qd_core.runtime.cache import compiler_digest, digest_of, package_digest, settings_text
from qd_core.runtime.launch import Executable, Outline
from qd_core.runtime.stages import watched

if TYPE_CHECKING:
    from qd_core.backend.contract import CompileOptions
    from qd_core.runtime.context import Runtime
    from qd_core.runtime.results import Results

__all__ = ["Recalled", "keep", "recall", "source_key"]

VARIANTS = 8
"""Lowerings that one entry holds: a kernel may be used with several values of what it captures."""

_PRIMITIVES: dict[str, Any] = {"empty": EMPTY, "int": int, "float": float, "bool": bool}


def source_key(
    info: KernelInfo, mode: str, types: Sequence[ArgType], active: frozenset[str], runtime: Runtime
) -> str | None:
    """Return the name of the entry for a call; None where the types say too little, or nothing is kept."""
    if runtime.cache is None or watched():
        return None
    portraits = [kernel_portrait(info), *map(type_portrait, types)]
    if None in portraits:
        return None
    parts = [p for p in portraits if p is not None]
    return f"source-{digest_of(_surroundings(runtime), mode, repr(sorted(active)), *parts)}"


def _surroundings(runtime: Runtime) -> str:
    """Digest of what all kernels of a runtime share."""
    if not runtime.surroundings:
        package = type(runtime.compiler).__module__.partition(".")[0]
        runtime.surroundings = digest_of(
            settings_text(runtime.options),
            compiler_digest(runtime.compiler),
            runtime.device.capabilities.identity(),
            package_digest("qd_core"),
            package_digest(package),
            f"{sys.version} {np.__version__}",
        )
    return runtime.surroundings


@dataclass(frozen=True, slots=True)
class Recalled:
    """An outline that fits a call, with the call's leaves."""

    outline: Outline
    members: tuple[tuple[Member, ArgType], ...]
    same: tuple[tuple[Member, Member], ...]
    bound: Bound
    active: frozenset[str]
    returns: tuple[Any, bool] | None
    disjoint: tuple[tuple[str, str], ...]

    def specialisation(
        self, runtime: Runtime, options: CompileOptions, results: Results | None, info: KernelInfo, types: Sequence[Any]
    ) -> Specialisation:
        """Return what the kernel keeps for such calls."""
        executable = Executable.of_outline(runtime, self.outline, options, results, info.span)
        executable.disjoint = self.disjoint
        return Specialisation(executable, tuple(map(forget, types)), self.members, self.same)


def recall(runtime: Runtime, key: str, info: KernelInfo, arguments: Mapping[str, Any], bound: Bound) -> Recalled | None:
    """Return what an earlier process made for such a call, where all it saw is as it was."""
    for record in _entry(runtime, key):
        try:
            found = _fitting(record, info, arguments, bound)
        except (AttributeError, LookupError, TypeError, ValueError):
            continue  # a member is gone, or the record is of another form
        if found is not None:
            return found
    return None


def keep(runtime: Runtime, key: str, executable: Executable, members: Members, active: frozenset[str]) -> None:
    """Keep what was lowered for a call, unless it depends on more than can be told."""
    record = _record(executable, members, active)
    if record is not None and runtime.cache is not None:
        others = [r for r in _entry(runtime, key) if (r["facts"], r["members"]) != (record["facts"], record["members"])]
        runtime.cache.write(key, json.dumps([record, *others[: VARIANTS - 1]]).encode())


def _entry(runtime: Runtime, key: str) -> list[dict[str, Any]]:
    data = runtime.cache.read(key) if runtime.cache is not None else None
    return json.loads(data) if isinstance(data, bytes) else []


# -- writing ----------------------------------------------------------------------------------------------------------
def _record(executable: Executable, members: Members, active: frozenset[str]) -> dict[str, Any] | None:
    evidence = members.evidence
    read = [_member(evidence, m, kind) for m, kind in members.read.values()]
    same = [[_way(evidence, m) for m in pair] for pair in members.same]
    if evidence.refusal or None in read or any(None in pair for pair in same):
        return None
    outline = executable.outlined()
    tasks = tuple(replace(task, body=_head(task)) for task in outline.program.tasks)
    record = {
        "facts": evidence.facts,
        "members": read,
        "same": same,
        "program": print_program(replace(outline.program, tasks=tasks)),
        "axes": [a.i32_axes for a in outline.table.arrays],
        "digest": outline.digest,
        "guarded": outline.guarded,
        "active": sorted(active),
        "returns": executable.returns and (executable.returns.specs, executable.returns.several),
        "disjoint": executable.disjoint,
    }
    return json.loads(json.dumps(record))


def _head(task: Task) -> Region:
    """A task's region without what it does."""
    region = Region(task.body.args)
    region.nodes.append(task.body.terminator)
    for argument in region.args:
        argument.region = task.body
    return region


def _member(evidence: Evidence, member: Member, kind: ArgType) -> list[Any] | None:
    text, way = type_portrait(kind), _way(evidence, member)
    if text is None or way is None:
        return None
    declared = [name for name, meaning in _PRIMITIVES.items() if member.annotation is meaning]
    return [member.name, way, declared[0] if declared else "declared", member.whole, member.identity, text]


def _way(evidence: Evidence, member: Member) -> list[Any] | None:
    """Root, number of the fact of an object outside the kernel, and steps."""
    start = None if member.root else evidence.number(member.fixed)
    if (start is None and not member.root) or any(not isinstance(k, (str, int)) for _, k in member.steps):
        return None
    return [member.root, start, member.steps]


# -- reading ----------------------------------------------------------------------------------------------------------
def _fitting(
    record: Mapping[str, Any], info: KernelInfo, arguments: Mapping[str, Any], bound: Bound
) -> Recalled | None:
    values = confirmed(record["facts"], info.function, arguments)
    if values is None:
        return None
    trial, read = bound.fork(), list[tuple[Member, ArgType]]()
    for name, way, declared, whole, identity, text in record["members"]:
        member = _found(values, way, name, whole, identity)
        if declared in _PRIMITIVES:
            annotation = _PRIMITIVES[declared]
        else:
            annotation = member_annotations(type(_owner(member).read(arguments)))[member.steps[-1][1]]
        member = replace(member, annotation=annotation)
        kind = bind_argument(trial, member.path, annotation, member.read(arguments))
        if type_portrait(kind) != text:
            return None
        read.append((member, forget(kind)))
    same = tuple((_found(values, a), _found(values, b)) for a, b in record["same"])
    if any(a.read(arguments) is not b.read(arguments) for a, b in same):
        return None
    returns, several = record["returns"] or (None, False)
    return Recalled(
        _outline(record),
        tuple(read),
        same,
        trial,
        frozenset(record["active"]),
        None if returns is None else (_tuples(returns), several),
        _tuples(record["disjoint"]),
    )


def _found(
    values: Sequence[Any], way: Sequence[Any], name: str = "", whole: bool = False, identity: bool = False
) -> Member:
    root, start, steps = way
    fixed = None if start is None else values[start]
    return Member(root, name, tuple((kind, key) for kind, key in steps), EMPTY, fixed, whole, identity)


def _owner(member: Member) -> Member:
    return replace(member, steps=member.steps[:-1], whole=False, identity=False)


def _outline(record: Mapping[str, Any]) -> Outline:
    from qd_core.ir.parse import parse_program

    program = parse_program(record["program"])
    table = ArgumentTable.of(program)
    axes = iter(record["axes"])
    leaves = [replace(x, i32_axes=tuple(next(axes))) if isinstance(x, ArrayLeaf) else x for x in table.leaves]
    return Outline(program, record["digest"], replace(table, leaves=tuple(leaves)), record["guarded"])


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
