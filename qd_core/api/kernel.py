"""`@qd.kernel`: specialisation by argument types, compilation, launch.

A kernel object is called directly: its class has the native packer as ``__call__`` once a specialisation exists (see
`runtime.native`), and falls back to the Python path below for every argument that packer does not take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qd_core.api.matrix import Matrix
from qd_core.api.binding import Bound, bind_argument, bind_call
from qd_core.autodiff.forward import forward
from qd_core.autodiff.reverse import reverse
from qd_core.backend.contract import CompileOptions
from qd_core.errors import LaunchError
from qd_core.frontend.lower import LowerOptions, lower
from qd_core.frontend.signature import ArgType, KernelInfo, kernel_info
from qd_core.ir.nodes import Function
from qd_core.passes.offload import offload
from qd_core.runtime.context import Options, Runtime, current
from qd_core.runtime.interop import ArraySource
from qd_core.runtime.launch import Executable
from qd_core.runtime.results import Results
from qd_core.runtime.stages import passed

if TYPE_CHECKING:
    from qd_core.runtime.tape import Recorder

__all__ = ["Kernel", "kernel"]

PRIMAL, REVERSE, FORWARD = "primal", "reverse", "forward"
DUAL = ".dual"


@dataclass(frozen=True, slots=True)
class Call:
    """A launch: compiled code with its leaf values."""

    executable: Executable
    scalars: Mapping[str, Any]
    sources: Mapping[str, ArraySource]


class Kernel:
    """A compiled-on-demand kernel.

    Parameters
    ----------
    function : callable
        The decorated Python function.
    mode : str
        ``"primal"``, ``"reverse"`` or ``"forward"``.
    """

    def __init__(self, function: Callable[..., Any], mode: str = PRIMAL, info: KernelInfo | None = None) -> None:
        functools.update_wrapper(self, function)
        self.info = info if info is not None else kernel_info(function)
        self.mode = mode
        self._executables: dict[Any, Executable] = {}
        self._native: Any = None

    @functools.cached_property
    def grad(self) -> Kernel:
        """The reverse-mode kernel: same arguments, adds to the gradients of what the kernel reads."""
        return Kernel(self.info.function, REVERSE, self.info)

    @functools.cached_property
    def tangent(self) -> Kernel:
        """The forward-mode kernel: same arguments, computes duals of what the kernel writes from duals of what it reads."""
        return Kernel(self.info.function, FORWARD, self.info)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.launch(*args, **kwargs)

    def launch(self, *args: Any, **kwargs: Any) -> Any:
        """Launch through the Python packer; the second launch with such arguments installs a native plan for those to come.

        The first does not: most kernels of a program's start are launched once, and the native entry has to be loaded.
        """
        runtime = current()
        if self.mode == PRIMAL:
            if runtime.recorder is not None:
                return self._record(runtime.recorder, args, kwargs)
            if runtime.tangents:
                return self.tangent.launch(*args, **kwargs)
        executable, bound = self._prepare(args, kwargs)
        result = executable.launch(bound.scalars, bound.sources)
        if runtime.tangents or runtime.recorder is not None:
            return result
        if not kwargs and executable.plan is None and executable.launches > 1 and not executable.disjoint and len(args) == len(self.info.parameters):
            self._install(executable, args, bound)
        return result

    def _record(self, recorder: Recorder, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Launch under a tape; the derivative is built now, so that what cannot be differentiated is refused here."""
        executable, bound = self._prepare(args, kwargs)
        call = Call(executable, bound.scalars, bound.sources)
        if not bound.differentiable:
            return recorder.launch(call, None, lambda: None)
        reverse_executable, reverse_bound = self.grad._prepare(args, kwargs, create=False)
        derivative = Call(reverse_executable, reverse_bound.scalars, reverse_bound.sources)
        return recorder.launch(call, derivative, lambda: self.grad.launch(*args, **kwargs))

    def _install(self, executable: Executable, args: Sequence[Any], bound: Bound) -> None:
        """Let the native entry do launches like the one just made, where it can."""
        executable.plan = False
        launcher = self._native_launcher(executable.runtime)
        if launcher is None:
            return
        from qd_core.runtime.native_plan import Origin, plan_of

        names = [p.name for p in self.info.parameters]
        origins = {path: Origin(i) for i, path in enumerate(names)}
        origins |= {f"{n}.{hop}": Origin(i, hop) for i, n in enumerate(names) for hop in ("grad", "dual") if f"{n}.{hop}" in bound.sources}
        plan = plan_of(executable, args, origins)
        if plan is not None:
            executable.plan = launcher.install(plan) or False

    def _native_launcher(self, runtime: Runtime) -> Any:
        """Give this kernel's class the builtin entry as ``__call__``, once; None where launches stay in Python."""
        if self._native is None:
            from qd_core.runtime.native import NativeLauncher, callable_class, unavailable_reason

            if unavailable_reason() is not None:
                return None
            self._native = NativeLauncher(self.launch)
            self.__class__ = callable_class(Kernel, self._native.entry)
        # Plans hold addresses of this runtime's code: they go with it.
        runtime.launchers.add(self._native)
        return self._native

    def _prepare(self, args: Sequence[Any], kwargs: dict[str, Any], *, create: bool = True) -> tuple[Executable, Bound]:
        """Bind a call; compile when its argument types are new. ``create`` lets a derivative allocate missing gradients."""
        runtime = current()
        bound = Bound(runtime.options, create=create and self.mode == REVERSE)
        values = bind_call(self.info, args, kwargs)
        types = tuple(bind_argument(bound, p.name, p.annotation, v) for p, v in zip(self.info.parameters, values, strict=True))
        active = self._active(bound)
        key = (runtime.generation, types, active)
        executable = self._executables.get(key)
        if executable is None:
            self._drop_stale(runtime)
            executable = self._executables[key] = self._build(runtime, types, active)
        return executable, bound

    def lowered(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> tuple[Function, Bound]:
        """Return the kernel's IR for a call, before any derivative is taken, and the call's leaf values."""
        options = current().options
        bound = Bound(options)
        values = bind_call(self.info, args, kwargs or {})
        types = tuple(bind_argument(bound, p.name, p.annotation, v) for p, v in zip(self.info.parameters, values, strict=True))
        return lower(self.info, types, lower_options(options)), bound

    def executable_of(self, runtime: Runtime, function: Function) -> Executable:
        """Compile a function for this kernel's mode: what `lowered` gave, or a derivative of it."""
        return self._finish(runtime, function)

    def _drop_stale(self, runtime: Runtime) -> None:
        for key in [k for k in self._executables if k[0] != runtime.generation]:
            del self._executables[key]

    def _active(self, bound: Bound) -> frozenset[str]:
        """Paths of arrays that the derivative is taken with respect to: those that come with a place for it."""
        if self.mode == PRIMAL:
            return frozenset()
        if self.mode == REVERSE:
            return frozenset(bound.differentiable)
        return frozenset(path.removesuffix(DUAL) for path in bound.sources if path.endswith(DUAL))

    def _build(self, runtime: Runtime, types: tuple[ArgType, ...], active: frozenset[str]) -> Executable:
        primal = lower(self.info, types, lower_options(runtime.options))
        passed("lowered", primal)
        executable = self._finish(runtime, self.transform(primal, active))
        if executable.disjoint:
            executable.alternative = functools.cache(lambda: self._finish(runtime, self.transform(primal, active, shared=True)))
        return executable

    def _finish(self, runtime: Runtime, function: Function) -> Executable:
        options = compile_options(runtime.options)
        results = results_of(function) if self.mode != REVERSE else None
        if self.mode != PRIMAL:
            passed("differentiated", function)
        executable = Executable.build(runtime, offload(function), options, results, self.info.span)
        executable.disjoint = function.attrs.get("no_overlap", ())
        return executable

    def transform(self, function: Function, active: frozenset[str], *, shared: bool = False) -> Function:
        """Apply the kernel's mode to lowered IR; ``shared`` when gradients of different arguments may be the same memory."""
        if self.mode == PRIMAL:
            return function
        if self.mode == FORWARD:
            return forward(function, active)
        if not active:
            raise LaunchError(
                f"no argument of {self.info.name!r} has a gradient, so .grad() would do nothing",
                hint="create an array with needs_grad=True, pass qd.with_grad(x, gx), or a tensor with requires_grad",
            )
        return reverse(function, active, shared=shared)

    def __repr__(self) -> str:
        return f"<qd kernel {self.info.name}{'' if self.mode == PRIMAL else ' ' + self.mode}>"


def results_of(function: Function) -> Results | None:
    """How to rebuild the kernel's value; None when it returns nothing."""
    specs = function.attrs.get("returns")
    return Results(specs, function.attrs["return_tuple"], Matrix, dict) if specs else None


def lower_options(options: Options) -> LowerOptions:
    """Options of the front end."""
    return LowerOptions(
        default_ip=options.default_ip,
        default_fp=options.default_fp,
        debug=options.debug,
        check_out_of_bound=options.check_out_of_bound or options.debug,
        short_circuit=options.short_circuit_operators,
        unrolling_limit=options.unrolling_limit,
    )


def compile_options(options: Options) -> CompileOptions:
    """Options of code generation."""
    return CompileOptions(
        fast_math=options.fast_math, debug=options.debug, check_out_of_bound=options.check_out_of_bound, opt_level=options.opt_level
    )


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a Python function a parallel kernel.

    Used bare or with options (`fastcache`, `graph`, `pure` are accepted for compatibility and change nothing yet).

    Raises
    ------
    QuadrantsSyntaxError
        The source cannot be read, or a parameter has no annotation.
    """
    if function is None:
        return lambda f: kernel(f, **options)
    unknown = set(options) - {"pure", "fastcache", "graph", "checkpoints"}
    if unknown:
        raise TypeError(f"kernel() has no option {sorted(unknown)[0]!r}")
    return Kernel(function)
