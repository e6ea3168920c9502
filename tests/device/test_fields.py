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


def test_gradients_of_arguments_in_every_combination():
    a, b, c = (qd.field(qd.f32, shape=3, needs_grad=True) for _ in range(3))

    @qd.kernel
    def k(x: qd.template(), y: qd.template()):
        for i in x:
            y[i] += 3 * x[i]

    def gradients(x, y, seed):
        for f in (a, b, c):
            f.grad.fill(0)
        y.grad.fill(seed)
        k.grad(x, y)
        return [f.grad[0] for f in (a, b, c)]

    for seed in range(1, 5):
        assert gradients(a, b, seed) == [3 * seed, seed, 0]
        assert gradients(b, c, seed) == [0, 3 * seed, seed]
        assert gradients(c, a, seed) == [seed, 0, 3 * seed]
        assert gradients(a, a, seed) == [4 * seed, 0, 0]
    fresh = qd.field(qd.f32, shape=3, needs_grad=True)
    k.grad(a, fresh)  # without memory yet
    assert fresh.grad.to_numpy().tolist() == [0, 0, 0]
