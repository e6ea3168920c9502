"""Arrays of other libraries in kernels, and ours in other libraries."""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import pickle
import weakref

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError, ClosedError

pytestmark = pytest.mark.usefixtures("device")


@qd.kernel
def odd_rows(x: qd.types.ndarray(qd.f32, 2)):
    for i, j in qd.ndrange(x.shape[0] // 2, x.shape[1]):
        x[2 * i + 1, j] = 10 * (2 * i + 1) + j


@qd.kernel
def total(x: qd.types.ndarray(qd.f32, 1)) -> qd.f32:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


EXPECTED = np.array([[-1, -1, -1], [10, 11, 12], [-1, -1, -1], [30, 31, 32]], np.float32)


def minus(order="C"):
    return np.full((4, 3), -1, np.float32, order=order)


def test_numpy_in_every_order_keeps_what_is_not_written():
    for x in (minus(), minus("F"), np.full((8, 3), -1, np.float32)[2:6]):
        for _ in range(3):
            odd_rows(x)
        assert np.array_equal(x, EXPECTED)
    bytewise = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(4, 3)
    bytewise[:] = -1
    odd_rows(bytewise)
    assert np.array_equal(bytewise, EXPECTED)


def test_what_cannot_be_used_is_refused_by_name():
    strided = np.zeros((4, 6), np.float32)[:, ::2]
    expanded = np.broadcast_to(np.float32(1), (4, 3))
    frozen = minus()
    frozen.flags.writeable = False
    for bad, why in ((strided, "not contiguous"), (expanded, "read-only"), (frozen, "read-only")):
        with pytest.raises(ArgumentValueError, match=rf"'x' is (a )?{why}"):
            odd_rows(bad)
    assert total(np.broadcast_to(np.float32(3), (1,))) == 3
    with pytest.raises(ArgumentValueError, match="'x' is not contiguous"):
        total(np.broadcast_to(np.float32(1), (5,)))
    with pytest.raises(ArgumentValueError, match="not supported"):
        total(np.zeros(3, ">f4"))
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match="'x' must be an array, got list"):
        total([1.0])


def test_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    base = torch.full((8, 3), -1.0)
    for x in (torch.full((4, 3), -1.0), base[2:6], torch.full((3, 4), -1.0).t()):
        for _ in range(3):
            odd_rows(x)
        assert np.array_equal(x.numpy(), EXPECTED)
    assert (base[:2] == -1).all()
    assert (base[6:] == -1).all()
    for bad in (torch.zeros(4, 6)[:, ::2], torch.ones(3).expand(4, 3)):
        with pytest.raises(ArgumentValueError, match="'x' is not contiguous"):
            odd_rows(bad)
    for bad in (torch.ones(3, dtype=torch.bfloat16), torch.ones(3).to_sparse()):
        with pytest.raises(ArgumentValueError, match="'x' is a torch tensor of"):
            total(bad)


def test_jax_arrays_are_read_and_never_written():
    jnp = pytest.importorskip("jax.numpy", reason="jax is not installed")
    assert total(jnp.arange(4, dtype=jnp.float32)) == 6
    with pytest.raises(ArgumentValueError, match="'x' is a read-only array"):
        odd_rows(jnp.zeros((4, 3), jnp.float32))


class Elsewhere:
    """A tensor of a device that no backend is for, with what CuPy offers: DLPack says where; `get` and `set` copy."""

    def __init__(self, data):
        self.data, self.fetched, self.dtype = data, 0, data.dtype

    def __dlpack_device__(self):
        return (12, 0)

    def __dlpack__(self, **_):
        capsule = self.data.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 12
        return capsule

    def get(self):
        self.fetched += 1
        return self.data.copy()

    def set(self, data):
        self.data[...] = data


def test_tensors_of_another_device_are_copied_in_and_back():
    x = Elsewhere(minus())
    odd_rows(x)
    assert x.fetched == 1
    assert np.array_equal(x.data, EXPECTED)

    @qd.kernel
    def both(x: qd.types.ndarray(), y: qd.types.ndarray()):
        for i in range(2):
            y[i] = x[i]

    data = np.arange(6, dtype=np.float32)
    with pytest.raises(ArgumentValueError, match="share memory"):
        both(Elsewhere(data[:4]), Elsewhere(data[2:]))


MAKERS = {
    "ndarray": lambda: qd.ndarray(qd.f32, (2, 3)),
    "field": lambda: qd.field(qd.f32, (2, 3)),
    "columns": lambda: qd.field(qd.f32, (2, 3), order="ji"),
    "tensor": lambda: qd.tensor(qd.f32, (2, 3), layout=(1, 0)),
    "vectors": lambda: qd.Vector.field(3, qd.f32, 2),
}


def in_place(x):
    """Its memory as NumPy sees it; None after a refusal that says what to do."""
    try:
        return x.to_numpy(copy=False)
    except ArgumentValueError as error:
        message = str(error)
    assert "use copy=None" in message
    with pytest.raises(BufferError, match="in place"):
        np.from_dlpack(x)
    return None


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copies_and_views(make):
    x = make()
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.from_numpy(data)
    taken = x.to_numpy()
    x.fill(7)
    assert np.array_equal(taken, data)
    assert x.to_numpy(dtype=np.float64).dtype == np.float64
    either = x.to_numpy(copy=None)
    assert (either == 7).all()
    shared = in_place(x)
    if shared is None:
        return
    shared[1, 2] = 5
    qd.sync()
    assert x.to_numpy()[1, 2] == 5
    seen = np.from_dlpack(x)
    assert seen[1, 2] == 5
    assert np.shares_memory(seen, shared)
    with pytest.raises(ArgumentValueError, match="without a copy"):
        x.to_numpy(dtype=np.int32, copy=False)


def test_torch_sees_our_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = qd.ndarray(qd.f32, 3)
    x.from_torch(torch.tensor([1.0, 2.0, 3.0]))
    assert x.to_torch().tolist() == [1, 2, 3]
    try:
        shared = x.to_torch(copy=False)
    except ArgumentValueError:
        return
    shared += 1
    assert x.to_numpy().tolist() == [2, 3, 4]
    for versioned in (False, True):
        assert torch.from_dlpack(x.to_dlpack(versioned=versioned)).tolist() == [2, 3, 4]
    with pytest.raises(ArgumentValueError, match="does not lie on device meta"):
        x.to_torch(device="meta", copy=False)


def test_views_keep_memory_and_handles_become_errors():
    x, f = qd.ndarray(qd.i32, 1000), qd.field(qd.i32, 3)
    x.fill(42)
    view, rest = x.to_numpy(copy=None), x[10:20]
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is not None
    assert rest.to_numpy().tolist() == [42] * 10
    qd.reset()
    others = [np.full(1000, k) for k in range(50)]
    assert (view == 42).all()
    for use in (
        rest.to_numpy,
        functools.partial(rest.__getitem__, 0),
        functools.partial(rest.to_numpy, copy=False),
        f.to_numpy,
        functools.partial(f.__getitem__, 0),
        functools.partial(np.from_dlpack, f),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    del view, rest, others, use
    gc.collect()
    assert gone() is None


def test_parts_of_an_array():
    @qd.kernel
    def double(v: qd.BufferView[qd.i32], w: qd.types.ndarray(qd.i32, 1)):
        for i in v:
            v[i] = 2 * v[i] + w[i]

    x = qd.ndarray(qd.i32, 10)
    x.from_numpy(np.arange(10, dtype=np.int32))
    v = x[3:6]
    assert (v.size, v.shape, v[1]) == (3, (3,), 4)
    for _ in range(3):
        double(v, np.ones(3, np.int32))
    assert x.to_numpy().tolist() == [0, 1, 2, 31, 39, 47, 6, 7, 8, 9]
    v[0] = -5
    v[1:][1:].fill(9)
    assert x.to_numpy().tolist() == [0, 1, 2, -5, 39, 9, 6, 7, 8, 9]
    double(x[4:5], x[5:6])
    assert x[4] == 87
    assert pickle.loads(pickle.dumps(v)).to_numpy().tolist() == [-5, 87, 9]
    assert x[7:2].size == 0
    with pytest.raises(qd.QuadrantsAssertionError, match="out of range"):
        v[3]
    for bad in (lambda: x[::2], lambda: qd.ndarray(qd.f32, (2, 2))[0:1], lambda: qd.ndarray(qd.f32, 2, True)[0:1]):
        with pytest.raises(ArgumentValueError):
            bad()


def test_copies_attributes_and_weak_references():
    x, f = qd.ndarray(qd.f32, 3, needs_grad=True), qd.field(qd.f32, 3)
    x.fill(2)
    x.grad.fill(3)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)):
        assert other.to_numpy().tolist() == [2, 2, 2]
        assert other.grad.to_numpy().tolist() == [3, 3, 3]
        other.fill(0)
        assert x[0] == 2
    for a in (x, f, qd.tensor(qd.f32, 2), x.grad, f.grad):
        a._tc = "mine"
        assert a._tc == "mine"
        assert weakref.ref(a)() is a
