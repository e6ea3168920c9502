"""Vectors, matrices, structs, arrays and their elements."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_run import lowered, qd, refuse, run

from qd_core.errors import QuadrantsIndexError, QuadrantsSyntaxError, QuadrantsTypeError

vec2, vec3 = qd.types.vector(2, qd.f32), qd.types.vector(3, qd.f32)
mat2, mat3 = qd.types.matrix(2, 2, qd.f32), qd.types.matrix(3, 3, qd.f32)
X = qd.types.ndarray(qd.f32, 1)
X2 = qd.types.ndarray(qd.f32, 2)
V = qd.types.ndarray(vec3, 1)
M = qd.types.ndarray(mat2, 1)
I1 = qd.types.ndarray(qd.i32, 1)


# -- vectors and matrices ---------------------------------------------------------------------------------------------
def test_vector_arithmetic_broadcasts_scalars() -> None:
    def k(v: vec3) -> vec3:
        w = 2 * v + qd.Vector([1, 2, 3])
        w -= 1
        w.y = 0
        return w / 2

    np.testing.assert_array_equal(run(k, [1.0, 2.0, 3.0]).result, [1, 0, 4])


def test_components_of_a_vector_have_one_type() -> None:
    def k() -> qd.f32:
        v = qd.Vector([1, 2.5])
        return v[0] / 2 + v[1]

    assert run(k).result == 3


def test_matrix_products() -> None:
    def k(a: mat3, b: mat3, v: vec3) -> (mat3, vec3, vec3, qd.f32):
        return a @ b, a @ v, v @ a, v @ v

    rng = np.random.default_rng(0)
    a, b, v = (rng.random(s).astype(np.float32) for s in ((3, 3), (3, 3), 3))
    for got, want in zip(run(k, a, b, v).result, (a @ b, a @ v, v @ a, v @ v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_methods_of_vectors() -> None:
    def k(out: X, a: vec3, b: vec3):
        out[0] = a.dot(b)
        out[1] = a.norm()
        out[2] = a.norm_sqr()
        c = a.cross(b)
        out[3], out[4], out[5] = c
        out[6] = a.normalized().norm()
        out[7] = a.sum() + a.max() * a.min()
        out[8] = (a > 0).any() + 2 * (a > 0).all()
        out[9] = a.norm_inv()
        out[10] = a.xy.cross(b.yz)

    a, b = np.array([1, 2, -2], np.float32), np.array([3, 0, 1], np.float32)
    out = np.zeros(11, np.float32)
    run(k, out, a, b)
    want = [a @ b, 3, 9, *np.cross(a, b), 1, 1 - 4, 1, 1 / 3, 1]
    np.testing.assert_allclose(out, want, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_methods_of_matrices(n: int) -> None:
    matrix = qd.types.matrix(n, n, qd.f64)

    def k(a: matrix) -> (matrix, matrix, qd.f64, qd.f64, qd.f64):
        return a.inverse(), a.transpose(), a.determinant(), a.trace(), a.frobenius_inner(a)

    a = np.random.default_rng(n).random((n, n)) + np.eye(n)
    got = run(k, a).result
    for g, want in zip(got, (np.linalg.inv(a), a.T, np.linalg.det(a), np.trace(a), (a * a).sum()), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-10)


def test_outer_product_rows_and_columns() -> None:
    def k(a: vec2, b: vec3) -> qd.f32:
        m = a.outer_product(b)
        r = qd.Matrix.rows([a, a])
        c = qd.Matrix.cols([a, a])
        return m[1, 2] + 10 * r[0, 1] + 100 * c[0, 1]

    assert run(k, [1, 2], [3, 4, 5]).result == 10 + 20 + 100


def test_dynamic_indices_into_locals() -> None:
    def k(i: int, j: int) -> (vec3, qd.f32):
        v = qd.Vector([1.0, 2.0, 3.0])
        v[i] = 9
        m = qd.Matrix([[1.0, 2.0], [3.0, 4.0]])
        m[j, 1 - j] += 10
        return v, m[0, 1] * 100 + m[j, 1 - j]

    vector, number = run(k, 2, 1).result
    assert vector.tolist() == [1, 2, 9]
    assert number == 213


def test_static_indices_outside_are_refused() -> None:
    def high() -> qd.f32:
        v = qd.Vector([1.0, 2.0])
        return v[2]

    def negative() -> qd.f32:
        v = qd.Vector([1.0, 2.0])
        return v[-1]

    assert isinstance(refuse(high), QuadrantsIndexError)
    assert isinstance(refuse(negative), QuadrantsSyntaxError)


def test_swizzles() -> None:
    def k(out: X, x: V):
        v = x[0]
        v.xy = v.yx
        x[0].zx = [7, 8]
        x[1].rgb = v
        x[0].y += 0.5
        out[0] = x[0].z * 100 + x[0].x * 10 + x[0].y
        out[1] = v.x * 10 + v.y

    x = np.array([[1, 2, 3], [0, 0, 0]], np.float32)
    out = np.zeros(2, np.float32)
    run(k, out, x)
    assert out.tolist() == [700 + 80 + 2.5, 21]
    assert x.tolist() == [[8, 2.5, 7], [2, 1, 3]]


def test_type_objects_construct() -> None:
    def k() -> (vec3, vec3, vec3, mat2):
        return vec3(1, 2, 3), vec3(7), vec3(qd.Vector([1, 2]), 3), mat2([[1, 2], [3, 4]])

    a, b, c, d = run(k).result
    assert a.tolist() == c.tolist() == [1, 2, 3]
    assert b.tolist() == [7, 7, 7]
    assert d.tolist() == [[1, 2], [3, 4]]


def test_constants_of_python_scope() -> None:
    gravity = qd.Vector([0.0, -9.8, 0.0])
    size = np.float32(2.0)

    def k() -> qd.f32:
        return gravity[1] * size + (gravity * 0.0).x + gravity.norm()

    assert run(k).result == pytest.approx(-9.8, rel=1e-6)


def test_shapes_must_match() -> None:
    def k(a: vec2, b: vec3) -> vec3:
        return a + b

    error = refuse(k, [1, 2], [1, 2, 3])
    assert isinstance(error, QuadrantsTypeError)
    assert "shapes do not match: vector(2, f32) and vector(3, f32)" in str(error)


def test_the_shape_of_a_variable_is_fixed() -> None:
    def k(a: vec2, b: vec3) -> vec2:
        v = a
        v = b
        return v

    assert "cannot assign vector(3, f32) to a variable of type vector(2, f32)" in str(refuse(k, [1, 2], [1, 2, 3]))


def test_lists_of_vectors() -> None:
    def k(v: vec2) -> qd.f32:
        w = [v, 2 * v, 3 * v]
        w[1] = v * 10
        s = 0.0
        for i, j in qd.static(qd.ndrange(3, 3)):
            s += w[i].x * w[j].y
        return s

    assert run(k, [1.0, 2.0]).result == (1 + 10 + 3) * 2 * (1 + 10 + 3)


def test_a_run_time_index_into_a_list_is_refused() -> None:
    def k(i: int) -> qd.f32:
        w = [1.0, 2.0]
        return w[i]

    assert "lists and tuples exist at compile time only" in str(refuse(k, 0))


# -- structs ----------------------------------------------------------------------------------------------------------
def test_structs() -> None:
    inner = qd.types.struct(p=vec2, m=qd.f32)
    outer = qd.types.struct(a=inner, n=qd.i32)

    def k(s: outer) -> outer:
        t = s
        t.a.p.x += 1
        t.a.p[1] = 5
        t.n = 3.7
        if s.n > 0:
            t.a.m *= 2
        u = inner(p=[1, 2], m=3)
        t.a.m += u.p.y + u.m
        return t

    got = run(k, {"a": {"p": [1, 2], "m": 4}, "n": 1}).result
    assert got["n"] == 3
    assert got["a"]["p"].tolist() == [2, 5]
    assert got["a"]["m"] == 13


def test_unused_members_are_no_parameters() -> None:
    kind = qd.types.struct(a=qd.f32, b=vec3, c=qd.i32)

    def k(s: kind) -> qd.f32:
        return s.a + s.b.y

    kernel, _ = lowered(k, {"a": 1, "b": [1, 2, 3], "c": 1})
    assert [p.path for p in kernel.function.params] == ["s.a", "s.b[1]", "return"]
    assert kernel.function.attrs["arguments"] == ("s",)


# -- arrays -----------------------------------------------------------------------------------------------------------
def test_indexing_forms() -> None:
    def k(x: X2, v: V, m: M, base: qd.types.vector(2, qd.i32)) -> qd.f32:
        x[base] = 1
        x[base + 1] += 2
        x[base.x, 1] += v[0][2]
        v[1] = [4, 5, 6]
        v[1][0] *= 3
        m[0][0, 1] = 8
        m[0] += 1
        return m[0][0, 1]

    x, v, m = np.zeros((3, 3), np.float32), np.ones((2, 3), np.float32), np.zeros((1, 2, 2), np.float32)
    assert run(k, x, v, m, [1, 1]).result == 9
    assert x.tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert v.tolist() == [[1, 1, 1], [12, 5, 6]]
    assert m.tolist() == [[[1, 9], [1, 1]]]


def test_only_the_wanted_component_is_loaded() -> None:
    def k(v: V) -> qd.f32:
        return v[0].y + v[0][2]

    kernel, _ = lowered(k, np.ones((1, 3), np.float32))
    assert sum(n.op.name == "load" for n in kernel.function.body.nodes) == 2


def test_the_number_of_indices_is_checked() -> None:
    def k(x: X2):
        x[0] = 1

    error = refuse(k, np.zeros((2, 2), np.float32))
    assert isinstance(error, QuadrantsIndexError)
    assert "'x' has 2 axes and is indexed with 1" in str(error)


def test_updates_of_elements_are_atomic_and_others_plain() -> None:
    def k(x: X, n: I1) -> qd.f32:
        x[0] += 1
        x[0] -= 3
        n[0] |= 6
        n[0] &= 3
        n[0] ^= 1
        x[0] *= 2
        x[0] /= 4
        old = qd.atomic_max(x[0], 5.0)
        return old

    x, n = np.zeros(1, np.float32), np.zeros(1, np.int32)
    kernel, _ = lowered(k, x, n)
    kinds = [node.attrs["kind"] for node in kernel.function.body.nodes if node.op.name == "atomic"]
    assert kinds == ["add", "add", "or", "and", "xor", "max"]
    assert run(k, x, n).result == -1
    assert (x[0], n[0]) == (5, 3)


def test_gradients_are_parameters_when_used() -> None:
    def k(x: X):
        for i in x:
            x.grad[i] = 2 * x[i]

    x, g = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    run(k, (x, g))
    assert g.tolist() == [0, 2, 4]
    assert "'x' has no gradient" in str(refuse(k, x))


def test_shapes() -> None:
    def k(x: X2) -> qd.i32:
        n = len(x.shape)
        return x.shape[0] * 100 + x.shape[1] * 10 + n

    assert run(k, np.zeros((3, 4), np.float32)).result == 342


def test_bounds_are_checked_and_accesses_masked() -> None:
    def k(x: X, i: int) -> qd.f32:
        x[i] = 5
        x[i] += 1
        return x[i]

    x = np.zeros(3, np.float32)
    assert run(k, x, 1, debug=True).result == 6
    done = run(k, x, 7, debug=True)
    assert done.result == 0
    assert done.failures == ["bounds: Out of bound access: x[7] of shape (3,)"]
    assert run(k, x, -1, check_out_of_bound=True).failures[0].endswith("x[-1] of shape (3,)")


def test_several_results_keep_their_types() -> None:
    def k(x: qd.f32) -> tuple[qd.i32, qd.f64, qd.u1]:
        return x, x, x > 1

    assert run(k, 2.5).result == (2, 2.5, True)


def test_a_field_outside_the_kernel_becomes_a_parameter() -> None:
    from qd_core.frontend.signature import ArrayArg

    class Field:
        def __init__(self, data, **layout):
            self.data, self.layout = data, layout

        def __qd_capture__(self):
            return ArrayArg(qd.f32, self.data.ndim, **self.layout)

    shifted = Field(np.zeros(4, np.float32), offset=(-2,))
    turned = Field(np.zeros((2, 3), np.float32), order=(1, 0))

    def k():
        for i in shifted:
            shifted[i] = i
        for i, j in turned:
            turned[i, j] = 10 * i + j

    kernel, _ = lowered(k)
    assert list(kernel.captured) == ["shifted", "turned"]
    run(k)
    assert shifted.data.tolist() == [-2, -1, 0, 1]
    assert turned.data.tolist() == [[0, 10, 20], [1, 11, 21]]


def test_named_constructors() -> None:
    def k() -> (vec3, mat2, mat3, mat2):
        a = qd.Vector.zero(qd.f32, 3) + qd.Vector.unit(3, 1) + qd.Vector.one(qd.f32, 3)
        return a, qd.Matrix.identity(qd.f32, 2), qd.Matrix.diag(3, 2.0), qd.Matrix.zero(qd.f32, 2, 2)

    a, b, c, d = run(k).result
    assert a.tolist() == [1, 2, 1]
    assert b.tolist() == [[1, 0], [0, 1]]
    assert c.tolist() == [[2, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert d.tolist() == [[0, 0], [0, 0]]


def test_lists_are_concatenated_and_repeated_as_in_python() -> None:
    def k(n: int) -> int:
        w = [n] * 3 + [5]
        return len(w) * 100 + w[3] + w[2]

    assert run(k, 2).result == 407


def test_numbers_of_numpy() -> None:
    big, flag = np.int64(2**40), np.bool_(True)

    def k() -> qd.i64:
        return qd.i64(big) if flag else qd.i64(0)

    assert run(k).result == 2**40


def test_structs_of_python_scope_are_constants() -> None:
    class Constant:
        """Anything with the protocol, as `qd.Struct` has it."""

        def __init__(self, members, kind=None) -> None:
            self.members, self.kind = members, kind

        def __qd_struct__(self):
            return self.members, self.kind

    kind = qd.types.struct(a=qd.i32, b=vec3)
    typed = Constant({"a": 2.7, "b": [1, 2, 3]}, kind)
    free = Constant({"x": 2.5, "inner": Constant({"y": 3})})

    def k() -> qd.f32:
        s = typed
        s.a += 1
        t = free
        t.x = 4
        u = kind(a=0)
        u = typed
        return s.a * 100 + s.b.z * 10 + t.x + t.inner.y + u.a

    assert run(k).result == 300 + 30 + 4 + 3 + 2
