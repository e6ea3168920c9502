"""Recording launches that the native entry can do, without binding their arguments again.

A *site* is one kernel with the same arrays. It has what `tape.Recorder.launch` finds out anew each time: which memory
the arrays are, what a launch touches for the scalars at hand, and native entries of the kernel and its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qd_core.runtime.native_spec import MISS, NumpyArgument, ScalarArgument
from qd_core.runtime.tape import Call, Recorder, touched_by
from qd_core.runtime.tape_needs import Boxes, Cell, rows

if TYPE_CHECKING:
    from qd_core.runtime.interop import ArraySource, SavedContents
    from qd_core.runtime.launch import Executable

__all__ = ["Derivative", "FixedReverse", "Site", "nothing", "remember"]

_ARRAYS = (".grad", ".dual")


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
        self._scalars = scalars_of(executable)

    def __call__(self, *leaves: Any) -> None:
        """Launch."""
        if self._native(*leaves) is MISS:
            given = {path: leaves[k] for k, path in self._scalars.items()}
            Call(self._call.executable, {**self._call.scalars, **given}, self._call.sources).launch()


def scalars_of(executable: Executable) -> dict[int, str]:
    """Path of each scalar that the native plan takes, by its position among the leaf values."""
    paths = {leaf.word: leaf.path for leaf in executable.table.leaves}
    return {a.position: paths[a.word] for a in executable.plan.plan.leaves if isinstance(a, ScalarArgument)}


def nothing(*_: Any) -> None:
    """Go backwards over a launch that has no derivative."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a launch writes, and what its derivative needs, for certain scalars; rows are along the first axis."""

    writes: tuple[tuple[Cell, int, int, Boxes, ArraySource], ...]
    needs: tuple[tuple[Cell, Boxes], ...]


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
    shaping : tuple of int
        Positions of the leaf values that matter to what is touched.
    scalars : dict of int to str
        Path of each scalar leaf value by position.
    leaves : tuple
        Leaf values of a launch: the arrays by which a site is found must live as long as it does.
    lost : int
        `Recorder.lost` when this was last compared with it.
    """

    recorder: Recorder
    call: Call
    reverse: Call | None
    native: Callable[..., Any]
    derivative: Derivative | None
    shaping: tuple[int, ...]
    scalars: dict[int, str]
    leaves: tuple[Any, ...]
    lost: int
    plans: int = field(init=False)
    effects: dict[Any, Effect] = field(default_factory=dict[Any, "Effect"])

    def __post_init__(self) -> None:
        self.plans = self.recorder.runtime.plans

    def launch(self, leaves: Sequence[Any], args: Sequence[Any]) -> Any:
        """Launch and record; `MISS` where that needs a closer look, and then nothing has happened."""
        recorder = self.recorder
        if self.lost != recorder.lost:
            recorder.follow(self.call, self.reverse)
            self.lost = recorder.lost
        key = tuple([leaves[k] for k in self.shaping])
        effect = self.effects.get(key)
        if effect is None:
            effect = self.effects[key] = self.effect(leaves)
        restore: list[SavedContents] = []
        for cell, low, high, boxes, source in effect.writes:
            if (low <= cell.high and high >= cell.low) or cell.others:
                recorder.protect(cell, source, boxes, restore, self.call.executable)
        derivative = self.derivative
        values = () if derivative is None else args if derivative.bind is None else derivative.bind(args)
        result = self.native(*leaves) if values is not MISS else MISS
        if result is MISS:
            for saved in restore:
                saved.drop()
            return MISS
        for cell, boxes in effect.needs:
            if boxes not in cell.seen:
                cell.need(boxes, self.call.executable)
        recorder.steps.append((nothing if derivative is None else derivative.run, values, restore))
        return result

    def effect(self, leaves: Sequence[Any]) -> Effect:
        """What a launch with these leaf values touches."""
        scalars = {path: leaves[k] for k, path in self.scalars.items()}
        call = Call(self.call.executable, {**self.call.scalars, **scalars}, self.call.sources)
        recorder = self.recorder
        writes = tuple(
            (recorder.cell(call, path), *rows(boxes), boxes, call.sources[path])
            for path, boxes in touched_by(call).writes.items()
            if path in call.sources
        )
        if self.reverse is None:
            return Effect(writes, ())
        reverse = Call(self.reverse.executable, {**self.reverse.scalars, **scalars}, self.reverse.sources)
        needs = tuple(
            (recorder.cell(call, path), boxes)
            for path, boxes in touched_by(reverse).reads.items()
            if path in call.sources and not path.endswith(_ARRAYS)
        )
        return Effect(writes, needs)


def remember(
    recorder: Recorder, leaves: Sequence[Any], call: Call, reverse: Call | None, derivative: Derivative | None
) -> None:
    """Make the site of a launch that was just recorded, where the native entry can do it.

    ``leaves`` are what the entry would get; ``derivative`` goes with ``reverse``.
    """
    plan = call.executable.plan
    if not plan or recorder.check is not None or call.executable.draws is not None:
        return
    given = scalars_of(call.executable)
    wanted = {*call.executable.shaping, *(reverse.executable.shaping if reverse is not None else ())}
    host = any(isinstance(a, NumpyArgument) for a in plan.plan.leaves)
    if host or not wanted.issubset(given.values()):
        return
    shaping = tuple(k for k, path in given.items() if path in wanted)
    launcher = plan.launcher
    site = Site(recorder, call, reverse, launcher.direct, derivative, shaping, given, tuple(leaves), recorder.lost)
    recorder.sites[(id(launcher), *[id(leaves[k]) for k in launcher.arrays])] = site
