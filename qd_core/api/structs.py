"""`qd.Struct`, `@qd.dataclass`, `@qd.data_oriented`: compound values, and objects with kernels."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qd_core.api import field as fields
from qd_core.errors import QuadrantsSyntaxError, QuadrantsTypeError
from qd_core.frontend.annotations import PYTHON_SCOPE, MatrixType, StructType, as_dtype
from qd_core.frontend.functions import Func
from qd_core.frontend.lower import kernel_meaning
from qd_core.frontend.members import evaluated
from qd_core.runtime.struct import StructField, member_type

__all__ = ["Struct", "data_oriented", "dataclass"]


COMPLETE = (fields,)
"""The module that says what ``field`` of a struct type makes: importing this one makes such types complete."""

_METHODS = (Func, types.FunctionType, staticmethod, property)


def _is_method(name: str, value: Any) -> bool:
    return isinstance(value, _METHODS) and not name.startswith("__")


_VIEWS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "keys": lambda members, kind: list(members),
    "items": lambda members, kind: members.items(),
    "entries": lambda members, kind: dict(members),
    "methods": lambda members, kind: dict(kind.methods) if kind is not None else {},
}
"""Attributes of every struct, where no member is called so."""


class Struct:
    """Named members in Python scope: numbers, vectors, matrices, structs.

    Parameters
    ----------
    members : mapping, optional
        Members by name.
    **named
        More members.
    """

    __slots__ = ("_members", "_type")

    def __init__(self, members: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        given = {**(members or {}), **named}
        methods = given.pop("__struct_methods", {})
        kind = StructType({}, methods) if methods else None
        object.__setattr__(self, "_members", {k: Struct(v) if isinstance(v, dict) else v for k, v in given.items()})
        object.__setattr__(self, "_type", kind)

    @staticmethod
    def of(kind: StructType, members: dict[str, Any]) -> Struct:
        """Make a struct of type ``kind``."""
        made = Struct(members)
        object.__setattr__(made, "_type", kind)
        return made

    @staticmethod
    def field(members: Mapping[str, Any], shape: Any = None, **options: Any) -> StructField:
        """Field of structs with members of these types; options as for ``qd.field``."""
        types = dict(members)
        methods = types.pop("__struct_methods", {})
        return StructType(types, methods).field(shape, **options)

    def __qd_struct__(self) -> tuple[dict[str, Any], StructType | None]:
        """Members and type, for kernels."""
        return self._members, self._type

    def to_dict(self) -> dict[str, Any]:
        """Members as a dict; structs inside become dicts too."""
        return {k: v.to_dict() if isinstance(v, Struct) else v for k, v in self._members.items()}

    def __getattr__(self, name: str) -> Any:
        members = object.__getattribute__(self, "_members")
        if name in members:
            return members[name]
        kind = object.__getattribute__(self, "_type")
        if name in _VIEWS:
            return _VIEWS[name](members, kind)
        method = kind.methods.get(name) if kind is not None else None
        if method is None:
            raise AttributeError(f"a struct of {', '.join(members)} has no member {name!r}")
        return method.__get__(self, type(self))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._members:
            raise AttributeError(f"a struct of {', '.join(self._members)} has no member {name!r}")
        kind = self._type.members.get(name) if self._type is not None else None
        self._members[name] = value if kind is None else _member(kind, value)

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.__setattr__(name, value)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dict):
            return self.to_dict() == other
        return hasattr(other, "to_dict") and self.to_dict() == other.to_dict()  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{k}={v!r}' for k, v in self._members.items())})"


def _member(annotation: Any, value: Any) -> Any:
    """Convert ``value`` to the type of a member; 0 gives zeros of any type."""
    kind = member_type(annotation)
    if isinstance(kind, StructType):
        if hasattr(value, "__qd_struct__"):
            value = value.__qd_struct__()[0]
        return _construct(kind, **value) if isinstance(value, dict) else _construct(kind, *[value] * len(kind.members))
    if isinstance(kind, MatrixType):
        return kind(*value) if isinstance(value, (list, tuple)) else kind(value)
    return kind(value).item()


def _construct(kind: StructType, /, *members: Any, **named: Any) -> Struct:
    """Call of a struct type in Python scope."""
    if len(members) == 1 and not named and (isinstance(members[0], dict) or hasattr(members[0], "__qd_struct__")):
        only = members[0]
        members, named = (), dict(only if isinstance(only, dict) else only.__qd_struct__()[0])
    given = dict(zip(kind.members, members, strict=False))
    twice = [n for n in named if n in given or n not in kind.members]
    if len(members) > len(kind.members) or twice:
        what = f"no member {twice[0]!r}, or it is given twice" if twice else f"fewer members than {len(members)}"
        raise QuadrantsTypeError(f"{kind.name} has {what}", hint=f"members: {', '.join(kind.members)}")
    given.update(named)
    return Struct.of(kind, {k: _member(t, given.get(k, 0)) for k, t in kind.members.items()})


def dataclass(cls: type) -> StructType:
    """Make a struct type from a class: annotations are members, functions are methods.

    Those decorated with `@qd.func` are called in kernels, plain ones in Python scope, `@qd.pyfunc` in both.

    Examples
    --------
    ::

        @qd.dataclass
        class Ray:
            origin: qd.types.vector(3, qd.f32)
            t: qd.f32

        Ray(t=2).t  # 2.0
    """
    raw = {k: v for c in reversed(cls.__mro__) for k, v in getattr(c, "__annotations__", {}).items()}
    for name in raw:
        if name in vars(cls) and not isinstance(vars(cls)[name], types.MemberDescriptorType):
            raise QuadrantsSyntaxError(
                f"Default value in @dataclass is not supported. The member is {name!r} of {cls.__name__}",
                hint="members start as 0; write a @staticmethod that makes a struct with other values",
            )
    members = evaluated(cls) if any(isinstance(a, str) for a in raw.values()) else raw
    methods = {n: f for c in reversed(cls.__mro__) for n, f in vars(c).items() if _is_method(n, f)}
    for name, annotation in members.items():
        if as_dtype(annotation) is None and not isinstance(annotation, (MatrixType, StructType)):
            raise QuadrantsTypeError(f"member {name!r} of {cls.__name__} has no type of kernels: {annotation!r}")
    return StructType(members, methods, cls.__name__)


_Class = typing.TypeVar("_Class", bound=type)


def data_oriented(cls: Any = None, /, *, stable_members: bool = False, template_primitives: bool = True) -> Any:
    """Mark a class whose kernels are methods.

    ``self`` is compiled in as far as kernels read it, arrays are passed. Members that changed are seen at the next
    call.

    Parameters
    ----------
    stable_members : bool
        Promise that members do not change; nothing relies on it.
    template_primitives : bool
        Whether numbers among the members are compiled in. If not, they are passed at each call.
    """

    def mark(target: _Class) -> _Class:
        target.__qd_data_oriented__ = True
        target.__qd_template_primitives__ = template_primitives
        return target

    return mark if cls is None else mark(cls)


PYTHON_SCOPE["struct"] = _construct
kernel_meaning("Struct")(Struct)
