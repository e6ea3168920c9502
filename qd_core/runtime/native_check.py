"""What the native launch entry must get right before it is trusted: run once, before the first native launch."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core import dtypes
from qd_core.runtime.native_layout import LayoutError, make_header, make_memory

if TYPE_CHECKING:
    from qd_core.runtime.native import LaunchPlan, Runtime, Variant

_KEY = 77


class Capture:
    """A kernel that records what it is launched with, for tests of the packers.

    Parameters
    ----------
    function
        `Runtime.capture`.
    words, extents
        How many of each the plan has.
    status
        What the kernel returns.
    """

    def __init__(self, function: int, words: int, extents: int, status: int = 0) -> None:
        self._words, self._extents = make_memory(max(words, 1)), make_memory(max(extents, 1))
        self._context = make_memory(6)
        self._context[:] = [words, ctypes.addressof(self._words), extents, ctypes.addressof(self._extents), status, 0]
        self._function = function

    def variant(self, *guards: str) -> Variant:
        """Return the variant that runs this kernel under `guards`."""
        from qd_core.runtime.native import Variant

        return Variant(self._function, ctypes.addressof(self._context), frozenset(guards), self)

    @property
    def words(self) -> list[int]:
        """Words of the last launch, unsigned."""
        return list(self._words[: self._context[0]])

    @property
    def extents(self) -> list[int]:
        """Extents of the last launch, signed."""
        return [int(np.uint64(e).astype(np.int64)) for e in self._extents[: self._context[2]]]

    @property
    def calls(self) -> int:
        """Launches so far."""
        return self._context[5]


class _Sample:
    """Stands for an array of ours."""

    __slots__ = ("__dict__", "__weakref__", "header")
    header: np.ndarray[Any, np.dtype[np.uint64]]

    def __init__(self, words: list[int]) -> None:
        self.header = make_header(len(words))
        self.header[:] = words


def self_test(runtime: Runtime) -> None:
    """Launch a recording kernel with every kind of argument, and with arguments that no plan takes.

    Raises
    ------
    LayoutError
        Something other than the expected words arrived, or a call was not refused.
    """
    from qd_core.runtime.native import NativeLauncher

    capture = Capture(runtime.capture, 13, 2)
    launcher = NativeLauncher(_refused, runtime=runtime)
    launcher.install(_plan(capture))
    array, host = _Sample([_KEY, 4096, 48, 0, 0, 3, 4, 4, 1]), np.ones((5, 2), np.int32)
    for release in (False, True):
        _expect(launcher.entry(-3, 1.5, array, host), None)
        _expect(capture.words, [0xFFFFFFFD, 0x3FC00000, 4096, 3, 4, 4, 1, host.ctypes.data, 5, 2, 2, 1, 99])
        _expect(capture.extents, [3, 0])
        if not release:
            launcher.clear()
            launcher.install(_plan(capture, release=0.0))
    wrong: list[tuple[Any, ...]] = [
        (2**31, 1.5, array, host),
        ("1", 1.5, array, host),
        (1, np.float32(1), array, host),
        (1, 1.5, _Sample([0, 4096, 48, 0, 0, 3, 4, 4, 1]), host),
        (1, 1.5, host, array),
        (1, 1.5, array, host.T),
        (1, 1.5, array, host.astype(np.float32)),
        (1, 1.5, array),
    ]
    for arguments in wrong:
        _expect(launcher.entry(*arguments), (arguments, {}))
    _expect(launcher.entry(1, x=2), ((1,), {"x": 2}))


def _plan(capture: Capture, release: float = float("inf")) -> LaunchPlan:
    from qd_core.runtime.native import HeaderArgument, LaunchPlan, NumpyArgument, ScalarArgument, WordExtent

    leaves = (
        ScalarArgument(0, 0, dtypes.i32, (int, bool)),
        ScalarArgument(1, 1, dtypes.f32, (float, int)),
        HeaderArgument(2, 2, _Sample, "header", _KEY, 2),
        NumpyArgument(3, 7, dtypes.i32, 2, written=True),
    )
    tasks = ((WordExtent(3), WordExtent(0, signed32=True)),)
    return LaunchPlan(4, leaves, [0] * 12 + [99], tasks, (capture.variant(),), release=release)


def _refused(*arguments: Any, **keywords: Any) -> Any:
    return arguments, keywords


def _expect(seen: object, wanted: object) -> None:
    if seen != wanted:
        raise LayoutError(f"the self-test of native launches saw {seen!r} instead of {wanted!r}")
