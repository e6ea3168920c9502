"""Binding what is compiled in, or read member by member: templates, `self`, dataclasses, arrays outside a kernel.

A value that is compiled in is recognised by a *fingerprint*: what it says, never its address. Arrays are passed,
wherever they were found. Any other
object is bound by its class alone, and its members when the kernel reads them.
"""

from __future__ import annotations

import enum
import struct
import types
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from qd_core.dtypes import DType
from qd_core.errors import QuadrantsRuntimeTypeError
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, Template
from qd_core.frontend.functions import Func
from qd_core.frontend.members import Whole
from qd_core.frontend.signature import (
    EMPTY,
    ArgType,
    ArrayArg,
    FieldsArg,
    ObjectArg,
    StructArg,
    TemplateArg,
    called,
)
from qd_core.runtime.array import Ndarray
from qd_core.runtime.field import Field
from qd_core.runtime.interop import NdarraySource
from qd_core.runtime.tensor import Tensor

if TYPE_CHECKING:
    from qd_core.api.binding import Bound

__all__ = [
    "bind_dataclass",
    "bind_struct",
    "bind_template",
    "bind_tensor",
    "fingerprint",
    "is_compiled_in",
    "optional_of",
]


def bind_template(bound: Bound, path: str, annotation: Any, value: Any) -> ArgType:
    """Bind a template argument, a member of one, or an object outside the kernel."""
    if isinstance(value, Whole):
        return TemplateArg(_Same(value.value) if value.identity else _everything(value.value, {}), value.value)
    if isinstance(value, Tensor):
        value = value._unwrap()
    if isinstance(value, (Field, Ndarray)):
        return bind_placed(bound, path, value, annotated=annotation is not EMPTY)
    if hasattr(value, "__qd_fields__") and not isinstance(value, type):
        members, kind = value.__qd_fields__()
        return FieldsArg(
            tuple((n, bind_template(bound, f"{path}.{n}", annotation, m)) for n, m in members.items()), kind
        )
    if bound.options.raise_on_templated_floats and annotation is not EMPTY and isinstance(value, (float, np.floating)):
        raise QuadrantsRuntimeTypeError(
            f"argument {path!r} = {value} is a float in a template, and raise_on_templated_floats is set",
            hint="annotate it with float: a template is compiled anew for every value",
        )
    key = fingerprint(value)
    if key is not None:
        return TemplateArg(key, value)
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return ObjectArg((type(value), len(value)), value)
    if hasattr(type(value), "__bool__") or hasattr(type(value), "__len__"):
        return ObjectArg((type(value), bool(value)), value)
    return ObjectArg(type(value), value)


def bind_placed(bound: Bound, path: str, array: Field | Ndarray, *, annotated: bool) -> ArrayArg:
    """Bind a field, or an array held by an object.

    What shares memory with an array that is bound already shares its parameter; two arguments stay apart where they
    can, so that one compiled
    kernel serves them in any combination.
    """
    kind: ArrayArg = array.__qd_capture__()
    storage = array.home if isinstance(array, Field) else array
    known = bound.homes.get(id(storage))
    if known is not None and (not annotated or kind.first is not None):
        return _sharing(kind, known)
    bound.homes.setdefault(id(storage), path)
    bound.add_array(path, NdarraySource(storage))
    for hop in ("grad", "dual"):
        shadow = getattr(storage, hop)
        if shadow is not None:
            bound.homes.setdefault(id(shadow), f"{path}.{hop}")
    return kind


def _sharing(kind: ArrayArg, path: str) -> ArrayArg:
    return replace(kind, shares=path)


def bind_tensor(bound: Bound, path: str, annotation: Any, value: Any) -> ArgType:
    """Bind an argument annotated with `qd.Tensor`: a tensor, field, ndarray, host array or None."""
    from qd_core.api.binding import bind_argument

    if value is None:
        return bind_template(bound, path, EMPTY, None)
    if isinstance(value, (Tensor, Field, Ndarray)):
        return bind_template(bound, path, annotation, value)
    return bind_argument(bound, path, NdarrayType(), value)


# -- fingerprints -----------------------------------------------------------------------------------------------------
_ATOMS = (
    bool,
    int,
    str,
    bytes,
    type(None),
    DType,
    MatrixType,
    StructType,
    enum.Enum,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    range,
    slice,
)
_BY_EQUALITY = (types.FunctionType, types.MethodType)


def fingerprint(value: Any) -> Hashable | None:
    """Return what identifies a value that is compiled in, by contents; None for objects that have no such thing."""
    if isinstance(value, (float, complex, np.generic)):
        return type(value), _bits(value)
    if isinstance(value, slice):
        return type(value), value.start, value.stop, value.step
    if isinstance(value, _ATOMS) or isinstance(value, _BY_EQUALITY) or isinstance(value, Func):
        return type(value), value
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "__qd_matrix__"):
        return type(value), _contents(value.__qd_matrix__())
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _container(value)
    return None


def _bits(value: Any) -> Hashable:
    """Bits of a number: 0.0 and -0.0 differ, NaN is itself."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    return (
        value.tobytes()
        if isinstance(value, np.generic)
        else (struct.pack("<d", value.real), struct.pack("<d", value.imag))
    )


def _container(value: Any) -> Hashable | None:
    items = (
        list(value.items())
        if isinstance(value, dict)
        else sorted(value, key=repr)
        if isinstance(value, (set, frozenset))
        else list(value)
    )
    parts = [fingerprint(item) for item in items]
    return None if any(p is None for p in parts) else (type(value), tuple(parts))


def _contents(value: Any) -> Hashable:
    return tuple(map(_contents, value)) if isinstance(value, (list, tuple)) else fingerprint(value)


class _Same:
    """An object that equals itself alone, kept alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return hash(type(self.value))


def _everything(value: Any, seen: dict[int, int]) -> Hashable:
    """Fingerprint of an object with all that its attributes lead to; arrays count by identity."""
    known = seen.setdefault(id(value), len(seen))
    if known != len(seen) - 1:
        return ("again", known)
    if isinstance(value, (Field, Ndarray, Tensor)) or hasattr(value, "__qd_fields__"):
        return _Same(value)
    key = fingerprint(value)
    if key is not None:
        return key
    if isinstance(value, dict):
        return type(value), tuple((_everything(k, seen), _everything(v, seen)) for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value), tuple(_everything(v, seen) for v in value)
    members = getattr(value, "__dict__", None)
    return _Same(value) if members is None else (type(value), _everything(members, seen))


# -- structs ----------------------------------------------------------------------------------------------------------
def bind_struct(bound: Bound, path: str, annotation: StructType, value: Any) -> ArgType:
    """Bind a struct value: one leaf a member."""
    from qd_core.api.binding import bind_argument

    members: Any = value.__qd_struct__()[0] if hasattr(value, "__qd_struct__") else value
    if not isinstance(members, dict):
        raise QuadrantsRuntimeTypeError(f"argument {path!r} must be a struct or dict, got {type(value).__name__}")
    if set(members) != set(annotation.members):
        raise QuadrantsRuntimeTypeError(
            f"argument {path!r} must have the members {', '.join(annotation.members)}, got {', '.join(members)}"
        )
    kinds = tuple((n, bind_argument(bound, f"{path}.{n}", t, members[n])) for n, t in annotation.members.items())
    return StructArg(kinds, annotation)


def bind_dataclass(bound: Bound, path: str, annotation: type, value: Any) -> ArgType:
    """Bind an instance of a dataclass: its members are bound when the kernel reads them."""
    if not isinstance(value, annotation):
        raise QuadrantsRuntimeTypeError(
            f"argument {path!r} must be a {annotation.__name__}, got {type(value).__name__}"
        )
    return ObjectArg(type(value), value, typed=True)


def optional_of(annotation: Any) -> Any:
    """Return the annotation inside ``Optional[...]``; EMPTY where it is none."""
    parts = get_args(annotation)
    inner = [p for p in parts if p is not type(None)]
    return called(inner[0]) if type(None) in parts and len(inner) == 1 else EMPTY


def is_compiled_in(annotation: Any) -> bool:
    """Whether an annotation (or its absence, for ``self``) asks for a template."""
    return annotation is EMPTY or isinstance(annotation, Template) or annotation is Template
