"""The one launcher.

It resolves every array leaf by its path to device memory, stages what is not resident, packs, runs, and copies back
what the kernel wrote. It has
no branch per role of a buffer and none per backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qd_core.backend.contract import (
    Access,
    Artifact,
    Buffer,
    BufferRef,
    BufferUse,
    CompileOptions,
    HostSpan,
    Launch,
    Module,
)
from qd_core.backend.requirements import check_supported
from qd_core.errors import ArgumentValueError, DeviceFault, LaunchError, Span
from qd_core.ir.program import HostExpr, Program, Variant
from qd_core.ir.rewrite import walk
from qd_core.passes.draws import RANDOM
from qd_core.runtime.arguments import ArgumentTable, ArrayLeaf, ArrayView, ScalarLeaf, no_overlap
from qd_core.runtime.array import contiguous_strides
from qd_core.runtime.cache import artifact_key, compiler_digest, program_digest
from qd_core.runtime.context import Runtime
from qd_core.runtime.draws import Draws
from qd_core.runtime.interop import ArraySource
from qd_core.runtime.progress import compiling, place_of, stage, told
from qd_core.runtime.results import Results
from qd_core.runtime.stages import passed

__all__ = ["Executable", "identical", "overlapping"]

NO_OVERLAP = "no_overlap"
_WRITES = (Access.WRITE, Access.READ_WRITE)


class Incomplete(Exception):
    """An executable without bodies is asked for code that is not on disk (any more): its kernel must be lowered."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What launches need of a program whose code is on disk.

    Attributes
    ----------
    program : Program
        Without the bodies of its tasks.
    digest : str
        `program_digest` of the whole one.
    table : ArgumentTable
        Layout of its words.
    guarded : bool
        Whether code may be chosen by the guard ``no_overlap``.
    """

    program: Program
    digest: str
    table: ArgumentTable
    guarded: bool


@dataclass(slots=True, eq=False)
class Executable:
    """A program ready to launch on one runtime.

    Attributes
    ----------
    table : ArgumentTable
        Layout of its words.
    modules : dict
        Loaded code by the guards it was compiled under; the empty set is right for every input.
    supplied : dict
        Arrays that core provides by path: results, temporaries, the log.
    owned : _Owned
        Memory of those made for this program.
    disjoint : tuple of (str, str)
        Paths of arrays that must not share memory for the program to be right.
    alternative : callable or None
        Gives the executable to use when some of them do share memory, for pairs ``(path, path that stands for it)`` of
        arrays that are the same
        (see `identical`).
    draws : (Draws, int) or None
        Keys of the random streams of its launches, and whether a launch takes a new one (1) or the latest (0).
    launches : int
        Launches that went through `launch`.
    plan : InstalledPlan, False or None
        The native entry's plan for such launches; False when it can have none, None when that was not tried.
    detours : tuple
        Of a derivative: fields of `autodiff.activity.Detours`.
    found : tuple of (str, Exception)
        Of a derivative: paths of arrays that must hold what the launch that it belongs to found, and what to raise
        where nobody has seen to that.
    shaping : tuple of str
        Paths of the scalars on which extents or indices can depend.
    hulls : dict
        What a tape learnt of the indices that launches touch, by shapes and those scalars.
    digest : str
        `program_digest` of the program; empty until it is needed.
    outline : bool
        Whether the program's tasks have no bodies: an earlier process compiled it.
    """

    runtime: Runtime
    program: Program
    table: ArgumentTable
    options: CompileOptions
    returns: Results | None = None
    span: Span | None = None
    modules: dict[frozenset[str], Module] = field(default_factory=dict[frozenset[str], Module])
    supplied: dict[str, ArrayView] = field(default_factory=dict[str, ArrayView])
    owned: _Owned = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    guarded: bool = False
    disjoint: tuple[tuple[str, str], ...] = ()
    alternative: Callable[[tuple[tuple[str, str], ...]], Executable] | None = None
    draws: tuple[Draws, int] | None = None
    launches: int = 0
    plan: Any = None
    detours: tuple[Any, ...] = ()
    found: tuple[tuple[str, Exception], ...] = ()
    shaping: tuple[str, ...] = field(init=False)
    hulls: dict[Any, Any] = field(default_factory=dict[Any, Any])
    digest: str = ""
    outline: bool = False

    @staticmethod
    def of_outline(
        runtime: Runtime, outline: Outline, options: CompileOptions, returns: Results | None, span: Span | None
    ) -> Executable:
        """Prepare a program that an earlier process compiled; `Incomplete` is raised where its code is needed and
        gone.
        """
        self = Executable(runtime, outline.program, outline.table, options, returns, span)
        self.guarded, self.digest, self.outline = outline.guarded, outline.digest, True
        self._supply_all()
        return self

    @staticmethod
    def build(
        runtime: Runtime,
        program: Program,
        options: CompileOptions,
        returns: Results | None = None,
        span: Span | None = None,
    ) -> Executable:
        """Prepare ``program``: run the compiler's own passes, build the table, allocate what core supplies."""
        check_supported(program, runtime.device.capabilities, runtime.backend.name)
        passed("offloaded", program)
        for step in runtime.compiler.pipeline():
            program = step(program)
            passed(getattr(step, "__name__", "legalized"), program)
        self = Executable(runtime, program, ArgumentTable.of(program), options, returns, span)
        self.guarded = _gains_from_no_overlap(program)
        self._supply_all()
        return self

    def outlined(self) -> Outline:
        """What a later process needs of this."""
        return Outline(self.program, self._identity(), self.table, self.guarded)

    def _identity(self) -> str:
        if not self.digest:
            self.digest = program_digest(self.program)
        return self.digest

    def _supply_all(self) -> None:
        self.shaping = _shaping(self.table)
        self.owned = _Owned(self.runtime)
        for leaf in self.table.arrays:
            self._supply(leaf)

    def _supply(self, leaf: ArrayLeaf) -> None:
        log, param = self.runtime.log, self.program.log
        if leaf.type.fixed_shape is not None:
            shape = leaf.type.fixed_shape
            nbytes = max(int(np.prod(shape)), 1) * leaf.type.element_size * leaf.type.dtype.nbytes
            buffer = self.runtime.device.allocate(nbytes)
            self.owned.add(buffer)
            self.supplied[leaf.path] = ArrayView(
                BufferRef(buffer, 0, nbytes), shape, contiguous_strides(shape, leaf.type.element_size)
            )
        elif log is not None and param is not None and leaf.path == param.path:
            self.supplied[leaf.path] = log.view

    def module(self, guards: frozenset[str]) -> Module:
        """Return the code for ``guards``, compiling it at the first use."""
        module = self.modules.get(guards)
        if module is None:
            artifact = self.compile(guards)
            with stage("loading"):
                module = self.modules[guards] = self.runtime.device.load(artifact)
        return module

    def compile(self, guards: frozenset[str]) -> Artifact:
        """Generate code for one variant, or take it from the disk cache."""
        compiler, cache = self.runtime.compiler, self.runtime.cache
        options = replace(self.options, variant=Variant(guards))
        if cache is None:
            return self._generated(options)
        if not self.runtime.compiler_digest:
            self.runtime.compiler_digest = compiler_digest(compiler)
        key = artifact_key(self._identity(), options, self.runtime.compiler_digest)
        artifact = cache.load(key)
        if artifact is None:
            if self.outline:
                raise Incomplete
            artifact = self._generated(options)
            cache.store(key, artifact)
        return artifact

    def variants(self) -> list[frozenset[str]]:
        """Every set of guards that launches may choose."""
        return [frozenset({NO_OVERLAP}), frozenset()] if self.guarded else [frozenset()]

    def _generated(self, options: CompileOptions) -> Artifact:
        with compiling(self.program.name, place_of(self.span)), stage("code generation"):
            artifact = self.runtime.compiler.compile(self.program, options)
            told(artifact.metrics)
        return artifact

    # -- launching ------------------------------------------------------------------------------------------------
    def launch(self, scalars: Mapping[str, Any], sources: Mapping[str, ArraySource]) -> Any:
        """Run once and return the kernel's result.

        Parameters
        ----------
        scalars : mapping
            Value of every scalar leaf by path.
        sources : mapping
            Array of every leaf that the caller passes, by path.
        """
        shared = overlapping(self.disjoint, sources, self.runtime) if self.disjoint else None
        if shared is not None:
            return self._other(shared, sources).launch(scalars, sources)
        self.launches += 1
        with self.lock, self.plan.exclusive() if self.plan else nullcontext():
            staging = _Staging(self.runtime)
            try:
                views = [self._view(leaf, sources, staging) for leaf in self.table.arrays]
                views = staging.copy_in(views)
                self._run(scalars, views)
                staging.copy_out()
            finally:
                staging.free()
            return self.finish()

    def _other(self, shared: tuple[str, str], sources: Mapping[str, ArraySource]) -> Executable:
        if self.outline:
            raise Incomplete
        if self.alternative is not None:
            return self.alternative(tuple(identical(sources, self.runtime).items()))
        raise LaunchError(
            f"arguments {shared[0]!r} and {shared[1]!r} of {self.program.name!r} share memory",
            span=self.span,
            why="the derivative needs values of one that the kernel overwrites through the other, or adds to both",
            hint="pass arrays that do not overlap, for instance a copy of one",
        )

    def _view(self, leaf: ArrayLeaf, sources: Mapping[str, ArraySource], staging: _Staging) -> ArrayView | _Staged:
        supplied = self.supplied.get(leaf.path)
        if supplied is not None:
            return supplied
        source = sources.get(leaf.path)
        if source is None:
            raise LaunchError(
                f"the kernel {self.program.name!r} uses {leaf.path!r}, which was not passed", span=self.span
            )
        written = leaf.access in _WRITES
        source.check(written=written, path=leaf.path)
        view = source.view(self.runtime)
        if view is None:
            return staging.register(source, written, leaf.type.ndim)
        ndim = leaf.type.ndim
        return view if len(view.shape) == ndim else ArrayView(view.ref, view.shape[:ndim], view.strides[:ndim])

    def _run(self, scalars: Mapping[str, Any], views: Sequence[ArrayView]) -> None:
        device, table = self.runtime.device, self.table
        words, extents = table.pack(device, self.runtime.compiler.abi.pointers, scalars, views)
        uses = [BufferUse(views[leaf.index].ref, leaf.access, leaf.role, leaf.path) for leaf in table.arrays]
        module = self.module(self.select(views))
        packed = (np.array(words, np.uint64) if words else np.zeros(1, np.uint64)).data
        device.default_stream.run(module, Launch(packed, extents, uses, self.program.name, self.span))

    def select(self, views: Sequence[ArrayView]) -> frozenset[str]:
        """Evaluate the launch guards: the facts under which code may be chosen."""
        if not self.guarded:
            return frozenset()
        addresses = [int(self.runtime.device.address(v.ref)) for v in views]
        return frozenset({NO_OVERLAP}) if no_overlap(self.table, views, addresses) else frozenset()

    def finish(self) -> Any:
        """Deliver messages of the launch and return its result."""
        stream = self.runtime.device.default_stream
        status = self.plan.read("status") if self.plan else 0
        if status:
            self.plan.write("status", 0)
            raise DeviceFault(
                f"the launch of {self.program.name!r} failed with status {status & 0xFFFFFFFF}", span=self.span
            )
        if self.program.sites and self.runtime.log is not None:
            stream.synchronize()
            self.runtime.log.drain(stream, self.program.sites)
        return self.returns.decode(self._fetch) if self.returns is not None else None

    def _fetch(self, path: str) -> np.ndarray[Any, Any]:
        view = self.supplied[path]
        leaf = next(a for a in self.table.arrays if a.path == path)
        out = np.empty(view.shape, leaf.type.dtype.numpy)
        stream = self.runtime.device.default_stream
        stream.copy_out(HostSpan(out.ctypes.data, out.nbytes, out), BufferRef(view.ref.buffer, 0, out.nbytes))
        return out


def overlapping(
    pairs: Sequence[tuple[str, str]], sources: Mapping[str, ArraySource], runtime: Runtime
) -> tuple[str, str] | None:
    """Return the first of ``pairs`` whose arrays share memory, or None."""
    spans = {path: sources[path].place(runtime) for pair in pairs for path in pair if path in sources}
    for a, b in pairs:
        if a in spans and b in spans:
            (home_a, start_a, end_a), (home_b, start_b, end_b) = spans[a], spans[b]
            if home_a == home_b and start_a < end_b and start_b < end_a:
                return a, b
    return None


def identical(sources: Mapping[str, ArraySource], runtime: Runtime) -> dict[str, str]:
    """Return paths of arrays that equal an earlier one in memory, type and gradient, with the path of that one.

    Arrays whose gradients (or duals) differ are different to a derivative, although their data is the same.
    """
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for path, source in sources.items():
        if path.endswith(_SHADOWS) or 0 in source.shape:
            continue
        shadows = tuple(sources[path + s].place(runtime) if path + s in sources else None for s in _SHADOWS)
        strides = getattr(getattr(source, "array", None), "strides", None)
        key = source.place(runtime), source.dtype, tuple(source.shape), strides, shadows
        if first.setdefault(key, path) != path:
            same[path] = first[key]
    return same | {p + s: q + s for p, q in same.items() for s in _SHADOWS if p + s in sources}


_SHADOWS = (".grad", ".dual")


class _Owned:
    """Buffers of one executable: freed with it, or when the runtime closes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.buffers = runtime, list[Buffer]()
        runtime.arrays.add(self)

    def add(self, buffer: Buffer) -> None:
        """Take over ``buffer``."""
        self.buffers.append(buffer)

    def _invalidate(self) -> None:
        device = self.runtime.device
        while self.buffers:
            device.free(self.buffers.pop(), after=device.default_stream)

    def __del__(self) -> None:
        if not self.runtime.closed:
            self._invalidate()


def _gains_from_no_overlap(program: Program) -> bool:
    """Whether knowing that arrays are disjoint helps.

    It does in a serial loop that writes memory (values stay in registers), and for atomics (those on an
    iteration's own elements need not be atomic, those on elements that data choose may go to copies).
    """
    if not program.writes or len(program.reads | program.writes) < 2:
        return False
    if any(n.op.name == "atomic" for t in program.tasks if t.extents for n in walk(t.body)):
        return True
    loops = (n for t in program.tasks for n in walk(t.body) if n.op.name in ("for", "while"))
    return any(inner.op.name in ("store", "atomic") for loop in loops for r in loop.regions for inner in walk(r))


def _shaping(table: ArgumentTable) -> tuple[str, ...]:
    """Scalars that are integers, or from which an extent is computed."""
    bodies = [e.body for e in table.extents if isinstance(e, HostExpr)]
    used = {o for body in bodies for n in walk(body) for o in n.operands}
    leaves = zip(table.params, table.leaves, strict=True)
    return tuple(
        leaf.path
        for param, leaf in leaves
        if isinstance(leaf, ScalarLeaf) and leaf.path != RANDOM and (leaf.dtype.is_integral or param in used)
    )


@dataclass(slots=True)
class _Staged:
    """A host span waiting for its place on the device."""

    source: ArraySource
    span: HostSpan
    written: bool
    ndim: int
    view: ArrayView | None = None


class _Staging:
    """Host arrays of one launch, copied in and back.

    Spans that overlap on the host share one device buffer, so that aliased arguments stay aliased.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.items: list[_Staged] = []
        self.buffers: list[Any] = []

    def register(self, source: ArraySource, written: bool, ndim: int) -> _Staged:
        """Remember a source; its view exists after `copy_in`."""
        place = source.place(self.runtime)
        if place[0] == "device":
            self._check_apart(source, written, place)
        item = _Staged(source, source.span(), written, ndim)
        self.items.append(item)
        return item

    def _check_apart(self, source: ArraySource, written: bool, place: tuple[str, int, int]) -> None:
        """Refuse foreign tensors that overlap, of which each would get a copy of its own."""
        for item in self.items:
            space, start, end = item.source.place(self.runtime)
            if (written or item.written) and space == "device" and start < place[2] and place[1] < end:
                raise ArgumentValueError(
                    "two arguments are tensors of another device that share memory, and the kernel writes one",
                    hint="open that device with qd.init, or pass copies",
                )

    def copy_in(self, views: Sequence[ArrayView | _Staged]) -> list[ArrayView]:
        """Allocate and fill device memory for registered sources; return ``views`` with them resolved."""
        for group in self._groups():
            self._place(group)
        return [v.view if isinstance(v, _Staged) else v for v in views]  # type: ignore[misc]

    def _groups(self) -> list[list[_Staged]]:
        groups: list[list[_Staged]] = []
        end = -1
        for item in sorted(self.items, key=lambda i: (i.span.address, -i.span.nbytes)):
            if groups and item.span.address < end:
                groups[-1].append(item)
            else:
                groups.append([item])
                end = -1
            end = max(end, item.span.address + item.span.nbytes)
        return groups

    def _place(self, group: list[_Staged]) -> None:
        device = self.runtime.device
        base = group[0].span.address
        nbytes = max(i.span.address + i.span.nbytes for i in group) - base
        buffer = device.allocate(nbytes)
        self.buffers.append(buffer)
        for item in group:
            ref = BufferRef(buffer, item.span.address - base, item.span.nbytes)
            if item.span.nbytes:
                device.default_stream.copy_in(ref, item.span)
            shape = item.source.shape
            item.view = ArrayView(ref, shape[: item.ndim], contiguous_strides(shape, 1)[: item.ndim])

    def copy_out(self) -> None:
        """Copy back what the kernel wrote."""
        for item in self.items:
            if item.written and item.view is not None:
                if item.span.nbytes:
                    self.runtime.device.default_stream.copy_out(item.span, item.view.ref)
                item.source.finish()

    def free(self) -> None:
        """Free the device memory of this launch."""
        for buffer in self.buffers:
            self.runtime.device.free(buffer, after=self.runtime.device.default_stream)
