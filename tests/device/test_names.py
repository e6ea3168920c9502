"""Small parts of the public interface: hints, axes, components, views; and what is left out, with a reason."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import qd_core as qd

LEFT_OUT = {
    "activate": "fields are dense",
    "deactivate": "fields are dense",
    "append": "fields are dense",
    "length": "fields are dense",
    "is_active": "fields are dense",
    "get_addr": "fields are dense",
    "sparse": "fields are dense",
    "Mesh": "no meshes",
    "clock_counter": "no clock",
    "clock_freq_hz": "no clock",
    "BitpackedFields": "no quantised types",
    "global_thread_idx": "iterations have indices",
    "linalg": "no sparse linear algebra",
    "perf_dispatch": "time the candidates",
    "sparse_matrix_builder": "no sparse linear algebra",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_says_why(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{LEFT_OUT[name]}"):
        getattr(qd, name)


def test_types_that_are_left_out_say_why():
    with pytest.raises(AttributeError, match="no quantised types"):
        qd.types.quant  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute .nothing.$"):
        qd.types.nothing  # noqa: B018


def test_in_kernels_it_is_an_error_at_the_line(device):
    @qd.kernel
    def bad(i: int):
        qd.activate(i, 1)

    with pytest.raises(qd.QuadrantsCompilationError, match="fields are dense") as caught:
        bad(1)
    assert "^" in str(caught.value)


def test_hints_change_nothing(device):
    x, y = qd.field(qd.f32, shape=(8, 4)), qd.field(qd.f32, shape=(2, 8))

    @qd.kernel
    def scaled(i: int, j: int) -> qd.math.ivec2:
        qd.block_local(x)
        qd.cache_read_only(x, y)
        qd.mesh_local(x)
        qd.no_activate(x)
        qd.loop_config(block_dim=64, name="some", parallelize=4)
        for a, b in x:
            x[a, b] = qd.volatile_load(x[a, b]) + 1
        return qd.rescale_index(x, y, qd.Vector([i, j]))

    assert scaled(7, 3).to_list() == [1, 6]
    assert qd.rescale_index(x, y, qd.Vector([7, 3])).to_list() == [1, 6]
    assert x.to_numpy().sum() == 32


def test_axes_and_components(device):
    assert qd.axes(0, 1) == qd.ij
    field = qd.Vector.field(3, qd.f32)
    qd.root.dense(qd.axes(1, 0), (3, 4)).place(field)
    assert field.shape == (4, 3)
    part = field.get_scalar_field(1)
    part[2, 1] = 5
    assert field[2, 1][1] == part[2, 1] == part.to_numpy()[2, 1] == 5
    part.fill(3)
    np.testing.assert_array_equal(field.to_numpy(), np.full((4, 3, 3), [0, 3, 0]))
    with pytest.raises(qd.errors.ArgumentValueError, match="no component"):
        field.get_scalar_field(3)


def test_views_of_structs_and_shapes(device):
    plain, named = qd.Struct(a=1), qd.Struct(a=1, items=3)
    assert dict(plain.items) == plain.entries == {"a": 1}
    assert named.items == 3
    assert plain.methods == {}
    assert qd.Matrix([[1, 2]]).get_shape() == (1, 2)
    array, pairs = qd.ndarray(qd.f32, 2, needs_grad=True), qd.types.struct(a=qd.f32).field(shape=2, needs_grad=True)
    assert (array.has_grad(), array.has_dual(), pairs.has_grad(), pairs.has_dual()) == (True, False, True, False)


def test_references_and_old_names(device):
    @qd.func
    def more(a: qd.ref(qd.i32)):
        a += 3

    @qd.pure
    @qd.kernel
    def call() -> int:
        x = 1
        more(x)
        return x

    assert call() == 4
    assert qd.experimental.real_func is qd.real_func


def test_methods_of_structs_in_both_scopes(device):
    @qd.dataclass
    class Ball:
        centre: qd.math.vec3
        radius: qd.f32

        def is_point(self):
            return self.radius == 0

        @property
        def diameter(self):
            return 2 * self.radius

        @qd.pyfunc
        def doubled(self):
            return self.radius * 2

        @staticmethod
        @qd.func
        def unit():
            return Ball(radius=1.0)

        @qd.func
        def grow(self, by):
            self.radius += by

    balls = Ball.field(shape=2)

    @qd.kernel
    def grown() -> float:
        ball = Ball.unit()
        ball.grow(2)
        other = ball.unit()
        balls[0].grow(1)
        return ball.doubled() + other.radius

    @qd.kernel
    def python_method() -> int:
        return Ball.unit().is_point()

    point = Ball(centre=[1, 2, 3], radius=0)
    assert point.is_point()
    assert (point.diameter, point.doubled()) == (0, 0)
    assert balls[0].is_point()
    assert grown() == 7
    assert balls[0].radius == 1
    with pytest.raises(qd.QuadrantsTypeError, match="no method 'is_point' for kernels") as caught:
        python_method()
    assert "@qd.pyfunc" in str(caught.value)


def test_optional_arrays_by_a_bar(device):
    array = qd.types.ndarray(dtype=qd.f32, ndim=1)

    @qd.kernel
    def count(x: array | None, n: qd.i32 | None = None, v: qd.math.vec3 | None = None) -> int:
        r = 0
        if qd.static(x is not None):
            r += x.shape[0]
        if qd.static(n is not None):
            r += n
        if qd.static(v is None):
            r += 100
        return r

    assert count(None) == 100
    assert count(np.zeros(3, np.float32), 5, [1, 2, 3]) == 8


def test_arrays_of_vector_types_of_the_math_module(device):
    @qd.kernel
    def add(x: qd.types.ndarray(dtype=qd.math.vec3, ndim=1), y: qd.types.ndarray(float, 1)):
        for i in x:
            x[i] += y[i]

    x = qd.Vector.ndarray(3, qd.f32, 4)
    add(x, np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(x.to_numpy()[:, 1], np.arange(4))


def test_structs_that_kernels_return_have_their_methods(device):
    @qd.dataclass
    class Pair:
        x: qd.f32
        keys: qd.i32

        @qd.func
        def plus(self, other: qd.template()):
            return Pair(self.x + other.x, self.keys + other.keys)

        def plus_python(self, other):
            return Pair(self.x + other.x, self.keys + other.keys)

    @qd.kernel
    def double(p: Pair) -> (Pair, int):
        return p.plus(p), p.keys

    pair, keys = double(Pair(1.5, 2))
    twice = pair.plus_python(pair)
    assert (pair.x, pair.keys, twice.x, twice.keys, keys) == (3, 4, 6, 8, 2)
    pairs = Pair.field(shape=2)
    pairs[0].keys = 5
    assert (pairs[0].keys, pairs.keys) == (5, ["x", "keys"])


def test_defaults_of_dataclasses_are_refused():
    with pytest.raises(qd.QuadrantsSyntaxError, match=r"Default value in @dataclass is not supported.*'b'"):

        @qd.dataclass
        class Wrong:
            a: int
            b: float = 3.14


def test_integers_stored_by_the_host_wrap_as_in_kernels(device):
    field, array = qd.field(qd.i8, shape=2), qd.ndarray(qd.i8, 2)
    pairs = qd.types.struct(a=qd.i16, b=qd.u1).field(shape=1)
    field[0] = array[0] = 300
    pairs[0].a, pairs[0].b = 0xFFFF, True
    assert (field[0], array[0], pairs[0].a, pairs[0].b) == (44, 44, -1, 1)


@pytest.mark.parametrize(
    "first", ["qd.math.vec3.field(shape=3)[0]", "qd.ndarray(qd.math.vec3, 3)[0]", "A.field(shape=3)"]
)
def test_whatever_is_used_first_is_complete(first):
    text = f"""
import qd_core as qd
qd.init(arch=qd.cpu)
@qd.dataclass
class A:
    a: qd.i32
{first}
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
