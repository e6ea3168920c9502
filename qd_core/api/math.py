"""`qd.math`: vector types, constants, and functions as in the OpenGL shading language, on scalars and component by
component.

They work in kernels and in Python scope. Definitions: OpenGL Shading Language 4.60, chapter 8.
"""

from __future__ import annotations

import math as _math
from typing import Any

from qd_core import dtypes as dt
from qd_core.api import field, matrix
from qd_core.api import ops as qd
from qd_core.api.matrix import Matrix, Vector
from qd_core.api.ops import (
    acos,
    asin,
    atan2,
    ceil,
    clz,
    cos,
    exp,
    floor,
    isinf,
    isnan,
    log,
    max,
    min,
    popcnt,
    pow,
    round,
    sin,
    sqrt,
    tan,
    tanh,
)
from qd_core.frontend.annotations import MatrixType

__all__ = [
    "acos", "asin", "atan2", "cconj", "cdiv", "ceil", "cexp", "cinv", "clamp", "clog", "clz", "cmul", "cos", "cpow",
    "cross", "csqrt", "degrees", "determinant", "distance", "dot", "e", "exp", "eye", "ffs", "floor", "fns", "fract",
    "inf", "inverse", "isinf", "isnan", "ivec2", "ivec3", "ivec4", "length", "log", "log2", "mat2", "mat3", "mat4",
    "max", "min", "mix", "mod", "nan", "normalize", "pi", "popcnt", "pow", "radians", "reflect", "refract",
    "rot_by_axis", "rot_yaw_pitch_roll", "rotation2d", "rotation3d", "round", "scale", "sign", "sin", "smoothstep",
    "sqrt", "step", "tan", "tanh", "translate", "uvec2", "uvec3", "uvec4", "vdir", "vec2", "vec3", "vec4",
]  # fmt: skip

PYTHON_SCOPE = (field, matrix)
"""The modules that say what the types make in Python scope: importing this one makes them complete."""

pi, e, inf, nan = _math.pi, _math.e, _math.inf, _math.nan

vec2, vec3, vec4 = (MatrixType((n,), float) for n in (2, 3, 4))
ivec2, ivec3, ivec4 = (MatrixType((n,), int) for n in (2, 3, 4))
uvec2, uvec3, uvec4 = (MatrixType((n,), dt.u32) for n in (2, 3, 4))
mat2, mat3, mat4 = (MatrixType((n, n), float) for n in (2, 3, 4))


# -- common functions -------------------------------------------------------------------------------------------------
@qd.pyfunc
def clamp(x: Any, xmin: Any, xmax: Any) -> Any:
    """``x`` limited to the interval [xmin, xmax]."""
    return qd.min(xmax, qd.max(xmin, x))


@qd.pyfunc
def mix(x: Any, y: Any, a: Any) -> Any:
    """Linear interpolation: ``x`` at a = 0, ``y`` at a = 1."""
    return x * (1.0 - a) + y * a


@qd.pyfunc
def step(edge: Any, x: Any) -> Any:
    """0 below ``edge``, else 1."""
    return qd.select(x >= edge, 1.0, 0.0)


@qd.pyfunc
def smoothstep(edge0: Any, edge1: Any, x: Any) -> Any:
    """0 below ``edge0``, 1 above ``edge1``, and a smooth cubic between."""
    t = qd.min(1.0, qd.max(0.0, (x - edge0) / (edge1 - edge0)))
    return t * t * (3.0 - 2.0 * t)


@qd.pyfunc
def fract(x: Any) -> Any:
    """Fractional part, ``x - floor(x)``."""
    return x - qd.floor(x)


@qd.pyfunc
def mod(x: Any, y: Any) -> Any:
    """``x - y * floor(x / y)``."""
    return x - y * qd.floor(x / y)


@qd.pyfunc
def sign(x: Any) -> Any:
    """-1, 0 or 1 by sign, in the type of ``x``."""
    return qd.sgn(x)


@qd.pyfunc
def degrees(x: Any) -> Any:
    """Radians to degrees."""
    return x * (180.0 / pi)


@qd.pyfunc
def radians(x: Any) -> Any:
    """Degrees to radians."""
    return x * (pi / 180.0)


@qd.pyfunc
def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return qd.log(x) * (1.0 / _math.log(2.0))


# -- geometry ---------------------------------------------------------------------------------------------------------
@qd.pyfunc
def dot(x: Any, y: Any) -> Any:
    """Inner product."""
    return x.dot(y)


@qd.pyfunc
def cross(x: Any, y: Any) -> Any:
    """Cross product."""
    return x.cross(y)


@qd.pyfunc
def length(x: Any) -> Any:
    """Euclidean norm."""
    return x.norm()


@qd.pyfunc
def distance(x: Any, y: Any) -> Any:
    """Length of the difference."""
    return (x - y).norm()


@qd.pyfunc
def normalize(v: Any) -> Any:
    """Vector of length one in the direction of ``v``."""
    return v / v.norm()


@qd.pyfunc
def reflect(x: Any, n: Any) -> Any:
    """Direction ``x`` reflected at a surface of unit normal ``n``."""
    return x - 2.0 * x.dot(n) * n


@qd.pyfunc
def refract(x: Any, n: Any, eta: Any) -> Any:
    """Unit direction ``x`` refracted at a surface of unit normal ``n``; zero at total reflection. ``eta``: ratio of the
    indices.
    """
    cosine = x.dot(n)
    k = 1.0 - eta * eta * (1.0 - cosine * cosine)
    bent = eta * x - (eta * cosine + qd.sqrt(qd.max(k, 0.0))) * n
    return qd.select(k >= 0.0, bent, 0.0 * n)


@qd.pyfunc
def inverse(m: Any) -> Any:
    """Inverse of a matrix."""
    return m.inverse()


@qd.pyfunc
def determinant(m: Any) -> Any:
    """Determinant of a matrix."""
    return m.determinant()


@qd.pyfunc
def rotation2d(angle: Any) -> Any:
    """Matrix that turns column vectors of the plane by ``angle`` radians counter-clockwise."""
    c, s = qd.cos(angle), qd.sin(angle)
    return Matrix([[c, -s], [s, c]])


@qd.pyfunc
def translate(dx: Any, dy: Any, dz: Any) -> Any:
    """4 x 4 matrix that moves points by (dx, dy, dz)."""
    return mat4([[1.0, 0.0, 0.0, dx], [0.0, 1.0, 0.0, dy], [0.0, 0.0, 1.0, dz], [0.0, 0.0, 0.0, 1.0]])


@qd.pyfunc
def scale(sx: Any, sy: Any, sz: Any) -> Any:
    """4 x 4 matrix that scales the axes by sx, sy and sz."""
    return mat4([[sx, 0.0, 0.0, 0.0], [0.0, sy, 0.0, 0.0], [0.0, 0.0, sz, 0.0], [0.0, 0.0, 0.0, 1.0]])


@qd.pyfunc
def rot_by_axis(axis: Any, ang: Any) -> Any:
    """4 x 4 matrix that turns *row* vectors by ``ang`` radians about ``axis``, by Rodrigues' formula.

    It is the transpose of the matrix that turns column vectors.
    """
    c, s = qd.cos(ang), qd.sin(ang)
    a = normalize(axis)
    t = (1.0 - c) * a
    return mat4(
        [
            [c + t[0] * a[0], t[0] * a[1] + s * a[2], t[0] * a[2] - s * a[1], 0.0],
            [t[1] * a[0] - s * a[2], c + t[1] * a[1], t[1] * a[2] + s * a[0], 0.0],
            [t[2] * a[0] + s * a[1], t[2] * a[1] - s * a[0], c + t[2] * a[2], 0.0],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )


@qd.pyfunc
def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """4 x 4 matrix that turns *row* vectors: by ``roll`` about the third axis, then by ``pitch`` about the first, then
    by ``yaw`` about the second, in radians.
    """
    cy, sy, cp, sp, cr, sr = qd.cos(yaw), qd.sin(yaw), qd.cos(pitch), qd.sin(pitch), qd.cos(roll), qd.sin(roll)
    return mat4(
        [
            [cy * cr + sy * sp * sr, sr * cp, cy * sp * sr - sy * cr, 0.0],
            [sy * sp * cr - cy * sr, cr * cp, sr * sy + cy * sp * cr, 0.0],
            [sy * cp, -sp, cy * cp, 0.0],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )


@qd.pyfunc
def rotation3d(ang_x: Any, ang_y: Any, ang_z: Any) -> Any:
    """`rot_yaw_pitch_roll` with ``ang_z`` as yaw, ``ang_x`` as pitch and ``ang_y`` as roll."""
    return rot_yaw_pitch_roll(ang_z, ang_x, ang_y)


@qd.pyfunc
def vdir(angle: Any) -> Any:
    """Unit vector of the plane at ``angle`` radians from the first axis."""
    return Vector([qd.cos(angle), qd.sin(angle)])


@qd.pyfunc
def eye(n: Any) -> Any:
    """Unit matrix of n x n reals."""
    return Matrix.identity(float, n)


# -- complex numbers as vectors (re, im) ------------------------------------------------------------------------------
@qd.pyfunc
def cmul(x: Any, y: Any) -> Any:
    """Product."""
    return Vector([x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]])


@qd.pyfunc
def cconj(z: Any) -> Any:
    """Complex conjugate."""
    return Vector([z[0], -z[1]])


@qd.pyfunc
def cinv(z: Any) -> Any:
    """Reciprocal."""
    return Vector([z[0], -z[1]]) / z.dot(z)


@qd.pyfunc
def cdiv(x: Any, y: Any) -> Any:
    """Quotient."""
    return cmul(x, cinv(y))


@qd.pyfunc
def cexp(z: Any) -> Any:
    """Exponential function."""
    return qd.exp(z[0]) * vdir(z[1])


@qd.pyfunc
def clog(z: Any) -> Any:
    """Principal logarithm."""
    return Vector([qd.log(z.norm()), qd.atan2(z[1], z[0])])


@qd.pyfunc
def csqrt(z: Any) -> Any:
    """Principal square root."""
    return qd.sqrt(z.norm()) * vdir(0.5 * qd.atan2(z[1], z[0]))


@qd.pyfunc
def cpow(z: Any, n: Any) -> Any:
    """Real power ``n``, principal value."""
    return qd.pow(z.norm(), n) * vdir(n * qd.atan2(z[1], z[0]))


# -- bits -------------------------------------------------------------------------------------------------------------
@qd.pyfunc
def ffs(x: Any) -> Any:
    """Position of the lowest one bit of a 32-bit integer, counted from 1; 0 where there is none."""
    return 32 - clz(x & -x)


@qd.pyfunc
def fns(mask: Any, base: Any, offset: Any) -> Any:
    """Position of the ``offset``-th one bit of a 32-bit ``mask``, from bit ``base`` on upward, or downward for a
    negative offset; for offset 0 ``base`` itself if that bit is one. -1 where there is none.
    """
    step = 1 if offset >= 0 else -1
    at, left, found = base + 0, qd.max(abs(offset), 1), -1
    while left > 0 and 0 <= at <= 31:
        left -= (mask >> at) & 1
        if left == 0:
            found = at
        if offset == 0:
            left = 0
        at += step
    return found
