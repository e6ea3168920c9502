"""Builds one SPIR-V module and writes it as binary.

Types, constants and decorations are unique by construction. Sections are kept apart and joined in the order that the
specification
demands. A function's variables and its entry block's prologue are sections too, so that both can grow while the body
is written.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Any

from qd_core.codegen.spirv.grammar import MAGIC, code, enum

__all__ = ["VERSION", "Module", "string_words"]

VERSION = 0x00010500
_GENERATOR = 0

_CONSTANT, _TRUE, _FALSE = code("Constant"), code("ConstantTrue"), code("ConstantFalse")
_INT, _FLOAT, _POINTER = code("TypeInt"), code("TypeFloat"), code("TypePointer")


def string_words(text: str) -> list[int]:
    """Encode a literal string: UTF-8, zero-terminated, padded to whole words."""
    raw = text.encode() + b"\0"
    raw += b"\0" * (-len(raw) % 4)
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


class Module:
    """One module with one entry point.

    Attributes
    ----------
    bound : int
        The next free id.
    variables, prologue, body : list of int
        Words of the entry function after its first label: variables, then what is computed once, then the rest.
    functions : list of int
        Words of further functions.
    """

    def __init__(self) -> None:
        self.bound = 1
        self._capabilities: dict[int, None] = {}
        self._extensions: dict[str, None] = {}
        self._modes: list[int] = []
        self._names: list[int] = []
        self._decorations: list[int] = []
        self._globals: list[int] = []
        self._unique: dict[tuple[Any, ...], int] = {}
        self._interface: list[int] = []
        self.variables: list[int] = []
        self.prologue: list[int] = []
        self.body: list[int] = []
        self.functions: list[int] = []
        self.extended = self.id()
        self.main = self.id()
        self.capability("Shader")
        self.capability("PhysicalStorageBufferAddresses")
        self.capability("Int64")

    def id(self) -> int:
        """Return a new id."""
        self.bound += 1
        return self.bound - 1

    # -- declarations ---------------------------------------------------------------------------------------------
    def capability(self, name: str) -> None:
        """Declare a capability."""
        self._capabilities[enum("Capability", name)] = None

    def extension(self, name: str) -> None:
        """Declare an extension."""
        self._extensions[name] = None

    def mode(self, name: str, *literals: int) -> None:
        """Set an execution mode of the entry point."""
        _put(self._modes, code("ExecutionMode"), (self.main, enum("ExecutionMode", name), *literals))

    def name(self, target: int, text: str) -> None:
        """Give an id a name, for dumps."""
        _put(self._names, code("Name"), (target, *string_words(text)))

    def decorate(self, target: int, name: str, *literals: int) -> None:
        """Decorate an id."""
        _put(self._decorations, code("Decorate"), (target, enum("Decoration", name), *literals))

    def decorate_member(self, target: int, member: int, name: str, *literals: int) -> None:
        """Decorate a member of a struct."""
        _put(self._decorations, code("MemberDecorate"), (target, member, enum("Decoration", name), *literals))

    # -- types and constants ----------------------------------------------------------------------------------------
    def type(self, name: str, *operands: int) -> int:
        """Return the type ``OpType<name>``; struct types are never shared."""
        op = code("Type" + name)
        key = (op, *operands)
        known = self._unique.get(key)
        if known is None:
            known = self._unique[key] = self.id()
            _put(self._globals, op, (known, *operands))
        return known

    def int(self, bits: int) -> int:
        """Return the integer type of a width; instructions, not types, tell signed from unsigned."""
        return self.type("Int", bits, 0)

    def float(self, bits: int) -> int:
        """Return the real type of a width."""
        return self.type("Float", bits)

    def pointer(self, storage: str, target: int) -> int:
        """Return a pointer type."""
        return self.type("Pointer", enum("StorageClass", storage), target)

    def constant(self, type_id: int, *words: int) -> int:
        """Return the constant whose bits are ``words``."""
        return self._constant(_CONSTANT, type_id, *words)

    def truth(self, value: bool) -> int:
        """Return a Boolean constant."""
        return self._constant(_TRUE if value else _FALSE, self.type("Bool"))

    def _constant(self, op: int, type_id: int, *words: int) -> int:
        key = (op, type_id, *words)
        known = self._unique.get(key)
        if known is None:
            known = self._unique[key] = self.id()
            _put(self._globals, op, (type_id, known, *words))
        return known

    def variable(self, storage: str, pointer_type: int) -> int:
        """Return a new variable: of the function, or of the module and its interface."""
        result = self.id()
        section = self.variables if storage == "Function" else self._globals
        _put(section, code("Variable"), (pointer_type, result, enum("StorageClass", storage)))
        if storage != "Function":
            self._interface.append(result)
        return result

    # -- binary -----------------------------------------------------------------------------------------------------
    def words(self) -> list[int]:
        """Return the whole module as 32-bit words."""
        head = [MAGIC, VERSION, _GENERATOR, self.bound, 0]
        for number in sorted(self._capabilities):
            _put(head, code("Capability"), (number,))
        for text in self._extensions:
            _put(head, code("Extension"), string_words(text))
        _put(head, code("ExtInstImport"), (self.extended, *string_words("GLSL.std.450")))
        _put(
            head,
            code("MemoryModel"),
            (enum("AddressingModel", "PhysicalStorageBuffer64"), enum("MemoryModel", "GLSL450")),
        )
        entry = (enum("ExecutionModel", "GLCompute"), self.main, *string_words("main"), *self._interface)
        _put(head, code("EntryPoint"), entry)
        return [
            *head,
            *self._modes,
            *self._names,
            *self._decorations,
            *self._globals,
            *self._function(),
            *self.functions,
        ]

    def _function(self) -> list[int]:
        words: list[int] = []
        _put(words, code("Function"), (self._void, self.main, 0, self._signature))
        _put(words, code("Label"), (self._entry_label,))
        words += self.variables
        words += self.prologue
        words += self.body
        _put(words, code("FunctionEnd"), ())
        return words

    def begin(self) -> int:
        """Declare the entry function; return the label of its first block."""
        self._void = self.type("Void")
        self._signature = self.type("Function", self._void)
        self._entry_label = self.id()
        return self._entry_label

    def binary(self) -> bytes:
        """Return the module as little-endian bytes."""
        words = array("I", self.words())
        assert words.itemsize == 4
        return words.tobytes()


def _put(section: list[int], op: int, operands: Iterable[int]) -> None:
    at = len(section)
    section.append(0)
    section.extend(operands)
    section[at] = (len(section) - at) << 16 | op
