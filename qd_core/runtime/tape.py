"""Recording launches and running their derivatives backwards.

The reverse kernel of a launch reads arrays as they were right after that launch. Before a later launch overwrites a
part that an earlier one's derivative needs
(both known as index boxes, `autodiff.hulls`), the tape saves the array; going backwards it puts the saved contents
back, and at the end
the final ones. With ``overwrite="error"`` it raises instead, naming both kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qd_core.autodiff.hulls import Box, Touched, merge, overlap, touched
from qd_core.errors import NotDifferentiableError
from qd_core.passes.draws import RANDOM
from qd_core.runtime.array import Ndarray
from qd_core.runtime.context import Runtime
from qd_core.runtime.interop import ArraySource, NdarraySource, Place, SavedContents
from qd_core.runtime.launch import Executable
from qd_core.runtime.tape_check import TapeCheck

__all__ = ["Call", "Recorder"]

SAVE, ERROR = "save", "error"


@dataclass(frozen=True, slots=True)
class Call:
    """A launch of one mode of a kernel: compiled code with its scalar and array leaves by path."""

    executable: Executable
    scalars: Mapping[str, Any]
    sources: Mapping[str, ArraySource]


@dataclass(slots=True)
class _Entry:
    """One recorded step: how to go backwards over it, and what to put back afterwards."""

    backward: Callable[[], None]
    restore: list[SavedContents] = field(default_factory=list["SavedContents"])

    def drop(self) -> None:
        """Free what was saved."""
        while self.restore:
            self.restore.pop().drop()


@dataclass(slots=True)
class _Need:
    """What derivatives recorded so far need of one array, by its place, and the kernels that need it."""

    boxes: tuple[Box, ...]
    kernels: dict[str, Executable]
    parts: set[Box] = field(default_factory=set["Box"])


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
        self._entries: list[_Entry] = []
        self._needs: dict[Place, _Need] = {}
        self._final: dict[Place, ArraySource] = {}
        self._replaying = False
        self.check: TapeCheck | None = None
        self._known: dict[object, Touched] = {}

    # -- recording ------------------------------------------------------------------------------------------------
    def launch(self, call: Call, reverse: Call | None, backward: Callable[[], None]) -> Any:
        """Run ``call``, having saved what its writes would destroy; ``reverse`` (None: constant) is its derivative."""
        if self._replaying:
            return call.executable.launch(call.scalars, call.sources)
        entry = _Entry(backward)
        writes = self._touched(call).writes
        for path, boxes in writes.items():
            if path in call.sources:
                self._protect(call.sources[path], boxes, entry, call.executable)
        if self.check is not None:
            again = functools.partial(call.executable.launch, call.scalars, call.sources)
            self.check.launched(again, [call.sources[path] for path in writes if path in call.sources])
        result = call.executable.launch(call.scalars, call.sources)
        self._entries.append(entry)
        if reverse is not None:
            self._remember(reverse, call)
        return result

    def step(self, backward: Callable[[], None]) -> None:
        """Record a step that is no launch: a replaced Python function."""
        if not self._replaying:
            if self.check is not None:
                self.check.refuse("a function is replaced")
            self._entries.append(_Entry(backward))

    def host_write(
        self, array: Ndarray, index: tuple[int, ...] | None, clear: Callable[[], None] | None = None
    ) -> None:
        """Record that the host overwrites an array or one element: what was there has no derivative any more.

        ``clear`` sets the gradient there to 0 where that is not all of the element.
        """
        if self._replaying:
            return
        if self.check is not None:
            self.check.refuse("the host writes an array")

        def backward() -> None:
            if clear is not None:
                clear()
                return
            if array.grad is None:
                return
            if index is None:
                array.grad.fill(0)
            else:
                array.grad[index] = np.zeros(array.element_shape)[()]

        entry = _Entry(backward)
        self._protect(NdarraySource(array), None if index is None else [tuple((i, i) for i in index)], entry, None)
        self._entries.append(entry)

    def _remember(self, reverse: Call, call: Call) -> None:
        for path, boxes in self._touched(reverse).reads.items():
            if path not in call.sources or path.endswith((".grad", ".dual")):
                continue
            place = call.sources[path].place(self.runtime)
            need = self._needs.get(place)
            if need is None:
                self._needs[place] = _Need(boxes, {call.executable.program.name: call.executable})
            elif not need.parts.issuperset(boxes):
                need.parts.update(boxes)
                need.boxes = merge((*need.boxes, *boxes))
                need.kernels.setdefault(call.executable.program.name, call.executable)

    def _touched(self, call: Call) -> Touched:
        """Boxes that a launch touches; the same for the same scalars and shapes."""
        scalars = tuple(v for p, v in call.scalars.items() if p != RANDOM)
        key = call.executable, scalars, tuple(s.shape for s in call.sources.values())
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _touched(call)
        return known

    def _protect(
        self, source: ArraySource, boxes: Sequence[Box] | None, entry: _Entry, writer: Executable | None
    ) -> None:
        """Save every needed array that a write to ``boxes`` (None: all) of ``source`` would change."""
        place = source.place(self.runtime)
        for other, need in self._needs.items():
            if not _share(place, other):
                continue
            if other == place and boxes is not None and not overlap(need.boxes, boxes):
                continue
            if self.overwrite == ERROR:
                raise self._conflict(need, writer)
            entry.restore.append(source.save(self.runtime))
            self._final.setdefault(place, source)
            return

    def _conflict(self, need: _Need, writer: Executable | None) -> NotDifferentiableError:
        name, reader = next(iter(need.kernels.items()))
        by = f"kernel {writer.program.name!r}" if writer is not None else "the host"
        return NotDifferentiableError(
            f"{by} overwrites values that the derivative of kernel {name!r} needs",
            span=writer.span if writer is not None else None,
            why="the derivative of a launch reads its arrays again, after the whole forward pass",
            hint='use Tape(overwrite="save"), or write to another array',
            callers=() if reader.span is None else (reader.span,),
        )

    def compare(self) -> None:
        """Check the gradients, if that was asked for."""
        if self.check is not None:
            self.check.compare()

    def close(self) -> None:
        """Free what was saved and not used."""
        for entry in self._entries:
            entry.drop()
        if self.check is not None:
            self.check.close()

    # -- going backwards ------------------------------------------------------------------------------------------
    def backward(self) -> None:
        """Run the derivatives in reverse order, with arrays as each launch left them; final contents are put back."""
        self._replaying = True
        final = [source.save(self.runtime) for source in self._final.values()]
        try:
            for entry in reversed(self._entries):
                entry.backward()
                for restore in entry.restore:
                    restore()
                entry.drop()
        finally:
            for restore in final:
                restore()
                restore.drop()
            self._replaying = False


def _share(a: Place, b: Place) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


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
