"""`qd.compile`: kernels are compiled before they are needed, several at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from qd_core.api.create import ndarray
from qd_core.api.kernel import Kernel
from qd_core.api.specialize import BoundKernel
from qd_core.codegen.jit import process_jit
from qd_core.codegen.workers import Workers
from qd_core.errors import QuadrantsTypeError
from qd_core.frontend.annotations import MatrixType, NdarrayType, as_dtype
from qd_core.frontend.signature import EMPTY, Parameter
from qd_core.runtime.context import current
from qd_core.runtime.launch import Executable

__all__ = ["compile"]

WORTHWHILE = 4
"""Pieces of code from which on starting processes (a tenth of a second each) pays."""


def compile(*calls: Any, processes: int | None = None) -> None:
    """Compile kernels without launching them.

    Parameters
    ----------
    *calls
        Kernels whose annotations say the types of all parameters, or tuples ``(kernel, *arguments)`` of a kernel and
        arguments as it will be launched with; the arguments are not changed.
    processes : int, optional
        Processes that compile at the same time; 0 compiles in this one. Default: one a processor where there is
        enough to compile.

    Raises
    ------
    QuadrantsTypeError
        Something is no kernel, or the annotations of one do not say its types.
    QuadrantsCompilationError
        A kernel cannot be compiled: as a launch would raise it.
    """
    executables = [_prepared(call) for call in calls]
    pieces = [(e, guards) for e in executables for guards in e.variants() if guards not in e.modules]
    count = _processors() if processes is None and len(pieces) >= WORTHWHILE else processes or 0
    count = min(count, len(pieces))
    jit = process_jit()
    with Workers(count) if count > 1 else nullcontext() as workers:
        jit.workers = workers
        try:
            with ThreadPoolExecutor(max(count, 1)) as pool:
                artifacts = list(pool.map(Executable.compile, *zip(*pieces, strict=True))) if pieces else []
        finally:
            jit.workers = None
    for (executable, guards), artifact in zip(pieces, artifacts, strict=True):
        executable.modules[guards] = current().device.load(artifact)


def _prepared(call: Any) -> Executable:
    kernel, *arguments = call if isinstance(call, tuple) else (call,)
    if isinstance(kernel, BoundKernel):
        kernel, arguments = kernel.func, [*kernel.args, *arguments]
    if not isinstance(kernel, Kernel):
        raise QuadrantsTypeError(f"qd.compile takes kernels and tuples (kernel, *arguments), got {call!r}")
    if not isinstance(call, tuple):
        arguments += [_sample(kernel, p) for p in kernel.info.parameters[len(arguments) :]]
    return kernel._prepare(arguments, {})[0]


def _sample(kernel: Kernel, parameter: Parameter) -> Any:
    """A value of the type that an annotation says."""
    kind = parameter.annotation
    if parameter.default is not EMPTY:
        return parameter.default
    if as_dtype(kind) is not None:
        return 0
    if isinstance(kind, MatrixType):
        return kind(*_zeros(kind.shape))
    if isinstance(kind, NdarrayType) and kind.dtype is not None and kind.ndim is not None:
        dtype = as_dtype(kind.dtype, current().options.default_ip, current().options.default_fp)
        dtype = MatrixType(kind.element_shape, dtype) if kind.element_shape else dtype
        return ndarray(dtype, (1,) * kind.ndim, needs_grad=bool(kind.needs_grad))
    raise QuadrantsTypeError(
        f"the annotation of parameter {parameter.name!r} of {kernel.info.name!r} does not say its type: {kind!r}",
        span=kernel.info.span,
        hint="pass a tuple (kernel, *arguments), or annotate arrays with dtype and ndim",
    )


def _zeros(shape: Sequence[int]) -> list[Any]:
    return [0] * shape[0] if len(shape) == 1 else [[0] * shape[1] for _ in range(shape[0])]


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
