"""Attributes: swizzles, shapes, gradients, members, and attributes of Python objects."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from qd_core.frontend.arithmetic import as_matrix
from qd_core.frontend.arrays import array_shape
from qd_core.frontend.context import Lowering
from qd_core.frontend.functions import BoundFunc, Func
from qd_core.frontend.members import member_annotations
from qd_core.frontend.signature import EMPTY
from qd_core.frontend.values import (
    ArrayRef,
    MatrixValue,
    ObjectRef,
    StructRef,
    StructValue,
    describe,
    is_constant_matrix,
)
from qd_core.ir.nodes import Value

__all__ = ["attribute_of", "swizzle_of"]

_ALPHABETS = ("xyzw", "rgba", "stpq")


@lru_cache(maxsize=512)
def _letters(name: str) -> tuple[int, ...] | None:
    for alphabet in _ALPHABETS:
        if all(c in alphabet for c in name):
            return tuple(map(alphabet.index, name))
    return None


def swizzle_of(shape: tuple[int, ...], name: str) -> tuple[int, ...] | None:
    """Return the components of a vector that ``name`` (``"x"``, ``"xy"``, ``"rgb"``) means, or None."""
    if len(shape) != 1 or len(name) > 4:
        return None
    chosen = _letters(name)
    return chosen if chosen is not None and max(chosen) < shape[0] else None


def attribute_of(ctx: Lowering, value: Any, name: str, node: ast.AST) -> Any:
    """Return ``value.name``."""
    if isinstance(value, ArrayRef):
        return _array_attribute(ctx, value, name, node)
    if isinstance(value, MatrixValue):
        return _matrix_attribute(ctx, value, name, node)
    if isinstance(value, StructValue):
        return _struct_attribute(ctx, value, name, node)
    if isinstance(value, StructRef):
        return _fields_attribute(ctx, value, name, node)
    if isinstance(value, ObjectRef):
        return _object_attribute(ctx, value, name, node)
    if isinstance(value, Value):
        if name == "dtype":
            return value.type
        ctx.type_error(f"a scalar ({describe(value)}) has no attribute {name!r}", node)
    if is_constant_matrix(value) and swizzle_of(as_matrix(ctx, value, node).shape, name) is not None:
        return _matrix_attribute(ctx, as_matrix(ctx, value, node), name, node)
    result = ctx.compile_time(lambda: getattr(value, name), node, f"the attribute {name!r} of {describe(value)}")
    return ctx.member(value, "attr", name, result, _path(node))


def _object_attribute(ctx: Lowering, ref: ObjectRef, name: str, node: ast.AST) -> Any:
    """Member of a dataclass argument by its annotation; methods and properties of the class."""
    method = getattr(type(ref.value), name, None)
    if isinstance(method, Func):
        ctx.evidence.attribute(ref.value, name, getattr(ref.value, name))
        return BoundFunc(method, ref)
    value = ctx.compile_time(lambda: getattr(ref.value, name), node, f"the attribute {name!r} of {describe(ref)}")
    annotation = member_annotations(type(ref.value)).get(name, EMPTY)
    return ctx.observed(ref.member.step("attr", name, annotation), value)


def _fields_attribute(ctx: Lowering, ref: StructRef, name: str, node: ast.AST) -> Any:
    if name in ref.members:
        return ref.members[name]
    if name == "shape":
        return ref.first.shape
    if name in ("grad", "dual"):
        parts = {n: attribute_of(ctx, m, name, node) for n, m in ref.members.items()}
        return StructRef(parts, ref.type, f"{ref.name}.{name}")
    ctx.type_error(f"{describe(ref)} has no member {name!r}", node, hint=f"members: {', '.join(ref.members)}")


def _path(node: ast.AST) -> str:
    """Dotted text of an attribute, as the name of what it captures."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "captured")
    return ".".join(reversed(parts))


def _array_attribute(ctx: Lowering, array: ArrayRef, name: str, node: ast.AST) -> Any:
    if name == "shape":
        return array.shape if array.shape is not None else array_shape(ctx, array)
    if name in ("grad", "dual"):
        shadow = array.grad if name == "grad" else array.dual
        if shadow is None:
            ctx.type_error(
                f"{array.name!r} has no {'gradient' if name == 'grad' else 'dual'}",
                node,
                hint=f"create it with needs_{name}=True" + (", or pass a gradient with it" if name == "grad" else ""),
            )
        return shadow()
    if name == "snode" and array.shape is not None:
        return array
    if name == "dtype":
        return array.dtype
    if name in ("n", "m") and array.element_shape:
        return (*array.element_shape, 1)["nm".index(name)]
    if name == "element_shape":
        return array.element_shape
    ctx.type_error(
        f"the array {array.name!r} has no attribute {name!r} in kernels",
        node,
        hint="an array offers shape, grad, dtype and its elements",
    )


def _matrix_attribute(ctx: Lowering, value: MatrixValue, name: str, node: ast.AST) -> Any:
    chosen = swizzle_of(value.shape, name)
    if chosen is not None:
        items = [value.items[k] for k in chosen]
        return items[0] if len(items) == 1 else MatrixValue((len(items),), items, value.dtype)
    if name in ("n", "m"):
        return (*value.shape, 1)["nm".index(name)]
    if name in ("shape", "dtype"):
        return getattr(value, name)
    ctx.type_error(f"{describe(value)} has no attribute {name!r}", node)


def _struct_attribute(ctx: Lowering, value: StructValue, name: str, node: ast.AST) -> Any:
    if name in value.members:
        return value.members[name]
    ctx.type_error(f"{describe(value)} has no member {name!r}", node, hint=f"members: {', '.join(value.members)}")
