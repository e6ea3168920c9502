"""The gradient check itself: it agrees on right derivatives and notices wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from autodiff_kernels import E, Kernel, run

from qd_core import dtypes as dt
from qd_core.autodiff import rules
from qd_core.autodiff.check import compare, in_double
from qd_core.autodiff.rules import Linear
from qd_core.ir.nodes import Function
from qd_core.ir.verify import verify


def kernel(real: str) -> Function:
    k = Kernel(x=f"{real}[1]", c=f"{real}[1]", out=f"{real}[1]", n="i32", s=real)
    kind = dt.by_name(real)

    def body(i: E) -> None:
        first = k.x[i] * k.cast(k.cast(k.s, dt.f16), kind)
        v = k.loop(0, k.n, [first], lambda t, v: [k.if_(v > 0.0, lambda: [k.sin(v) * k.c[i]], lambda: [v + k.x[i]])])
        k.out[i] = v - k.x[i]

    k.parallel(k.extent(k.x), body=body)
    return k.done()


VALUES = {"x": np.array([0.3, -0.2, 1.5]), "c": np.array([1.0, 2.0, 0.5]), "out": np.zeros(3), "n": 3, "s": 0.75}


@pytest.mark.parametrize("real", ["f32", "f64"])
def test_right_derivatives_agree(real: str) -> None:
    kind = dt.by_name(real).numpy
    values = {k: v.astype(kind) if isinstance(v, np.ndarray) else v for k, v in VALUES.items()}
    kept = {k: np.copy(v) for k, v in values.items()}
    found = compare(kernel(real), values, run)
    assert found.within()
    assert len(found.directions) == 2
    assert all(d.scale > 0.1 for d in found.directions)
    for name, value in values.items():
        np.testing.assert_array_equal(value, kept[name])


def test_constants_are_left_out() -> None:
    found = compare(kernel("f64"), VALUES, run, without=["c"])
    assert found.within()
    assert found.directions != compare(kernel("f64"), VALUES, run).directions


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, "sub", Linear((1, 1)))
    found = compare(kernel("f64"), VALUES, run)
    assert not found.within()
    assert found.transpose_error < 1e-10
    assert found.difference_error > 1e-3


def test_a_wrong_reverse_launch_is_noticed() -> None:
    def lossy(function: Function, values: Mapping[str, Any]) -> None:
        run(function, values)
        if function.name.endswith("_grad"):
            values["x.grad"][0] += 0.01

    assert not compare(kernel("f64"), VALUES, lossy).within()


def test_in_double_has_no_other_real_type() -> None:
    double = in_double(kernel("f32"))
    verify(double)
    stack = [double.body]
    while stack:
        for node in stack.pop().nodes:
            stack.extend(node.regions)
            kinds = [node.type, *(r.type for r in node.results), *(a.type for r in node.regions for a in r.args)]
            assert not any(kind in (dt.f16, dt.f32) for kind in kinds)
