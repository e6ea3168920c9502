"""Programs to objects for the host."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qd_core.backend.contract import ArgumentABI, Artifact, CompileOptions, Compiler, Target, TaskEntry
from qd_core.codegen.jit import host_identity, process_jit
from qd_core.cpu.target import vector_bits
from qd_core.ir.program import Program

if TYPE_CHECKING:
    from qd_core.codegen.llvm import LlvmTarget

__all__ = ["FORMAT", "CpuCompiler"]

FORMAT = "host-object"

LARGE = 1500
"""Lines of IR above which the cheaper pipeline is taken. Measured on vector code of 500 to 8000 operations: the same
code in two thirds of the time, since the builder of the IR has found common values already.
"""

# No estimates in place of division and square root: their refinement steps give NaN at the ends of the range.
_ATTRIBUTES = 'nounwind "reciprocal-estimates"="none"'


class CpuCompiler(Compiler):
    """Compiles for the host's processor.

    Parameters
    ----------
    target : Target
        The host.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._bits = vector_bits(frozenset(target.features))
        self.abi = ArgumentABI(pointers="address", lanes=self._bits // 32)

    @functools.cached_property
    def llvm(self) -> LlvmTarget:
        """What the writer of LLVM's text needs to know of the host."""
        from qd_core.codegen.llvm import LlvmTarget
        from qd_core.codegen.llvm.host import HostForm
        from qd_core.cpu.arena_ir import WORKER, arena_alloc_ir
        from qd_core.cpu.pool_ir import CONTEXT, POOL

        form = HostForm(CONTEXT, (CONTEXT["pool"], POOL["active"]), WORKER, arena_alloc_ir())
        return LlvmTarget("", "", form, vector_bits=self._bits, attributes=_ATTRIBUTES)

    def identity(self) -> str:
        """Versions, host and features: what decides an object's bytes besides the program and the options."""
        return f"{host_identity()} emitter {_emitter_digest()}"

    def pipeline(self) -> Sequence[Callable[[Program], Program]]:
        """Legalisation: elementary functions as IR."""
        from qd_core.backend.pipeline import legalize

        return (legalize,)

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return an object; ``extra`` with ``("dump", "1")`` fills the stages.

        Raises
        ------
        InvalidIRError
            The program was not legalised.
        """
        from qd_core.codegen.llvm import emit_module

        begin = time.perf_counter()
        text = emit_module(program, self.llvm, options)
        metrics = {"LLVM text_s": time.perf_counter() - begin}
        level = options.opt_level if text.count("\n") <= LARGE else min(options.opt_level, 1)
        vectorize = _has_serial_loop(program) and text.count("\n") <= LARGE
        blob = process_jit().compile(text, vectorize=vectorize, opt_level=level, times=metrics)
        stages = self._stages(text, vectorize, level) if ("dump", "1") in options.extra else {}
        tasks = tuple(TaskEntry.of(program, n, f"task_{n}") for n in range(len(program.tasks)))
        return Artifact(FORMAT, blob, tasks, program.sites, stages, metrics)

    def _stages(self, text: str, vectorize: bool, level: int) -> Mapping[str, str]:
        jit = process_jit()
        return {
            "llvm": text,
            "optimized": jit.optimized_ir(text, vectorize=vectorize, opt_level=level),
            "asm": jit.assembly(text, vectorize=vectorize, opt_level=level),
        }


@functools.cache
def _emitter_digest() -> str:
    """Digest of the source of whatever writes or wraps the code: no version number that somebody forgets to raise."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted([*here.glob("*.py"), *(here.parent / "codegen" / "llvm").glob("*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _has_serial_loop(program: Program) -> bool:
    """Whether LLVM's own loop vectoriser has anything to do: loops over lanes are vectors already."""
    return any(not t.extents and any(n.op.name == "for" for n in t.body.nodes) for t in program.tasks)
