"""The launcher matrix: every kind of argument, with and without gradient, read or written, of any size, aliased or not.

Each launch is made twice: the first goes through the Python packer, the second, where there is one, through the native.
"""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.testing.compare import run_kernel
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import in_slice

__all__ = [
    "test_aliased_arguments",
    "test_arguments_that_share_a_gradient",
    "test_kinds_and_sizes",
    "test_kinds_mixed",
    "test_launches_change_only_what_they_write",
    "test_many_arguments",
    "test_overlapping_arguments",
    "test_reverse_kinds_and_sizes",
    "test_scalar_arguments",
    "test_values_that_kernels_return",
    "test_vectors_and_matrices",
]

Array = np.ndarray[Any, Any]
Maker = Callable[[Array, bool], Any]

F1 = qd.types.ndarray(dtype=qd.f32, ndim=1)
VEC3, MAT23 = qd.types.vector(3, qd.f32), qd.types.matrix(2, 3, qd.f32)
V1, M2 = qd.types.ndarray(dtype=VEC3, ndim=1), qd.types.ndarray(dtype=MAT23, ndim=2)

SIZES = (0, 1, 7, 64, 5003)


# -- kinds of arguments ---------------------------------------------------------------------------------------------
def as_ndarray(data: Array, grad: bool) -> Any:
    """Return an array of the device."""
    array = qd.ndarray(qd.f32, data.shape, needs_grad=grad)
    array.from_numpy(data)
    if grad:
        array.grad.from_numpy(gradient(data))
    return array


def as_numpy(data: Array, grad: bool) -> Any:
    """Return a NumPy array, paired with its gradient where it has one."""
    return qd.with_grad(data.copy(), gradient(data)) if grad else data.copy()


def as_fortran(data: Array, grad: bool) -> Any:
    """Return a NumPy array in Fortran order; the same as C order for one axis, so of an odd place in memory."""
    place = np.zeros(data.size + 1, data.dtype)[1:]
    place[:] = data
    return qd.with_grad(place, gradient(data)) if grad else place


def as_torch(data: Array, grad: bool) -> Any:
    """Return a torch tensor on the host."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor(data)
    if grad:
        tensor.requires_grad_()
        tensor.grad = torch.tensor(gradient(data))
    return tensor


def gradient(data: Array) -> Array:
    """Return the start value of a gradient: not zero, so that overwriting shows."""
    return (np.arange(data.size) % 5 - 1.5).astype(np.float32).reshape(data.shape)


KINDS: dict[str, Maker] = {"ndarray": as_ndarray, "numpy": as_numpy, "offset": as_fortran, "torch": as_torch}
if find_spec("torch") is None:
    del KINDS["torch"]


def values(count: int, seed: int) -> Array:
    """Return reproducible data in [-2, 2)."""
    return np.random.default_rng(seed).uniform(-2, 2, count).astype(np.float32)


def four(make: Maker, count: int, grad: bool) -> list[Any]:
    """Return arguments of `access`."""
    return [make(values(count, seed), grad) for seed in range(4)]


def twice(kernel: Any, *args: Any) -> None:
    """Launch through both packers."""
    run_kernel(kernel, *args)
    run_kernel(kernel, *args)


# -- kernels --------------------------------------------------------------------------------------------------------
@qd.kernel
def access(read: F1, write: F1, part: F1, both: F1, scale: qd.f32):
    """Read, write, partly write, read and write."""
    for i in range(read.shape[0]):
        write[i] = read[i] * scale
        if i % 3 == 0:
            part[i] = read[i] * read[i]
        both[i] += read[i]


@qd.kernel
def running(source: F1, target: F1):
    """A serial loop: later iterations see what earlier ones wrote."""
    for _ in range(1):
        for k in range(source.shape[0]):
            target[k] = source[k] * 0.5 + target[k]


@qd.kernel
def counted(source: F1, target: F1):
    """A serial loop that reads one place again and again, which it may itself have written."""
    for _ in range(1):
        for k in range(target.shape[0]):
            target[k] = source[0] + 1.0


@qd.kernel
def add_to(target: F1, source: F1):
    """Each place on its own: arguments may be the same array."""
    for i in range(target.shape[0]):
        target[i] += source[i] * source[i]


@qd.kernel
def product(x: F1, y: F1, z: F1):
    """A derivative with respect to two arrays."""
    for i in range(x.shape[0]):
        z[i] = x[i] * y[i] * 3.0


@qd.kernel
def rotate(v: V1, m: M2, out: V1):
    """Vector and matrix elements."""
    for i in range(v.shape[0]):
        w = m[i, 0] @ v[i]
        out[i] = qd.Vector([w[1], w[0], v[i].dot(v[i])])


@qd.kernel
def scalars(out: qd.types.ndarray(dtype=qd.f64, ndim=1), a: qd.i32, b: qd.f64, c: qd.u32, d: qd.i64, e: qd.f32):
    """Every width of scalar."""
    out[0] = a
    out[1] = b
    out[2] = c
    out[3] = d
    out[4] = e


@qd.kernel
def many(a: F1, b: F1, c: F1, d: F1, e: F1, f: F1, g: F1, h: F1, s: qd.f32, n: qd.i32):
    """More arguments than fit most inline areas."""
    for i in range(n):
        h[i] = a[i] + b[i] * s + c[i] - d[i] + e[i] * 2 + f[i] - g[i] + n


@qd.kernel
def total(x: F1) -> qd.f32:
    """A value that comes back."""
    s = 0.0
    for _ in range(1):
        for k in range(x.shape[0]):
            s += x[k]
    return s


@qd.kernel
def summary(x: F1) -> qd.types.vector(3, qd.f32):
    """Several values that come back."""
    low, high = x[0], x[0]
    for k in qd.static(range(3)):
        low = min(low, x[k])
        high = max(high, x[k])
    return qd.Vector([low, high, high - low])


# -- tests ----------------------------------------------------------------------------------------------------------
@in_slice("smoke")
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_sizes(device: DeviceUnderTest, kind: str, grad: bool) -> None:
    """Forward launches; gradients that are there and not used keep their values."""
    for count in SIZES:
        twice(access, *four(KINDS[kind], count, grad), 1.5)


@in_slice("smoke")
@pytest.mark.parametrize("kind", KINDS)
def test_reverse_kinds_and_sizes(device: DeviceUnderTest, kind: str) -> None:
    """Reverse launches add to the gradients of what was read and clear those of what was overwritten."""
    for count in SIZES:
        arguments = four(KINDS[kind], count, True)
        run_kernel(access, *arguments, -0.5)
        twice(access.grad, *arguments, -0.5)


@pytest.mark.parametrize("plain", range(4))
def test_kinds_mixed(device: DeviceUnderTest, plain: int) -> None:
    """Each argument of another kind, one of them without a gradient."""
    makers = list(KINDS.values())
    arguments = [makers[(n + plain) % len(makers)](values(33, n), n != plain) for n in range(4)]
    twice(access, *arguments, 2.0)
    twice(access.grad, *arguments, 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_launches_change_only_what_they_write(device: DeviceUnderTest, kind: str) -> None:
    """A kernel that writes every third place leaves the others, to the bit."""
    part = np.arange(100, dtype=np.float32)
    part[50:] = np.nan
    arguments = [KINDS[kind](d, False) for d in (values(100, 1), values(100, 2), part, values(100, 3))]
    access(*arguments, 1.0)
    got = contents(arguments[2])
    kept = np.arange(100) % 3 != 0
    np.testing.assert_array_equal(
        got[kept].view(np.uint32), part[kept].view(np.uint32), "places not written have changed"
    )


def contents(argument: Any) -> Array:
    """Return an argument's data."""
    if isinstance(argument, np.ndarray):
        return argument
    return argument.to_numpy() if hasattr(argument, "to_numpy") else argument.detach().numpy()


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("kind", KINDS)
def test_aliased_arguments(device: DeviceUnderTest, kind: str, grad: bool) -> None:
    """The same array twice, in parallel and in serial code."""
    for count in (1, 7, 500):
        x = KINDS[kind](values(count, 5), grad)
        twice(add_to, x, x)
        twice(running, x, x)


def test_overlapping_arguments(device: DeviceUnderTest) -> None:
    """NumPy views that share part of their memory: a serial kernel sees its own writes through the other view."""
    for shift in (1, 2, 13):
        base = values(100 + shift, 6)
        twice(running, base[:100], base[shift:])
        twice(running, base[shift:], base[:100])
    base = values(100, 7)
    twice(running, base[:50], base[50:])
    for first in (0, 1, 5, 60, 99):
        base = values(100, 8)
        twice(counted, base[first:], base)
        twice(counted, base, base[first:])


@pytest.mark.parametrize("kind", ["numpy", "offset"])
def test_arguments_that_share_a_gradient(device: DeviceUnderTest, kind: str) -> None:
    """Two parameters whose gradients are one array: both contributions arrive."""
    x, y, shared = values(64, 1), values(64, 2), gradient(values(64, 1))
    z = KINDS[kind](values(64, 3), True)
    arguments = [qd.with_grad(x, shared), qd.with_grad(y, shared), z]
    run_kernel(product, *arguments)
    twice(product.grad, *arguments)


def test_vectors_and_matrices(device: DeviceUnderTest) -> None:
    """Element axes, as arrays of the device and as NumPy arrays; forward and reverse."""
    for count in (1, 5, 130):
        v, m = values(3 * count, 1).reshape(-1, 3), values(12 * count, 2).reshape(-1, 2, 2, 3)
        out = np.zeros_like(v)
        given = [(VEC3, v), (MAT23, m), (VEC3, out)]
        ours = [qd.ndarray(kind, a.shape[: a.ndim - len(kind.shape)], needs_grad=True) for kind, a in given]
        for array, (_, data) in zip(ours, given, strict=True):
            array.from_numpy(data)
            array.grad.from_numpy(gradient(data))
        hosts = [qd.with_grad(data.copy(), gradient(data)) for _, data in given]
        for arguments in (ours, hosts):
            twice(rotate, *arguments)
            twice(rotate.grad, *arguments)


def test_scalar_arguments(device: DeviceUnderTest) -> None:
    """Scalars of every width next to an array."""
    if not device.has("type.f64", "type.i64"):
        pytest.skip("lacks type.f64 or type.i64")
    out = np.zeros(5)
    twice(scalars, out, -7, 1e300, 4_000_000_000, -(2**40), 0.1)
    assert out.tolist() == [-7, 1e300, 4e9, -(2.0**40), np.float32(0.1)]


def test_many_arguments(device: DeviceUnderTest) -> None:
    """Forty words of arrays and two scalars."""
    arguments = [as_ndarray(values(50, n), False) for n in range(8)]
    twice(many, *arguments, 0.25, 50)
    twice(many, *(values(50, n) for n in range(8)), 0.25, 31)


def test_values_that_kernels_return(device: DeviceUnderTest) -> None:
    """Scalars and vectors come back, launch after launch."""
    for seed in range(3):
        x = values(20, seed)
        assert run_kernel(total, x) == pytest.approx(float(x.sum()), rel=1e-4)
        run_kernel(summary, as_ndarray(x, False))
