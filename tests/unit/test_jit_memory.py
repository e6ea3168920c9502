"""Compiling again and again keeps no memory."""

from __future__ import annotations

import sys

import pytest

from qd_core.codegen.jit import Jit

TEXT = "define i32 @f(ptr %p) {\n  %v = load i32, ptr %p\n  store i32 3, ptr %p\n  ret i32 %v\n}"


def resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident memory from /proc")
def test_compiling_keeps_no_memory() -> None:
    jit = Jit()

    def compiled(times: int) -> None:
        for _ in range(times):
            jit.compile(TEXT, vectorize=True, opt_level=2)

    compiled(20)
    before = resident_kib()
    compiled(100)
    assert resident_kib() - before < 100 * 15  # 60 KiB each while pass managers and builders were kept
