"""Recording launches and running their derivatives backwards.

The reverse kernel of a launch reads arrays as they were right after that launch. Before a later launch overwrites a
part that an earlier one's derivative needs (both known as index boxes, `autodiff.hulls`), the tape saves the array;
going backwards it puts the saved contents back, and at the end the final ones. With ``overwrite="error"`` it raises
instead, naming both kernels.

A launch that the native entry can do is recorded by its *site* (`tape_sites`), which has all this ready; the methods
here are the definition of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qd_core.autodiff.activity import Detours, Part
from qd_core.autodiff.hulls import Touched, touched
from qd_core.errors import NotDifferentiableError
from qd_core.ir.nodes import ArrayType
from qd_core.runtime.array import Ndarray
from qd_core.runtime.context import Runtime
from qd_core.runtime.interop import ArraySource, NdarraySource, SavedContents
from qd_core.runtime.launch import Executable
from qd_core.runtime.native_spec import MISS
from qd_core.runtime.tape_check import TapeCheck
from qd_core.runtime.tape_needs import Boxes, Cell, Cells, Lost, rows

__all__ = ["SHADOWS", "Call", "Recorder", "nothing", "touched_by"]

SAVE, ERROR = "save", "error"
SHADOWS = (".grad", ".dual")


def nothing(*_: Any) -> None:
    """Go backwards over a step without a derivative."""


@dataclass(frozen=True, slots=True)
class Call:
    """A launch of one mode of a kernel: compiled code with its scalar and array leaves by path."""

    executable: Executable
    scalars: Mapping[str, Any]
    sources: Mapping[str, ArraySource]

    def launch(self) -> Any:
        """Run it."""
        return self.executable.launch(self.scalars, self.sources)


Step = tuple[Callable[..., Any], Sequence[Any], list[SavedContents] | None]
"""How to go backwards over one recorded step: a function, its arguments, and what to put back afterwards."""


class Recorder:
    """The recorded steps of one tape.

    Parameters
    ----------
    runtime : Runtime
        Where the launches run.
    overwrite : str
        ``"save"`` or ``"error"``.
    """

    def __init__(self, runtime: Runtime, overwrite: str = SAVE) -> None:
        self.runtime, self.overwrite = runtime, overwrite
        self.steps: list[Step] = []
        self.cells = Cells()
        self._final: dict[int, tuple[Cell, ArraySource]] = {}
        self.replaying = False
        self.check: TapeCheck | None = None
        self.lost = 0
        """How often contents were found to lose a gradient; sites were checked against an earlier number."""
        self.sites: dict[Any, dict[Any, Any]] = {}
        """`tape_sites.Site` by native launcher and then by arrays, which are equal when they are the same."""

    # -- recording ------------------------------------------------------------------------------------------------
    def launch(self, call: Call, reverse: Call | None, backward: Callable[..., Any]) -> Any:
        """Run ``call``, having saved what its writes would destroy; ``reverse`` (None: constant) is its derivative."""
        if self.replaying:
            return call.launch()
        self.follow(call, reverse)
        restore: list[SavedContents] | None = None
        writes = touched_by(call).writes
        for path, boxes in writes.items():
            if path in call.sources:
                cell, source = self.cell(call, path), call.sources[path]
                restore = self.protect(cell, source, boxes, restore, call.executable)
        found = self.saved_before(call, reverse)
        if self.check is not None:
            self.check.launched(call.launch, [call.sources[path] for path in writes if path in call.sources])
        result = call.launch()
        self.steps.append((backward, (), restore))
        if found:  # going backwards, this comes first: the derivative then sees what the launch found
            self.steps.append((nothing, (), list(found.values())))
        if reverse is not None:
            for path in call.sources:
                self.cell(call, path).differentiated = True
            for path, boxes in touched_by(reverse).reads.items():
                if path in call.sources and not path.endswith(SHADOWS) and path not in found:
                    self.cell(call, path).need(boxes, call.executable, *rows(boxes))
        return result

    def saved_before(self, call: Call, reverse: Call | None) -> dict[str, SavedContents]:
        """Save, by path, the arrays that a derivative needs as the launch is about to find them.

        Raises
        ------
        NotDifferentiableError
            There are some, and overwriting is an error.
        """
        found = reverse.executable.found if reverse is not None else ()
        if found and self.overwrite == ERROR:
            raise found[0][1]
        saved: dict[str, SavedContents] = {}
        for path, _ in found:
            cell, source = self.cell(call, path), call.sources[path]
            self._final.setdefault(id(cell), (cell, source))
            saved[path] = source.save(self.runtime)
        return saved

    def step(self, backward: Callable[[], None]) -> None:
        """Record a step that is no launch: a replaced Python function."""
        if not self.replaying:
            if self.check is not None:
                self.check.refuse("a function is replaced")
            self.steps.append((backward, (), None))

    def host_write(
        self, array: Ndarray, index: tuple[int, ...] | None, clear: Callable[[], None] | None = None
    ) -> None:
        """Record that the host overwrites an array or one element: what was there has no derivative any more.

        Where no launch before it differentiated the array, what is written is what its gradient belongs to, and stays.
        ``clear`` sets the gradient there to 0 where that is not all of the element.
        """
        if self.replaying:
            return
        if self.check is not None:
            self.check.refuse("the host writes an array")
        source = NdarraySource(array)
        cell = self.cells.at(source.place(self.runtime))
        past = cell.has_past

        def backward() -> None:
            if array.grad is None or not past:
                return
            if clear is not None:
                clear()
                return
            if index is None:
                array.grad.fill(0)
            else:
                array.grad[index] = np.zeros(array.element_shape)[()]

        boxes = None if index is None else (tuple((i, i) for i in index),)
        restore = self.protect(cell, source, boxes, None, None)
        if index is None and clear is None:
            cell.lost.clear()
        self.steps.append((backward, (), restore))

    def cell(self, call: Call, path: str) -> Cell:
        """What is known of an array of a call."""
        return self.cells.at(call.sources[path].place(self.runtime))

    def protect(
        self,
        cell: Cell,
        source: ArraySource,
        boxes: Boxes | None,
        restore: list[SavedContents] | None,
        writer: Executable | None,
    ) -> list[SavedContents] | None:
        """Return ``restore`` with ``source`` saved if a write to ``boxes`` (None: all) of it changes what is needed."""
        needed = cell.needed(boxes)
        if needed is None:
            return restore
        if self.overwrite == ERROR:
            raise _conflict(needed, writer)
        self._final.setdefault(id(cell), (cell, source))
        saved = source.save(self.runtime)
        return [saved] if restore is None else [*restore, saved]

    def observe(self, launcher: Any, leaves: Sequence[Any], args: Sequence[Any]) -> Any:
        """Launch and record by the site of ``launcher`` with these leaf values; `MISS` where that cannot be done."""
        sites = self.sites.get(launcher)
        if sites is None:
            return MISS
        try:
            site = sites.get(launcher.arrays_of(leaves))
        except TypeError:  # something that cannot be an array of ours
            return MISS
        if site is None or site.plans != self.runtime.plans or self.replaying:
            return MISS
        return site.launch(leaves, args)

    # -- contents without gradients -------------------------------------------------------------------------------
    def follow(self, call: Call, reverse: Call | None) -> None:
        """Follow values into arrays without gradients, and refuse to read them where a gradient is wanted.

        Raises
        ------
        NotDifferentiableError
            The gradient would silently lose a path through such an array.
        """
        detours = _detours(call if reverse is None else reverse, reverse is None)
        name = call.executable.program.name
        for path, component, line in detours.wanted:
            for lost in self._lost(call, path, component):
                raise _lost_path(lost, path, name, line, call.executable)
        found = [(p, Lost(p[0], p[1], name, p[2])) for p in detours.stored]
        for source, target in detours.passed:
            found.extend((target, lost) for lost in self._lost(call, *source[:2]))
        for (path, component, _), lost in found:
            known = self.cell(call, path).lost if path in call.sources else []
            if path in call.sources and all(k.component != component for k in known):
                known.append(Lost(lost.path, component, lost.kernel, lost.line))
                self.lost += 1

    def _lost(self, call: Call, path: str, component: tuple[int, ...] | None) -> Iterable[Lost]:
        """What is known to be lost in a component of an array."""
        source = call.sources.get(path)
        if source is None:
            return
        cell = self.cell(call, path)
        for lost in cell.lost:
            if lost.component is None or component is None or lost.component == component:
                yield lost
        for other in cell.others:
            yield from other.lost

    # -- going backwards ------------------------------------------------------------------------------------------
    def backward(self) -> None:
        """Run the derivatives in reverse order, with arrays as each launch left them; final contents are put back."""
        self.replaying = True
        final = [source.save(self.runtime) for _, source in self._final.values()]
        try:
            for function, args, restore in reversed(self.steps):
                function(*args)
                if restore:
                    for put_back in restore:
                        put_back()
                        put_back.drop()
                    restore.clear()
        finally:
            for put_back in final:
                put_back()
                put_back.drop()
            self.replaying = False

    def compare(self) -> None:
        """Check the gradients, if that was asked for."""
        if self.check is not None:
            self.check.compare()

    def close(self) -> None:
        """Free what was saved and not used."""
        for _, _, restore in self.steps:
            while restore:
                restore.pop().drop()
        if self.check is not None:
            self.check.close()


def _conflict(cell: Cell, writer: Executable | None) -> NotDifferentiableError:
    name, reader = next(iter(cell.kernels.items()))
    by = f"kernel {writer.program.name!r}" if writer is not None else "the host"
    return NotDifferentiableError(
        f"{by} overwrites values that the derivative of kernel {name!r} needs",
        span=writer.span if writer is not None else None,
        why="the derivative of a launch reads its arrays again, after the whole forward pass",
        hint='use Tape(overwrite="save"), or write to another array',
        callers=() if reader.span is None else (reader.span,),
    )


def _lost_path(lost: Lost, path: str, name: str, line: int, reader: Executable) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"`{path}` has no gradient, but a differentiated value passes through it: kernel {lost.kernel!r} stores it "
        f"(`{lost.path}`, line {lost.line}), kernel {name!r} reads it (line {line})",
        span=reader.span,
        why="the gradient would silently lose this path",
        hint=f"give `{path}` a gradient (needs_grad=True), or read it through qd.stop_grad",
    )


def _detours(call: Call, constant: bool) -> Detours:
    """Ways of a launch past arrays without gradients; of a constant one: from all that it reads to all it writes."""
    program = call.executable.program
    if not constant:
        return Detours(*call.executable.detours)
    reals = [isinstance(p.type, ArrayType) and p.type.dtype.is_real and p.path in call.sources for p in program.params]
    parts: list[Part] = [(p.path, None, 0) for p in program.params]
    written = [parts[k] for k in program.writes if reals[k]]
    return Detours(passed=tuple((parts[k], target) for k in program.reads if reals[k] for target in written))


# -- what a launch touches --------------------------------------------------------------------------------------------
def touched_by(call: Call) -> Touched:
    """Boxes that a launch touches: the same for the same shapes and the scalars that matter."""
    executable = call.executable
    scalars = tuple(call.scalars.get(path) for path in executable.shaping)
    key = scalars, tuple(source.shape for source in call.sources.values())
    known = executable.hulls.get(key)
    if known is None:
        if len(executable.hulls) >= REMEMBERED:
            executable.hulls.clear()
        known = executable.hulls[key] = _touched(call)
    return known


REMEMBERED = 4096
"""Combinations of shapes and scalars whose boxes an executable keeps."""


def _touched(call: Call) -> Touched:
    executable, sources = call.executable, call.sources
    leaves = {leaf.path: leaf for leaf in executable.table.arrays}

    def shape_of(path: str) -> tuple[int, ...]:
        supplied = executable.supplied.get(path)
        if supplied is not None:
            return supplied.shape
        # A gradient that is not allocated yet has its array's shape.
        source = sources[path] if path in sources else sources[path.rpartition(".")[0]]
        return source.shape[: leaves[path].type.ndim]

    extents = executable.table.evaluate_extents(call.scalars, shape_of)
    return touched(executable.program, extents, lambda path: call.scalars.get(path), shape_of)
