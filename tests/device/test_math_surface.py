"""Rotations, bit positions, parts of a number and general eigenvalues against NumPy, on every device."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core import math as m

M2 = qd.types.matrix(2, 2, qd.f32)
M4 = qd.types.matrix(4, 2, qd.f32)


@qd.kernel
def transforms(a: float, b: float, c: float, axis: qd.math.vec3) -> (qd.math.mat4,) * 4:
    return m.rotation3d(a, b, c), m.rot_by_axis(axis, a), m.translate(a, b, c), m.scale(a, b, c)


def about(k: int, angle: float) -> np.ndarray:
    """Matrix that turns column vectors about axis ``k``."""
    i, j = (k + 1) % 3, (k + 2) % 3
    r = np.eye(4)
    r[i, i] = r[j, j] = np.cos(angle)
    r[j, i], r[i, j] = np.sin(angle), -np.sin(angle)
    return r


def test_transforms(device):
    a, b, c, axis = 0.52, -0.785, 1.046, np.array([1.0, 2.0, 3.0])
    u = axis / np.linalg.norm(axis)
    k = np.array([[0, -u[2], u[1]], [u[2], 0, -u[0]], [-u[1], u[0], 0]])
    turned = np.eye(4)
    turned[:3, :3] = np.eye(3) + np.sin(a) * k + (1 - np.cos(a)) * k @ k
    moved = np.eye(4)
    moved[:3, 3] = a, b, c
    wanted = ((about(1, c) @ about(0, a) @ about(2, b)).T, turned.T, moved, np.diag([a, b, c, 1]))
    python = (m.rotation3d(a, b, c), m.rot_by_axis(qd.Vector(axis), a), m.translate(a, b, c), m.scale(a, b, c))
    for results in (transforms(a, b, c, axis), python):
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got.to_numpy(), want, atol=1e-6)


def nth_set(mask: int, base: int, offset: int) -> int:
    """By the definition of PTX's `fns`."""
    if offset == 0:
        return base if mask >> base & 1 else -1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [p for p in places if mask >> p & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else -1


@qd.kernel
def bits(
    masks: qd.types.NDArray[qd.u32, 1],
    bases: qd.types.NDArray[qd.i32, 1],
    offsets: qd.types.NDArray[qd.i32, 1],
    out: qd.types.NDArray[qd.i32, 2],
):
    for i in masks:
        signed = qd.cast(masks[i], qd.i32)
        out[i, 0] = m.fns(masks[i], bases[i], offsets[i])
        out[i, 1] = m.fns(signed, bases[i], offsets[i])
        out[i, 2] = m.ffs(signed)
        out[i, 3] = m.popcnt(masks[i])
        out[i, 4] = m.clz(signed)


def test_positions_of_bits(device):
    rng = np.random.default_rng(0)
    masks = np.append(rng.integers(2**32, size=60), (0, 1, 2**31, 2**32 - 1)).astype(np.uint32)
    bases, offsets = rng.integers(32, size=64).astype(np.int32), rng.integers(-9, 10, size=64).astype(np.int32)
    out = np.zeros((64, 5), np.int32)
    bits(masks, bases, offsets, out)
    for row, mask, base, offset in zip(out.tolist(), masks.tolist(), bases.tolist(), offsets.tolist(), strict=True):
        lowest = (mask & -mask).bit_length()
        assert row == [nth_set(mask, base, offset)] * 2 + [lowest, mask.bit_count(), 32 - mask.bit_length()]
        assert m.fns(mask, base, offset) == nth_set(mask, base, offset)


@pytest.mark.parametrize("dtype", [qd.f16, qd.f32, qd.f64])
def test_mantissa_and_exponent(device, dtype):
    if not device.has(f"type.{dtype.name}"):
        pytest.skip(f"the device has no {dtype.name}")
    array = qd.types.ndarray(dtype=dtype, ndim=1)

    @qd.kernel
    def split(x: array, mantissa: array, exponent: qd.types.NDArray[qd.i32, 1]):
        for i in x:
            mantissa[i], exponent[i] = qd.frexp(x[i])

    x = np.array([1, -2.5, 0.0, -0.0, np.inf, -np.inf, np.nan, 3e-5, 65504, 0.5, np.nextafter(1, 0)], dtype.numpy)
    mantissa, exponent = np.zeros_like(x), np.zeros(len(x), np.int32)
    split(x, mantissa, exponent)
    wanted = np.frexp(x)
    np.testing.assert_array_equal(mantissa, wanted[0])
    np.testing.assert_array_equal(exponent, np.where(np.isfinite(x), wanted[1], 0))
    assert qd.frexp(6.0) == (0.75, 3)


def test_general_eigenvalues(device):
    @qd.kernel
    def eigen(a: qd.types.NDArray[M2, 1], values: qd.types.NDArray[M2, 1], vectors: qd.types.NDArray[M4, 1]):
        for i in a:
            values[i], vectors[i] = qd.eig(a[i])

    special = [np.eye(2), np.zeros((2, 2)), [[1, 1], [0, 1]], [[0, 1], [-1, 0]], np.diag([1, 2]), np.diag([2, 1])]
    a = np.concatenate([np.random.default_rng(0).normal(size=(20, 2, 2)), special]).astype(np.float32)
    values, vectors = np.zeros_like(a), np.zeros((len(a), 4, 2), np.float32)
    eigen(a, values, vectors)
    numbers, columns = values[..., 0] + 1j * values[..., 1], vectors[:, ::2] + 1j * vectors[:, 1::2]
    np.testing.assert_allclose(np.linalg.norm(columns, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(a @ columns, columns * numbers[:, None], atol=2e-5)
    np.testing.assert_allclose(numbers.sum(1), np.trace(a, axis1=1, axis2=2), atol=1e-5)
    np.testing.assert_allclose(numbers.prod(1), np.linalg.det(a), atol=1e-5)


def test_eigenvalues_of_larger_matrices_are_refused(device):
    @qd.kernel
    def large(a: qd.math.mat3) -> qd.math.mat3:
        _values, vectors = qd.eig(a)
        return vectors

    with pytest.raises(qd.QuadrantsCompilationError, match="sym_eig takes symmetric ones"):
        large(np.eye(3))
