"""From call arguments to argument types and leaf values.

One function a kind of annotation: it checks the value, naming the parameter, says its type (part of the compile key),
and files its leaves by path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qd_core.api.templates import bind_dataclass, bind_struct, bind_template, bind_tensor, is_compiled_in, optional_of
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError, QuadrantsRuntimeTypeError, QuadrantsSyntaxError
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, as_dtype
from qd_core.frontend.signature import EMPTY, ArgType, ArrayArg, KernelInfo, MatrixArg, ScalarArg
from qd_core.runtime.array import Ndarray
from qd_core.runtime.context import Options
from qd_core.runtime.interop import ArraySource, array_source
from qd_core.runtime.tensor import PermutedNdarray, Tensor

__all__ = ["Bound", "bind_argument", "bind_call"]


@dataclass(slots=True)
class Bound:
    """Leaf values of one call, by path.

    ``create`` asks frameworks for gradient storage that does not exist yet; ``differentiable`` are the arrays that
    have such storage
    or can be given it. ``homes`` has the path by identity of arrays that were bound as templates or members.
    """

    options: Options
    create: bool = False
    scalars: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: dict[str, ArraySource] = field(default_factory=dict[str, ArraySource])
    differentiable: set[str] = field(default_factory=set[str])
    homes: dict[int, str] = field(default_factory=dict[int, str])

    def fork(self) -> Bound:
        """Return a copy that can be added to."""
        return Bound(
            self.options,
            self.create,
            dict(self.scalars),
            dict(self.sources),
            set(self.differentiable),
            dict(self.homes),
        )

    def add_array(self, path: str, source: ArraySource) -> bool:
        """File an array with its gradient and dual, where it has them; return whether it has a gradient."""
        self.sources[path] = source
        gradient = source.gradient(create=self.create)
        if gradient is not None:
            self.sources[f"{path}.grad"] = gradient
        if gradient is not None or source.differentiable:
            self.differentiable.add(path)
        dual = source.dual()
        if dual is not None:
            self.sources[f"{path}.dual"] = dual
        return gradient is not None


def bind_call(info: KernelInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return one value a parameter, from positional, keyword and default arguments.

    Raises
    ------
    QuadrantsSyntaxError
        An argument is missing, unexpected, given twice, or there are too many.
    """
    parameters = info.parameters
    if not kwargs and len(args) == len(parameters) and not (parameters and parameters[-1].keyword_only):
        return list(args)
    positional = [p for p in parameters if not p.keyword_only]
    if len(args) > len(positional):
        raise QuadrantsSyntaxError(
            f"Too many arguments: {info.name!r} takes {len(positional)}, got {len(args)}.", span=info.span
        )
    given = dict(zip((p.name for p in positional), args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise QuadrantsSyntaxError(f"Argument {name!r} of {info.name!r} is given twice.", span=info.span)
        if all(p.name != name for p in parameters):
            raise QuadrantsSyntaxError(f"Unexpected argument {name!r} of {info.name!r}.", span=info.span)
        given[name] = value
    for p in parameters:
        if p.name not in given and p.default is EMPTY:
            raise QuadrantsSyntaxError(f"Missing argument {p.name!r} of {info.name!r}.", span=info.span)
    return [given.get(p.name, p.default) for p in parameters]


def bind_argument(bound: Bound, path: str, annotation: Any, value: Any) -> ArgType:
    """Check ``value`` against ``annotation``, file its leaves, and return its argument type."""
    dtype = as_dtype(annotation, bound.options.default_ip, bound.options.default_fp)
    if dtype is not None:
        bound.scalars[path] = checked_scalar(path, dtype, value)
        return ScalarArg(dtype)
    if is_compiled_in(annotation):
        return bind_template(bound, path, annotation, value)
    inner = optional_of(annotation)
    if inner is not EMPTY:
        return bind_template(bound, path, EMPTY, None) if value is None else bind_argument(bound, path, inner, value)
    if isinstance(annotation, type) and hasattr(annotation, "__dataclass_fields__"):
        return bind_dataclass(bound, path, annotation, value)
    if annotation is Tensor:
        return bind_tensor(bound, path, annotation, value)
    binder = _BINDERS.get(type(annotation))
    if binder is None:
        raise QuadrantsRuntimeTypeError(
            f"parameter {path!r} has an annotation that kernels do not take: {annotation!r}"
        )
    return binder(bound, path, annotation, value)


def checked_scalar(path: str, dtype: DType, value: Any) -> int | float:
    """Return ``value`` as what ``dtype`` can hold, or raise naming the parameter."""
    if dtype.is_real:
        if isinstance(value, (int, float, np.floating, np.integer)):
            return float(value)
    elif isinstance(value, (int, np.integer, np.bool_)):
        number = int(value)
        low, high = int(dtype.min), int(dtype.max)
        if dtype.bits == 1 or low <= number <= high:
            return int(bool(number)) if dtype.bits == 1 else number
        raise QuadrantsRuntimeTypeError(
            f"argument {path!r} = {number} is outside the range of {dtype}, {low} to {high}"
        )
    elif _is_zero_dim(value):
        return checked_scalar(path, dtype, value.item())
    if _is_zero_dim(value):
        return checked_scalar(path, dtype, value.item())
    raise QuadrantsRuntimeTypeError(
        f"Argument {path!r} (type={type(value)}) cannot be converted into required type {dtype}"
    )


def _is_zero_dim(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.shape == ()


def _bind_array(bound: Bound, path: str, annotation: NdarrayType, value: Any) -> ArgType:
    if isinstance(value, Tensor):
        value = value._unwrap()
    source = array_source(value, path)
    if isinstance(value, Ndarray):
        bound.homes.setdefault(id(value), path)
    element = annotation.element_shape
    if element is None:
        element = value.element_shape if hasattr(value, "element_shape") else ()
    full, rank = source.shape, len(source.shape)
    ndim = annotation.ndim if annotation.ndim is not None else rank - len(element)
    wanted = as_dtype(annotation.dtype, bound.options.default_ip, bound.options.default_fp)
    if wanted is not None and source.dtype is not wanted:
        raise ArgumentValueError(
            f"Invalid value for argument {path} - required array has dtype={wanted}, got {source.dtype}"
        )
    if rank != ndim + len(element) or full[ndim:] != tuple(element):
        wanted = f"ndim={ndim}" + (f" and element shape {tuple(element)}" if element else "")
        raise ArgumentValueError(f"Invalid value for argument {path} - required array has {wanted}, got shape {full}")
    order = value.order if isinstance(value, PermutedNdarray) else None
    has_grad = bound.add_array(path, source)
    if annotation.needs_grad and not has_grad:
        raise ArgumentValueError(
            f"Invalid value for argument {path} - required array has needs_grad=True",
            hint="create it with needs_grad=True",
        )
    return ArrayArg(source.dtype, ndim, tuple(element), has_grad, order, needs_dual=f"{path}.dual" in bound.sources)


def _bind_matrix(bound: Bound, path: str, annotation: MatrixType, value: Any) -> ArgType:
    data = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    if data.shape != annotation.shape:
        raise ArgumentValueError(f"argument {path!r} must have shape {annotation.shape}, got {data.shape}")
    dtype = as_dtype(annotation.dtype, bound.options.default_ip, bound.options.default_fp) or bound.options.default_fp
    if dtype.is_integral and data.dtype.kind == "f":
        raise QuadrantsRuntimeTypeError(f"argument {path!r} holds reals, wanted components of type {dtype}")
    for index in itertools.product(*map(range, annotation.shape)):
        leaf = f"{path}[{','.join(map(str, index))}]"
        bound.scalars[leaf] = checked_scalar(leaf, dtype, data[index].item())
    return MatrixArg(dtype, annotation.shape)


_BINDERS: Mapping[type, Callable[..., ArgType]] = {
    NdarrayType: _bind_array,
    MatrixType: _bind_matrix,
    StructType: bind_struct,
}
