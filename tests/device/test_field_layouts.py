"""Layouts of fields on every backend: order, offset, blocks, interleaving, structs; each against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd

pytestmark = pytest.mark.usefixtures("device")


def numbered(shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


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
        for I in qd.grouped(x):  # noqa: E741
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


@pytest.mark.parametrize("order", [None, "ji"])
@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_components_side_by_side_or_apart(layout, order):
    options = {"layout": getattr(qd.Layout, layout), "order": order, "offset": (-1, 2)}
    v = qd.Vector.field(3, qd.f32, shape=(2, 4), needs_grad=True, **options)
    m = qd.Matrix.field(2, 3, qd.f32, shape=(2, 4), **options)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)
    assert (
        v.home.shape
        == {
            ("AOS", None): (2, 4),
            ("AOS", "ji"): (4, 2),
            ("SOA", None): (3, 2, 4),
            ("SOA", "ji"): (3, 4, 2),
        }[layout, order]
    )
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


def test_tapes_over_interleaved_fields():  # noqa: C901
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
