"""The launcher matrix: every kind of argument, with and without gradient, read, written, partly written or both, of any
size, aliased, overlapping or neither, in forward launches, reverse mode and forward mode.

Each launch is made twice: the first goes through the Python packer, the second, where there is one, through the native.
"""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false, reportCallIssue=false

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import LaunchError, NotDifferentiableError
from qd_core.testing.compare import run_kernel
from qd_core.testing.device import DeviceUnderTest
from qd_core.testing.plugin import in_slice, requires
from qd_core.testing.suite.kinds import ACCELERATED, KINDS, Kind, contents, gradient, values

__all__ = [
    "test_aliased_arguments",
    "test_arguments_that_share_a_gradient",
    "test_kinds_and_sizes",
    "test_kinds_mixed",
    "test_launches_change_only_what_they_write",
    "test_many_arguments",
    "test_overlapping_arguments",
    "test_overlapping_gradients",
    "test_reverse_kinds_and_sizes",
    "test_scalar_arguments",
    "test_tangents_of_kinds_and_sizes",
    "test_tensors_in_the_devices_memory",
    "test_values_by_kind",
    "test_values_that_kernels_return",
    "test_vectors_and_matrices",
]

F1 = qd.types.ndarray(dtype=qd.f32, ndim=1)
VEC3, MAT23 = qd.types.vector(3, qd.f32), qd.types.matrix(2, 3, qd.f32)
V1, M2 = qd.types.ndarray(dtype=VEC3, ndim=1), qd.types.ndarray(dtype=MAT23, ndim=2)
PAIR = qd.types.struct(first=qd.f32, rest=VEC3)

SIZES = (0, 1, 7, 64, 5003)


def sizes(kind: Kind) -> tuple[int, ...]:
    """Return the sizes that arrays of a kind can have."""
    return SIZES if kind.empty else SIZES[1:]


def twice(kernel: Any, *args: Any) -> None:
    """Launch through both packers."""
    run_kernel(kernel, *args)
    run_kernel(kernel, *args)


# -- kernels --------------------------------------------------------------------------------------------------------
@qd.func
def touch(read, write, part, both, scale, i):
    """Read, write, partly write, read and write."""
    write[i] = read[i] * scale
    if i % 3 == 0:
        part[i] = read[i] * read[i]
    both[i] += read[i]


@dataclass
class Arrays:
    """Arguments of `touch` as members."""

    read: F1
    write: F1
    part: F1
    both: F1


@dataclass
class Fields:
    """The same as templates."""

    read: qd.template()
    write: qd.template()
    part: qd.template()
    both: qd.template()


@qd.kernel
def access(read: F1, write: F1, part: F1, both: F1, scale: qd.f32):
    """Touch arrays."""
    for i in range(read.shape[0]):
        touch(read, write, part, both, scale, i)


@qd.kernel
def access_templates(
    read: qd.template(), write: qd.template(), part: qd.template(), both: qd.template(), scale: qd.f32
):
    """Touch fields."""
    for i in range(read.shape[0]):
        touch(read, write, part, both, scale, i)


@qd.kernel
def access_members(held: Arrays, scale: qd.f32):
    """Touch members."""
    for i in range(held.read.shape[0]):
        touch(held.read, held.write, held.part, held.both, scale, i)


@qd.kernel
def access_template_members(held: Fields, scale: qd.f32):
    """Touch members that are fields."""
    for i in range(held.read.shape[0]):
        touch(held.read, held.write, held.part, held.both, scale, i)


FORMS: dict[str, tuple[Any, Any]] = {
    "array": (access, None),
    "template": (access_templates, None),
    "array member": (access_members, Arrays),
    "template member": (access_template_members, Fields),
}
"""Kernel of each form, and what holds its arrays."""


def call(form: str, arrays: list[Any], scale: float) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel of a form, and its arguments."""
    kernel, holder = FORMS[form]
    return kernel, (*arrays, scale) if holder is None else (holder(*arrays), scale)


def accessed(kind: Kind, count: int, **places: bool) -> list[Any]:
    """Return four arrays for a kernel that accesses them."""
    return kind.arguments(*(values(count, seed) for seed in range(4)), **places)


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
def every_third(source: F1, target: F1):
    """A serial loop that writes some places, which later iterations may read."""
    for _ in range(1):
        for k in range(source.shape[0]):
            if k % 3 == 0:
                target[k] = source[k] * source[k] + 0.25


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
def by_value(x: F1, s: qd.f32, v: VEC3, m: MAT23, p: PAIR, out: F1):
    """A vector, a matrix and a struct by value beside arrays."""
    for i in range(x.shape[0]):
        w = m @ (v * x[i])
        out[i] = w[0] * w[1] + s * x[i] * p.first + p.rest.dot(v)


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
    for count in sizes(KINDS[kind]):
        kernel, arguments = call(KINDS[kind].form, accessed(KINDS[kind], count, grad=grad), 1.5)
        twice(kernel, *arguments)


@in_slice("smoke")
@pytest.mark.parametrize("kind", KINDS)
def test_reverse_kinds_and_sizes(device: DeviceUnderTest, kind: str) -> None:
    """Reverse launches add to the gradients of what was read and clear those of what was overwritten."""
    for count in sizes(KINDS[kind]):
        kernel, arguments = call(KINDS[kind].form, accessed(KINDS[kind], count, grad=True), -0.5)
        run_kernel(kernel, *arguments)
        twice(kernel.grad, *arguments)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.tangent])
def test_tangents_of_kinds_and_sizes(device: DeviceUnderTest, kind: str) -> None:
    """Forward mode: values and tangents, beside gradients that keep their values."""
    for count in sizes(KINDS[kind]):
        arrays = accessed(KINDS[kind], count, grad=True, tangent=True)
        kernel, arguments = call(KINDS[kind].form, arrays, -0.5)
        twice(kernel.tangent, *arguments)


@requires("exchange.dlpack")
def test_tensors_in_the_devices_memory(device: DeviceUnderTest) -> None:
    """Another library's tensors of this device, used in place: every size, access and pair of aliases, both modes."""
    for count in SIZES:
        for first, second in [(3, 3), *combinations(range(1, 4), 2)]:
            arrays = accessed(ACCELERATED, count, grad=True)
            arrays[second] = arrays[first]
            twice(access, *arrays, 0.75)
            twice(access.grad, *arrays, 0.75)


@pytest.mark.parametrize("plain", range(4))
def test_kinds_mixed(device: DeviceUnderTest, plain: int) -> None:
    """Each argument of another kind, one of them without a gradient."""
    makers = [KINDS[name] for name in ("ndarray", "numpy", "offset", "torch") if name in KINDS]
    arguments = [
        *(makers[(n + plain) % len(makers)].arguments(values(33, n), grad=n != plain)[0] for n in range(4)),
        2.0,
    ]
    twice(access, *arguments)
    twice(access.grad, *arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_launches_change_only_what_they_write(device: DeviceUnderTest, kind: str) -> None:
    """A kernel that writes every third place leaves the others, to the bit."""
    part = np.arange(100, dtype=np.float32)
    part[50:] = np.nan
    arrays = KINDS[kind].arguments(values(100, 1), values(100, 2), part, values(100, 3))
    kernel, arguments = call(KINDS[kind].form, arrays, 1.0)
    kernel(*arguments)
    got = contents(arrays[2])
    kept = np.arange(100) % 3 != 0
    np.testing.assert_array_equal(
        got[kept].view(np.uint32), part[kept].view(np.uint32), "places not written have changed"
    )


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("kind", KINDS)
def test_aliased_arguments(device: DeviceUnderTest, kind: str, grad: bool) -> None:
    """One array for two parameters, whatever each of them is used for, in all three modes."""
    # Each field is compiled into a kernel of its own.
    for count in (1, 7, 500) if "array" in KINDS[kind].form else (501,):
        for first, second in combinations(range(4), 2):
            arrays = accessed(KINDS[kind], count, grad=grad, tangent=grad and KINDS[kind].tangent)
            arrays[second] = arrays[first]
            kernel, arguments = call(KINDS[kind].form, arrays, 0.75)
            twice(kernel, *arguments)
            if grad and KINDS[kind].tangent:
                run_kernel(kernel.tangent, *arguments)
            if grad and first:
                run_kernel(kernel.grad, *arguments)
            elif grad:  # the derivative needs values of `read` that the launch overwrites
                with pytest.raises(NotDifferentiableError, match="overwritten later"):
                    kernel.grad(*arguments)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.views and kind.form == "array"])
def test_overlapping_arguments(device: DeviceUnderTest, kind: str) -> None:
    """Views that share part of their memory: a serial kernel sees its own writes through the other view."""

    def base(count: int, seed: int) -> Any:
        return KINDS[kind].make(values(count, seed), False)

    for kernel in (running, every_third):
        for shift in (1, 2, 13):
            whole = base(100 + shift, 6)
            twice(kernel, whole[:100], whole[shift:])
            twice(kernel, whole[shift:], whole[:100])
    halves = base(100, 7)
    twice(running, halves[:50], halves[50:])
    for first in (0, 1, 5, 60, 99):
        whole = base(100, 8)
        twice(counted, whole[first:], whole)
        twice(counted, whole, whole[first:])
    twice(counted, whole[:0], whole[:0])


def test_overlapping_gradients(device: DeviceUnderTest) -> None:
    """Gradients that share part of their memory: every contribution arrives, or the launch is refused."""
    for shift in (1, 2, 13, 60):
        adjoint = gradient(values(60 + shift, 6))
        x, y = qd.with_grad(values(60, 1), adjoint[:60]), qd.with_grad(values(60, 2), adjoint[shift:])
        z = KINDS["numpy"].make(values(60, 3), True)
        run_kernel(product, x, y, z)
        twice(product.grad, x, y, z)
    for kernel in (running, every_third):  # derivatives that overwrite one of the two
        x, y = qd.with_grad(values(60, 1), adjoint[:60]), qd.with_grad(values(60, 2), adjoint[1:61])
        run_kernel(kernel, x, y)
        before = adjoint.copy()
        with pytest.raises(LaunchError, match=r"'source\.grad' and 'target\.grad' .*share memory"):
            kernel.grad(x, y)
        np.testing.assert_array_equal(adjoint, before, "a refused launch changed something")


@pytest.mark.parametrize("kind", ["numpy", "offset"])
def test_arguments_that_share_a_gradient(device: DeviceUnderTest, kind: str) -> None:
    """Two parameters whose gradients are one array: both contributions arrive."""
    x, y, shared = values(64, 1), values(64, 2), gradient(values(64, 1))
    z = KINDS[kind].make(values(64, 3), True)
    arguments = [qd.with_grad(x, shared), qd.with_grad(y, shared), z]
    run_kernel(product, *arguments)
    twice(product.grad, *arguments)


def test_values_by_kind(device: DeviceUnderTest) -> None:
    """Scalars, vectors, matrices and structs by value, in all three modes, beside arrays of any size."""
    v, m = qd.Vector([0.5, -1.0, 2.0]), qd.Matrix([[1.0, 2.0, 0.5], [-1.0, 0.25, 3.0]])
    pair = PAIR(first=-1.5, rest=[0.25, 1.0, -2.0])
    for count in SIZES:
        x, out = KINDS["ndarray"].arguments(values(count, 1), values(count, 2), grad=True, tangent=True)
        for kernel in (by_value, by_value.grad, by_value.tangent):
            twice(kernel, x, 0.75, v, m, pair, out)


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
    arguments = KINDS["ndarray"].arguments(*(values(50, n) for n in range(8)))
    twice(many, *arguments, 0.25, 50)
    twice(many, *(values(50, n) for n in range(8)), 0.25, 31)


def test_values_that_kernels_return(device: DeviceUnderTest) -> None:
    """Scalars and vectors come back, launch after launch."""
    for seed in range(3):
        x = values(20, seed)
        assert run_kernel(total, x) == pytest.approx(float(x.sum()), rel=1e-4)
        run_kernel(summary, *KINDS["ndarray"].arguments(x))
