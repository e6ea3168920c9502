"""Programs to PTX."""

from __future__ import annotations

import functools
import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qd_core.backend.contract import ArgumentABI, Artifact, CompileOptions, Compiler, Target, TaskEntry
from qd_core.codegen.llvm import LlvmTarget, emit_module
from qd_core.codegen.llvm.grid import LAUNCH, GridForm, task_symbol
from qd_core.codegen.llvm.grid_atomics import reduces
from qd_core.codegen.llvm.grid_scratch import scratch_kind
from qd_core.codegen.llvm.grid_split import PARTS, splittable
from qd_core.codegen.llvm.grid_walk import share_of
from qd_core.codegen.llvm.ownership import Ownership
from qd_core.codegen.llvm.survey import Survey
from qd_core.errors import LaunchError
from qd_core.ir.nodes import ArrayType
from qd_core.ir.program import DeviceWord, Fixed, Program, Task
from qd_cuda.facts import INLINE_NBYTES, TRIPLE, facts_of

__all__ = ["FORMAT", "Code", "CudaCompiler", "TaskShape", "unpack"]

FORMAT = "qd-ptx-1"

EMITTER_VERSION = 5
"""Part of the identity; raise it whenever the same program may give another text."""

_ATTRIBUTES = "nounwind"


@dataclass(frozen=True, slots=True)
class TaskShape:
    """How a task is launched.

    Attributes
    ----------
    axes : tuple of int
        Of each extent: a fixed number of iterations, -1 where the launch says it, -2 where the device knows.
    serial : bool
        One thread runs everything.
    block : int
        Threads a block that the user asked for, or 0.
    scratch : str
        ``""``, ``"known"`` or ``"unknown"``.
    share : int
        Iterations of a thread in a grid that covers all of them; 0 where the grid must be resident at once, because
        threads reduce or own private memory.
    parts : int
        Threads that may share one iteration.
    """

    axes: tuple[int, ...]
    serial: bool
    block: int
    scratch: str
    share: int
    parts: int


@dataclass(frozen=True, slots=True)
class Code:
    """What a blob holds: words that core packs, shapes of all tasks, PTX."""

    words: int
    inline: bool
    tasks: tuple[TaskShape, ...]
    ptx: bytes


class CudaCompiler(Compiler):
    """Emits one PTX module a program.

    Parameters
    ----------
    target : Target
        One of the backend's targets.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.abi = ArgumentABI("address", INLINE_NBYTES, 1, 1024)

    def identity(self) -> str:
        """Versions, target and PTX version."""
        import llvmlite

        versions = f"{FORMAT} emitter {EMITTER_VERSION} llvmlite {llvmlite.__version__}"
        return f"{versions} {self.target.name} {self.target.features}"

    def pipeline(self) -> Sequence[Callable[[Program], Program]]:
        """Elementary functions become IR, so that they need no library; so do remainders, which PTX rounds."""
        from qd_core.codegen.spirv.expand import expand_real_remainders
        from qd_core.passes.legalize import legalize

        return (legalize, expand_real_remainders)

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return PTX; ``extra`` with ``("dump", "1")`` fills the stages."""
        begin = time.perf_counter()
        inline = parameter_nbytes(program) <= INLINE_NBYTES
        form = GridForm(facts_of(int(self.target.name.removeprefix("sm_"))), inline)
        llvm = LlvmTarget(TRIPLE, "", form, address_space=1, atomic_scope='syncscope("device")', attributes=_ATTRIBUTES)
        text = emit_module(program, llvm, options)
        middle = time.perf_counter()
        ptx = to_ptx(text, self.target.name, self.target.features[0], options.opt_level)
        metrics = {"emit_s": middle - begin, "codegen_s": time.perf_counter() - middle}
        stages = {"llvm": text, "ptx": ptx} if ("dump", "1") in options.extra else {}
        disjoint = "no_overlap" in options.variant.guards
        shapes = tuple(_shape(t, disjoint, options.fast_math) for t in program.tasks)
        entries = tuple(TaskEntry.of(program, n, task_symbol(n)) for n in range(len(program.tasks)))
        code = Code(_words(program), inline, shapes, ptx.encode())
        return Artifact(FORMAT, pack(code), entries, program.sites, stages, metrics)


def _words(program: Program) -> int:
    return sum(1 + 2 * p.type.ndim if isinstance(p.type, ArrayType) else 1 for p in program.params)


def parameter_nbytes(program: Program) -> int:
    """Bytes of a kernel's parameters by value."""
    axes = sum(len(t.extents) for t in program.tasks)
    return 8 * (max(_words(program), 1) + max(axes, 1) + len(LAUNCH))


def _shape(task: Task, disjoint: bool, fast: bool) -> TaskShape:
    axes = tuple(e.count if isinstance(e, Fixed) else -2 if isinstance(e, DeviceWord) else -1 for e in task.extents)
    serial = not task.extents or bool(task.attrs.get("serialize"))
    scratch = scratch_kind(task.body)
    owned = Ownership(Survey(task.body), task.body.args, disjoint).owned
    share = 0 if serial or scratch or reduces(task.body, owned) else share_of(task)
    parts = PARTS if share and splittable(task.body, fast) is not None else 1
    return TaskShape(axes, serial, int(task.attrs.get("block_dim", 0) or 0), scratch, share, parts)


# -- container --------------------------------------------------------------------------------------------------------
def pack(code: Code) -> bytes:
    """Return the bytes of a blob."""
    tasks = [[list(t.axes), t.serial, t.block, t.scratch, t.share, t.parts] for t in code.tasks]
    head = json.dumps({"words": code.words, "inline": code.inline, "tasks": tasks}).encode()
    return struct.pack("<I", len(head)) + head + code.ptx


def unpack(artifact: Artifact) -> Code:
    """Read a blob; `LaunchError` for another format."""
    if artifact.format != FORMAT:
        raise LaunchError(f"an artifact of format {artifact.format!r} is no PTX", why=f"this device loads {FORMAT!r}")
    (length,) = struct.unpack_from("<I", artifact.blob)
    head: Mapping[str, Any] = json.loads(artifact.blob[4 : 4 + length])
    tasks = tuple(TaskShape(tuple(axes), *rest) for axes, *rest in head["tasks"])
    return Code(head["words"], head["inline"], tasks, artifact.blob[4 + length :])


# -- LLVM -------------------------------------------------------------------------------------------------------------
@functools.cache
def _binding() -> Any:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


@functools.cache
def _machine(model: str, ptx: str, opt_level: int) -> Any:
    target = _binding().Target.from_triple(TRIPLE)
    return target.create_target_machine(model, f"+{ptx}", opt=opt_level)


def to_ptx(text: str, model: str, ptx: str, opt_level: int) -> str:
    """Optimise a module's text and return its PTX."""
    llvm, machine = _binding(), _machine(model, ptx, opt_level)
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    module.verify()
    if opt_level > 0:
        tuning = llvm.create_pipeline_tuning_options(opt_level)
        tuning.slp_vectorization = tuning.loop_vectorization = tuning.loop_interleaving = False
        tuning.loop_unrolling = True
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))
