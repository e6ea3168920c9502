"""Portraits: text that says all of a compile-time value, the same in every process.

Values whose portraits are equal give the same code wherever they are compiled in. A value that other code could look
into without being seen (an object of a class of the user's, a set, whose order differs between processes) has none.
"""

from __future__ import annotations

import enum
import hashlib
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any

from qd_core.dtypes import DType
from qd_core.errors import QuadrantsError
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, Template
from qd_core.frontend.functions import Func
from qd_core.frontend.signature import (
    EMPTY,
    ArgType,
    ArrayArg,
    FieldsArg,
    KernelInfo,
    MatrixArg,
    ScalarArg,
    StructArg,
    TemplateArg,
    function_info,
)
from qd_core.frontend.source import source_lines

__all__ = [
    "class_portrait",
    "function_portrait",
    "is_own",
    "kernel_portrait",
    "portrait",
    "type_portrait",
]

_TRUSTED = frozenset(("builtins", "math", "cmath", "operator", "numpy", "qd_core"))
"""Packages whose functions and classes are told by their names: they do not change between two runs of one version."""


def portrait(value: Any) -> str | None:
    """Return the portrait of ``value``, or None."""
    known = _BY_CLASS.get(value.__class__)
    if known is not None:
        return known(value)
    for kinds, told in _BY_KIND:
        if isinstance(value, kinds):
            return told(value)
    return f"{value!r}" if value is EMPTY else _typed(value) or _array(value)


def _items(value: Any) -> str | None:
    return _joined(value.__class__.__name__, map(portrait, value))


def _pairs(value: dict[Any, Any]) -> str | None:
    return _joined("dict", (portrait(x) for pair in value.items() for x in pair))


def _bounds(value: range | slice) -> str | None:
    return _joined(value.__class__.__name__, map(portrait, (value.start, value.stop, value.step)))


def _enumerated(value: enum.Enum) -> str | None:
    inside = portrait(value.value)
    return None if inside is None else f"enum {_name(value.__class__)}.{value.name} {inside}"


def _typed(value: Any) -> str | None:
    """Type objects, and vectors and structs of Python scope."""
    kind = value.__class__
    if kind is MatrixType:
        return _joined("matrix type", map(portrait, (value.shape, value.dtype)))
    if kind is StructType:
        return _joined(f"struct type {value.name}", map(portrait, (value.members, value.methods)))
    if kind is NdarrayType:
        return _joined("array type", (portrait(getattr(value, slot)) for slot in NdarrayType.__slots__))
    if kind is Template:
        return "template"
    if hasattr(kind, "__qd_matrix__") and is_own(kind):
        return _joined(f"constant {_name(kind)} {getattr(value, 'dtype', None)}", [portrait(value.__qd_matrix__())])
    if hasattr(kind, "__qd_struct__") and is_own(kind):
        return _joined("constant struct", map(portrait, value.__qd_struct__()))
    return None


def _array(value: Any) -> str | None:
    """NumPy's scalars and arrays of them."""
    if not value.__class__.__module__.startswith("numpy"):
        return None
    import numpy as np

    if isinstance(value, np.dtype):
        return f"numpy dtype {value.str}"
    if value.__class__ is not np.ndarray and not isinstance(value, np.generic):
        return None
    if value.dtype.kind not in "biufc":
        return None
    contents = value.tobytes()
    text = contents.hex() if len(contents) <= 64 else hashlib.sha256(contents).hexdigest()
    return f"{value.__class__.__name__} {value.dtype.str} {value.shape} {text}"


def _function(value: Any) -> str | None:
    """A function is told by its name: calling it is what looks into it."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.BuiltinFunctionType) and owner is not None and not isinstance(owner, types.ModuleType):
        inside = portrait(owner)  # a method of a list, a string ...
        return None if inside is None else f"method {value.__name__} of {inside}"
    return f"function {value.__module__}.{value.__qualname__}"


def is_own(value: Any) -> bool:
    """Whether a class or function belongs to Python, NumPy or this package."""
    return str(getattr(value, "__module__", None)).partition(".")[0] in _TRUSTED


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _joined(head: str, parts: Iterable[str | None]) -> str | None:
    """Parts with their lengths, so that no two lists of parts give one text; None where a part is None."""
    text = [head]
    for part in parts:
        if part is None:
            return None
        text.append(f"{len(part)}:{part}")
    return " ".join(text)


# -- functions and classes --------------------------------------------------------------------------------------------
def function_portrait(function: Any, flags: Sequence[bool] = ()) -> str | None:
    """Portrait of a Python function of the language: where it stands, its text, byte code, defaults, annotations."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    try:
        lines = source_lines(function)
        annotations = _annotations(function)
    except (QuadrantsError, NameError):
        return None
    digest = hashlib.sha256("".join(lines).encode())
    _add_code(digest, code)
    parts = (
        (function.__module__, function.__qualname__, code.co_filename, code.co_firstlineno, digest.hexdigest()),
        tuple(flags),
        function.__defaults__,
        function.__kwdefaults__,
    )
    return _joined("func", [*map(portrait, parts), *map(_annotation, annotations.items())])


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    raw: dict[str, Any] = dict(function.__annotations__)
    if not any(isinstance(a, str) for a in raw.values()):
        return raw
    info = function_info(function)  # text is evaluated where the function is defined
    return {**{p.name: p.annotation for p in info.parameters}, "return": info.returns}


def _annotation(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, type) and "__dataclass_fields__" in vars(value):
        return f"{name} {_name(value)}"  # its members tell of themselves, and may be of this class again
    return f"{name} {portrait(value) or class_portrait(value) or repr(value)}"


def _add_code(digest: Any, code: types.CodeType) -> None:
    """Byte code with its constants: what the text alone cannot tell where a file changed under a running program."""
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(digest, constant)
        elif not isinstance(constant, frozenset):  # its order differs; it comes from text that is told already
            digest.update(repr(constant).encode())


_FLAGS = ("__qd_template_primitives__", "__qd_annotation__")


def class_portrait(kind: Any) -> str | None:
    """Portrait of what a class decides about its objects, short of its attributes: None for what is no class."""
    if not isinstance(kind, type):
        return None
    parts = [", ".join(map(_name, kind.__mro__))]
    parts += [f"{flag} {getattr(kind, flag)!r}" for flag in _FLAGS if hasattr(kind, flag)]
    if is_dataclass(kind):
        from qd_core.frontend.members import member_annotations

        try:
            parts += [_annotation(item) for item in member_annotations(kind).items()]
        except QuadrantsError:  # one cannot be evaluated; whoever needs it says so
            return None
    return _joined("class of", parts)


# -- argument types ---------------------------------------------------------------------------------------------------
def type_portrait(kind: ArgType) -> str | None:
    """Portrait of an argument's type."""
    if isinstance(kind, (ScalarArg, MatrixArg, ArrayArg)):
        return repr(kind)
    if isinstance(kind, (StructArg, FieldsArg)):
        members = (x for name, part in kind.members for x in (name, type_portrait(part)))
        return _joined(type(kind).__name__, [portrait(kind.origin) or class_portrait(kind.origin), *members])
    if isinstance(kind, TemplateArg):
        return portrait(kind.value) or class_portrait(kind.value)
    size = f" of {kind.key[1]!r}" if isinstance(kind.key, tuple) else ""
    return _joined(f"object {kind.typed}{size}", [class_portrait(type(kind.value))])


def kernel_portrait(info: KernelInfo) -> str | None:
    """Portrait of a kernel's own text and signature."""
    returns = portrait(info.returns)
    return _joined("kernel", [function_portrait(info.function), returns or repr(info.returns)])


_BY_CLASS: dict[type, Callable[[Any], str | None]] = {
    **dict.fromkeys((bool, int, str, bytes, type(None), type(Ellipsis)), lambda x: f"{x.__class__.__name__} {x!r}"),
    float: lambda x: f"float {x.hex()}",
    complex: lambda x: f"complex {x.real.hex()} {x.imag.hex()}",
    **dict.fromkeys((tuple, list), _items),
    dict: _pairs,
    **dict.fromkeys((range, slice), _bounds),
}
_BY_KIND: tuple[tuple[Any, Callable[[Any], str | None]], ...] = (
    (DType, lambda x: f"dtype {x.name}"),
    (Func, lambda x: function_portrait(x.function, (x.early, x.python_scope))),
    (type, lambda x: f"class {_name(x)}" if is_own(x) else None),
    (enum.Enum, _enumerated),
    ((types.BuiltinFunctionType, types.FunctionType), _function),
)
