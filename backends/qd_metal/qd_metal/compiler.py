"""Programs to the Metal Shading Language."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from qd_core.backend.contract import ArgumentABI, Artifact, CompileOptions, Compiler, Target, TaskEntry
from qd_core.backend.pipeline import legalize
from qd_core.codegen.cstyle.grid import GridLayout, TaskText, emit_grid
from qd_core.codegen.spirv.expand import expand_real_remainders
from qd_core.errors import LaunchError
from qd_core.ir.nodes import ArrayType
from qd_core.ir.program import Program
from qd_metal.facts import dialect_of
from qd_metal.lint import check

__all__ = ["FORMAT", "Code", "MetalCompiler", "source", "unpack"]

FORMAT = "qd-msl-1"


@lru_cache(maxsize=1)
def _generator_digest() -> str:
    """Digest of the generator's own source: code that another version of it made is never taken from a cache."""
    digest = hashlib.sha256()
    for package in ("qd_core.codegen.cstyle", "qd_core.codegen.spirv", "qd_metal"):
        for file in sorted(resources.files(package).iterdir(), key=lambda f: f.name):
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Code:
    """What a blob holds: numbers of words of core and of extents, the array leaf of each parameter (-1 for none), the
    tasks without their texts, and the source text of all.
    """

    words: int
    extents: int
    leaves: tuple[int, ...]
    tasks: tuple[TaskText, ...]
    text: str


class MetalCompiler(Compiler):
    """Emits one source text a program, one kernel a task.

    Parameters
    ----------
    target : Target
        One of the backend's targets.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.dialect = target, dialect_of(target)
        self.abi = ArgumentABI("address", 0, 32, self.dialect.max_group)

    def identity(self) -> str:
        """Format, generator and all features of the target."""
        return f"{FORMAT} {_generator_digest()} {self.target.name} {' '.join(self.target.features)}"

    def pipeline(self) -> Sequence[Callable[[Program], Program]]:
        """Elementary functions become IR: the library's own have wider bounds. Remainders of reals too."""
        return (legalize, expand_real_remainders)

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return the text of all tasks; `UnsupportedError` where the target lacks something."""
        tasks = emit_grid(program, self.dialect)
        text = source(self.dialect.prelude, tasks)
        check(text)
        main = [t for t in tasks if not t.sizing]
        entries = tuple(TaskEntry.of(program, n, t.symbol, (t.group,)) for n, t in enumerate(main))
        stages = {"msl": text} if {("stages", "1"), ("dump", "1")} & set(options.extra) else {}
        return Artifact(
            FORMAT, _pack(program, tasks, text), entries, program.sites, stages, {"msl_nbytes": float(len(text))}
        )


def source(prelude: str, tasks: Sequence[TaskText]) -> str:
    """Return the text of a library."""
    return "\n".join([prelude, *(t.text for t in tasks)])


def _pack(program: Program, tasks: Sequence[TaskText], text: str) -> bytes:
    layout = GridLayout.of(program)
    arrays = [isinstance(p.type, ArrayType) for p in program.params]
    head = {
        "words": layout.extents,
        "extents": layout.pool - layout.extents,
        "leaves": [sum(arrays[:n]) if array else -1 for n, array in enumerate(arrays)],
        "tasks": [[t.symbol, "", t.form, t.group, t.entry, t.pooled, t.sizing] for t in tasks],
    }
    encoded = json.dumps(head).encode()
    return struct.pack("<I", len(encoded)) + encoded + text.encode()


def unpack(artifact: Artifact) -> Code:
    """Read a blob; `LaunchError` for another format."""
    if artifact.format != FORMAT:
        raise LaunchError(f"an artifact of format {artifact.format!r} is no MSL", why=f"this device loads {FORMAT!r}")
    (length,) = struct.unpack_from("<I", artifact.blob)
    head = json.loads(artifact.blob[4 : 4 + length])
    tasks = tuple(TaskText(*facts) for facts in head["tasks"])
    text = artifact.blob[4 + length :].decode()
    return Code(head["words"], head["extents"], tuple(head["leaves"]), tasks, text)
