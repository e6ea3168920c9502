"""The argument table: one description of a kernel's packed words, from which both packers are made.

A launch's arguments are a flat array of 64-bit words. A scalar leaf is one word: the value's bits, zero-extended. An
array leaf
is address, one extent an axis, one stride an axis (in scalar elements): ``1 + 2 * ndim`` words; element axes are
static. Data, gradients, duals, results,
temporaries, residuals and the log are array leaves alike; their role only labels messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qd_core.backend.contract import Access, BufferRef, Device
from qd_core.dtypes import DType
from qd_core.errors import LaunchError
from qd_core.ir.hostexpr import evaluate_host
from qd_core.ir.nodes import ArrayType, Param, Role
from qd_core.ir.program import Extent, Fixed, HostExpr, Program
from qd_core.ir.rewrite import walk

__all__ = ["ArgumentTable", "ArrayLeaf", "ArrayView", "ScalarLeaf", "encode_scalar", "no_overlap"]

INT32_EXTENT = 2**31


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """A scalar parameter in word ``word``."""

    path: str
    dtype: DType
    word: int


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """An array parameter whose ``1 + 2 * ndim`` words start at ``word``.

    ``index`` is its position among array leaves (and in `Launch.uses`). ``i32_axes`` are the axes whose extent the
    kernel uses as an
    i32 value, so that it must stay below 2**31.
    """

    path: str
    type: ArrayType
    role: Role
    access: Access
    word: int
    index: int
    i32_axes: tuple[int, ...] = ()

    @property
    def words(self) -> int:
        """Number of words."""
        return 1 + 2 * self.type.ndim


@dataclass(frozen=True, slots=True)
class ArrayView:
    """What fills an array leaf: memory, extents, and strides in scalar elements."""

    ref: BufferRef
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArgumentTable:
    """Leaves and extents of one program.

    Attributes
    ----------
    leaves : tuple
        In parameter order.
    size : int
        Number of words.
    extents : tuple of Extent
        One an axis of each task, in task order.
    params : tuple of Param
        The program's parameters, matching ``leaves``.
    """

    leaves: tuple[ScalarLeaf | ArrayLeaf, ...]
    size: int
    extents: tuple[Extent, ...]
    params: tuple[Param, ...]

    @staticmethod
    def of(program: Program) -> ArgumentTable:
        """Build the table of ``program``."""
        leaves: list[ScalarLeaf | ArrayLeaf] = []
        word = arrays = 0
        axes = _i32_axes(program)
        for position, param in enumerate(program.params):
            if isinstance(param.type, ArrayType):
                access = Access(2 * (position in program.writes) + (position in program.reads))
                if param is program.log:  # messages write it without naming it
                    access = Access.READ_WRITE
                leaf = ArrayLeaf(
                    param.path, param.type, param.role, access, word, arrays, tuple(sorted(axes.get(param, ())))
                )
                arrays += 1
                word += leaf.words
            else:
                leaf = ScalarLeaf(param.path, param.type, word)
                word += 1
            leaves.append(leaf)
        extents = tuple(e for task in program.tasks for e in task.extents)
        return ArgumentTable(tuple(leaves), word, extents, program.params)

    @property
    def arrays(self) -> tuple[ArrayLeaf, ...]:
        """Array leaves, in order of their ``index``."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, ArrayLeaf))

    def pack(
        self, device: Device, pointers: str, scalars: Mapping[str, Any], arrays: Sequence[ArrayView]
    ) -> tuple[list[int], list[int]]:
        """Return (words, extents) for scalar values by path and one view an array leaf.

        Raises
        ------
        LaunchError
            An extent of 2**31 or more is used as an i32 value.
        """
        words: list[int] = []
        for leaf in self.leaves:
            if isinstance(leaf, ScalarLeaf):
                words.append(encode_scalar(leaf.dtype, scalars[leaf.path]))
                continue
            view = arrays[leaf.index]
            check_extents(leaf, view.shape)
            words.append(leaf.index if pointers == "ordinal" else int(device.address(view.ref)))
            words.extend(view.shape)
            words.extend(view.strides)
        shapes = {leaf.path: arrays[leaf.index].shape for leaf in self.arrays}
        return words, self.evaluate_extents(scalars, shapes.__getitem__)

    def evaluate_extents(self, scalars: Mapping[str, Any], shape_of: Callable[[str], tuple[int, ...]]) -> list[int]:
        """Iterations of every axis of every task, -1 where the device knows; ``shape_of`` gives extents by path."""
        result: list[int] = []
        for extent in self.extents:
            if isinstance(extent, Fixed):
                result.append(extent.count)
            elif isinstance(extent, HostExpr):
                value = evaluate_host(extent.body, lambda p: scalars[p.path], lambda p, axis: shape_of(p.path)[axis])
                result.append(max(value, 0))
            else:
                result.append(-1)
        return result


def check_extents(leaf: ArrayLeaf, shape: tuple[int, ...]) -> None:
    """Refuse an extent that the kernel would use as an i32 but does not fit."""
    for axis in leaf.i32_axes:
        if shape[axis] >= INT32_EXTENT:
            raise LaunchError(
                f"axis {axis} of argument {leaf.path!r} has extent {shape[axis]}, "
                "which does not fit the i32 that the kernel uses it as",
                hint="split the array, or pass the extent as a qd.i64 argument and loop over that",
            )


def encode_scalar(dtype: DType, value: Any) -> int:
    """Return the bits of ``value`` as ``dtype``, zero-extended to 64."""
    if dtype.is_real:
        return int.from_bytes(struct.pack({16: "<e", 32: "<f", 64: "<d"}[dtype.bits], value), "little")
    return int(value) & ((1 << max(dtype.bits, 8)) - 1)


def no_overlap(table: ArgumentTable, views: Sequence[ArrayView], addresses: Sequence[int]) -> bool:
    """Guard: no written array shares memory with another one. Addresses are one an array leaf, in leaf order."""
    spans = [
        (
            addresses[a.index],
            addresses[a.index] + views[a.index].ref.nbytes,
            a.access in (Access.WRITE, Access.READ_WRITE),
        )
        for a in table.arrays
    ]
    written = [s for s in spans if s[2]]
    return all(s is w or s[1] <= w[0] or w[1] <= s[0] for w in written for s in spans)


def _i32_axes(program: Program) -> dict[Param, set[int]]:
    axes: dict[Param, set[int]] = {}
    regions = [t.body for t in program.tasks]
    regions += [e.body for t in program.tasks for e in t.extents if isinstance(e, HostExpr)]
    for region in regions:
        for node in walk(region):
            if node.op.name == "extent":
                param = node.operands[0]
                assert isinstance(param, Param)
                axes.setdefault(param, set()).add(node.attrs["axis"])
    return axes
