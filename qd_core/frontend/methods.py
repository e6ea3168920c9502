"""Method calls on run-time values."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from qd_core.frontend.annotations import StructType
from qd_core.frontend.arithmetic import as_matrix
from qd_core.frontend.context import Lowering
from qd_core.frontend.functions import Func
from qd_core.frontend.matrices import METHODS
from qd_core.frontend.values import ArrayRef, MatrixValue, StructValue, describe
from qd_core.ir.nodes import Value

__all__ = ["call_method"]


def call_method(ctx: Lowering, node: ast.Call, place: Any, base: Any, name: str) -> Any:
    """Call method ``name`` of ``base``, which stands at ``place``."""
    from qd_core.frontend.calls import arguments, call

    if isinstance(base, StructValue):
        return _struct_method(ctx, node, place, base, name)
    if isinstance(base, ArrayRef) and name == "parent" and not node.args and base.shape is not None:
        return base  # its node has the same index space
    if isinstance(base, (Value, ArrayRef)):
        ctx.type_error(f"{describe(base)} has no method {name!r} in kernels", node, hint=_hint(base, name))
    if not isinstance(base, MatrixValue):
        if name not in METHODS:
            return call(ctx, node, ctx.compile_time(lambda: getattr(base, name), node, f"the attribute {name!r}"))
        base = as_matrix(ctx, base, node)
    args, kwargs = arguments(ctx, node)
    ctx.at(node)
    if name == "fill":
        place.set(ctx, args[0] if args else kwargs["val"], node)
        return None
    method = METHODS.get(name)
    if method is None:
        ctx.type_error(f"{describe(base)} has no method {name!r}", node, hint=f"methods: {', '.join(sorted(METHODS))}")
    try:
        _signature(method).bind(ctx, node, base, *args, **kwargs)
    except TypeError as cause:
        ctx.type_error(f"method {name!r}: {cause}", node)
    return method(ctx, node, base, *args, **kwargs)


@lru_cache(maxsize=256)
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(method)


def _hint(base: Any, name: str) -> str:
    if name in ("fill", "to_numpy", "from_numpy", "copy_from") and isinstance(base, ArrayRef):
        return "call it in Python scope, or write a loop over the elements"
    return "methods are those of vectors, matrices and structs"


def _method_of(kind: Any, name: str) -> Any:
    """Method of a `StructType`, or of the Python class that a struct argument is an instance of; None without one."""
    return kind.methods.get(name) if isinstance(kind, StructType) else inspect.getattr_static(kind, name, None)


def _struct_method(ctx: Lowering, node: ast.Call, place: Any, base: StructValue, name: str) -> Any:
    """Inline a method of a struct; what it changes in ``self`` is stored back."""
    from qd_core.frontend.calls import arguments, call
    from qd_core.frontend.inline import inline_method

    function = _method_of(base.type, name)
    if isinstance(function, staticmethod):
        return call(ctx, node, function.__func__)
    if not isinstance(function, Func):
        known = function is not None
        ctx.type_error(
            f"{describe(base)} has no method {name!r}{' for kernels' if known else ''}",
            node,
            hint="decorate it with @qd.func, or with @qd.pyfunc for both scopes" if known else "",
        )
    args, kwargs = arguments(ctx, node)
    return inline_method(ctx, node, function, place, base, args, kwargs)
