"""The argument table: extents that the kernel uses as i32 must fit it."""

from __future__ import annotations

import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import Access
from qd_core.errors import LaunchError
from qd_core.ir.nodes import ArrayType, Role
from qd_core.runtime.arguments import ArrayLeaf, check_extents


def leaf(axes: tuple[int, ...]) -> ArrayLeaf:
    return ArrayLeaf("state.pos", ArrayType(dt.f32, 2), Role.DATA, Access.READ, 0, 0, axes)


def test_an_extent_beyond_i32_is_refused_naming_array_and_axis() -> None:
    with pytest.raises(LaunchError, match=r"axis 1 of argument 'state.pos' has extent 2147483648"):
        check_extents(leaf((0, 1)), (3, 2**31))


def test_an_extent_that_nobody_uses_as_i32_may_be_larger() -> None:
    check_extents(leaf((0,)), (3, 2**31))
    check_extents(leaf((0, 1)), (3, 2**31 - 1))
