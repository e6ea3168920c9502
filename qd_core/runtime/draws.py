"""Keys of random streams: every launch of a kernel has its own, and a derivative that of the launch it belongs to."""

from __future__ import annotations

import numpy as np

from qd_core.runtime.context import Runtime

__all__ = ["Draws"]

_MASK = 2**64 - 1


class Draws:
    """The keys of one kernel's launches: consecutive numbers from one that seed and kernel choose.

    Parameters
    ----------
    runtime : Runtime
        Its `random_seed`, and how many of its kernels drew before, choose where the keys start.

    Attributes
    ----------
    address : int
        Host address of the next launch's key, a u64: native launches count there too.
    """

    def __init__(self, runtime: Runtime) -> None:
        start = _mixed((_mixed(runtime.options.random_seed & _MASK) + next(runtime.drawing)) & _MASK)
        self._next = np.array([start], np.uint64)
        self.address = self._next.ctypes.data

    def advance(self) -> int:
        """Return the key of a new launch."""
        key = int(self._next[0])
        self._next[0] = (key + 1) & _MASK
        return key

    @property
    def last(self) -> int:
        """Key of the latest launch."""
        return (int(self._next[0]) - 1) & _MASK


def _mixed(x: int) -> int:
    """Output function of SplitMix64: a bijection of 64-bit words (Steele, Lea, Flood, OOPSLA 2014, figure 17)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31
