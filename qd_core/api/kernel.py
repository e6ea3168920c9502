"""`@qd.kernel`: specialisation by argument types, compilation, launch.

A kernel object is called directly: its class has the native packer as ``__call__`` once a specialisation exists (see
`runtime.native`), and falls back to the Python path below for every argument that packer does not take.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.api.binding import Bound, bind_argument, bind_call
from qd_core.api.matrix import Matrix
from qd_core.api.recall import Recalled, keep, recall, source_key
from qd_core.api.specialize import BoundKernel, Specialisation, forget
from qd_core.api.structs import Struct
from qd_core.backend.contract import Access, CompileOptions
from qd_core.errors import LaunchError
from qd_core.frontend.lower import Lowered, LowerOptions, lower_kernel, nesting_limited
from qd_core.frontend.signature import ArgType, annotated_type, is_method, kernel_info, return_types
from qd_core.ir.nodes import Function
from qd_core.passes.draws import RANDOM, number_draws
from qd_core.passes.offload import offload
from qd_core.passes.pin import pin_extrema
from qd_core.passes.unify import unify
from qd_core.runtime.context import Options, Runtime, current
from qd_core.runtime.draws import Draws
from qd_core.runtime.launch import Executable, Incomplete
from qd_core.runtime.native_spec import MISS, miss, pick
from qd_core.runtime.progress import compiling, place_of, stage
from qd_core.runtime.results import Results
from qd_core.runtime.stages import passed

if TYPE_CHECKING:
    from qd_core.runtime.tape import Recorder
    from qd_core.runtime.tape_sites import Derivative

__all__ = ["Kernel", "kernel"]

PRIMAL, REVERSE, FORWARD = "primal", "reverse", "forward"
DUAL = ".dual"


_entering = threading.RLock()
"""Held while a kernel gets its native entry: two threads must not give it two."""


class Kernel:
    """A compiled-on-demand kernel.

    Parameters
    ----------
    function : callable
        The decorated Python function.
    mode : str
        ``"primal"``, ``"reverse"`` or ``"forward"``.
    """

    __qd_kernel__ = True
    """Told to the front end, which does not import this module."""

    __name__: str

    def __init__(self, function: Callable[..., Any], mode: str = PRIMAL, primal: Kernel | None = None) -> None:
        functools.update_wrapper(self, function)
        self.info = primal.info if primal is not None else kernel_info(function)
        self.mode = mode
        self._draws: dict[int, Draws] = primal._draws if primal is not None else {}
        self._specs: dict[Any, list[Specialisation]] = {}
        self._method = is_method(self.info.function)
        self._native: Any = None
        self._entry: Callable[..., Any] | None = None

    @functools.cached_property
    def grad(self) -> Kernel:
        """The reverse-mode kernel: same arguments, adds to the gradients of what the kernel reads."""
        return Kernel(self.info.function, REVERSE, self)

    @functools.cached_property
    def tangent(self) -> Kernel:
        """The forward-mode kernel: same arguments, computes duals of what the kernel writes from duals of what it
        reads.
        """
        return Kernel(self.info.function, FORWARD, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch; the native entry takes this method's place where there is one."""
        return self.launch(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a method to its object."""
        return BoundKernel(self, instance) if instance is not None and self._method else self

    def launch(self, *args: Any, **kwargs: Any) -> Any:
        """Launch through the Python packer; the second launch with such arguments installs a native plan.

        The first does not: most kernels of a program's start are launched once, and the native entry has to be loaded.
        """
        runtime = current()
        if self.mode == PRIMAL:
            if runtime.recorder is not None:
                if self._native is not None and not kwargs and len(args) == len(self.info.parameters):
                    result = runtime.recorder.observe(self._native, args, args)
                    if result is not MISS:
                        return result
                return self._record(runtime.recorder, args, kwargs)
            if runtime.tangents:
                return self.tangent.launch(*args, **kwargs)
        spec, bound = self._specialise(args, kwargs, outlines=True)
        if spec.executable.found:
            raise spec.executable.found[0][1]  # only a tape can put arrays back to what the launch found
        key = _draw(spec.executable, bound)
        try:
            result = spec.executable.launch(bound.scalars, bound.sources)
        except Incomplete:
            spec, bound = self._specialise(args, kwargs)
            bound.scalars |= {} if key is None else {RANDOM: key}
            result = spec.executable.launch(bound.scalars, bound.sources)
        if runtime.tangents or (runtime.recorder is not None and self.mode != REVERSE):
            return result
        if not kwargs and len(args) == len(self.info.parameters):
            self._plan_later(spec, args, bound)
        return result

    def _plan_later(self, spec: Specialisation, args: Sequence[Any], bound: Bound) -> None:
        """Install a plan for launches like the one just made, unless it was the first."""
        plans = spec.executable.runtime.plans
        if spec.plans != plans and spec.executable.launches > 1:
            spec.plans = plans
            with suppress(Incomplete):  # a variant is not on disk: launches that need it have it made
                self._install(spec, args, bound)

    def _record(self, recorder: Recorder, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Launch under a tape; the derivative is built now, so that what cannot be differentiated is refused here."""
        from qd_core.runtime.tape import Call, nothing
        from qd_core.runtime.tape_sites import remember

        spec, bound = self._specialise(args, kwargs)
        key = _draw(spec.executable, bound)
        call = Call(spec.executable, bound.scalars, bound.sources)
        reverse_spec, reverse_bound, reverse, backward = None, None, None, nothing
        if bound.differentiable:
            reverse_spec, reverse_bound = self.grad._specialise(args, kwargs, create=False)
            stream = {} if key is None else {RANDOM: key}
            reverse = Call(reverse_spec.executable, {**reverse_bound.scalars, **stream}, reverse_bound.sources)
            backward = reverse.launch
            if any(f"{path}.grad" not in reverse_bound.sources for path in reverse_bound.differentiable):
                # A framework makes missing gradients when they are wanted.
                backward = functools.partial(self.grad._replay, key, args, kwargs)
        result = recorder.launch(call, reverse, backward)
        if not kwargs and len(args) == len(self.info.parameters):
            self._plan_later(spec, args, bound)
            derivative = None
            if reverse_spec is not None and reverse_bound is not None:
                derivative = self.grad._derivative(reverse_spec, args, reverse_bound)
            if spec.executable.plan and (reverse is None or derivative is not None):
                remember(recorder, spec.executable.plan.leaves(args), call, reverse, derivative)
        return result

    def _derivative(self, spec: Specialisation, args: Sequence[Any], bound: Bound) -> Derivative | None:
        """How the native entry makes this reverse launch; None where it cannot."""
        from qd_core.runtime.tape_sites import Derivative, FixedReverse

        runtime = spec.executable.runtime
        if spec.executable.found:
            return None
        if spec.plans != runtime.plans:
            spec.plans = runtime.plans
            self._install(spec, args, bound)
        plan = spec.executable.plan
        if not plan:
            return None
        if plan.leaves is tuple:
            return Derivative(self)
        return Derivative(FixedReverse(spec.executable, bound.scalars, bound.sources), plan.leaves)

    def _replay(self, key: int | None, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Launch this derivative with the random stream of an earlier launch."""
        executable, bound = self._prepare(args, kwargs)
        executable.launch(bound.scalars if key is None else {**bound.scalars, RANDOM: key}, bound.sources)

    def _install(self, spec: Specialisation, args: Sequence[Any], bound: Bound) -> None:
        """Let the native entry do launches like the one just made, where it can."""
        from qd_core.api.entry import make_entry, make_leaves, route_of
        from qd_core.runtime.native import NativeLauncher, callable_class, unavailable_reason
        from qd_core.runtime.native_plan import plan_of

        executable, count = spec.executable, len(args)
        executable.plan = False
        if unavailable_reason() is not None:
            return
        route = route_of(spec, [p.name for p in self.info.parameters], args, bound.sources)
        plan = plan_of(executable, route.values, route.origins, route.constants) if route is not None else None
        if plan is None or route is None:
            return
        runtime = executable.runtime
        if route.direct:
            launcher = self._native_launcher(runtime)
        else:
            launcher = NativeLauncher(miss)
            launcher.derivative = self.mode == REVERSE
            runtime.adopt(launcher)
        scalars = (int, float, np.generic)
        launcher.arrays_of = pick(k for k, value in enumerate(route.values) if not isinstance(value, scalars))
        installed = launcher.install(plan)
        executable.plan = installed or False
        if installed is not None:
            installed.launcher, installed.leaves = launcher, make_leaves(route, count)
        if not route.direct:
            self._entry = make_entry(route, count, launcher, runtime, self._entry or self.launch)
            self.__class__ = callable_class(Kernel, staticmethod(self._entry))

    def _native_launcher(self, runtime: Runtime) -> Any:
        """Give this kernel's class the builtin entry as ``__call__``, once."""
        from qd_core.runtime.native import NativeLauncher, callable_class

        with _entering:
            if self._native is None:
                launcher = NativeLauncher(self.launch)
                launcher.derivative = self.mode == REVERSE
                self.__class__ = callable_class(Kernel, launcher.entry)
                self._native = launcher
        # Plans hold addresses of this runtime's code: they go with it.
        runtime.adopt(self._native)
        return self._native

    def _prepare(self, args: Sequence[Any], kwargs: dict[str, Any], *, create: bool = True) -> tuple[Executable, Bound]:
        """Bind a call; see `_specialise`."""
        spec, bound = self._specialise(args, kwargs, create=create)
        return spec.executable, bound

    def _specialise(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, create: bool = True, outlines: bool = False
    ) -> tuple[Specialisation, Bound]:
        """Bind a call; compile when its types are new.

        ``create`` lets a derivative allocate missing gradients; ``outlines`` allows a program without bodies.
        """
        runtime = current()
        bound, types, arguments = self._bind(args, kwargs, create=create and self.mode == REVERSE)
        key = (runtime.generation, tuple(map(forget, types)), self._active(bound))
        known = [s for s in self._specs.get(key, ()) if outlines or not s.executable.outline]
        for spec in known:
            fitting = spec.fits(bound, arguments)
            if fitting is not None:
                return spec, fitting
        self._drop_stale(runtime)
        source = source_key(self.info, self.mode, types, key[2], runtime)
        recalled = recall(runtime, source, self.info, arguments, bound) if source is not None and outlines else None
        if recalled is not None and recalled.active == self._active(recalled.bound):
            spec, bound = self._restore(runtime, types, recalled), recalled.bound
        else:
            spec = self._compile(runtime, types, bound, source)
        self._specs[key] = [*known, spec]
        return spec, bound

    def _restore(self, runtime: Runtime, types: tuple[ArgType, ...], recalled: Recalled) -> Specialisation:
        results = None
        if recalled.returns is not None:
            specs, several = recalled.returns
            options = lower_options(runtime.options)
            wanted = return_types(self.info.returns)
            kinds = tuple(annotated_type(w, options.default_ip, options.default_fp) for w in wanted)
            results = Results(specs, several, kinds, Matrix, Struct.of)
        spec = recalled.specialisation(runtime, compile_options(runtime.options), results, self.info, types)
        self._let_draw(spec.executable)
        return spec

    def _compile(
        self, runtime: Runtime, types: tuple[ArgType, ...], bound: Bound, source: str | None
    ) -> Specialisation:
        with compiling(self.info.name, place_of(self.info.span)):
            with stage("front end"):
                lowered = self._lower(types, bound, private=self.mode == PRIMAL)
            assert lowered.members is not None
            active = self._active(bound)
            with nesting_limited(self.info), stage("transforms"):
                executable = self._build(runtime, lowered.function, active)
        if source is not None and not executable.found:  # what is to be raised is not kept
            keep(runtime, source, executable, lowered.members, active)
        return Specialisation.of(executable, types, lowered.members)

    def _bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, create: bool = False
    ) -> tuple[Bound, tuple[ArgType, ...], dict[str, Any]]:
        """Return the leaves of a call's arguments, their types, and the arguments by name."""
        bound = Bound(current().options, create=create)
        values = bind_call(self.info, args, kwargs)
        parameters = self.info.parameters
        types = tuple(bind_argument(bound, p.name, p.annotation, v) for p, v in zip(parameters, values, strict=True))
        return bound, types, {p.name: v for p, v in zip(parameters, values, strict=True)}

    def _lower(self, types: tuple[ArgType, ...], bound: Bound, *, private: bool = False) -> Lowered:
        """Lower the kernel; members that it reads are added to ``bound``. ``private``: no derivative will be taken."""
        options = replace(lower_options(bound.options), private_memory=private)
        lowered = lower_kernel(self.info, types, options, functools.partial(bind_argument, bound))
        lowered.function = pin_extrema(number_draws(lowered.function))
        return lowered

    def lowered(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> tuple[Function, Bound]:
        """Return the kernel's IR for a call, before any derivative is taken, and the call's leaf values."""
        bound, types, _ = self._bind(args, kwargs or {})
        function = self._lower(types, bound).function
        bound.scalars[RANDOM] = self._drawn(current()).last
        return function, bound

    def written_paths(self, args: Sequence[Any]) -> frozenset[str]:
        """Paths of the arrays that a launch with these arguments writes."""
        executable, _ = self._prepare(args, {})
        written = (Access.WRITE, Access.READ_WRITE)
        arrays = (a for a in executable.table.arrays if a.path not in executable.supplied)
        return frozenset(a.path for a in arrays if a.access in written)

    def executable_of(self, runtime: Runtime, function: Function) -> Executable:
        """Compile a function for this kernel's mode: what `lowered` gave, or a derivative of it."""
        return self._finish(runtime, function)

    def _drop_stale(self, runtime: Runtime) -> None:
        for key in [k for k in self._specs if k[0] != runtime.generation]:
            del self._specs[key]
            self._entry = None

    def _active(self, bound: Bound) -> frozenset[str]:
        """Paths of arrays that the derivative is taken with respect to: those that come with a place for it."""
        if self.mode == PRIMAL:
            return frozenset()
        if self.mode == REVERSE:
            return frozenset(bound.differentiable)
        return frozenset(path.removesuffix(DUAL) for path in bound.sources if path.endswith(DUAL))

    def _build(self, runtime: Runtime, primal: Function, active: frozenset[str]) -> Executable:
        passed("lowered", primal)
        executable = self._finish(runtime, self.transform(primal, active))
        if executable.disjoint:

            def alternative(same: tuple[tuple[str, str], ...]) -> Executable:
                return self._finish(runtime, self._aliased(primal, active, dict(same)))

            executable.alternative = functools.cache(alternative)
        return executable

    def _aliased(self, primal: Function, active: frozenset[str], same: Mapping[str, str]) -> Function:
        """The derivative when arrays are the ``same``; other gradients may still be shared."""
        return self.transform(unify(primal, same), active - same.keys(), shared=True)

    def _finish(self, runtime: Runtime, function: Function) -> Executable:
        options = compile_options(runtime.options)
        results = results_of(function) if self.mode != REVERSE else None
        if self.mode != PRIMAL:
            passed("differentiated", function)
        executable = Executable.build(runtime, offload(function), options, results, self.info.span)
        executable.disjoint = function.attrs.get("no_overlap", ())
        executable.detours = function.attrs.get("detours", ())
        executable.found = function.attrs.get("found", ())
        self._let_draw(executable)
        return executable

    def _let_draw(self, executable: Executable) -> None:
        if any(p.path == RANDOM for p in executable.table.params):
            executable.draws = self._drawn(executable.runtime), int(self.mode != REVERSE)

    def _drawn(self, runtime: Runtime) -> Draws:
        """Keys of this kernel's random streams, which its derivatives share."""
        draws = self._draws.get(runtime.generation)
        if draws is None:
            self._draws.clear()
            draws = self._draws[runtime.generation] = Draws(runtime)
        return draws

    def transform(self, function: Function, active: frozenset[str], *, shared: bool = False) -> Function:
        """Apply the kernel's mode to lowered IR; ``shared`` when gradients of different arguments may be the same
        memory.
        """
        if self.mode == PRIMAL:
            return function
        if self.mode == FORWARD:
            from qd_core.autodiff.forward import forward

            return forward(function, active)
        if not active:
            raise LaunchError(
                f"no argument of {self.info.name!r} has a gradient, so .grad() would do nothing",
                hint="create an array with needs_grad=True, pass qd.with_grad(x, gx), or a tensor with requires_grad",
            )
        from qd_core.autodiff.reverse import reverse

        budget = current().options.ad_residual_bytes
        return reverse(function, active, shared=shared, rewound=not shared, residual_bytes=budget)

    def __repr__(self) -> str:
        return f"<qd kernel {self.info.name}{'' if self.mode == PRIMAL else ' ' + self.mode}>"


def _draw(executable: Executable, bound: Bound) -> int | None:
    """File the key of a launch's random stream, and return it; None where the kernel draws nothing."""
    if executable.draws is None:
        return None
    draws, new = executable.draws
    key = bound.scalars[RANDOM] = draws.advance() if new else draws.last
    return key


def results_of(function: Function) -> Results | None:
    """How to rebuild the kernel's value; None when it returns nothing."""
    specs = function.attrs.get("returns")
    if not specs:
        return None
    return Results(specs, function.attrs["return_tuple"], function.attrs["return_types"], Matrix, Struct.of)


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
        fast_math=options.fast_math,
        debug=options.debug,
        check_out_of_bound=options.check_out_of_bound,
        opt_level=options.opt_level,
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
        return functools.partial(kernel, **options)
    unknown = set(options) - {"pure", "fastcache", "graph", "checkpoints"}
    if unknown:
        raise TypeError(f"kernel() has no option {sorted(unknown)[0]!r}")
    return Kernel(function)
