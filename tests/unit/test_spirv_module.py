"""The binary writer, the table of instructions, and the text of a module."""

from __future__ import annotations

import numpy as np
import pytest
from spirv_programs import ALL, HAS_TOOLS, SMALL, emitted, tool

from qd_core import dtypes as dt
from qd_core.codegen.spirv import grammar
from qd_core.codegen.spirv.module import Module, string_words
from qd_core.codegen.spirv.text import disassemble
from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError, UnsupportedError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Value
from qd_core.ir.ops import OpDef
from qd_core.testing.kernels import array, elementwise, parallel
from qd_core.testing.samples import cases

needs_tools = pytest.mark.skipif(not HAS_TOOLS, reason="spirv-as and spirv-val are not installed (spirv-tools)")


@pytest.mark.parametrize(
    ("text", "words"), [("", [0]), ("abc", [0x00636261]), ("main", [0x6E69616D, 0]), ("é", [0x0000A9C3])]
)
def test_strings_end_in_a_zero_byte(text: str, words: list[int]) -> None:
    assert string_words(text) == words


def test_types_and_constants_are_unique() -> None:
    m = Module()
    assert m.int(32) == m.int(32) != m.int(64)
    assert m.constant(m.int(32), 7) == m.constant(m.int(32), 7) != m.constant(m.int(32), 8)
    assert m.pointer("Function", m.int(32)) != m.pointer("PushConstant", m.int(32))
    assert m.truth(True) != m.truth(False)


def test_the_head_holds_magic_number_version_and_bound() -> None:
    m = Module()
    m.begin()
    words = m.words()
    assert words[:2] == [grammar.MAGIC, 0x00010500]
    assert words[3] == m.bound > max(w for w in (m.main, m.extended))


def test_bytes_that_are_no_module_are_refused() -> None:
    with pytest.raises(InvalidIRError, match="no SPIR-V module"):
        disassemble(b"\0" * 40)
    head = np.array([grammar.MAGIC, 0x10500, 0, 9, 0, 1 << 16 | 9999], np.uint32)
    with pytest.raises(InvalidIRError, match="9999"):
        disassemble(head.tobytes())


_CONSTANTS = {
    dt.f16: [1.0, -0.1, 65504.0, 6e-8, float("inf"), float("nan")],
    dt.f32: [0.0, -0.0, 1.5, 0.1, 3.4e38, 1e-45, -1.2e-38, float("-inf"), float("nan")],
    dt.f64: [0.1, 5e-324, 1.7e308, float("nan")],
    dt.i8: [-128, 127], dt.u16: [65535], dt.i32: [-1, 2**31 - 1], dt.i64: [-(2**63), 2**40 + 3], dt.u64: [2**64 - 1],
}  # fmt: skip


def _constants(dtype: DType) -> Function:
    y = array(dtype, "y")

    def write(b: Builder, i: Value) -> None:
        for n, value in enumerate(_CONSTANTS[dtype]):
            b.store(y, [b.const(dt.i32, n)], b.const(dtype, value))

    return parallel([y], 1, write)


def _round_trip(binary: bytes) -> None:
    """The text of a module, assembled by the specification's tool, is the module, but for who made it."""
    text = disassemble(binary)
    again = bytearray(
        tool(["spirv-as", "--target-env", "spv1.5", "--preserve-numeric-ids", "-", "-o", "-"], text.encode())
    )
    again[8:12] = binary[8:12]
    assert bytes(again) == binary


@needs_tools
@pytest.mark.parametrize("dtype", _CONSTANTS, ids=str)
def test_constants_survive_the_assembler(dtype: DType) -> None:
    for code in emitted(_constants(dtype)):
        _round_trip(code.binary)


@needs_tools
@pytest.mark.parametrize(
    ("op", "dtype"), [c for c in cases() if c[0].native and not (c[0].name == "raw_mod" and c[1].is_real)], ids=str
)
def test_every_operation_is_valid_and_survives_the_assembler(op: OpDef, dtype: DType) -> None:
    for code in emitted(elementwise(op, dtype)):
        tool(["spirv-val", "--target-env", "vulkan1.2", "-"], code.binary)
        _round_trip(code.binary)


@pytest.mark.parametrize("dtype", [dt.i8, dt.u1, dt.i16, dt.f16, dt.f64], ids=str)
def test_a_type_that_the_target_lacks_is_refused_by_name(dtype: DType) -> None:
    x, y = array(dtype, "x"), array(dtype, "y")
    function = parallel([x, y], lambda b: b.extent(y, 0), lambda b, i: b.store(y, [i], b.load(x, [i])))
    with pytest.raises(UnsupportedError, match=rf"type\.{'u8' if dtype is dt.u1 else dtype.name}.*'small'"):
        emitted(function, SMALL)


@pytest.mark.parametrize(("kind", "dtype"), [("add", dt.i64), ("exchange", dt.f64)])
def test_a_wide_atomic_without_a_wide_compare_and_swap_is_refused(kind: str, dtype: DType) -> None:
    from dataclasses import replace

    x, k = array(dtype, "x"), array(dt.i32, "k")
    function = parallel([x, k], 4, lambda b, i: b.atomic(kind, x, [b.load(k, [i])], b.const(dtype, 1)) and None)
    with pytest.raises(UnsupportedError, match=rf"atomic\.{kind}\.{dtype.name}"):
        emitted(function, replace(ALL, atomics=frozenset(), atomic_widths=frozenset({32})))
