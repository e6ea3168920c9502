"""Slices of vectors and matrices, as values, places and elements of fields; structs made in kernels."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

M = qd.types.matrix(3, 4, qd.f32)


@qd.kernel
def cut(field: qd.template(), i: int) -> (qd.types.matrix(2, 2, qd.f32), qd.types.vector(3, qd.f32), float):
    m = field[0]
    v = qd.Vector([1.0, 2.0, 3.0, 4.0])
    v[0:2] = v[2:]
    v[::3] += 10
    m[:, 1] = v[:3]
    m[i, 1:3] *= 2
    field[1] = m
    field[2][0, :] = 7
    field[2][1:, ::2] += 1
    field[2][:, 3] -= field[0][:, i]
    return m[0:2, 2:4], field[0][:, i], m[1, 0:2].sum() + v[1:3].norm_sqr()


def test_slices_are_those_of_numpy(device):
    field = qd.Matrix.field(3, 4, qd.f32, shape=3)
    a = np.arange(36, dtype=np.float32).reshape(3, 3, 4)
    field.from_numpy(a)
    got = cut(field, 2)
    m, v = a[0].copy(), np.array([1, 2, 3, 4], np.float32)
    v[0:2] = v[2:].copy()
    v[::3] += 10
    m[:, 1] = v[:3]
    m[2, 1:3] *= 2
    a[1] = m
    a[2][0, :] = 7
    a[2][1:, ::2] += 1
    a[2][:, 3] -= a[0][:, 2]
    np.testing.assert_array_equal(got[0].to_numpy(), m[0:2, 2:4])
    np.testing.assert_array_equal(got[1].to_numpy(), a[0][:, 2])
    assert got[2] == m[1, 0:2].sum() + (v[1:3] ** 2).sum()
    np.testing.assert_array_equal(field.to_numpy(), a)


def test_what_cannot_be_cut_is_refused_at_the_line(device):
    x = qd.field(qd.f32, shape=8)

    @qd.kernel
    def at_run_time(i: int) -> float:
        return qd.Vector([1.0, 2.0, 3.0])[0:i].sum()

    @qd.kernel
    def nothing(i: int) -> float:
        return qd.Vector([1.0, 2.0, 3.0])[2:1].sum()

    @qd.kernel
    def an_array(i: int) -> float:
        return x[0:2].sum()

    for kernel, error, text in (
        (at_run_time, qd.QuadrantsTypeError, "bounds of a slice are only known at run time"),
        (nothing, qd.QuadrantsIndexError, "selects nothing"),
        (an_array, qd.QuadrantsSyntaxError, "slices are not supported"),
    ):
        with pytest.raises(error, match=text) as caught:
            kernel(1)
        assert "^" in str(caught.value)


def test_structs_made_in_kernels(device):
    @qd.kernel
    def make(a: int) -> float:
        s = qd.Struct(a=a, v=qd.Vector([1.5, 2.5]), inner={"k": a + 1})
        t = s
        t.v *= 2
        t.inner.k += s.a
        return t.v.sum() + s.v.sum() + t.inner.k + s.inner.k

    assert make(3) == 8 + 4 + 7 + 4
