"""Between the stages of compilation: verification and dumping.

``QD_VERIFY_IR=1`` verifies the IR after every stage (the tests set it). ``QD_DUMP_IR=1`` writes it as text that parses
again, one file a stage, below
``QD_DUMP_DIR`` (default: the option ``debug_dump_path``). The option ``print_ir`` prints it.
"""

from __future__ import annotations

import os
from pathlib import Path

from qd_core.ir.nodes import Function
from qd_core.ir.program import Program
from qd_core.runtime.context import active
from qd_core.runtime.options import Options

__all__ = ["passed", "stage_text", "watched"]

_count = 0


def passed(stage: str, ir: Function | Program) -> None:
    """Tell that ``ir`` has come out of ``stage`` (``"lowered"``, ``"differentiated"``, ``"offloaded"``, ...).

    Raises
    ------
    InvalidIRError
        Verification is on and the IR is not valid.
    """
    if os.environ.get("QD_VERIFY_IR") == "1":
        from qd_core.ir.verify import verify

        verify(ir)
    options = _options()
    if options.print_ir:
        print(f"[{stage}]\n{stage_text(ir)}")
    if os.environ.get("QD_DUMP_IR") == "1":
        _dump(stage, ir, options.debug_dump_path)


def watched() -> bool:
    """Whether the stages of compilation are printed or written to files, so that none may be skipped."""
    return _options().print_ir or os.environ.get("QD_DUMP_IR") == "1"


def _options() -> Options:
    runtime = active()
    return runtime.options if runtime is not None else Options()


def stage_text(ir: Function | Program) -> str:
    """Return the text of a stage, which parses again."""
    from qd_core.ir.print import print_function, print_program

    return print_function(ir, locations=True) if isinstance(ir, Function) else print_program(ir, locations=True)


def _dump(stage: str, ir: Function | Program, default: str) -> None:
    global _count
    folder = Path(os.environ.get("QD_DUMP_DIR", default))
    folder.mkdir(parents=True, exist_ok=True)
    text = stage_text(ir)
    (folder / f"{_count:04d}_{ir.name}_{stage}.qdir").write_text(text, encoding="utf-8")
    _count += 1
