"""Long straight lines are divided, because LLVM is quadratic in the length of a block."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from llvm_programs import array, both, branch, cpu, program, task

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions
from qd_core.codegen.llvm import emit_module


def text_of(p: Any) -> str:
    return emit_module(p, cpu()[2].llvm, CompileOptions())


def longest_block(text: str) -> int:
    return max(len(block.splitlines()) for block in re.split(r"^[\w.]+:$", text, flags=re.M))


def test_long_lines_are_divided_inside_and_outside_branches() -> None:
    x, y = array("x", dt.f32), array("y", dt.f32)

    def chain(b: Any, i: Any, length: int) -> Any:
        v = b.load(x, [i])
        for k in range(length):
            v = b.emit("add", b.emit("mul", v, b.load(x, [b.const(dt.i32, k % 7)])), b.const(dt.f32, 0.25))
        return v

    def body(b: Any, i: Any) -> None:
        odd = b.emit("eq", b.emit("and", i, b.const(dt.i32, 1)), b.const(dt.i32, 1))
        (v,) = branch(b, odd, lambda: (chain(b, i, 500),), lambda: (b.const(dt.f32, 2),))
        b.store(y, [i], b.emit("add", v, chain(b, i, 400)))

    p = program([x, y], task([None], body))
    assert longest_block(text_of(p)) < 500
    values = np.random.default_rng(1).random(19, np.float32)
    both(p, [values, np.zeros(19, np.float32)], [19], CompileOptions(fast_math=False))


def test_many_atomics_do_not_share_a_condition() -> None:
    x = array("x", dt.i32)

    def scatter(count: int) -> Any:
        def body(b: Any, i: Any) -> None:
            for k in range(count):
                at = b.emit("mod", b.emit("mul", i, b.const(dt.i32, k + 3)), b.const(dt.i32, 5))
                b.atomic("add", x, [at], b.const(dt.i32, k + 1))

        return program([x], task([None], body))

    assert text_of(scatter(8)).count("br i1 %alone") == 8
    many = scatter(200)
    assert "br i1 %alone" not in text_of(many)
    both(many, [np.zeros(5, np.int32)], [33])
