"""Lowers Python functions as kernels and runs them with the reference interpreter, without `qd.init`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.api import matrix, ops, types
from qd_core.errors import QuadrantsCompilationError
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, Template, as_dtype
from qd_core.frontend.lower import Lowered, LowerOptions, lower_kernel
from qd_core.frontend.signature import (
    ArgType,
    ArrayArg,
    MatrixArg,
    Parameter,
    ScalarArg,
    StructArg,
    TemplateArg,
    kernel_info,
)
from qd_core.ir.verify import verify
from qd_core.passes.offload import offload
from qd_core.reference.interpret import interpret
from qd_core.runtime.log import format_message, format_print

__all__ = ["Outcome", "f32", "i32", "lowered", "qd", "refuse", "run"]

f32, i32 = dt.f32, dt.i32
N1 = NdarrayType(dt.f32, 1)


class _Interface:
    """What `qd.` offers in kernels, without the runtime."""

    types = types
    Vector, Matrix = matrix.Vector, matrix.Matrix

    def __getattr__(self, name: str) -> Any:
        for module in (types, ops):
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


qd = _Interface()


def bind(
    parameter: Parameter, path: str, annotation: Any, value: Any, leaves: dict[str, Any], options: LowerOptions
) -> ArgType:
    """Type of an argument; its leaves go to ``leaves``."""
    dtype = as_dtype(annotation, options.default_ip, options.default_fp)
    if dtype is not None:
        leaves[path] = value
        return ScalarArg(dtype)
    if isinstance(annotation, MatrixType):
        data = np.asarray(value)
        for index in np.ndindex(*annotation.shape):
            leaves[f"{path}[{','.join(map(str, index))}]"] = data[index].item()
        return MatrixArg(as_dtype(annotation.dtype) or options.default_fp, annotation.shape)
    if isinstance(annotation, NdarrayType):
        return _array(path, annotation, value, leaves)
    if isinstance(annotation, StructType):
        members = tuple(
            (k, bind(parameter, f"{path}.{k}", t, value[k], leaves, options)) for k, t in annotation.members.items()
        )
        return StructArg(members, annotation)
    assert isinstance(annotation, Template) or parameter.name == "self"
    return TemplateArg(value, value)


def _array(path: str, annotation: NdarrayType, value: Any, leaves: dict[str, Any]) -> ArrayArg:
    data, grad = value if isinstance(value, tuple) else (value, None)
    leaves[path] = data
    if grad is not None:
        leaves[path + ".grad"] = grad
    element = annotation.element_shape or ()
    kind = dt.from_numpy(data.dtype)
    assert kind is not None
    return ArrayArg(kind, data.ndim - len(element), tuple(element), grad is not None)


class Outcome:
    """Result and messages of a run."""

    def __init__(self, result: Any, text: str, failures: list[str]) -> None:
        self.result, self.text, self.failures = result, text, failures


def lowered(f: Callable[..., Any], *args: Any, options: LowerOptions | None = None) -> tuple[Lowered, dict[str, Any]]:
    """Lower and verify a kernel; return it with the values of its leaves."""
    options = options or LowerOptions()
    info = kernel_info(f)
    leaves: dict[str, Any] = {}
    kinds = [bind(p, p.name, p.annotation, a, leaves, options) for p, a in zip(info.parameters, args, strict=True)]
    result = lower_kernel(info, kinds, options)
    verify(result.function)
    return result, leaves


def run(f: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Run a kernel; arrays are changed in place."""
    kernel, leaves = lowered(f, *args, options=LowerOptions(**options))
    for path, value in kernel.captured.items():
        leaves[path] = value.data
    program = offload(kernel.function)
    done = interpret(program, leaves)
    text, failures = "", []
    for site, _, values in done.records:
        where = program.sites[site]
        if where.kind == "print":
            text += format_print(where, values)
        else:
            failures.append(f"{where.kind}: {format_message(where, values)}")
    attrs = kernel.function.attrs
    results = [_result(spec, done.arrays) for spec in attrs.get("returns", ())]
    return Outcome(tuple(results) if attrs.get("return_tuple") else results[0] if results else None, text, failures)


def _result(spec: tuple[Any, ...], arrays: dict[str, Any]) -> Any:
    path, kind, _, shape = spec
    if kind == "struct":
        return {name: _result(member, arrays) for name, member in shape}
    data = arrays[path]
    return data[0].item() if kind == "scalar" else data.reshape(shape).copy()


def refuse(f: Callable[..., Any], *args: Any, **options: Any) -> QuadrantsCompilationError:
    """Return the error with which a kernel is refused."""
    try:
        lowered(f, *args, options=LowerOptions(**options))
    except QuadrantsCompilationError as error:
        return error
    raise AssertionError("the kernel was not refused")
