"""`qd.math` and the functions of both scopes: kernels and Python scope agree with NumPy."""

from __future__ import annotations

import cmath

import numpy as np
import pytest
from frontend_run import qd, run

from qd_core.api import math as m

X = qd.types.ndarray(qd.f64, 1)
vec2, vec3 = qd.types.vector(2, qd.f64), qd.types.vector(3, qd.f64)


def close(a, b) -> None:
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-12, atol=1e-12)


def test_common_functions() -> None:
    def k(out: X, x: qd.f64):
        out[0] = m.clamp(x, -1.0, 1.0)
        out[1] = m.mix(2.0, 4.0, x)
        out[2] = m.step(0.5, x)
        out[3] = m.smoothstep(0.0, 2.0, x)
        out[4] = m.fract(x)
        out[5] = m.mod(x, 0.4)
        out[6] = m.sign(x)
        out[7] = m.degrees(x)
        out[8] = m.radians(x)
        out[9] = m.log2(abs(x))

    for x in (-1.75, 0.25, 1.5):
        out = np.zeros(10)
        run(k, out, x, default_fp=qd.f64)
        t = min(1.0, max(0.0, x / 2))
        wanted = [min(1, max(-1, x)), 2 + 2 * x, float(x >= 0.5), t * t * (3 - 2 * t), x - np.floor(x)]
        wanted += [x - 0.4 * np.floor(x / 0.4), np.sign(x), np.degrees(x), np.radians(x), np.log2(abs(x))]
        close(out, wanted)
        python = [m.clamp(x, -1.0, 1.0), m.mix(2.0, 4.0, x), m.step(0.5, x), m.smoothstep(0.0, 2.0, x), m.fract(x)]
        python += [m.mod(x, 0.4), m.sign(x), m.degrees(x), m.radians(x), m.log2(abs(x))]
        close(python, wanted)


def test_functions_work_component_by_component() -> None:
    def k(v: vec3) -> (vec3, vec3):
        return m.clamp(v, -1.0, 1.0), m.step(0.0, v)

    a, b = run(k, [-2.0, 0.5, 3.0], default_fp=qd.f64).result
    close(a, [-1, 0.5, 1])
    close(b, [0, 1, 1])


def test_geometry() -> None:
    def k(a: vec3, b: vec3) -> (qd.f64, qd.f64, vec3, vec3, vec3, vec3, qd.f64):
        n = m.normalize(b)
        d = m.normalize(a)
        return m.dot(a, b), m.distance(a, b), m.cross(a, b), n, m.reflect(a, n), m.refract(d, n, 0.7), m.length(a)

    a, b = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, 0.2])
    got = run(k, a, b, default_fp=qd.f64).result
    n, d = b / np.linalg.norm(b), a / np.linalg.norm(a)
    cosine = d @ n
    bent = 0.7 * d - (0.7 * cosine + np.sqrt(1 - 0.49 * (1 - cosine**2))) * n
    wanted = (a @ b, np.linalg.norm(a - b), np.cross(a, b), n, a - 2 * (a @ n) * n, bent, np.linalg.norm(a))
    for g, w in zip(got, wanted, strict=True):
        close(g, w)
    v, w = qd.Vector(a), qd.Vector(b)
    nn = m.normalize(w)
    for g, want in zip((m.dot(v, w), m.distance(v, w), m.cross(v, w), nn, m.reflect(v, nn)), wanted, strict=False):
        close(g, want)


def test_total_reflection_refracts_to_zero() -> None:
    def k(d: vec2, n: vec2) -> vec2:
        return m.refract(d, n, 1.5)

    close(run(k, [0.99, -np.sqrt(1 - 0.99**2)], [0.0, 1.0], default_fp=qd.f64).result, [0, 0])


def test_rotation_and_directions() -> None:
    def k(angle: qd.f64) -> (qd.types.matrix(2, 2, qd.f64), vec2):
        return m.rotation2d(angle), m.vdir(angle)

    r, d = run(k, 0.3).result
    close(r @ [1, 0], [np.cos(0.3), np.sin(0.3)])
    close(d, r @ [1, 0])
    close(m.rotation2d(0.3), r)


def test_complex_numbers() -> None:
    def k(x: vec2, y: vec2) -> (vec2, vec2, vec2, vec2, vec2, vec2, vec2):
        return m.cmul(x, y), m.cdiv(x, y), m.cexp(x), m.clog(x), m.csqrt(x), m.cpow(x, 2.5), m.cconj(m.cinv(y))

    for x, y in ((1 + 2j, 3 - 1j), (-0.5 - 0.25j, 0.1 + 2j)):
        got = run(k, [x.real, x.imag], [y.real, y.imag], default_fp=qd.f64).result
        wanted = (x * y, x / y, cmath.exp(x), cmath.log(x), cmath.sqrt(x), x**2.5, (1 / y).conjugate())
        for g, w in zip(got, wanted, strict=True):
            close(g, [w.real, w.imag])


def test_bits() -> None:
    def k(out: qd.types.ndarray(qd.i32, 1), x: qd.i32):
        out[0] = m.popcnt(x)
        out[1] = m.clz(x)
        out[2] = m.ffs(x)

    for x in (0, 1, -1, 40, 2**30, -(2**31)):
        out = np.zeros(3, np.int32)
        run(k, out, x)
        text = format(x & 0xFFFFFFFF, "032b")
        wanted = [text.count("1"), len(text) - len(text.lstrip("0")), len(text) - text.rindex("1") if x else 0]
        assert out.tolist() == wanted
        assert [m.popcnt(x), m.clz(x), m.ffs(x)] == wanted


def test_classification() -> None:
    def k(x: qd.f32) -> (qd.u1, qd.u1):
        return m.isnan(x), m.isinf(x)

    for x in (1.0, np.inf, np.nan):
        assert run(k, x).result == (bool(m.isnan(x)), bool(m.isinf(x))) == (bool(np.isnan(x)), bool(np.isinf(x)))


def test_types_follow_the_default_types() -> None:
    def k() -> (m.vec3, m.ivec2):
        return m.vec3(0.1, 2, 3), m.ivec2(2.7)

    a, b = run(k, default_fp=qd.f64).result
    assert a.dtype == np.float64
    assert a[0] == 0.1 or a[0] == pytest.approx(0.1)
    assert b.tolist() == [2, 2]


# -- the functions of qd. in Python scope -----------------------------------------------------------------------------
def test_python_scope_functions() -> None:
    v = qd.Vector([1.0, -4.0])
    close(qd.sqrt(4), 2)
    close(qd.abs(v), [1, 4])
    close(qd.max(v, 0), [1, 0])
    close(qd.select(v > 0, v, 0), [1, 0])
    close(qd.floor(2.7), 2)
    assert qd.floor(2.7, qd.i32).dtype == np.int32
    assert (qd.round(2.5), qd.round(-2.5)) == (3, -3)
    assert (qd.raw_div(-7, 2), qd.raw_mod(-7, 2)) == (-3, -1)
    assert qd.bit_shr(np.int32(-8), 1) == 0x7FFFFFFC
    assert qd.cast(2.9, qd.i32) == 2
    assert list(qd.ndrange(2, (1, 3))) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [list(p) for p in qd.grouped(qd.ndrange(1, 2))] == [[0, 0], [0, 1]]
    assert qd.static(3) == 3


def test_matrices_in_python_scope() -> None:
    a = qd.Matrix([[1.0, 2.0], [3.0, 5.0]])
    v = qd.Vector([1.0, 2.0, 3.0])
    close(a @ a.inverse(), np.eye(2))
    close(a.transpose(), [[1, 3], [2, 5]])
    assert (a.determinant(), a.trace()) == (pytest.approx(-1), 6)
    close(v.zx, [3, 1])
    v.xy = [7, 8]
    v.z += 1
    assert v.to_list() == [7, 8, 4]
    close(v.cross(qd.Vector([1.0, 0.0, 0.0])), [0, 4, -8])
    close(2 * v - 1, [13, 15, 7])
    assert (v == v).all()
    assert not (v > 7).all()
    assert (v > 7).any()
    close(qd.Vector([3.0, 4.0]).normalized(), [0.6, 0.8])
    close(qd.Vector([1, 2]).outer_product(qd.Vector([3, 4])), [[3, 4], [6, 8]])
    assert f"{v:.1f}" == "[7.0, 8.0, 4.0]"
    assert v.cast(qd.i32).dtype is qd.i32
    with pytest.raises(AttributeError, match="no attribute 'w'"):
        _ = v.w
    with pytest.raises(TypeError, match="shapes do not match"):
        _ = v + qd.Vector([1.0, 2.0])
    with pytest.raises(TypeError, match="one or two axes"):
        qd.Matrix([[[1.0]]])
    close(qd.types.vector(3, qd.f32)(qd.Vector([1, 2]), 3), [1, 2, 3])
    close(qd.Matrix.cols([[1, 2], [3, 4]]), [[1, 3], [2, 4]])
