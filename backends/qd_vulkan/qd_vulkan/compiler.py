"""Programs to SPIR-V."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from qd_core.backend.contract import ArgumentABI, Artifact, CompileOptions, Compiler, Target, TaskEntry
from qd_core.codegen.spirv.expand import expand_real_remainders
from qd_core.codegen.spirv.layout import ArgumentLayout
from qd_core.codegen.spirv.task import TaskCode, emit_task
from qd_core.codegen.spirv.text import disassemble
from qd_core.errors import LaunchError
from qd_core.ir.nodes import ArrayType, Role
from qd_core.ir.program import Program
from qd_core.passes.legalize import legalize
from qd_vulkan.facts import spirv_target

__all__ = ["FORMAT", "Code", "VulkanCompiler", "code_of", "pack", "unpack"]

FORMAT = "qd-spirv-1"


@lru_cache(maxsize=1)
def _generator_digest() -> str:
    """Digest of the generator's own source: code that another version of it made is never taken from a cache."""
    digest = hashlib.sha256()
    for package in ("qd_core.codegen.spirv", "qd_vulkan"):
        for file in sorted(resources.files(package).iterdir(), key=lambda f: f.name):
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class VulkanCompiler(Compiler):
    """Emits one SPIR-V module a task.

    Parameters
    ----------
    target : Target
        One of the backend's targets.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.spirv = target, spirv_target(target)
        lanes = target.capabilities.limit("lanes") or 1
        self.abi = ArgumentABI("address", 8 * self.spirv.push_words, lanes, self.spirv.max_group)

    def identity(self) -> str:
        """Format, generator and all features of the target."""
        return f"{FORMAT} {_generator_digest()} {self.target.name} {' '.join(self.target.features)}"

    def pipeline(self) -> Sequence[Callable[[Program], Program]]:
        """Elementary functions become IR: a driver's own may be off by far more than their bounds, and f64 has none."""
        return (legalize, expand_real_remainders)

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return the modules of all tasks in one blob; `UnsupportedError` where the target lacks something."""
        codes = [c for n in range(len(program.tasks)) for c in emit_task(program, n, self.spirv, options)]
        main = [c for c in codes if not c.sizing]
        entries = tuple(
            TaskEntry.of(program, n, f"{task.name}.{n}", (main[n].group,)) for n, task in enumerate(program.tasks)
        )
        wants_text = dict(options.extra).get("stages") == "1"
        stages = {f"spirv {_stage(c, entries)}": disassemble(c.binary) for c in codes} if wants_text else {}
        blob = pack(code_of(program, ArgumentLayout.of(program, self.spirv), codes))
        return Artifact(FORMAT, blob, entries, program.sites, stages)


def _stage(code: TaskCode, entries: Sequence[TaskEntry]) -> str:
    return entries[code.entry].symbol + (".sizing" if code.sizing else "")


# -- container --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Code:
    """What a blob holds.

    ``words`` are those that core packs, ``extents`` the number of extents after them; ``leaves`` maps positions among
    the
    parameters to positions among the array leaves.
    """

    words: int
    extents: int
    inline: bool
    pooled: bool
    host_reads: bool
    leaves: tuple[int, ...]
    tasks: tuple[TaskCode, ...]

    @property
    def sized(self) -> bool:
        """Whether a sizing task is among the tasks."""
        return any(t.sizing for t in self.tasks)


def pack(code: Code) -> bytes:
    """Write a blob: the length of a header in JSON, the header, the modules."""
    head = {f: getattr(code, f) for f in ("words", "extents", "inline", "pooled", "host_reads", "leaves")}
    head["tasks"] = [[len(t.binary), t.form, t.group, t.entry, t.pooled, t.sizing] for t in code.tasks]
    text = json.dumps(head).encode()
    return struct.pack("<I", len(text)) + text + b"".join(t.binary for t in code.tasks)


def code_of(program: Program, layout: ArgumentLayout, tasks: Sequence[TaskCode]) -> Code:
    """Return what a blob holds of a program with these tasks."""
    arrays = [isinstance(p.type, ArrayType) for p in program.params]
    leaves = tuple(sum(arrays[:n]) if array else -1 for n, array in enumerate(arrays))
    extents = sum(len(t.extents) for t in program.tasks)
    host_reads = bool(program.sites) or any(p.role is Role.RESULT for p in program.params)
    return Code(layout.extents, extents, layout.inline, layout.pool is not None, host_reads, leaves, tuple(tasks))


def unpack(artifact: Artifact) -> Code:
    """Read a blob; `LaunchError` for another format."""
    if artifact.format != FORMAT:
        raise LaunchError(
            f"an artifact of format {artifact.format!r} is no SPIR-V", why=f"this device loads {FORMAT!r}"
        )
    (length,) = struct.unpack_from("<I", artifact.blob)
    head = json.loads(artifact.blob[4 : 4 + length])
    at, tasks = 4 + length, list[TaskCode]()
    for nbytes, *facts in head["tasks"]:
        tasks.append(TaskCode(artifact.blob[at : at + nbytes], *facts))
        at += nbytes
    return Code(
        head["words"],
        head["extents"],
        head["inline"],
        head["pooled"],
        head["host_reads"],
        tuple(head["leaves"]),
        tuple(tasks),
    )
