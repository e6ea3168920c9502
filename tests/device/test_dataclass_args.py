"""Dataclasses and structs as arguments: flattened, pruned to what a kernel reads; struct values in kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import pytest

import qd_core as qd

pytestmark = pytest.mark.usefixtures("device")

Array = qd.types.ndarray(dtype=qd.f32, ndim=1)
vec2 = qd.types.vector(2, qd.f32)


@dataclass
class Material:
    stiffness: qd.f32
    offset: vec2
    table: Array
    unread: Array = None


@dataclass(frozen=True)
class State:
    x: Array
    n: qd.i32
    material: Material
    scale: qd.template() = 2.0

    @qd.func
    def force(self, i):
        return -self.material.stiffness * self.x[i]


def state(n=4, **more):
    material = Material(2.0, qd.Vector([1.0, 2.0]), qd.ndarray(qd.f32, 3))
    return State(qd.ndarray(qd.f32, n), n, material, **more)


@qd.func
def looked_up(m: Material, i):
    return m.table[i % 3] + m.offset.y


@qd.kernel
def run(s: State, out: Array):
    for i in range(s.n):
        out[i] = s.force(i) * s.scale + looked_up(s.material, i) + s.material.offset[0]


def expected(s, scale=2.0):
    n = np.arange(s.n)
    m = s.material
    return -m.stiffness * s.x.to_numpy() * scale + m.table.to_numpy()[n % 3] + m.offset[0] + m.offset[1]


def test_nested_dataclasses():
    s, out = state(), qd.ndarray(qd.f32, 4)
    s.x.from_numpy(np.arange(4))
    s.material.table.from_numpy(np.array([10, 20, 30]))
    for _ in range(4):
        run(s, out)
        np.testing.assert_allclose(out.to_numpy(), expected(s))
        s.material.stiffness += 1
        s.material.offset = qd.Vector([3.0, 1.0])
    s.material.table = qd.ndarray(qd.f32, 3)
    run(s, out)
    np.testing.assert_allclose(out.to_numpy(), expected(s))
    other = state(scale=3.0)
    other.x.fill(1)
    for _ in range(3):
        run(other, out)
        np.testing.assert_allclose(out.to_numpy(), expected(other, 3.0))
        run(s, out)
        np.testing.assert_allclose(out.to_numpy(), expected(s))


def test_what_is_not_read_is_not_passed():
    s, out = state(), qd.ndarray(qd.f32, 4)
    for unread in (None, "anything", np.zeros(3)):
        s.material.unread = unread
        run(s, out)
    assert sum(map(len, run._specs.values())) == 1
    (specs,) = run._specs.values()
    paths = {leaf.path for leaf in specs[0].executable.table.leaves}
    wanted = {
        "s.x",
        "s.n",
        "s.material.stiffness",
        "s.material.table",
        "s.material.offset[0]",
        "s.material.offset[1]",
        "out",
    }
    assert paths == wanted


def test_members_are_checked_like_arguments():
    s, out = state(), qd.ndarray(qd.f32, 4)
    s.material.stiffness = "stiff"
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match=r"s\.material\.stiffness"):
        run(s, out)
    s.material.stiffness = 1.0
    s.material.table = np.zeros(3, np.float64)
    with pytest.raises(ValueError, match=r"s\.material\.table"):
        run(s, out)
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match="must be a State, got Material"):
        run(s.material, out)


def test_numpy_members_are_read_and_written():
    @dataclass
    class Pair:
        a: Array
        b: Array

    @qd.kernel
    def add(p: Pair):
        for i in range(p.a.shape[0]):
            p.a[i] += p.b[i]

    p = Pair(np.zeros(4, np.float32), np.arange(4, dtype=np.float32))
    for n in range(1, 4):
        add(p)
        assert p.a.tolist() == [0, n, 2 * n, 3 * n]
    p.b = p.a
    add(p)
    assert p.a.tolist() == [0, 6, 12, 18]


def test_gradients_of_members():
    @dataclass
    class Model:
        w: Array
        loss: qd.types.ndarray(dtype=qd.f32, ndim=0)

    @qd.kernel
    def k(m: Model, power: qd.i32):
        for i in range(m.w.shape[0]):
            m.loss[None] += m.w[i] ** power

    m = Model(qd.ndarray(qd.f32, 3, needs_grad=True), qd.ndarray(qd.f32, (), needs_grad=True))
    m.w.from_numpy(np.array([1, 2, 3]))
    for n in range(1, 4):
        m.loss.fill(0)
        k(m, 3)
        assert m.loss[None] == 36
        m.loss.grad.fill(1)
        k.grad(m, 3)
        np.testing.assert_allclose(m.w.grad.to_numpy(), 3 * n * np.array([1, 4, 9]))


def test_fields_and_templates_in_dataclasses():
    @dataclass
    class Grid:
        values: qd.template()
        bounds: qd.template()

    @qd.kernel
    def k(g: Grid):
        for i, j in g.values:
            if qd.static(g.bounds is not None):
                g.values[i, j] = qd.min(g.values[i, j] + i, g.bounds[1])
            else:
                g.values[i, j] += i

    grids = [Grid(qd.field(qd.f32, shape=(3, 2)), None), Grid(qd.field(qd.f32, shape=(3, 2)), (0, 2))]
    for _ in range(3):
        for g in grids:
            k(g)
    assert grids[0].values.to_numpy()[:, 0].tolist() == [0, 3, 6]
    assert grids[1].values.to_numpy()[:, 0].tolist() == [0, 2, 2]


def test_optional_arguments():
    @qd.kernel
    def k(x: Array, weights: Optional[Array] = None, n: Optional[qd.i32] = None):  # noqa: UP045
        for i in range(x.shape[0]):
            if qd.static(weights is not None):
                x[i] += weights[i]
            else:
                x[i] += 1
            if qd.static(n is not None):
                x[i] *= n

    x, w = qd.ndarray(qd.f32, 3), qd.ndarray(qd.f32, 3)
    w.fill(10)
    for _ in range(3):
        x.fill(0)
        k(x)
        k(x, w)
        k(x, w, 2)
        k(x, None, 3)
        k(x, n=2)
        assert x.to_numpy().tolist() == [(((1 + 10 + 10) * 2 + 1) * 3 + 1) * 2] * 3


def test_default_factories_and_inheritance():
    @dataclass
    class Parent:
        x: Array = field(default_factory=lambda: np.ones(2, np.float32))

    @dataclass
    class Child(Parent):
        y: qd.f32 = 3.0

    @qd.kernel
    def k(p: Parent):
        for i in range(2):
            p.x[i] *= 2

    @qd.kernel
    def both(c: Child):
        for i in range(2):
            c.x[i] += c.y

    c = Child()
    for _ in range(2):
        k(c)
        both(c)
    assert c.x.tolist() == [(1 * 2 + 3) * 2 + 3] * 2
    p = Parent()
    k(p)
    assert p.x.tolist() == [2, 2]


# -- structs ----------------------------------------------------------------------------------------------------------
@qd.dataclass
class Ray:
    """Struct type with methods."""

    origin: vec2
    direction: vec2
    t: qd.f32

    @qd.func
    def at(self, t):
        return self.origin + t * self.direction

    @qd.func
    def advance(self, t):
        self.t += t
        self.origin = self.at(t)


def test_struct_arguments_and_results():
    @qd.kernel
    def k(ray: Ray, t: qd.f32) -> Ray:
        moved = ray
        moved.advance(t)
        moved.advance(t)
        return moved

    ray = Ray(origin=[1, 2], direction=[0.5, 0.25], t=1)
    for _ in range(3):
        moved = k(ray, 2.0)
        assert moved.origin.to_list() == [3, 3]
        assert moved.t == 5
        assert moved.to_dict()["direction"].to_list() == [0.5, 0.25]
    assert (ray.t, ray.origin.to_list()) == (1, [1, 2])
    ray.t = 7
    assert k(ray, 0.0).t == 7
    assert k({"origin": [0, 0], "direction": [1, 1], "t": 0}, 3.0).origin.to_list() == [6, 6]
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match="members"):
        k({"origin": [0, 0]}, 1.0)
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match="must be a struct"):
        k(3, 1.0)


def test_vectors_matrices_and_structs_that_change():
    kind = qd.types.struct(a=qd.f32, v=vec2)
    out = qd.field(qd.f32, shape=())

    @qd.kernel
    def k(v: vec2, m: qd.types.matrix(2, 2, qd.i32), s: kind, n: qd.template()):
        out[None] = v.x + 10 * v.y + 100 * m[1, 0] + 1000 * s.a + 10000 * s.v.y + n

    v, m, s = vec2(1, 2), qd.Matrix([[1, 2], [3, 4]]), kind(5, [1, 6])
    for _ in range(3):
        k(v, m, s, 0)
        assert out[None] == 65321
    v.x, m[1, 0], s.a, s.v[1] = 2, 4, 6, 7
    for _ in range(3):
        k(v, m, s, 0)
        assert out[None] == 76422
    for other in ([3, 2], (3, 2), np.array([3, 2]), np.array([3, 2], np.float32)):
        for _ in range(3):
            k(other, np.array([[0, 0], [4, 0]]), {"a": 6, "v": other}, 1)
            assert out[None] == 26424
    with pytest.raises(ValueError, match="shape"):
        k(qd.Vector([1.0, 2.0, 3.0]), m, s, 0)
    with pytest.raises(qd.QuadrantsRuntimeTypeError, match="reals"):
        k(v, qd.Matrix([[1.5, 2], [3, 4]]), s, 0)


def test_struct_elements_as_arguments():
    rays = Ray.field(shape=3)
    out = qd.Vector.field(2, qd.f32, shape=())

    @qd.kernel
    def init():
        for i in rays:
            rays[i] = Ray(origin=[i, i], direction=[1, 0], t=0)
            rays[i].advance(2.0)

    @qd.kernel
    def k(ray: Ray):
        out[None] = ray.at(1.0) + ray.t

    init()
    k(rays[2])
    assert out[None].to_list() == [2 + 2 + 1 + 2, 2 + 2]


def test_structs_in_python_scope():
    s = qd.Struct(a=1, b={"c": 2.5})
    assert (s.a, s.b.c, s.keys) == (1, 2.5, ["a", "b"])
    s.a = 3
    assert s.to_dict() == {"a": 3, "b": {"c": 2.5}}
    assert s == qd.Struct({"a": 3, "b": {"c": 2.5}})
    with pytest.raises(AttributeError, match="no member 'z'"):
        s.z = 1
    kind = qd.types.struct(a=qd.i32, v=vec2)
    assert kind(1, [2, 3]).v.to_list() == [2, 3]
    assert kind(a=2.9).a == 2
    with pytest.raises(TypeError, match="no member 'c'"):
        kind(c=1)
    f = qd.Struct.field({"a": qd.i32, "v": vec2}, shape=2)
    f[1] = kind(4, 5)
    assert f[1] == kind(4, 5)
    assert f[1].v.to_list() == [5, 5]


def test_a_member_of_a_dataclass_has_no_other_type():
    class Wrong:
        a: Any

    with pytest.raises(TypeError, match="'a' of Wrong"):
        qd.dataclass(Wrong)
