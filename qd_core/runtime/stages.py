"""Between the stages of compilation: verification and dumping.

``QD_VERIFY_IR=1`` verifies the IR after every stage (the tests set it). ``QD_DUMP_IR=1`` writes it as text that parses
again, one file a stage, below
``QD_DUMP_DIR`` (default ``qd_dump``).
"""

from __future__ import annotations

import os
from pathlib import Path

from qd_core.ir.nodes import Function
from qd_core.ir.program import Program

__all__ = ["passed"]

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
    if os.environ.get("QD_DUMP_IR") == "1":
        _dump(stage, ir)


def _dump(stage: str, ir: Function | Program) -> None:
    global _count
    from qd_core.ir.print import print_function, print_program

    folder = Path(os.environ.get("QD_DUMP_DIR", "qd_dump"))
    folder.mkdir(parents=True, exist_ok=True)
    text = print_function(ir, locations=True) if isinstance(ir, Function) else print_program(ir, locations=True)
    (folder / f"{_count:04d}_{ir.name}_{stage}.qdir").write_text(text, encoding="utf-8")
    _count += 1
