"""The part of SPIR-V that is emitted: numbers of instructions and enumerants, and the kinds of their operands.

Numbers are those of the SPIR-V specification, version 1.5, with the extensions named beside them. An instruction's
pattern is
a word an operand: ``T`` result type, ``R`` result, ``I`` id, ``L`` literal number, ``S`` literal string, ``V``
literal of the result type,
``X`` instruction of the extended set, ``D`` decoration with its literals, ``M`` execution mode with its literals,
``A`` memory access with its
literals, the name of an enumeration, or one of these with ``*`` for any number and ``?`` for at most one.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BY_CODE", "ENUMS", "EXTENDED", "MAGIC", "Instruction", "code", "enum", "extended"]

MAGIC = 0x07230203


class Instruction(NamedTuple):
    """One instruction of the table."""

    name: str
    code: int
    operands: tuple[str, ...]


_TABLE = """
Undef 1 T R
Source 3 SourceLanguage L
Name 5 I S
Extension 10 S
ExtInstImport 11 R S
ExtInst 12 T R I X I*
MemoryModel 14 AddressingModel MemoryModel
EntryPoint 15 ExecutionModel I S I*
ExecutionMode 16 I M
Capability 17 Capability
TypeVoid 19 R
TypeBool 20 R
TypeInt 21 R L L
TypeFloat 22 R L
TypeVector 23 R I L
TypeArray 28 R I I
TypeStruct 30 R I*
TypePointer 32 R StorageClass I
TypeFunction 33 R I I*
ConstantTrue 41 T R
ConstantFalse 42 T R
Constant 43 T R V
Function 54 T R FunctionControl I
FunctionParameter 55 T R
FunctionEnd 56
FunctionCall 57 T R I I*
Variable 59 T R StorageClass I?
Load 61 T R I A?
Store 62 I I A?
AccessChain 65 T R I I*
Decorate 71 I D
MemberDecorate 72 I L D
CompositeConstruct 80 T R I*
CompositeExtract 81 T R I L*
ConvertFToU 109 T R I
ConvertFToS 110 T R I
ConvertSToF 111 T R I
ConvertUToF 112 T R I
UConvert 113 T R I
SConvert 114 T R I
FConvert 115 T R I
ConvertUToPtr 120 T R I
Bitcast 124 T R I
SNegate 126 T R I
FNegate 127 T R I
IAdd 128 T R I I
FAdd 129 T R I I
ISub 130 T R I I
FSub 131 T R I I
IMul 132 T R I I
FMul 133 T R I I
UDiv 134 T R I I
SDiv 135 T R I I
FDiv 136 T R I I
UMod 137 T R I I
LogicalEqual 164 T R I I
LogicalNotEqual 165 T R I I
LogicalOr 166 T R I I
LogicalAnd 167 T R I I
LogicalNot 168 T R I
Select 169 T R I I I
IEqual 170 T R I I
INotEqual 171 T R I I
UGreaterThan 172 T R I I
SGreaterThan 173 T R I I
UGreaterThanEqual 174 T R I I
SGreaterThanEqual 175 T R I I
ULessThan 176 T R I I
SLessThan 177 T R I I
ULessThanEqual 178 T R I I
SLessThanEqual 179 T R I I
FOrdEqual 180 T R I I
FUnordNotEqual 183 T R I I
FOrdLessThan 184 T R I I
FOrdGreaterThan 186 T R I I
FOrdLessThanEqual 188 T R I I
FOrdGreaterThanEqual 190 T R I I
ShiftRightLogical 194 T R I I
ShiftRightArithmetic 195 T R I I
ShiftLeftLogical 196 T R I I
BitwiseOr 197 T R I I
BitwiseXor 198 T R I I
BitwiseAnd 199 T R I I
Not 200 T R I
BitCount 205 T R I
ControlBarrier 224 I I I
AtomicLoad 227 T R I I I
AtomicStore 228 I I I I
AtomicExchange 229 T R I I I I
AtomicCompareExchange 230 T R I I I I I I
AtomicIAdd 234 T R I I I I
AtomicSMin 236 T R I I I I
AtomicUMin 237 T R I I I I
AtomicSMax 238 T R I I I I
AtomicUMax 239 T R I I I I
AtomicAnd 240 T R I I I I
AtomicOr 241 T R I I I I
AtomicXor 242 T R I I I I
Phi 245 T R I*
LoopMerge 246 I I LoopControl
SelectionMerge 247 I SelectionControl
Label 248 R
Branch 249 I
BranchConditional 250 I I I L*
Return 253
ReturnValue 254 I
GroupNonUniformBallot 339 T R I I
GroupNonUniformShuffle 345 T R I I I
GroupNonUniformIAdd 349 T R I GroupOperation I
ReadClockKHR 5056 T R I
AtomicFAddEXT 6035 T R I I I I
"""

ENUMS: dict[str, dict[str, int]] = {
    "SourceLanguage": {"Unknown": 0},
    "Capability": {
        "Shader": 1, "Float16": 9, "Float64": 10, "Int64": 11, "Int64Atomics": 12, "Int16": 22, "Int8": 39,
        "GroupNonUniform": 61, "GroupNonUniformArithmetic": 63, "GroupNonUniformBallot": 64,
        "GroupNonUniformShuffle": 65, "ShaderClockKHR": 5055,
        "StorageBuffer16BitAccess": 4433, "StorageBuffer8BitAccess": 4448, "DenormPreserve": 4464,
        "SignedZeroInfNanPreserve": 4466, "RoundingModeRTE": 4467, "PhysicalStorageBufferAddresses": 5347,
        "AtomicFloat32AddEXT": 6033, "AtomicFloat64AddEXT": 6034,
    },
    "ExecutionModel": {"GLCompute": 5},
    "AddressingModel": {"PhysicalStorageBuffer64": 5348},
    "MemoryModel": {"GLSL450": 1},
    "ExecutionMode": {"LocalSize": 17, "DenormPreserve": 4459, "SignedZeroInfNanPreserve": 4461,
    "RoundingModeRTE": 4462},
    "StorageClass": {"Input": 1, "Workgroup": 4, "Function": 7, "PushConstant": 9, "PhysicalStorageBuffer": 5349},
    "Decoration": {"Block": 2, "ArrayStride": 6, "BuiltIn": 11, "Aliased": 20, "Offset": 35, "NoContraction": 42,
    "AliasedPointer": 5356},
    "BuiltIn": {"NumWorkgroups": 24, "GlobalInvocationId": 28, "LocalInvocationIndex": 29, "SubgroupSize": 36,
    "SubgroupLocalInvocationId": 41},
    "GroupOperation": {"Reduce": 0},
    "FunctionControl": {"None": 0},
    "SelectionControl": {"None": 0},
    "LoopControl": {"None": 0},
    "MemoryAccess": {"None": 0, "Volatile": 1, "Aligned": 2},
}  # fmt: skip

EXTENDED: dict[str, int] = {
    "RoundEven": 2, "Trunc": 3, "FAbs": 4, "Floor": 8, "Ceil": 9, "Sqrt": 31, "InverseSqrt": 32, "Fma": 50,
    "FindUMsb": 75, "NMin": 79,
    "NMax": 80,
}  # fmt: skip
"""Instructions of the set ``GLSL.std.450``."""


def _parse() -> dict[str, Instruction]:
    rows = (line.split() for line in _TABLE.strip().splitlines())
    return {name: Instruction(name, int(number), tuple(operands)) for name, number, *operands in rows}


_BY_NAME = _parse()
BY_CODE: dict[int, Instruction] = {row.code: row for row in _BY_NAME.values()}


def code(name: str) -> int:
    """Return the number of the instruction ``Op<name>``."""
    return _BY_NAME[name].code


def enum(kind: str, name: str) -> int:
    """Return the number of an enumerant, such as ``("StorageClass", "Function")``."""
    return ENUMS[kind][name]


def extended(name: str) -> int:
    """Return the number of an instruction of ``GLSL.std.450``."""
    return EXTENDED[name]
