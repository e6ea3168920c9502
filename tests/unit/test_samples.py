"""Sample operands reach the edges and are the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.ops import OPS, OpDef
from qd_core.testing.samples import cases, domain_samples, edges, operand_types, samples


def test_every_elementwise_row_has_cases() -> None:
    assert {op.name for op, _ in cases()} == {op.name for op in OPS.values() if op.numpy is not None}


@pytest.mark.parametrize("kind", [d for d in dt.ALL if d.is_real], ids=repr)
def test_real_edges(kind: DType) -> None:
    e, info = edges(kind), np.finfo(kind.numpy)
    assert np.isnan(e).any()
    for wanted in (0.0, 1.0, -1.0, np.inf, -np.inf, info.max, info.min, info.smallest_normal, info.smallest_subnormal):
        assert wanted in e.tolist()
    assert np.signbit(e[e == 0]).tolist() == [False, True]


@pytest.mark.parametrize("kind", [d for d in dt.ALL if not d.is_real and d is not dt.u1], ids=repr)
def test_integer_edges(kind: DType) -> None:
    wanted = {0, 1, int(kind.min), int(kind.max), kind.bits - 1, kind.bits} | ({-1} if kind.is_signed else set())
    assert wanted <= set(edges(kind).tolist())


def test_divisions_meet_zero_and_overflow() -> None:
    a, b = samples(OPS["raw_div"], dt.i32)
    assert ((a == -(2**31)) & (b == -1)).any()
    assert ((a != 0) & (b == 0)).any()


@pytest.mark.parametrize(("op", "kind"), cases(), ids=lambda v: v.name)
def test_shapes_types_and_domains(op: OpDef, kind: DType) -> None:
    kinds = operand_types(op, kind)
    for columns in (samples(op, kind), domain_samples(op, kind, 20)):
        assert [c.dtype for c in columns] == [k.numpy for k in kinds]
        assert len({c.shape for c in columns}) == 1
    low, high = op.domain
    for column, k in zip(domain_samples(op, kind), kinds, strict=True):
        assert not k.is_real or ((column >= np.float16(low) - 1e-2) & (column <= np.float16(high) + 1e-1)).all()


def test_the_same_arguments_give_the_same_operands() -> None:
    first, again, other = (samples(OPS["add"], dt.f32, seed=s) for s in (0, 0, 1))
    assert first[0].tobytes() == again[0].tobytes()
    assert first[0].tobytes() != other[0].tobytes()
