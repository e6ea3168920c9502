"""Verification and dumps between the stages of compilation."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import Function, Region
from qd_core.ir.parse import parse_function, parse_program
from qd_core.ir.print import print_function, print_program
from qd_core.runtime import stages

A = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def scale(x: A, y: A, a: qd.f32):
    for i in range(x.shape[0]):
        y[i] = qd.sin(x[i]) * a


def test_invalid_ir_stops_where_it_arises(monkeypatch):
    monkeypatch.setenv("QD_VERIFY_IR", "1")
    with pytest.raises(InvalidIRError):
        stages.passed("lowered", Function("broken", [], Region()))


def test_every_stage_is_dumped_and_parses_again(monkeypatch, tmp_path):
    monkeypatch.setenv("QD_DUMP_IR", "1")
    monkeypatch.setenv("QD_DUMP_DIR", str(tmp_path))
    qd.init(arch=qd.cpu)
    x, y = (qd.ndarray(qd.f32, 4, needs_grad=True) for _ in range(2))
    x.from_numpy(np.ones(4))
    scale(x, y, 2.0)
    scale.grad(x, y, 2.0)
    qd.reset()
    names = [p.name.split("_", 1)[1] for p in sorted(tmp_path.iterdir())]
    assert names[:3] == ["scale_lowered.qdir", "scale_offloaded.qdir", "scale_legalize.qdir"]
    assert "scale_grad_differentiated.qdir" in names
    for path in tmp_path.iterdir():
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("func"):
            assert print_function(parse_function(text), locations=True) == text
        else:
            assert print_program(parse_program(text), locations=True) == text
