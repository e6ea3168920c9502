"""Fields on every backend: layouts, trees, host access, loops, gradients; each against NumPy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError, ClosedError, QuadrantsRuntimeError, UnsupportedError

pytestmark = pytest.mark.usefixtures("device")


def numbered(shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


# -- host access ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [qd.i32, qd.f32, qd.u8, qd.i64])
def test_host_reads_and_writes_of_scalars(dtype):
    x = qd.field(dtype, shape=(3, 4))
    assert (x.to_numpy() == 0).all()
    x[2, 3] = 7
    value = x[2, 3]
    assert value == 7
    assert type(value) is (float if dtype.is_real else int)
    assert (x.shape, x.dtype) == ((3, 4), dtype)
    assert x.dtype is dtype
    x.fill(3)
    assert (x.to_numpy() == np.full((3, 4), 3, dtype.numpy)).all()


def test_zero_dimensional_fields():
    x = qd.field(qd.f32, shape=())
    x[None] = 2.5

    @qd.kernel
    def double():
        x[None] *= 2
        x[()] += 1

    double()
    assert x[None] == x[()] == 6
    assert x.shape == ()
    assert x.to_numpy().shape == ()


def test_what_an_integer_field_refuses():
    x = qd.field(qd.i32, shape=2)
    with pytest.raises(TypeError, match=r"real 1\.5"):
        x[0] = 1.5
    with pytest.raises(TypeError, match=r"real 1\.5"):
        x.fill(1.5)
    assert x.grad is None


@pytest.mark.parametrize("key", [4, -1, (0, 0), slice(None), None])
def test_host_indices_are_checked(key):
    x = qd.field(qd.f32, shape=4)
    with pytest.raises(AssertionError):
        x[key]
    with pytest.raises(AssertionError):
        x[key] = 1.0


def test_elements_of_vectors_and_matrices_write_through():
    v = qd.Vector.field(3, qd.f32, shape=4)
    m = qd.Matrix.field(2, 2, qd.i32, shape=(2, 2))
    v[1] = [1, 2, 3]
    v[1][2] = 9
    v[1].x = 5
    assert v[1].to_list() == [5, 2, 9]
    assert (v.n, v.m, m.n, m.m) == (3, 1, 2, 2)
    m[1, 0] = [[1, 2], [3, 4]]
    m[1, 0][1, 1] = 40
    expected = np.zeros((2, 2, 2, 2), np.int32)
    expected[1, 0] = [[1, 2], [3, 40]]
    assert np.array_equal(m.to_numpy(), expected)
    assert v.to_numpy().shape == (4, 3)


def test_numpy_round_trips_and_copies():
    x = qd.field(qd.f32, shape=(3, 5), order="ji")
    data = numbered((3, 5))
    x.from_numpy(data)
    assert np.array_equal(x.to_numpy(), data)
    assert np.array_equal(x.to_numpy(np.float64), data.astype(np.float64))
    y = qd.field(qd.f32, shape=(3, 5))
    y.copy_from(x)
    assert np.array_equal(y.to_numpy(), data)
    z = qd.ndarray(qd.f32, (3, 5))
    z.from_numpy(2 * data)
    x.copy_from(z)
    assert np.array_equal(x.to_numpy(), 2 * data)
    with pytest.raises(ArgumentValueError, match=r"\(3, 5\)"):
        x.from_numpy(np.zeros((5, 3)))
    with pytest.raises(ArgumentValueError):
        x.copy_from(qd.field(qd.f32, shape=3))


def test_torch_round_trips():
    torch = pytest.importorskip("torch")
    x = qd.Vector.field(2, qd.f32, shape=3, order="i")
    data = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    x.from_torch(data.requires_grad_())
    assert torch.equal(x.to_torch(), data.detach())


def test_fields_are_open_objects():
    import weakref

    x = qd.field(qd.f32, shape=2)
    x._cache = 1
    assert weakref.ref(x)() is x
    assert x._cache == 1
    assert x.grad is x.grad


# -- layouts ----------------------------------------------------------------------------------------------------------
LAYOUTS = {
    "rows": lambda x: qd.root.dense(qd.ij, (4, 6)).place(x),
    "columns": lambda x: qd.root.dense(qd.j, 6).dense(qd.i, 4).place(x),
    "nested": lambda x: qd.root.dense(qd.i, 4).dense(qd.j, 6).place(x),
    "blocks": lambda x: qd.root.dense(qd.ij, (2, 3)).dense(qd.ij, 2).place(x),
    "deep blocks": lambda x: qd.root.dense(qd.i, 2).dense(qd.j, 3).dense(qd.i, 2).dense(qd.j, 2).place(x),
    "merged": lambda x: qd.root.dense(qd.i, 2).dense(qd.i, 2).dense(qd.j, 6).place(x),
    "beside another": lambda x: qd.root.dense(qd.ij, (4, 6)).place(qd.field(qd.f32), x, qd.Vector.field(2, qd.f32)),
    "blocks beside another": lambda x: qd.root.dense(qd.ij, (2, 3)).dense(qd.ij, 2).place(qd.field(qd.f32), x),
    "offset": lambda x: qd.root.dense(qd.ij, (4, 6)).place(x, offset=(-3, 10)),
    "blocks with offset": lambda x: qd.root.dense(qd.ij, (2, 3)).dense(qd.ij, 2).place(x, offset=(-1, 2)),
}


@pytest.fixture(params=LAYOUTS)
def laid_out(request):
    x = qd.field(qd.f32)
    LAYOUTS[request.param](x)
    return x


def test_every_layout_has_the_same_elements(laid_out):
    x, data = laid_out, numbered((4, 6))
    assert x.shape == (4, 6)
    first = x.offset or (0, 0)
    x.from_numpy(data)
    assert np.array_equal(x.to_numpy(), data)
    assert x[first[0] + 2, first[1] + 5] == data[2, 5]
    x[first[0] + 1, first[1]] = -1
    data[1, 0] = -1
    assert np.array_equal(x.to_numpy(), data)
    x.fill(8)
    assert (x.to_numpy() == 8).all()


def test_kernels_index_every_layout(laid_out):
    x = laid_out
    first = x.offset or (0, 0)

    @qd.kernel
    def write():
        for i in range(4):
            for j in range(6):
                x[i + first[0], j + first[1]] = 10 * i + j

    write()
    expected = np.array([[10 * i + j for j in range(6)] for i in range(4)], np.float32)
    assert np.array_equal(x.to_numpy(), expected)


def test_loops_over_every_layout(laid_out):
    x = laid_out
    y = qd.field(qd.f32, shape=(4, 6), offset=x.offset)

    @qd.kernel
    def number():
        for i, j in x:
            x[i, j] = 100 * i + j
        for I in qd.grouped(x):
            y[I] = 2 * x[I] + I[0] - I.y

    number()
    i, j = np.meshgrid(np.arange(4), np.arange(6), indexing="ij")
    first = x.offset or (0, 0)
    i, j = i + first[0], j + first[1]
    assert np.array_equal(x.to_numpy(), (100 * i + j).astype(np.float32))
    assert np.array_equal(y.to_numpy(), (2 * (100 * i + j) + i - j).astype(np.float32))


def test_loops_over_every_layout_in_series(laid_out):
    x = laid_out

    @qd.kernel
    def count() -> qd.i32:
        n = 0
        qd.loop_config(serialize=True)
        for i, j in x:
            x[i, j] = n
            n += 1
        return n

    assert count() == 24
    assert sorted(x.to_numpy().ravel()) == list(range(24))


def test_gradients_in_every_layout(laid_out):
    x = laid_out
    x.parent().lazy_grad()
    y = qd.field(qd.f32, shape=(), needs_grad=True)
    data = numbered((4, 6)) / 7

    @qd.kernel
    def square():
        for i, j in x:
            y[None] += x[i, j] ** 2

    x.from_numpy(data)
    square()
    np.testing.assert_allclose(y[None], (data**2).sum(), rtol=1e-5)
    y.grad[None] = 1
    square.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * data, rtol=1e-6)
    assert x.grad.shape == x.shape
    first = x.offset or (0, 0)
    assert x.grad[first[0] + 3, first[1] + 5] == pytest.approx(2 * data[3, 5])


@pytest.mark.qd_options(debug=True)
def test_bounds_of_fields_with_offset():
    x = qd.field(qd.f32, shape=(4,), offset=-2)

    @qd.kernel
    def write(i: qd.i32):
        x[i] = 1

    write(-2)
    write(1)
    assert x.to_numpy().tolist() == [1, 0, 0, 1]
    with pytest.raises(qd.QuadrantsAssertionError, match=r"x\[2\]"):
        write(2)
    with pytest.raises(qd.QuadrantsAssertionError, match=r"x\[-3\]"):
        write(-3)
    assert x.to_numpy().tolist() == [1, 0, 0, 1]


def test_order_is_memory_order_alone():
    x, y = qd.field(qd.i32, shape=(2, 3, 4), order="kij"), qd.field(qd.i32, shape=(2, 3, 4))

    @qd.kernel
    def write():
        for i, j, k in x:
            x[i, j, k] = 100 * i + 10 * j + k
        for i, j, k in y:
            y[i, j, k] = x[i, j, k]

    write()
    assert np.array_equal(x.to_numpy(), y.to_numpy())
    assert x[1, 2, 3] == 123
    assert x.home.to_numpy().shape == (4, 2, 3)  # k is the slowest in memory


def test_interleaved_fields_keep_apart():
    a, v, b = qd.field(qd.f32), qd.Vector.field(3, qd.f32), qd.field(qd.i32)
    qd.root.dense(qd.i, 5).place(a, v, b)

    @qd.kernel
    def write():
        for i in a:
            a[i] = i
            v[i] = [10 * i, 20 * i, 30 * i]
            v[i][b[i]] += 1
            b[i] = i

    b.from_numpy(np.array([0, 1, 2, 0, 1], np.int32))
    write()
    n = np.arange(5)
    expected = np.stack([10 * n, 20 * n, 30 * n], 1).astype(np.float32)
    expected[n, [0, 1, 2, 0, 1]] += 1
    assert np.array_equal(a.to_numpy(), n)
    assert np.array_equal(v.to_numpy(), expected)
    assert np.array_equal(b.to_numpy(), n)
    assert a.home is v.home  # one element after the other, member by member
    assert b.home is not a.home
    a.fill(7)
    v[2] = [1, 2, 3]
    expected[2] = [1, 2, 3]
    assert np.array_equal(a.to_numpy(), np.full(5, 7))
    assert np.array_equal(v.to_numpy(), expected)


def test_gradients_of_interleaved_fields():
    a, b = qd.field(qd.f32, needs_grad=True), qd.field(qd.f32, needs_grad=True)
    c = qd.field(qd.f32)
    qd.root.dense(qd.i, 6).place(a, b, c)

    @qd.kernel
    def multiply():
        for i in a:
            b[i] = 3 * a[i] * a[i] * c[i]

    data = np.linspace(1, 2, 6, dtype=np.float32)
    a.from_numpy(data)
    c.fill(2)
    multiply()
    np.testing.assert_allclose(b.to_numpy(), 6 * data**2, rtol=1e-6)
    b.grad.fill(1)
    multiply.grad()
    np.testing.assert_allclose(a.grad.to_numpy(), 12 * data, rtol=1e-6)
    assert (b.grad.to_numpy() == 0).all()  # overwritten by the kernel
    assert c.home is not a.home
    assert not c.has_grad()


# -- trees ------------------------------------------------------------------------------------------------------------
def test_fields_can_be_added_after_kernels_ran():
    x = qd.field(qd.f32, shape=3)

    @qd.kernel
    def one():
        for i in x:
            x[i] = 1

    one()
    block = qd.root.dense(qd.i, 4)
    y, z = qd.field(qd.f32), qd.field(qd.f32)
    block.place(y)
    y[3] = 5
    block.place(z)

    @qd.kernel
    def copy():
        for i in y:
            z[i] = y[i]

    copy()
    assert z.to_numpy().tolist() == [0, 0, 0, 5]
    assert x.to_numpy().tolist() == [1, 1, 1]
    assert y.parent() is block
    assert block.parent().axes == ()
    assert block.parent(2) is None


def test_several_trees_are_destroyed_apart():
    x, y = qd.field(qd.f32), qd.field(qd.f32)
    first, second = qd.FieldsBuilder(), qd.FieldsBuilder()
    assert first.empty
    first.dense(qd.i, 3).place(x)
    second.dense(qd.i, 4).place(y)
    tree, other = first.finalize(), second.finalize()

    @qd.kernel
    def fill_x():
        for i in x:
            x[i] = i

    @qd.kernel
    def fill_y():
        for i in y:
            y[i] = i

    for _ in range(3):
        fill_x()
        fill_y()
    assert first.finalized
    with pytest.raises(QuadrantsRuntimeError, match="finalized"):
        first.dense(qd.i, 3)
    tree.destroy()
    with pytest.raises(ClosedError, match="destroyed"):
        fill_x()
    with pytest.raises(ClosedError, match="destroyed"):
        x.to_numpy()
    fill_y()
    assert y.to_numpy().tolist() == [0, 1, 2, 3]
    other.destroy()


def test_loops_over_nodes():
    block = qd.root.dense(qd.i, 3).dense(qd.j, 4)
    x = qd.field(qd.i32)
    block.place(x)
    blocked = qd.root.dense(qd.i, 2).dense(qd.i, 3)
    y = qd.field(qd.i32, shape=6)

    @qd.kernel
    def write():
        for i, j in block:
            x[i, j] = 10 * i + j
        for i in blocked:
            y[i] = i

    write()
    assert np.array_equal(x.to_numpy(), 10 * np.arange(3)[:, None] + np.arange(4))
    assert y.to_numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert block.shape == (3, 4)


def test_placing_errors():
    x = qd.field(qd.f32)
    with pytest.raises(QuadrantsRuntimeError, match="not placed"):
        x.to_numpy()
    qd.root.dense(qd.i, 3).place(x)
    with pytest.raises(QuadrantsRuntimeError, match="already placed"):
        qd.root.dense(qd.i, 3).place(x)
    with pytest.raises(TypeError, match="only fields"):
        qd.root.dense(qd.i, 3).place(3)
    with pytest.raises(ValueError, match="offset"):
        qd.root.dense(qd.ij, 3).place(qd.field(qd.f32), offset=1)
    with pytest.raises(ValueError, match="order"):
        qd.field(qd.f32, shape=(2, 3), order="ik")
    with pytest.raises(ValueError, match="need its shape"):
        qd.field(qd.f32, offset=1)
    with pytest.raises(ValueError, match="count"):
        qd.root.dense(qd.ij, (1, 2, 3))


@pytest.mark.parametrize("kind", ["pointer", "bitmasked", "dynamic", "hash"])
def test_sparse_nodes_are_refused_with_the_line(kind):
    with pytest.raises(UnsupportedError, match=r"test_fields\.py.*\n.*getattr\(qd\.root, kind\)") as caught:
        getattr(qd.root, kind)(qd.i, 4)
    assert kind in str(caught.value)


def test_memory_goes_with_the_field(device):
    before = len(device.balance.live)
    x = qd.field(qd.f32, shape=1000, needs_grad=True)
    x.fill(1)
    assert len(device.balance.live) == before + 2
    del x
    gc.collect()
    assert len(device.balance.live) == before


def test_a_field_of_a_closed_device_says_so(device):
    x = qd.field(qd.f32, shape=3)
    x.fill(1)
    y = qd.field(qd.f32, shape=3)
    qd.init(device.name, enable_fallback=False)
    with pytest.raises(ClosedError):
        x.to_numpy()
    with pytest.raises(ClosedError):
        y[0] = 1


def test_kernels_survive_a_new_device(device):
    fields = {}

    @qd.kernel
    def k():
        for i in fields["x"]:
            fields["x"][i] += 1

    for n in (3, 5):
        fields["x"] = qd.field(qd.f32, shape=n)
        for _ in range(4):
            k()
        assert fields["x"].to_numpy().tolist() == [4] * n
        qd.init(device.name, enable_fallback=False)


# -- gradients --------------------------------------------------------------------------------------------------------
def test_gradients_by_flag_by_place_and_lazily():
    a = qd.field(qd.f32, shape=3, needs_grad=True)
    b, c, n = qd.field(qd.f32), qd.field(qd.f32), qd.field(qd.i32)
    qd.root.dense(qd.i, 3).place(b, b.grad)
    node = qd.root.dense(qd.i, 3)
    node.place(c, n)
    assert (a.has_grad(), b.has_grad(), c.has_grad()) == (True, True, False)
    node.lazy_grad()
    assert c.has_grad()
    assert not c.has_dual()
    node.lazy_dual()
    assert c.has_dual()

    @qd.kernel
    def k():
        for i in a:
            c[i] = a[i] * b[i]

    a.from_numpy(np.array([1, 2, 3]))
    b.from_numpy(np.array([4, 5, 6]))
    k()
    c.grad.fill(1)
    k.grad()
    assert a.grad.to_numpy().tolist() == [4, 5, 6]
    assert b.grad.to_numpy().tolist() == [1, 2, 3]


def test_gradients_that_come_after_a_launch():
    x, y = qd.field(qd.f32, shape=3), qd.field(qd.f32, shape=3, needs_grad=True)
    z = qd.field(qd.f32, shape=3, needs_grad=True)

    @qd.kernel
    def k():
        for i in x:
            y[i] = x[i] ** 2 + z[i]

    x.fill(3)
    for _ in range(3):
        k()
        y.grad.fill(1)
        k.grad()
    with pytest.raises(QuadrantsRuntimeError, match="no gradient"):
        x.grad.to_numpy()
    qd.root.lazy_grad()
    y.grad.fill(1)
    k.grad()
    assert x.grad.to_numpy().tolist() == [6, 6, 6]


def test_kernels_read_and_write_gradients():
    x = qd.field(qd.f32, shape=3, needs_grad=True)
    g = x.grad

    @qd.kernel
    def step():
        for i in x:
            x[i] -= 0.5 * x.grad[i]
            g[i] = i

    x.fill(1)
    x.grad.fill(2)
    step()
    assert x.to_numpy().tolist() == [0, 0, 0]
    assert x.grad.to_numpy().tolist() == [0, 1, 2]


def test_a_missing_gradient_is_named():
    x = qd.field(qd.f32, shape=3)

    @qd.kernel
    def k():
        for i in x:
            x.grad[i] = 1

    with pytest.raises(qd.QuadrantsTypeError, match="'x' has no gradient"):
        k()


def test_a_gradient_needs_the_shape_of_its_field():
    x = qd.field(qd.f32)
    qd.root.dense(qd.i, 3).place(x)
    with pytest.raises(ValueError, match="shape of its field"):
        qd.root.dense(qd.i, 4).place(x.grad)
    with pytest.raises(TypeError, match="no derivative"):
        qd.field(qd.i32, shape=3, needs_grad=True)


# -- in kernels -------------------------------------------------------------------------------------------------------
def test_shapes_are_known_at_compile_time():
    x = qd.field(qd.f32, shape=(2, 3))
    total = qd.field(qd.f32, shape=())

    @qd.kernel
    def k() -> qd.i32:
        for _ in range(1):
            for j in qd.static(range(x.shape[1])):
                total[None] += x[1, j]
        return x.shape[0] * 10 + x.shape[1]

    x.from_numpy(numbered((2, 3)))
    assert k() == 23
    assert total[None] == 12


def test_fields_of_vectors_in_kernels():
    x, v = qd.Vector.field(3, qd.f32, shape=(2, 2), order="ji"), qd.Matrix.field(2, 3, qd.f32, shape=4)

    @qd.kernel
    def k():
        for i, j in x:
            x[i, j] = [i, j, i + j]
            x[i, j].z *= 2
        for i in v:
            v[i] = qd.Matrix([[1, 2, 3], [4, 5, 6]]) * i
            v[i][1, 2] += 100

    k()
    i, j = np.meshgrid(np.arange(2), np.arange(2), indexing="ij")
    assert np.array_equal(x.to_numpy(), np.stack([i, j, 2 * (i + j)], -1))
    expected = np.array([[1, 2, 3], [4, 5, 6]]) * np.arange(4)[:, None, None]
    expected[:, 1, 2] += 100
    assert np.array_equal(v.to_numpy(), expected)


@pytest.mark.parametrize("order", [None, "ji"])
@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_components_side_by_side_or_apart(layout, order):
    options = {"layout": getattr(qd.Layout, layout), "order": order, "offset": (-1, 2)}
    v = qd.Vector.field(3, qd.f32, shape=(2, 4), needs_grad=True, **options)
    m = qd.Matrix.field(2, 3, qd.f32, shape=(2, 4), **options)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)
    assert v.home.shape == {
        ("AOS", None): (2, 4),
        ("AOS", "ji"): (4, 2),
        ("SOA", None): (3, 2, 4),
        ("SOA", "ji"): (3, 4, 2),
    }[layout, order]
    data = numbered((2, 4, 3)) / 10
    v.from_numpy(data)
    assert np.array_equal(v.to_numpy(), data)
    v[0, 3] = [1, 2, 3]
    v[0, 3].y = 7
    data[1, 1] = [1, 7, 3]
    assert v[0, 3].to_list() == [1, 7, 3]
    assert np.array_equal(v.to_numpy(), data)

    @qd.kernel
    def k():
        for i, j in v:
            c = (i + j) % 3
            m[i, j][1, c] = v[i, j][c]
            m[i, j][0, 2] += v[i, j].dot(v[i, j])
            loss[None] += 0.5 * v[i, j].dot(v[i, j]) * (i + 2)

    m.fill(0)
    k()
    i, j = np.meshgrid(np.arange(2) - 1, np.arange(4) + 2, indexing="ij")
    c = (i + j) % 3
    expected = np.zeros((2, 4, 2, 3), np.float32)
    for a, b in np.ndindex(2, 4):
        expected[a, b, 1, c[a, b]] = data[a, b, c[a, b]]
        expected[a, b, 0, 2] = (data[a, b] ** 2).sum()
    np.testing.assert_allclose(m.to_numpy(), expected, rtol=1e-6)
    loss.grad[None] = 1
    k.grad()
    np.testing.assert_allclose(v.grad.to_numpy(), data * (i + 2)[..., None], rtol=1e-6)
    assert v.grad[0, 2].to_list() == pytest.approx(2 * data[1, 0])
    v.fill([1, 2, 3])
    assert (v.to_numpy() == [1, 2, 3]).all()
    v.fill(4)
    assert (v.to_numpy() == 4).all()


def test_tapes_over_interleaved_fields():
    p = qd.types.struct(x=qd.f32, v=qd.f32).field(shape=4, needs_grad=True)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)

    class Simulation:
        def __init__(self):
            self.dt, self.p = 0.5, p

        @qd.kernel
        def accelerate(self):
            for i in self.p:
                self.p[i].v -= self.dt * self.p[i].x ** 2

        @qd.kernel
        def move(self):
            for i in self.p:
                self.p[i].x += self.dt * self.p[i].v

        @qd.kernel
        def total(self):
            for i in self.p:
                loss[None] += self.p[i].x ** 2

    def reference(x0):
        x, v = x0.copy(), np.zeros_like(x0)
        for step in range(3):
            v = v - 0.5 * x**2
            x = x + 0.5 * v
            if step == 0:
                x[2] = 0.25
        return (x**2).sum()

    start, s = np.array([0.3, 0.5, 0.7, 0.9]), Simulation()
    steps = 1e-6 * np.eye(4)
    expected = [(reference(start + d) - reference(start - d)) / 2e-6 for d in steps]
    for _ in range(2):
        p.x.from_numpy(start)
        p.v.fill(0)
        with qd.ad.Tape(loss):
            for step in range(3):
                s.accelerate()
                s.move()
                if step == 0:
                    p[2].x = 0.25
            s.total()
        np.testing.assert_allclose(loss[None], reference(start), rtol=1e-6)
        np.testing.assert_allclose(p.x.grad.to_numpy(), expected, rtol=1e-5, atol=1e-7)


def test_fields_passed_to_functions_and_templates():
    @qd.func
    def add(a: qd.template(), b, i):
        a[i] += b[i]

    @qd.kernel
    def k(a: qd.template(), b: qd.template()):
        for i in a:
            add(a, b, i)

    fields = [qd.field(qd.f32, shape=n) for n in (3, 3, 4, 4)]
    for n, f in enumerate(fields):
        f.fill(n + 1)
    for _ in range(3):
        k(fields[0], fields[1])
        k(fields[2], fields[3])
    k(fields[1], fields[1])
    assert [f.to_numpy()[0] for f in fields] == [1 + 3 * 2, 4, 3 + 3 * 4, 4]


def test_interleaved_fields_passed_as_templates():
    a, b, c = qd.field(qd.f32), qd.field(qd.f32), qd.field(qd.f32)
    qd.root.dense(qd.i, 4).place(a, b, c)

    @qd.kernel
    def k(x: qd.template(), y: qd.template()):
        for i in x:
            x[i] = 2 * y[i] + c[i]

    b.from_numpy(np.arange(4))
    c.fill(1)
    for _ in range(3):
        k(a, b)
    k(b, c)
    assert a.to_numpy().tolist() == [1, 3, 5, 7]
    assert b.to_numpy().tolist() == [3, 3, 3, 3]


def test_a_field_and_an_array_may_be_one():
    x = qd.field(qd.f32, shape=4)

    @qd.kernel
    def k(y: qd.template()):
        for _ in range(1):
            for i in range(1, 4):
                x[i] = y[i - 1] + 1

    other = qd.field(qd.f32, shape=4)
    for _ in range(3):
        k(other)
    assert x.to_numpy().tolist() == [0, 1, 1, 1]
    for _ in range(3):
        k(x)
    assert x.to_numpy().tolist() == [0, 1, 2, 3]
    k(other)
    assert x.to_numpy().tolist() == [0, 1, 1, 1]


def test_lists_of_fields():
    fields = [qd.field(qd.f32, shape=3) for _ in range(3)]

    @qd.kernel
    def k():
        for i in range(3):
            for n, f in qd.static(enumerate(fields)):
                f[i] = 10 * n + i
            fields[0][i] += fields[2][i]

    k()
    assert [f.to_numpy().tolist() for f in fields] == [[20, 22, 24], [10, 11, 12], [20, 21, 22]]


def test_arrays_may_be_called_like_what_core_supplies(capsys):
    log, temporary = qd.field(qd.i32, shape=3), qd.field(qd.i32, shape=())

    @qd.kernel
    def k() -> qd.i32:
        total = 0
        for i in log:
            log[i] = i
            total += log[i]
            print(log[i])
        temporary[None] = total
        return temporary[None]

    @qd.kernel
    def with_argument(log: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for i in range(3):
            log[i] = 10 * i
            print(log[i])

    assert k() == 3
    assert log.to_numpy().tolist() == [0, 1, 2]
    x = qd.ndarray(qd.i32, 3)
    with_argument(x)
    qd.sync()
    assert x.to_numpy().tolist() == [0, 10, 20]
    assert sorted(capsys.readouterr().out.split()[-6:], key=int) == ["0", "0", "1", "2", "10", "20"]


def test_names_of_arguments_and_of_what_functions_see_are_apart():
    s = qd.types.struct(x=qd.f32).field(shape=2)

    @qd.func
    def outer(i):
        return s[i].x

    class Inner:
        def __init__(self):
            self.x = qd.field(qd.f32, shape=2)

    @qd.kernel
    def k(s: qd.template()):
        for i in range(2):
            s.x[i] = outer(i) + 1

    inner = Inner()
    s.fill(5)
    for _ in range(3):
        k(inner)
    assert inner.x.to_numpy().tolist() == [6, 6]
    assert s.x.to_numpy().tolist() == [5, 5]


def test_an_unplaced_field_is_reported_at_the_users_line():
    x = qd.field(qd.f32)

    @qd.kernel
    def k():
        x[0] = 1

    with pytest.raises(QuadrantsRuntimeError, match=r"not placed[^\n]*\n.*test_fields\.py[^\n]*\n.*x\[0\] = 1"):
        k()


# -- structs ----------------------------------------------------------------------------------------------------------
vec3 = qd.types.vector(3, qd.f32)


def particle():
    return qd.types.struct(x=vec3, mass=qd.f32, kind=qd.i32)


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_struct_fields(layout):
    p = particle().field(shape=4, layout=getattr(qd.Layout, layout))

    @qd.kernel
    def k():
        for i in p:
            p[i].x = [i, 2 * i, 3 * i]
            p[i].mass = 0.5 * i
            p[i].x.y += 1
            p[i].kind += i
            p.mass[i] += 1
        for i in p.kind:
            q = p[i]
            q.mass += 10
            if i == 3:
                p[i] = q

    k()
    n = np.arange(4)
    data = p.to_numpy()
    mass = 0.5 * n + 1
    mass[3] += 10
    assert np.array_equal(data["x"], np.stack([n, 2 * n + 1, 3 * n], 1))
    assert np.array_equal(data["mass"], mass)
    assert np.array_equal(data["kind"], n)
    assert (p.x.home is p.mass.home) == (layout == "AOS")
    p[2].mass = 7
    p[2].x[1] = 8
    assert (p[2].mass, p[2].x.to_list(), p[2].kind) == (7, [2, 8, 6], 2)
    p[0] = particle()(x=[1, 2, 3], mass=4, kind=5)
    assert p[0].to_dict()["mass"] == 4
    assert p.x[0].to_list() == [1, 2, 3]
    p.fill(3)
    assert (p.to_numpy()["x"] == 3).all()
    p.from_numpy({name: 2 * array for name, array in data.items()})
    assert np.array_equal(p.kind.to_numpy(), 2 * n)
    with pytest.raises(AttributeError, match="no member 'y'"):
        p[0].y  # noqa: B018


def test_nested_struct_fields_with_methods():
    @qd.func
    def length(self):
        return qd.sqrt(self.v.dot(self.v))

    @qd.func
    def scale(self, s):
        self.v *= s

    inner = qd.types.struct(v=vec3, __struct_methods={"length": length, "scale": scale})
    outer = qd.types.struct(a=inner, n=qd.i32)
    s, out = outer.field(shape=(2, 2)), qd.field(qd.f32, shape=(2, 2))

    @qd.kernel
    def k():
        for i, j in s:
            s[i, j].a.v = [3, 4, 0]
            s[i, j].a.scale(i + 1)
            s[i, j].n = j
            out[i, j] = s[i, j].a.length()

    k()
    assert out.to_numpy().tolist() == [[5, 5], [10, 10]]
    assert s.to_numpy()["a"]["v"].shape == (2, 2, 3)
    assert s[1, 1].to_dict()["n"] == 1


def test_struct_fields_with_gradients_and_trees():
    p = qd.types.struct(x=qd.f32, y=qd.f32, n=qd.i32).field(needs_grad=True)
    qd.root.dense(qd.i, 5).place(p)

    @qd.kernel
    def k():
        for i in p:
            p[i].y = p[i].x ** 3
            p[i].n += 1

    data = np.linspace(0, 1, 5, dtype=np.float32)
    p.x.from_numpy(data)
    k()
    p.y.grad.fill(1)
    k.grad()
    np.testing.assert_allclose(p.x.grad.to_numpy(), 3 * data**2, rtol=1e-6)
    assert p.grad.keys == ["x", "y"]
    assert p.n.to_numpy().tolist() == [1] * 5
    assert p.shape == (5,)


def test_struct_fields_as_templates():
    kind = qd.types.struct(a=qd.f32, b=qd.f32)

    @qd.kernel
    def k(s: qd.template()):
        for i in s:
            s[i].a = 2 * s[i].b

    for layout in (qd.Layout.AOS, qd.Layout.SOA):
        s = kind.field(shape=3, layout=layout)
        s.b.fill(4)
        for _ in range(3):
            k(s)
        assert s.a.to_numpy().tolist() == [8, 8, 8]


# -- launches ---------------------------------------------------------------------------------------------------------
def test_launches_see_the_written_host_values():
    x = qd.field(qd.i32, shape=())

    @qd.kernel
    def k() -> qd.i32:
        x[None] += 1
        return x[None]

    for n in range(5):
        x[None] = 10 * n
        assert k() == 10 * n + 1
