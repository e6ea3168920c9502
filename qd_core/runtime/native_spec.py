"""What a native launch does, as data: which arguments fill which words, which code runs, what happens afterwards."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qd_core.dtypes import DType
from qd_core.runtime import native_tables as tables

RELEASE_SECONDS = 20e-6
"""A launch that is expected to take this long lets other Python threads run."""

SECONDS_PER_ITERATION = 2e-9
"""Assumed cost of one iteration where nothing better is known."""


NEVER = float("inf")


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


MISS: Any = _Miss()
"""What a native entry without a slow path returns where no plan fits."""


def miss(*_: Any) -> Any:
    """Stand for the slow path of such an entry."""
    return MISS


def pick(positions: Iterable[int]) -> Callable[[Sequence[Any]], Any]:
    """Return the function from values to those at ``positions``: a hashable thing that tells them apart."""
    chosen = tuple(positions)
    return operator.itemgetter(*chosen) if chosen else _nothing


def _nothing(_: Sequence[Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A scalar: argument `position` fills word `word` with its bits as `dtype`, zero-extended.

    `accepts` are the exact Python types taken here; anything else goes to the slow path, and so does an integer out of
    range.
    """

    position: int
    word: int
    dtype: DType
    accepts: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class HeaderArgument:
    """An array of ours: fills `1 + 2 * ndim` words from `word` on from the header that its member `slot` holds.

    Parameters
    ----------
    cls
        Exact type of the object.
    slot
        Name of the `__slots__` member of `cls` that holds the header, a contiguous NumPy array of u64
        (`native_tables.HEADER_*`).
    key
        What the header's first word must be; never 0.
    hop
        `""` for the array itself, `"grad"` or `"dual"` for the array whose header its header names.
    written
        Whether the kernel writes it.
    """

    position: int
    word: int
    cls: type
    slot: str
    key: int
    ndim: int
    hop: str = ""
    written: bool = False


@dataclass(frozen=True, slots=True)
class NumpyArgument:
    """A C-contiguous, aligned `numpy.ndarray` of exactly `dtype`; it must be writeable where the kernel writes it.

    Strides are computed from the extents. `ndim` counts run-time axes, `element_shape` the static axes behind them.
    """

    position: int
    word: int
    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    written: bool = False


@dataclass(frozen=True, slots=True)
class FixedArray:
    """An array that is the same at every launch: its words are in the plan already, and it takes part in the guards.

    Parameters
    ----------
    position
        Any argument's; it is not looked at.
    address, nbytes
        Its memory.
    """

    position: int
    word: int
    address: int
    nbytes: int
    ndim: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class LaunchCounter:
    """Word `word` gets the number at host address `address`: with `step` 1 a new one, with 0 that of the latest launch.

    The number at `address` is the next launch's; a launch adds `step` to it.
    """

    word: int
    address: int
    step: int


Argument = ScalarArgument | HeaderArgument | NumpyArgument | FixedArray


@dataclass(frozen=True, slots=True)
class WordExtent:
    """An extent that a packed word holds, plus `offset`; negative means 0.

    The word is a signed 64-bit number, or with `signed32` an i32 scalar.
    """

    word: int
    signed32: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Formula:
    """An extent computed by a small stack machine over 64-bit integers; negative means 0.

    `steps` are (operation, number) pairs; the number is 0 where it means nothing:
    `word` pushes packed word n, `constant` pushes n, `signed` and `unsigned` keep the low n bits of the top, extended;
    `add`, `sub`, `mul`, `min`, `max` and `floordiv` (by zero: 0) replace the two topmost by their signed result.
    """

    steps: tuple[tuple[str, int], ...]

    def depth(self) -> int:
        """Return the number of stack entries needed.

        Raises
        ------
        ValueError
            The steps do not leave exactly one value, or an operation is unknown.
        """
        depth = deepest = 0
        for name, number in self.steps:
            if name not in tables.FORMULA_STEPS:
                raise ValueError(f"a formula knows no operation {name!r}")
            if name in ("signed", "unsigned") and not 1 <= number <= 64:
                raise ValueError(f"a formula cannot keep {number} bits")
            needed = 0 if name in ("word", "constant") else 1 if name in ("signed", "unsigned") else 2
            if depth < needed:
                raise ValueError(f"a formula lacks operands for {name!r}")
            depth += {0: 1, 1: 0, 2: -1}[needed]
            deepest = max(deepest, depth)
        if depth != 1:
            raise ValueError(f"a formula leaves {depth} values")
        return deepest


Axis = int | WordExtent | Formula
"""An iteration count that is fixed (-1: the device knows), that a word holds, or that words give."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Code that may run when all of `guards` hold (`no_overlap`): C function, context, and what keeps both alive."""

    function: int
    context: int
    guards: frozenset[str] = frozenset()
    owner: object = None


@dataclass(frozen=True, slots=True)
class ResultWord:
    """A scalar result of `dtype` at host address `address`, which the function's return makes valid."""

    dtype: DType
    address: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to launch one kernel with one combination of argument types.

    Parameters
    ----------
    arguments
        Number of positional arguments.
    leaves
        What each argument must be and which words it fills; an argument may fill several leaves (its gradient).
    words
        All words, with those that no argument fills (results, temporaries, the log) final.
    tasks
        For each task its axes, in order; serial tasks have none.
    variants
        Tried in order; the last must have no guards, unless the plan is partial.
    partial
        Launches that no variant is right for go through Python.
    extents_function
        Address of `i64 f(i64 *words, i64 *extents)`, for extents that `tasks` cannot say: fills all of them and returns
        the work. `tasks` then only says how many there are.
    release
        Work (iterations, summed over tasks) from which on the GIL is released during the call.
    log
        Addresses of words that are 0 after a launch without prints or failed checks.
    counter
        A word that tells launches apart.
    after
        Called when one of `log` is not 0, or the function returned a status other than 0 (`NativeLauncher.status`); its
        result is the launch's.
    result, finish
        A scalar to decode, or a function that returns the launch's result; None for neither.
    owners
        What must stay alive as long as the plan.
    """

    arguments: int
    leaves: tuple[Argument, ...]
    words: Sequence[int]
    tasks: tuple[tuple[Axis, ...], ...]
    variants: tuple[Variant, ...]
    partial: bool = False
    extents_function: int = 0
    release: float = RELEASE_SECONDS / SECONDS_PER_ITERATION
    stream: int = 0
    log: tuple[int, ...] = ()
    counter: LaunchCounter | None = None
    after: Callable[[], Any] | None = None
    result: ResultWord | None = None
    finish: Callable[[], Any] | None = None
    owners: tuple[object, ...] = field(default=(), compare=False)
