"""Struct fields, and their elements in Python scope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qd_core.errors import ArgumentValueError, QuadrantsTypeError
from qd_core.frontend.annotations import MatrixType, StructType, as_dtype
from qd_core.runtime.context import active
from qd_core.runtime.field import Field, MatrixField, ScalarField
from qd_core.runtime.tree import SNode

__all__ = ["StructElement", "StructField", "member_field", "member_type"]


class StructElement:
    """One element of a struct field: reading and assigning members goes to the field."""

    __slots__ = ("_field", "_key")

    def __init__(self, field: StructField, key: Any) -> None:
        object.__setattr__(self, "_field", field)
        object.__setattr__(self, "_key", key)

    def _members(self) -> dict[str, Any]:
        return {name: member[self._key] for name, member in self._field.members.items()}

    def __qd_struct__(self) -> tuple[dict[str, Any], StructType]:
        """Members now and type, for kernels."""
        return self._members(), self._field.type

    def to_dict(self) -> dict[str, Any]:
        """Members as a dict; structs inside become dicts too."""
        return {k: v.to_dict() if hasattr(v, "to_dict") else v for k, v in self._members().items()}

    def __getattr__(self, name: str) -> Any:
        member = self._field.members.get(name)
        if member is not None:
            return member[self._key]
        if name == "keys":
            return list(self._field.members)
        method = self._field.type.methods.get(name)
        if method is None:
            raise AttributeError(f"a struct of {', '.join(self._field.members)} has no member {name!r}")
        return method.__get__(self, type(self))

    def __setattr__(self, name: str, value: Any) -> None:
        member = self._field.members.get(name)
        if member is None:
            raise AttributeError(f"a struct of {', '.join(self._field.members)} has no member {name!r}")
        member[self._key] = value

    def __getitem__(self, name: str) -> Any:
        return self._field.members[name][self._key]

    __setitem__ = __setattr__

    def __iter__(self) -> Iterator[str]:
        return iter(self._field.members)

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "to_dict") and self.to_dict() == other.to_dict()  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{k}={v!r}' for k, v in self._members().items())})"


class StructField:
    """Field of structs: one field a member, with the same index space."""

    def __init__(self, type: StructType, members: dict[str, Any], name: str = "") -> None:
        self.type, self.members, self.name = type, members, name

    # -- placement ----------------------------------------------------------------------------------------------------
    def place_in(self, node: SNode, offset: tuple[int, ...] | None) -> None:
        """Place all members in ``node``."""
        for member in self.members.values():
            member.place_in(node, offset)

    def leaves(self) -> list[Field]:
        """Fields of scalars, vectors and matrices inside."""
        return [f for m in self.members.values() for f in (m.leaves() if isinstance(m, StructField) else [m])]

    @property
    def _first(self) -> Field:
        return self.leaves()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the index space."""
        return self._first.shape

    @property
    def snode(self) -> SNode:
        """Node of the first member."""
        return self._first.snode

    def parent(self, n: int = 1) -> SNode | None:
        """Return the node that the first member is placed in, or the n-th above."""
        return self._first.parent(n)

    @property
    def keys(self) -> list[str]:
        """Names of the members."""
        return list(self.members)

    @property
    def grad(self) -> Any:
        """Struct field of the gradients; a member without one is None in it."""
        return StructField(self.type, {k: m.grad for k, m in self.members.items() if m.grad is not None})

    def has_grad(self) -> bool:
        """Whether a member has memory for gradients."""
        return any(field.has_grad() for field in self.leaves())

    def has_dual(self) -> bool:
        """Whether a member has memory for tangents."""
        return any(field.has_dual() for field in self.leaves())

    def get_member_field(self, name: str) -> Any:
        """Return the field of one member."""
        return self.members[name]

    def __qd_fields__(self) -> tuple[dict[str, Any], StructType]:
        """Members and type, for kernels."""
        return self.members, self.type

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("members", {})
        if name not in members:
            raise AttributeError(f"{type(self).__name__} has no member {name!r}; members: {', '.join(members)}")
        return members[name]

    # -- contents -----------------------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> StructElement:
        self._first._index(key)
        return StructElement(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        for name, member in self.members.items():
            member[key] = value[name]

    def fill(self, val: Any) -> None:
        """Set every element: to a struct, or every member to a number."""
        for name, member in self.members.items():
            member.fill(val[name] if isinstance(val, dict) or hasattr(val, "__qd_struct__") else val)

    def to_numpy(self) -> dict[str, Any]:
        """Return a dict of NumPy arrays by member."""
        return {name: member.to_numpy() for name, member in self.members.items()}

    def from_numpy(self, arrays: Mapping[str, Any]) -> None:
        """Overwrite with a dict of NumPy arrays by member."""
        self._check_names(arrays)
        for name, member in self.members.items():
            member.from_numpy(arrays[name])

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Return a dict of torch tensors by member."""
        return {name: member.to_torch(device) for name, member in self.members.items()}

    def from_torch(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite with a dict of torch tensors by member."""
        self._check_names(tensors)
        for name, member in self.members.items():
            member.from_torch(tensors[name])

    def copy_from(self, other: StructField) -> None:
        """Copy the contents of another field of such structs."""
        self._check_names(other.members)
        for name, member in self.members.items():
            member.copy_from(other.members[name])

    def _check_names(self, given: Mapping[str, Any]) -> None:
        if set(given) != set(self.members):
            raise ArgumentValueError(f"expected the members {sorted(self.members)}, got {sorted(given)}")

    def __repr__(self) -> str:
        return f"<StructField {self.name}{' ' * bool(self.name)}{', '.join(self.members)}>"


def member_type(annotation: Any) -> Any:
    """Return what a member of type ``annotation`` is: a `DType`, or a `MatrixType` or `StructType` with scalar types
    filled in.
    """
    runtime = active()
    options = runtime.options if runtime is not None else None
    defaults = () if options is None else (options.default_ip, options.default_fp)
    dtype = as_dtype(annotation, *defaults)
    if dtype is not None:
        return dtype
    if isinstance(annotation, MatrixType):
        return MatrixType(
            annotation.shape, as_dtype(annotation.dtype if annotation.dtype is not None else float, *defaults)
        )
    if isinstance(annotation, StructType):
        return annotation
    raise QuadrantsTypeError(
        f"{annotation!r} is no type of a member", hint="use scalar, vector, matrix or struct types"
    )


def member_field(annotation: Any, name: str = "", *, split: bool = False) -> Any:
    """Make an unplaced field of elements of type ``annotation``; ``split`` stores components apart."""
    kind = member_type(annotation)
    if isinstance(kind, StructType):
        return StructField(
            kind, {k: member_field(t, f"{name}.{k}" if name else k) for k, t in kind.members.items()}, name
        )
    if isinstance(kind, MatrixType):
        return MatrixField(kind.dtype, kind.shape, name, split=split)
    return ScalarField(kind, (), name)
