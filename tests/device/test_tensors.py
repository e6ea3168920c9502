"""`qd.tensor`: fields and ndarrays behind one surface, in every order of axes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import qd_core as qd

pytestmark = pytest.mark.usefixtures("device")

LAYOUTS = [None, (0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 0, 2)]


@pytest.fixture(params=["NDARRAY", "FIELD"])
def backend(request):
    return getattr(qd.Backend, request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_permute_storage_alone(backend, layout):
    shape = (2, 3, 4)
    x = qd.tensor(qd.f32, shape, backend=backend, layout=layout)
    data = np.arange(24, dtype=np.float32).reshape(shape)
    x.from_numpy(data)
    assert (x.shape, x.dtype, x.order) == (shape, qd.f32, layout or (0, 1, 2))
    assert np.array_equal(x.to_numpy(), data)
    assert x[1, 2, 3] == 23
    x[0, 1, 2] = -5
    data[0, 1, 2] = -5
    assert np.array_equal(x.to_numpy(), data)

    @qd.kernel
    def number(t: qd.Tensor, out: qd.Tensor):
        for i, j, k in t:
            t[i, j, k] += 100 * i + 10 * j + k
        for I in qd.grouped(t):  # noqa: E741
            out[I] = t[I]
        for i in range(t.shape[0]):
            out[i, 0, t.shape[2] - 1] = t.shape[1]

    i, j, m = np.indices(shape)
    y = qd.tensor(qd.f32, shape, backend=backend)
    for _ in range(4):
        number(x, y)
        data += (100 * i + 10 * j + m).astype(np.float32)
        expected = data.copy()
        expected[:, 0, 3] = 3
        assert np.array_equal(x.to_numpy(), data)
        assert np.array_equal(y.to_numpy(), expected)


def test_ndarrays_take_any_shape_without_compiling_anew():
    @qd.kernel
    def k(t: qd.Tensor):
        for i, j in t:
            t[i, j] = 10 * i + j

    for shape in ((2, 3), (4, 5), (1, 7)):
        for layout in (None, (1, 0)):
            t = qd.tensor(qd.i32, shape, layout=layout)
            for _ in range(3):
                k(t)
            assert np.array_equal(t.to_numpy(), 10 * np.arange(shape[0])[:, None] + np.arange(shape[1]))
    assert sum(map(len, k._specs.values())) == 2


def test_everything_that_a_tensor_annotation_takes():
    @qd.kernel
    def k(t: qd.Tensor, out: qd.Tensor):
        for _ in range(1):
            if qd.static(t is not None):
                out[0] = t[1]
            else:
                out[0] = -1

    f, n = qd.field(qd.f32, shape=2), qd.ndarray(qd.f32, 2)
    a, t = np.zeros(2, np.float32), qd.tensor(qd.f32, 2)
    out = qd.tensor(qd.f32, 1, backend=qd.Backend.FIELD)
    for value, x in enumerate((f, n, a, t)):
        x[1] = value
    for _ in range(3):
        for value, x in enumerate((f, n, a, t)):
            k(x, out)
            assert out[0] == value
        k(None, out)
        assert out[0] == -1


def test_tensors_as_templates_members_and_arrays(backend):  # noqa: C901
    class Holder:
        def __init__(self):
            self.t = qd.tensor(qd.f32, (2, 3), backend=backend, layout=(1, 0))

        @qd.kernel
        def write(self):
            for i, j in self.t:
                self.t[i, j] = 10 * i + j

    @qd.kernel
    def double(t: qd.template()):
        for i, j in t:
            t[i, j] *= 2

    h = Holder()
    expected = 10.0 * np.arange(2)[:, None] + np.arange(3)
    for _ in range(3):
        h.write()
        double(h.t)
        assert np.array_equal(h.t.to_numpy(), 2 * expected)

    @qd.kernel
    def halve(t: qd.types.ndarray(dtype=qd.f32, ndim=2)):
        for i in range(2):
            for j in range(3):
                t[i, j] /= 2 + i

    if backend is qd.Backend.NDARRAY:
        halve(h.t)
        assert np.allclose(h.t.to_numpy(), 2 * expected / np.array([[2], [3]]))


@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_gradients_have_the_layout_of_their_tensor(backend, layout):
    x = qd.tensor(qd.f32, (2, 3), backend=backend, layout=layout, needs_grad=True)
    y = qd.tensor(qd.f32, (), backend=backend, needs_grad=True)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)

    @qd.kernel
    def k(x: qd.Tensor, y: qd.Tensor):
        for i, j in x:
            y[None] += (i + 1) * x[i, j] ** 2

    x.from_numpy(data)
    with qd.ad.Tape(y):
        k(x, y)
    scale = np.array([[1], [2]])
    np.testing.assert_allclose(y[None], (scale * data**2).sum())
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * scale * data)
    assert x.grad.order == x.order
    assert x.grad[1, 2] == 20
    assert qd.tensor(qd.f32, 3, backend=backend).grad is None


def test_vectors_and_matrices(backend):
    v = qd.Vector.tensor(3, qd.f32, (2, 2), backend=backend, layout=(1, 0))
    m = qd.Matrix.tensor(2, 2, qd.i32, 4, backend=backend)
    assert (type(v), type(m)) == (qd.VectorTensor, qd.MatrixTensor)

    @qd.kernel
    def k(v: qd.Tensor, m: qd.Tensor):
        for i, j in v:
            v[i, j] = [i, j, 7]
        for i in m:
            m[i] = qd.Matrix([[i, 1], [2, 3]])

    k(v, m)
    assert v[1, 0].to_list() == [1, 0, 7]
    assert m[3].to_list() == [[3, 1], [2, 3]]
    v[0, 1][2] = 9
    assert v.to_numpy()[0, 1].tolist() == [0, 1, 9]
    assert (v.n, m.n, m.m) == (3, 2, 2)


def test_wrapping_and_refusals():
    f = qd.field(qd.f32, shape=3)
    t = qd.wrap(f)
    assert t._unwrap() is f
    assert qd.wrap(t) is t
    assert t.backend is qd.Backend.FIELD
    with pytest.raises(TypeError):
        qd.tensor(qd.f32, 3, order="i")
    with pytest.raises(ValueError, match="permutation"):
        qd.tensor(qd.f32, (2, 3), layout=(0, 0))
    with pytest.raises(TypeError, match="wrapped"):
        qd.wrap(3)


@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_pickling_and_copies(backend, layout):
    t = qd.tensor(qd.f64, (2, 3), backend=backend, layout=layout, needs_grad=True)
    t.from_numpy(np.arange(6).reshape(2, 3))
    t.grad.fill(4)
    for other in (pickle.loads(pickle.dumps(t)), copy.deepcopy(t)):
        assert (other.shape, other.order, other.backend, other.dtype) == (t.shape, t.order, t.backend, t.dtype)
        assert np.array_equal(other.to_numpy(), t.to_numpy())
        assert (other.grad.to_numpy() == 4).all()
        if backend is qd.Backend.NDARRAY:
            inner = copy.deepcopy(t._unwrap())
            assert np.array_equal(inner.to_numpy(), t._unwrap().to_numpy())
            assert qd.wrap(inner).order == t.order
        other.fill(0)
    assert t[1, 2] == 5


@pytest.mark.qd_options(check_out_of_bound=True)
def test_bounds_of_permuted_tensors():
    t = qd.tensor(qd.f32, (2, 3), layout=(1, 0))

    @qd.kernel
    def k(t: qd.Tensor, i: qd.i32, j: qd.i32):
        t[i, j] = 1

    k(t, 1, 2)
    with pytest.raises(qd.QuadrantsAssertionError, match=r"t\[2, 1\] of shape \(2, 3\)"):
        k(t, 2, 1)
    assert t.to_numpy().sum() == 1


def test_pickling_of_arrays():
    m = qd.Matrix.ndarray(2, 2, qd.i32, 3)
    m.from_numpy(np.arange(12).reshape(3, 2, 2))
    x = qd.ndarray(qd.f32, (2, 3), needs_grad=True)
    x.grad.fill(5)
    for array in (m, x):
        for other in (pickle.loads(pickle.dumps(array)), copy.deepcopy(array)):
            assert type(other) is type(array)
            assert (other.shape, other.element_shape, other.dtype) == (array.shape, array.element_shape, array.dtype)
            assert np.array_equal(other.to_numpy(), array.to_numpy())
    assert (copy.deepcopy(x).grad.to_numpy() == 5).all()
    assert copy.deepcopy(m).grad is None
