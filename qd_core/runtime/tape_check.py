"""`Tape(grad_check=...)`: the recorded launches run again from moved points, for central differences of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.errors import ArgumentValueError, GradientCheckError, LaunchError
from qd_core.runtime.context import Runtime
from qd_core.runtime.interop import ArraySource, Place, SavedContents

__all__ = ["TapeCheck"]

STEP = 1e-6
TOLERANCE = 1e-6


class TapeCheck:
    """What is needed to run a tape's launches again, and the comparison.

    Parameters
    ----------
    runtime : Runtime
        Where the launches run.
    arrays : sequence
        Fields or ndarrays of f64 whose gradients are checked.
    loss : callable
        Returns the loss as it is in memory.

    Raises
    ------
    ArgumentValueError
        An array is not of f64 or has no gradient: differences would be noise.
    """

    def __init__(self, runtime: Runtime, arrays: Sequence[Any], loss: Callable[[], float]) -> None:
        for array in arrays:
            if getattr(array, "dtype", None) is not dt.f64 or array.grad is None:
                raise ArgumentValueError(f"grad_check needs arrays of f64 with gradients, got {array!r}")
        self.runtime, self.arrays, self.loss = runtime, list(arrays), loss
        self.before = [array.grad.to_numpy() for array in arrays]
        self._launches: list[Callable[[], object]] = []
        self._first: dict[Place, tuple[ArraySource, SavedContents]] = {}

    def launched(self, again: Callable[[], object], writes: Sequence[ArraySource]) -> None:
        """Note a launch that is about to run: how to repeat it, and the arrays that it writes."""
        for source in writes:
            place = source.place(self.runtime)
            if place not in self._first:
                self._first[place] = source, source.save(self.runtime)
        self._launches.append(again)

    def refuse(self, what: str) -> None:
        """Refuse what cannot be repeated."""
        raise LaunchError(f"{what} under a Tape with grad_check", why="the check runs the recorded kernels again")

    def compare(self) -> None:
        """Compare gradients with differences along random directions; contents are put back afterwards.

        Raises
        ------
        GradientCheckError
            A gradient is off.
        """
        random = np.random.default_rng(0)
        final = [source.save(self.runtime) for source, _ in self._first.values()]
        moves = [random.normal(size=array.grad.to_numpy().shape) for array in self.arrays]
        slopes = [self._slope(array, move) for array, move in zip(self.arrays, moves, strict=True)]
        for put_back in final:
            put_back()
            put_back.drop()
        for array, move, slope in zip(self.arrays, moves, slopes, strict=True):
            terms = array.grad.to_numpy() * move
            error = abs(float(terms.sum()) - slope) / max(float(np.abs(terms).sum()), abs(slope), 1e-30)
            if not error <= TOLERANCE:
                raise GradientCheckError(
                    f"the gradient of {array!r} differs from central differences: along a random direction "
                    f"{float(terms.sum()):.9g} against {slope:.9g}"
                )

    def _slope(self, array: Any, move: Any) -> float:
        self._rewind()
        start = array.to_numpy()
        ends = [self._loss_at(array, start + sign * STEP * move) for sign in (1.0, -1.0)]
        self._rewind()
        array.from_numpy(start)
        return (ends[0] - ends[1]) / (2 * STEP)

    def _loss_at(self, array: Any, values: Any) -> float:
        self._rewind()
        array.from_numpy(values)
        for again in self._launches:
            again()
        # Gradients that were there at entry count: they are those of what the arrays hold at the end.
        ends = (float(np.sum(g * a.to_numpy())) for g, a in zip(self.before, self.arrays, strict=True) if g.any())
        return self.loss() + sum(ends)

    def _rewind(self) -> None:
        """Put back the contents from before the first write."""
        for _, put_back in self._first.values():
            put_back()

    def close(self) -> None:
        """Free what was saved."""
        for _, saved in self._first.values():
            saved.drop()
        self._first.clear()
