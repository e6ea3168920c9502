"""`qd.ad.gradcheck`: a kernel's derivatives against central differences, and the device against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qd_core.api.specialize import BoundKernel
from qd_core.autodiff.check import Agreement, compare, in_double
from qd_core.autodiff.forward import forward
from qd_core.autodiff.reverse import reverse
from qd_core.backend.contract import HostSpan
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError, GradientCheckError
from qd_core.ir.nodes import ArrayType, Function
from qd_core.ir.rewrite import walk
from qd_core.passes.unify import unify
from qd_core.runtime.array import contiguous_strides
from qd_core.runtime.context import Runtime, current
from qd_core.runtime.interop import ArraySource, HostSource
from qd_core.runtime.launch import identical, overlapping

if TYPE_CHECKING:
    from qd_core.api.kernel import Kernel

__all__ = ["GradCheck", "gradcheck"]

Array = np.ndarray[Any, Any]

Steps = Callable[[Function], list[tuple["Kernel", Function]]]
"""What to run, one after the other, made from a kernel's IR: kernels of the right mode with derivatives of it."""
TOLERANCE: Mapping[str, float] = {"f16": 2e-2, "f32": 2e-4, "f64": 1e-9}
"""Largest accepted error of the device relative to the largest element, by the narrowest real type computed in."""


@dataclass(frozen=True, slots=True)
class GradCheck:
    """What `gradcheck` found.

    Attributes
    ----------
    reference : Agreement
        Reverse mode, forward mode and central differences on the reference interpreter, in f64.
    reverse_error, forward_error : dict of str to float
        Error of the device's gradients and duals in the kernel's own types, by array: largest difference from the
        reference in f64, relative to its largest element (absolute below 1).
    problems : tuple of str
        What is out of tolerance; empty when all agree.
    """

    reference: Agreement
    reverse_error: Mapping[str, float] = field(default_factory=dict[str, float])
    forward_error: Mapping[str, float] = field(default_factory=dict[str, float])
    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.problems


def gradcheck(
    kernel: Kernel,
    args: Sequence[Any],
    *,
    without: Sequence[str] = (),
    step: float = 1e-6,
    directions: int = 2,
    seed: int = 0,
    difference: float = 1e-6,
    transpose: float = 1e-10,
    tolerance: float | None = None,
    device: bool = True,
    raise_exception: bool = True,
) -> GradCheck:
    """Check the derivatives of a kernel at one point.

    Three ways to the derivative along random directions are compared in f64 on the reference interpreter: reverse
    mode, forward mode, and central differences of the kernel itself. Then reverse and forward mode run on the active
    device, in the kernel's own types, and are compared with the reference. The contents of ``args`` and of their
    gradients are the same afterwards.

    Parameters
    ----------
    kernel : Kernel
        What ``@qd.kernel`` made.
    args : sequence
        Its arguments. Derivatives are taken with respect to the arrays that have gradients; if none has, to all real
        arrays.
    without : sequence of str
        Paths of arrays to be left constant.
    step : float
        Step of the central difference. Choose a point at which no branch changes within it.
    directions, seed : int
        Number of random directions, and where they start.
    difference, transpose : float
        Tolerances in f64: of forward mode against differences, of reverse against forward mode, relative to the sum of
        the magnitudes of all products.
    tolerance : float, optional
        Of the device, relative to the largest element of an array; by default it follows from the types that
        the kernel computes in.
    device : bool
        Whether to run on the device at all.
    raise_exception : bool
        Raise when something does not agree; otherwise return what was found.

    Returns
    -------
    GradCheck
        True in a condition when everything agrees.

    Raises
    ------
    GradientCheckError
        Derivatives do not agree.
    NotDifferentiableError
        The kernel cannot be differentiated.
    """
    if isinstance(kernel, BoundKernel):
        bound_to = kernel.args
        kernel, args = cast("Kernel", kernel.func), (*bound_to, *args)
    function, bound = kernel.lowered(args)
    point = _Point(current(), function, bound.scalars, dict(bound.sources))
    wanted = bound.differentiable or set(point.values)
    paths = [
        p.path for p in point.function.params if _real_array(p.type) and p.path in wanted and p.path not in set(without)
    ]
    if not paths:
        raise ArgumentValueError(f"no argument of {kernel.__name__!r} is an array of reals to differentiate by")
    leave = [p.path for p in point.function.params if p.path not in paths]
    reference = compare(
        point.function, point.arguments(), _interpret, without=leave, step=step, directions=directions, seed=seed
    )
    problems = _disagreements(reference, transpose, difference)
    errors: list[Mapping[str, float]] = [{}, {}]
    if device:
        weights = point.random(paths, seed)
        errors = [_reverse_error(kernel, point, paths, weights), _forward_error(kernel, point, paths, weights)]
        problems += point.beyond("reverse", errors[0], tolerance) + point.beyond("forward", errors[1], tolerance)
    result = GradCheck(reference, errors[0], errors[1], tuple(problems))
    if problems and raise_exception:
        raise GradientCheckError(
            f"derivatives of {kernel.__name__!r} do not agree: {'; '.join(problems)}", span=function.span
        )
    return result


def _interpret(function: Function, values: Mapping[str, Any]) -> None:
    from qd_core.reference.interpret import interpret

    with np.errstate(all="ignore"):
        interpret(function, values)


def _disagreements(found: Agreement, transpose: float, difference: float) -> list[str]:
    problems: list[str] = []
    if not found.transpose_error <= transpose:
        problems.append(f"reverse and forward mode differ by {found.transpose_error:.2e} (tolerance {transpose:.0e})")
    if not found.difference_error <= difference:
        error = found.difference_error
        problems.append(f"forward mode and central differences differ by {error:.2e} (tolerance {difference:.0e})")
    return problems


def _real_array(kind: Any) -> bool:
    return isinstance(kind, ArrayType) and kind.dtype.is_real and kind.fixed_shape is None


class _Point:
    """Arguments of a kernel, read once, with its IR; arrays passed twice are one parameter."""

    def __init__(
        self, runtime: Runtime, function: Function, scalars: Mapping[str, Any], sources: Mapping[str, ArraySource]
    ) -> None:
        self.runtime, self.scalars, self.sources = runtime, scalars, sources
        same = identical(sources, runtime)
        self.function = unify(function, {p: same[p] for p in same if p in {q.path for q in function.params}})
        self.types = {
            p.path: p.type for p in self.function.params if isinstance(p.type, ArrayType) and p.path in sources
        }
        shared = overlapping([(a, b) for a in self.types for b in self.types if a < b], sources, runtime)
        if shared is not None:
            message = f"arguments {shared[0]!r} and {shared[1]!r} share a part of their memory"
            raise ArgumentValueError(message, hint="pass copies to gradcheck")
        self.values = {p: contents(sources[p], runtime) for p in self.types}
        self.reals = {
            n.type for n in walk(function.body) if isinstance(n.type, DType) and n.type.is_real and n.op.name != "const"
        }

    def arguments(self) -> dict[str, Any]:
        """Scalars and arrays by path."""
        return {**self.scalars, **self.values}

    def random(self, paths: Sequence[str], seed: int) -> dict[str, Array]:
        """Normal numbers for every path, in its type."""
        random = np.random.default_rng(seed)
        return {p: np.asarray(random.normal(size=self.values[p].shape)).astype(self.values[p].dtype) for p in paths}

    def on_reference(self, steps: Steps, extra: Mapping[str, Array]) -> dict[str, Any]:
        """Run ``steps`` in f64, with arrays ``extra`` beside the arguments; return what became of those."""
        values = {**self.scalars, **{p: _wide(v) for p, v in (*self.values.items(), *extra.items())}}
        for _, function in steps(in_double(self.function)):
            _interpret(function, values)
        return {p: values[p] for p in extra}

    def on_device(self, steps: Steps, extra: Mapping[str, Array]) -> dict[str, Array]:
        """The same on the active device, in the kernel's types; arguments are put back."""
        more = {p: v.copy() for p, v in extra.items()}
        sources = {**self.sources, **{p: HostSource(v) for p, v in more.items()}}
        restore = [self.sources[p].save(self.runtime) for p in self.types]
        try:
            for kernel, function in steps(self.function):
                kernel.executable_of(self.runtime, function).launch(self.scalars, sources)
            self.runtime.device.default_stream.synchronize()
        finally:
            for put_back in restore:
                put_back()
                put_back.drop()
        return more

    def beyond(self, mode: str, errors: Mapping[str, float], tolerance: float | None) -> list[str]:
        """Messages for errors out of tolerance."""
        found: list[str] = []
        for path, error in errors.items():
            limit = (
                tolerance
                if tolerance is not None
                else max(TOLERANCE[d.name] for d in (*self.reals, self.types[path].dtype))
            )
            if not error <= limit:
                where = f"{mode} mode on {self.runtime.backend.name}"
                found.append(f"{where} is off by {error:.2e} for {path!r} (tolerance {limit:.0e})")
        return found


def contents(source: ArraySource, runtime: Runtime) -> Array:
    """Return a copy of what a source holds, of its shape."""
    view = source.view(runtime)
    if view is None:
        span = source.span()
        return np.array(np.asarray(span.owner).reshape(source.shape))
    memory = np.empty(max(view.ref.nbytes, 1), np.uint8)
    if view.ref.nbytes:
        runtime.device.default_stream.copy_out(HostSpan(memory.ctypes.data, view.ref.nbytes, memory), view.ref)
    kind = source.dtype.numpy
    inner = source.shape[len(view.shape) :]
    strides = (*view.strides, *contiguous_strides(inner, 1))
    if 0 in source.shape:
        return np.empty(source.shape, kind)
    return np.ndarray(source.shape, kind, memory.data, 0, tuple(s * kind.itemsize for s in strides)).copy()


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array.copy()


def _reverse_error(
    kernel: Kernel, point: _Point, paths: Sequence[str], weights: Mapping[str, Array]
) -> dict[str, float]:
    def steps(function: Function) -> list[tuple[Kernel, Function]]:
        return [
            (kernel, function),
            (kernel.grad, reverse(function, paths, residual_bytes=point.runtime.options.ad_residual_bytes)),
        ]

    gradients = {f"{p}.grad": w for p, w in weights.items()}
    want, got = point.on_reference(steps, gradients), point.on_device(steps, gradients)
    return {p: _error(got[f"{p}.grad"], want[f"{p}.grad"]) for p in paths}


def _forward_error(
    kernel: Kernel, point: _Point, paths: Sequence[str], weights: Mapping[str, Array]
) -> dict[str, float]:
    def steps(function: Function) -> list[tuple[Kernel, Function]]:
        return [(kernel.tangent, forward(function, paths))]

    duals = {f"{p}.dual": w for p, w in weights.items()}
    want, got = point.on_reference(steps, duals), point.on_device(steps, duals)
    return {p: _error(got[f"{p}.dual"], want[f"{p}.dual"]) for p in paths}


def _error(got: Array, want: Array) -> float:
    """Largest difference over largest element or 1; infinite where one is not finite and the other is not the same."""
    got = got.astype(np.float64)
    finite = np.isfinite(want)
    if not (np.array_equal(finite, np.isfinite(got)) and np.array_equal(got[~finite], want[~finite], equal_nan=True)):
        return float("inf")
    scale = float(np.max(np.abs(want[finite]), initial=1.0))
    return float(np.max(np.abs(got[finite] - want[finite]), initial=0.0)) / scale
