"""The gradient of every differentiable operation, a kernel for each dtype and arity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qd_core.errors import NotDifferentiableError
from qd_core.ir.nodes import Function
from qd_core.testing.compare import EXACT, expect, run
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import requires
from qd_core.testing.samples import domain_samples
from qd_core.testing.suite.elementwise import Group, groups, kernel, operands
from qd_core.testing.tolerance import assert_close

__all__ = ["test_gradients_of_operations"]

Array = np.ndarray[Any, Any]


def derivative(group: Group) -> Function | None:
    """Return the reverse kernel of a group's kernel; None where nothing in it has a gradient."""
    from qd_core.autodiff.reverse import reverse

    names = [f"x{n}" for n, kind in enumerate(group.kinds) if kind is group.dtype]
    try:
        result = reverse(kernel(group.dtype, group.kinds, group.ops), [*names, f"y_{group.dtype.name}"])
    except NotDifferentiableError:
        return None
    return result if any(p.path in {f"{name}.grad" for name in names} for p in result.params) else None


def differentiable(group: Group) -> Group:
    """Return the group with those of its operations that have a gradient."""
    return Group(
        group.dtype, group.kinds, [op for op in group.ops if derivative(Group(group.dtype, group.kinds, [op]))]
    )


REAL = [differentiable(g) for g in groups() if g.dtype.is_real]
GROUPS = [pytest.param(g, marks=requires(*g.needs()), id=str(g)) for g in REAL if g.ops]


def gradients(device: DeviceUnderTest, group: Group) -> dict[str, list[str]]:
    """Compare gradients with the reference; what is wrong by operation."""
    function = derivative(group)
    assert function is not None
    given = operands([(op, domain_samples(op, group.dtype)) for op in group.ops], group.kinds)
    shape, dtype = given["x0"].shape, group.dtype.numpy
    wanted = {p.path for p in function.params}
    arguments: dict[str, Any] = {**given, f"y_{group.dtype.name}": np.zeros(shape, dtype)}
    arguments |= {p: np.zeros(shape, dtype) for p in wanted if p.endswith(".grad")}
    arguments[f"y_{group.dtype.name}.grad"] = np.ones(shape, dtype)
    arguments = {p: v for p, v in arguments.items() if p in wanted}
    expected, actual = expect(function, arguments), run(device, function, arguments, options=EXACT)
    problems: dict[str, list[str]] = {op.name: [] for op in group.ops}
    for path in (p for p in actual if p.startswith("x") and p.endswith(".grad")):
        for row, op in enumerate(group.ops):
            try:
                rows = [
                    a[path][row] if path in a else None for a in (expected.run.arrays, expected.exact, expected.narrow)
                ]
                narrow = rows[2] if dtype == np.float64 else None
                what = f"gradient of {op.name} of {group.dtype.name} with respect to {path.removesuffix('.grad')}"
                assert_close(actual[path][row], rows[0], rows[1], narrow, together=True, what=what)
            except AssertionError as error:
                problems[op.name].append(str(error))
    return problems


@pytest.mark.parametrize("group", GROUPS)
def test_gradients_of_operations(device: DeviceUnderTest, group: Group) -> None:
    """Reverse mode where each operation is well conditioned."""
    wrong = [text for texts in gradients(device, group).values() for text in texts]
    assert not wrong, "\n".join(wrong)
