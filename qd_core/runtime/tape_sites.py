"""Recording launches that the native entry can do, without binding their arguments again.

A *site* is one kernel with the same arrays. It has what `tape.Recorder.launch` finds out anew each time: which memory
the arrays are, what a launch touches for the scalars at hand, and native entries of the kernel and its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd_core.runtime.native_spec import MISS, NumpyArgument, ScalarArgument, pick
from qd_core.runtime.tape import SHADOWS, Call, Recorder, nothing, touched_by
from qd_core.runtime.tape_needs import Boxes, Cell, rows

if TYPE_CHECKING:
    from qd_core.runtime.interop import ArraySource, SavedContents
    from qd_core.runtime.launch import Executable

__all__ = ["Derivative", "FixedReverse", "Site", "remember"]


@dataclass(frozen=True, slots=True)
class Derivative:
    """How the reverse launch of a recorded launch is made.

    Attributes
    ----------
    run : callable
        Launches it.
    bind : callable or None
        From a call's arguments to those of ``run``, when the call is recorded: what members hold may change until
        then; `MISS` where ``run`` cannot. None: ``run`` takes the call's arguments.
    """

    run: Callable[..., Any]
    bind: Callable[[Sequence[Any]], Any] | None = None


class FixedReverse:
    """Reverse launches of one site, from leaf values.

    Parameters
    ----------
    executable : Executable
        The derivative, with a native plan.
    scalars, sources : mapping
        Leaves of one launch by path.
    """

    def __init__(self, executable: Executable, scalars: Mapping[str, Any], sources: Mapping[str, ArraySource]) -> None:
        self._call = Call(executable, scalars, sources)
        self._native = executable.plan.launcher.direct
        self._scalars = _scalars_of(executable)

    def __call__(self, *leaves: Any) -> None:
        """Launch."""
        if self._native(*leaves) is MISS:
            given = {path: leaves[k] for k, path in self._scalars.items()}
            Call(self._call.executable, {**self._call.scalars, **given}, self._call.sources).launch()


def _undone(restore: list[SavedContents] | None) -> Any:
    """Drop what was saved for a launch that did not happen."""
    for saved in restore or ():
        saved.drop()
    return MISS


@dataclass(slots=True, eq=False)
class Effect:
    """What a launch touches for certain scalars and shapes: paths, first and last row, boxes."""

    writes: tuple[tuple[str, int, int, Boxes], ...]
    needs: tuple[tuple[str, int, int, Boxes], ...]


@dataclass(slots=True, eq=False)
class Site:
    """A kernel with the same arrays, under one tape.

    Attributes
    ----------
    call, reverse : Call
        A launch of the kernel and of its derivative (None: there is none), with arrays for all and scalars of one.
    native : callable
        Launches the kernel with leaf values; `MISS` when it cannot.
    derivative : Derivative or None
        Goes with ``reverse``.
    shaping : callable
        From leaf values to those that matter to what is touched.
    scalars : dict of int to str
        Path of each scalar leaf value by position.
    leaves : tuple
        Leaf values of a launch: the arrays by which a site is found must live as long as it does.
    effects : dict
        `Effect` by what ``shaping`` gives; kept by the executable for all sites of these shapes.
    lost : int
        `Recorder.lost` when this was last compared with it.
    """

    recorder: Recorder
    call: Call
    reverse: Call | None
    native: Callable[..., Any]
    derivative: Derivative | None
    shaping: Callable[[Sequence[Any]], Any]
    scalars: dict[int, str]
    leaves: tuple[Any, ...]
    effects: dict[Any, Effect]
    lost: int = field(init=False)
    plans: int = field(init=False)
    cells: dict[str, Cell] = field(init=False)
    noted: set[Effect] = field(default_factory=set[Effect])

    def __post_init__(self) -> None:
        self.lost, self.plans = self.recorder.lost, self.recorder.runtime.plans
        self.cells = {path: self.recorder.cell(self.call, path) for path in self.call.sources}

    def launch(self, leaves: Sequence[Any], args: Sequence[Any]) -> Any:
        """Launch and record; `MISS` where that needs a closer look, and then nothing has happened."""
        recorder, cells, derivative = self.recorder, self.cells, self.derivative
        if self.lost != recorder.lost:
            recorder.follow(self.call, self.reverse)
            self.lost = recorder.lost
        key = self.shaping(leaves)
        effect = self.effects.get(key)
        if effect is None:
            effect = self.effects[key] = self.effect(leaves)
        restore: list[SavedContents] | None = None
        for path, low, high, boxes in effect.writes:
            cell = cells[path]
            if (low <= cell.high and high >= cell.low) or cell.others:
                restore = recorder.protect(cell, self.call.sources[path], boxes, restore, self.call.executable)
        values = args if derivative is None or derivative.bind is None else derivative.bind(args)
        result = self.native(*leaves) if values is not MISS else MISS
        if result is MISS:
            return _undone(restore)
        if effect not in self.noted:
            self.note(effect)
        recorder.steps.append((nothing if derivative is None else derivative.run, values, restore))
        return result

    def note(self, effect: Effect) -> None:
        """Note what the derivative of a launch needs."""
        self.noted.add(effect)
        for path, low, high, boxes in effect.needs:
            self.cells[path].need(boxes, self.call.executable, low, high)

    def effect(self, leaves: Sequence[Any]) -> Effect:
        """What a launch with these leaf values touches."""
        if len(self.effects) >= REMEMBERED:
            self.effects.clear()
        scalars = {path: leaves[k] for k, path in self.scalars.items()}
        call = Call(self.call.executable, {**self.call.scalars, **scalars}, self.call.sources)
        writes = touched_by(call).writes.items()
        needs: Mapping[str, Boxes] = {}
        if self.reverse is not None:
            reverse = Call(self.reverse.executable, {**self.reverse.scalars, **scalars}, self.reverse.sources)
            needs = touched_by(reverse).reads
        return Effect(
            tuple((path, *rows(boxes), boxes) for path, boxes in writes if path in call.sources),
            tuple(
                (path, *rows(boxes), boxes)
                for path, boxes in needs.items()
                if path in call.sources and not path.endswith(SHADOWS)
            ),
        )


REMEMBERED = 4096
"""Combinations of scalars whose effects are kept."""


def remember(
    recorder: Recorder, leaves: Sequence[Any], call: Call, reverse: Call | None, derivative: Derivative | None
) -> None:
    """Make the site of a launch that was just recorded, where the native entry can do it.

    ``leaves`` are what the entry would get; ``derivative`` goes with ``reverse``.
    """
    executable, plan = call.executable, call.executable.plan
    if not plan or leaves is MISS or recorder.check is not None or executable.draws is not None:
        return
    given = _scalars_of(executable)
    wanted = {*executable.shaping, *(reverse.executable.shaping if reverse is not None else ())}
    host = any(isinstance(a, NumpyArgument) for a in plan.plan.leaves)
    if host or not wanted.issubset(given.values()):
        return
    shaping = pick(k for k, path in given.items() if path in wanted)
    shapes = tuple(source.shape for source in call.sources.values())
    effects = executable.hulls.setdefault((reverse.executable if reverse is not None else None, shapes), {})
    launcher = plan.launcher
    site = Site(recorder, call, reverse, launcher.direct, derivative, shaping, given, tuple(leaves), effects)
    recorder.sites.setdefault(launcher, {})[launcher.arrays_of(leaves)] = site


def _scalars_of(executable: Executable) -> dict[int, str]:
    """Path of each scalar that the native plan takes, by its position among the leaf values."""
    paths = {leaf.word: leaf.path for leaf in executable.table.leaves}
    return {a.position: paths[a.word] for a in executable.plan.plan.leaves if isinstance(a, ScalarArgument)}
