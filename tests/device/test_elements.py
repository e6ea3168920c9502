"""Elements and components: written through in Python scope, shared by parallel loops; operators as values."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import qd_core as qd

X = qd.types.ndarray(dtype=qd.f32, ndim=1)


def test_elements_of_arrays_write_through(device):
    vectors, matrices = qd.Vector.ndarray(3, qd.f32, 4), qd.Matrix.ndarray(2, 2, qd.i32, (2, 3))
    vectors[1].y = 5
    vectors[2][0] = 7
    matrices[1, 2][0, 1] = 9
    kept = vectors[1]
    kept += 1
    assert vectors.to_numpy().tolist() == [[0, 0, 0], [0, 5, 0], [7, 0, 0], [0, 0, 0]]
    assert matrices[1, 2].to_list() == [[0, 9], [0, 0]]
    assert (matrices[1, 2] == [[0, 9], [0, 0]]).all()


@qd.kernel
def fill_by_component() -> (qd.types.vector(3, qd.i32), qd.math.mat2, int):
    tmp = qd.Vector([1, 2, 3])
    for i in range(3):
        vec = qd.Vector([4, 5, 6])
        for j in range(3):
            vec[tmp[i] % 3] += vec[j]
        tmp[i] = vec[tmp[i] % 3]
    m = qd.Matrix([[0.0, 0.0], [0.0, 0.0]])
    for i, j in qd.ndrange(2, 2):
        m[i, j] = i * 10 + j
        m[i, j] += 1
    count = 0
    for place in qd.grouped(qd.ndrange(2, 2)):
        count += place.sum()
    return tmp, m, count


def test_components_that_iterations_own_are_read_after_the_loop(device):
    tmp, m, count = fill_by_component()
    assert tmp.to_list() == [24, 30, 19]
    assert m.to_list() == [[1, 2], [11, 12]]
    assert count == 4


@qd.kernel
def squares(x: X, y: X):
    v = qd.Vector([0.0, 0.0, 0.0])
    for i in range(3):
        v[i] = x[i] * x[i]
    for i in range(1):
        y[0] = v.sum() * v[1]


def test_their_gradient(device):
    x, y = qd.ndarray(qd.f32, 3, needs_grad=True), qd.ndarray(qd.f32, 1, needs_grad=True)
    x.from_numpy(np.array([1, 2, 3], np.float32))
    squares(x, y)
    assert y[0] == 14 * 4
    y.grad.fill(1)
    squares.grad(x, y)
    np.testing.assert_allclose(x.grad.to_numpy(), [2 * 4, 4 * 4 + 14 * 4, 6 * 4])


def test_components_that_meet_are_refused(device):
    @qd.kernel
    def meeting(n: int) -> int:
        v = qd.Vector([0, 0, 0])
        for i in range(n):
            v[i % 3] = i
        return v.sum()

    with pytest.raises(qd.QuadrantsSyntaxError, match="'v' is read after a parallel loop that assigns it"):
        meeting(9)


OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne")


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_as_values(device, name):
    op = getattr(operator, name)

    @qd.kernel
    def apply(a: float, b: float) -> (float, qd.math.vec2):
        return op(a, b), op(qd.Vector([a, b]), b)

    for a, b in ((7.5, 2.0), (2.0, 2.0), (-7.5, 2.0)):
        scalar, vector = apply(a, b)
        assert scalar == op(a, b)
        assert vector.to_list() == [op(a, b), op(b, b)]


@pytest.mark.qd_options(debug=True)
def test_all_and_any(device):
    @qd.kernel
    def check(a: int) -> (bool, bool, bool, bool):
        v = qd.Vector([1, 2, 3], qd.f32) / 2
        assert all(abs(v - (0.5, 1.0, 1.5)) < 1e-6)
        b = qd.Matrix([[1.5, 2.5], [3.5, 4.5]], qd.i32)
        return all(b == ((1, 2), (3, 4))), any(b == a), all([a > 1, a > 2]), any([a > 1, a > 2])

    assert check(4) == (1, 1, 1, 1)
    assert check(2) == (1, 1, 0, 1)
    assert check(0) == (1, 0, 0, 0)


def test_operators_of_matrices_in_python_scope():
    a, b = np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]])
    for name in "iadd isub imul ifloordiv imod ilshift irshift ior ixor iand matmul".split():
        op = getattr(operator, name)
        np.testing.assert_array_equal(op(qd.Matrix(a), qd.Matrix(b)).to_numpy(), op(a.copy(), b))
    for call in (qd.Matrix.trace, qd.Matrix.determinant, qd.Matrix.inverse):
        with pytest.raises(qd.QuadrantsCompilationError, match=r"expected a square matrix, got shape \(3, 2\)"):
            call(qd.Matrix(np.ones((3, 2))))
