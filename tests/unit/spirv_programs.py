"""Targets and tools for tests of the SPIR-V emitter."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.codegen.spirv.task import TaskCode, emit_task
from qd_core.ir.nodes import Function
from qd_core.passes.offload import offload

__all__ = ["ALL", "HAS_TOOLS", "SMALL", "emitted", "tool"]

_INTEGERS = [d for d in dt.ALL if d.kind in "iu" and d.bits >= 32]
ALL = SpirvTarget(
    "test",
    frozenset(dt.ALL),
    frozenset((k, d) for k in ("add", "min", "max", "and", "or", "xor", "exchange") for d in _INTEGERS)
    | {("add", dt.f32)},
    frozenset({32, 64}),
    float_modes=frozenset({("SignedZeroInfNanPreserve", 32)}),
)
"""A target with everything."""

SMALL = SpirvTarget("small")
"""A target with what every one has."""

HAS_TOOLS = all(shutil.which(name) for name in ("spirv-as", "spirv-val"))


def tool(arguments: Sequence[str], given: bytes) -> bytes:
    """Run one of the SPIR-V tools on bytes."""
    done = subprocess.run(arguments, input=given, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout


def emitted(function: Function, target: SpirvTarget = ALL, options: CompileOptions | None = None) -> list[TaskCode]:
    """Emit all tasks of a kernel."""
    program, wanted = offload(function), options or CompileOptions(fast_math=False)
    return [c for n in range(len(program.tasks)) for c in emit_task(program, n, target, wanted)]
