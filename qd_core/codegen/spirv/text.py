"""Shows a binary module as the text that SPIR-V's assembler reads: for dumps, golden files and round-trip tests."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

from qd_core.codegen.spirv.grammar import BY_CODE, ENUMS, EXTENDED, MAGIC, Instruction
from qd_core.errors import InvalidIRError

__all__ = ["disassemble"]

_NAMES = {kind: {number: name for name, number in table.items()} for kind, table in ENUMS.items()}
_EXTENDED = {number: name for name, number in EXTENDED.items()}
_LITERALS = {"D": "Decoration", "M": "ExecutionMode", "A": "MemoryAccess"}


def disassemble(binary: bytes) -> str:
    """Return the text of a module, one instruction a line, ids as numbers.

    Raises
    ------
    InvalidIRError
        The bytes are no module, or hold an instruction that the table lacks.
    """
    words = array("I", binary)
    if len(words) < 5 or words[0] != MAGIC:
        raise InvalidIRError("the bytes are no SPIR-V module")
    kinds: dict[int, tuple[str, int]] = {}
    lines = [_line(row, operands, kinds) for row, operands in _instructions(words)]
    return "\n".join(lines) + "\n"


def _instructions(words: array[int]) -> Iterator[tuple[Instruction, list[int]]]:
    at = 5
    while at < len(words):
        length, op = words[at] >> 16, words[at] & 0xFFFF
        if op not in BY_CODE or length == 0:
            raise InvalidIRError(f"instruction {op} at word {at} is not in the table")
        yield BY_CODE[op], list(words[at + 1 : at + length])
        at += length


def _line(row: Instruction, operands: list[int], kinds: dict[int, tuple[str, int]]) -> str:
    result, parts, type_id = "", list[str](), 0
    rest = list(operands)
    for pattern in row.operands:
        kind = pattern.rstrip("*?")
        while rest:
            if kind == "R":
                number = rest.pop(0)
                result = f"%{number} = "
                _remember(row, number, rest, kinds)
            elif kind == "T":
                type_id = rest.pop(0)
                parts.append(f"%{type_id}")
            elif kind == "V":
                parts.append(_number(kinds[type_id], rest))
            else:
                parts.append(_operand(kind, rest))
            if not pattern.endswith("*"):
                break
    if rest:
        raise InvalidIRError(f"Op{row.name} has {len(rest)} words too many")
    return f"{result}Op{row.name} {' '.join(parts)}".rstrip()


def _remember(row: Instruction, result: int, rest: list[int], kinds: dict[int, tuple[str, int]]) -> None:
    if row.name in ("TypeInt", "TypeFloat"):
        kinds[result] = (row.name, rest[0])


def _operand(kind: str, rest: list[int]) -> str:
    if kind == "I":
        return f"%{rest.pop(0)}"
    if kind == "L":
        return str(rest.pop(0))
    if kind == "S":
        return _string(rest)
    if kind == "X":
        return _EXTENDED[rest.pop(0)]
    if kind in _LITERALS:
        names = _NAMES[_LITERALS[kind]]
        name = names[rest.pop(0)]
        literals = [_NAMES["BuiltIn"][w] if name == "BuiltIn" else str(w) for w in rest]
        rest.clear()
        return " ".join([name, *literals])
    return _NAMES[kind][rest.pop(0)]


def _string(rest: list[int]) -> str:
    raw = b""
    while b"\0" not in raw:
        raw += struct.pack("<I", rest.pop(0))
    text = raw.split(b"\0")[0].decode().replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _number(kind: tuple[str, int], rest: list[int]) -> str:
    name, bits = kind
    value = rest.pop(0) | (rest.pop(0) << 32 if bits == 64 else 0)
    if name == "TypeInt":
        return str(value)
    return _hex_float(value, bits)


def _hex_float(value: int, bits: int) -> str:
    """Exact hexadecimal text of a real's bits, infinities and NaNs included."""
    mantissa_bits = {16: 10, 32: 23, 64: 52}[bits]
    exponent_bits = bits - 1 - mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    sign = "-" if value >> (bits - 1) else ""
    exponent = value >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = value & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        if mantissa == 0:
            return f"{sign}0x0p+0"
        shift = mantissa_bits - mantissa.bit_length() + 1
        mantissa = mantissa << shift & ((1 << mantissa_bits) - 1)
        exponent = 1 - shift
    digits = -(-mantissa_bits // 4)
    fraction = f"{mantissa << (digits * 4 - mantissa_bits):0{digits}x}".rstrip("0")
    return f"{sign}0x1{'.' + fraction if fraction else ''}p{exponent - bias:+d}"
