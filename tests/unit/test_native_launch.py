"""The native launch entry: it packs exactly what it should, and hands over everything else untouched."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.runtime import native
from qd_core.runtime.native import (
    NEVER,
    Argument,
    Formula,
    HeaderArgument,
    LaunchPlan,
    NativeLauncher,
    NumpyArgument,
    ResultWord,
    ScalarArgument,
    Variant,
    WordExtent,
    callable_class,
)
from qd_core.runtime.native_check import Capture
from qd_core.runtime.native_layout import make_header, make_memory, slot_offset
from qd_core.runtime.native_tables import HEADER_DUAL, HEADER_GRAD

pytestmark = pytest.mark.skipif(
    native.unavailable_reason() is not None, reason=f"native launches are off: {native.unavailable_reason()}"
)

KEY, OTHER_KEY = 5, 6


class Array:
    """An array as the launcher sees it: a class with the header in a slot."""

    __slots__ = ("__dict__", "__weakref__", "header", "name")

    def __init__(self, address: int, shape: Sequence[int] = (100,), nbytes: int = 400, key: int = KEY) -> None:
        self.header = make_header(5 + 2 * len(shape))
        self.header[0], self.header[1], self.header[2] = key, address, nbytes
        self.header[5:] = (*shape, *(int(np.prod(shape[d + 1 :])) for d in range(len(shape))))


class SubArray(Array):
    __slots__ = ("more",)


class Slow:
    """Records what reaches the slow path."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **keywords: Any) -> str:
        self.calls.append((args, keywords))
        return "slow"


@pytest.fixture
def slow() -> Slow:
    return Slow()


def capture(words: int, extents: int = 0, status: int = 0) -> Capture:
    return Capture(native.load_runtime().capture, words, extents, status)


def one_leaf(slow: Slow, leaf: Argument, words: int, **options: Any) -> tuple[NativeLauncher, Capture]:
    kernel = capture(words)
    launcher = NativeLauncher(slow)
    launcher.install(LaunchPlan(1, (leaf,), [0] * words, (), (kernel.variant(),), **options))
    return launcher, kernel


def bits(dtype: dt.DType, value: Any) -> int:
    if dtype.is_real:
        return int.from_bytes(struct.pack({32: "<f", 64: "<d"}[dtype.bits], value), "little")
    return int(value) & ((1 << max(dtype.bits, 8)) - 1)


INTEGERS = [d for d in dt.ALL if d.kind in "iu"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_packed_in_range_and_refused_outside(slow: Slow, dtype: dt.DType) -> None:
    launcher, kernel = one_leaf(slow, ScalarArgument(0, 0, dtype, (int, bool)), 1)
    low, high = int(dtype.min), min(int(dtype.max), 2**63 - 1)
    for value in (low, low + 1, 0, 1, 77, high - 1, high, True, False):
        assert launcher.entry(value) is None
        assert kernel.words == [bits(dtype, value)]
    outside = (low - 1, int(dtype.max) + 1, 2**64, -(2**64), 10**50)
    for value in outside:
        assert launcher.entry(value) == "slow"
    assert [c[0][0] for c in slow.calls] == list(outside)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_reals(slow: Slow, dtype: dt.DType) -> None:
    launcher, kernel = one_leaf(slow, ScalarArgument(0, 0, dtype, (float, int, bool)), 1)
    for value in (
        0.0,
        -0.0,
        1.5,
        0.1,
        1e-42,
        -1e30,
        float("inf"),
        float("-inf"),
        float("nan"),
        7,
        -(2**53),
        2**53,
        True,
    ):
        assert launcher.entry(value) is None
        assert kernel.words == [bits(dtype, value)]
    assert launcher.entry(2**53 + 1) == "slow"
    assert launcher.entry(10**400) == "slow"


def test_a_real_too_large_for_f32_is_left_to_the_slow_path(slow: Slow) -> None:
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.f32, (float,)), 1)
    assert launcher.entry(1e300) == "slow"
    assert launcher.entry(3.4028235677973366e38) == "slow"  # rounds to 2**128
    assert launcher.entry(3.4028235e38) is None


class Int(int):
    pass


@pytest.mark.parametrize("value", [np.int32(1), np.float64(1), "1", None, 1 + 0j, Int(1), [1]])
def test_other_scalars_take_the_slow_path(slow: Slow, value: Any) -> None:
    for dtype in (dt.i32, dt.f64):
        launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dtype, (int, float, bool)), 1)
        assert launcher.entry(value) == "slow"
        assert slow.calls[-1][0][0] is value


def test_only_accepted_types_are_taken(slow: Slow) -> None:
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.u1, (bool,)), 1)
    assert launcher.entry(True) is None
    assert launcher.entry(1) == "slow"
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.f32, (float,)), 1)
    assert launcher.entry(1.0) is None
    assert launcher.entry(1) == "slow"
    assert launcher.entry(True) == "slow"


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
def test_header_arrays(slow: Slow, shape: tuple[int, ...]) -> None:
    size = 1 + 2 * len(shape)
    launcher, kernel = one_leaf(slow, HeaderArgument(0, 0, Array, "header", KEY, len(shape)), size)
    array = Array(2**63 + 8, shape)
    array.name = array.extra = "neither the other slot nor __dict__ moves the header"  # type: ignore[attr-defined]
    assert launcher.entry(array) is None
    assert kernel.words == [2**63 + 8, *array.header[5:].tolist()]


def test_a_reset_foreign_or_huge_array_takes_the_slow_path(slow: Slow) -> None:
    launcher, kernel = one_leaf(slow, HeaderArgument(0, 0, Array, "header", KEY, 1), 3)
    array = Array(64)
    assert launcher.entry(array) is None
    array.header[0] = 0
    unset = Array.__new__(Array)
    for wrong in (array, Array(64, key=OTHER_KEY), Array(64, (2**31,)), unset, SubArray(64), np.zeros(3), 5):
        assert launcher.entry(wrong) == "slow"
    assert kernel.calls == 1


def test_subclasses_have_their_own_leaves(slow: Slow) -> None:
    launcher, kernel = one_leaf(slow, HeaderArgument(0, 0, SubArray, "header", KEY, 1), 3)
    assert launcher.entry(SubArray(96)) is None
    assert kernel.words == [96, 100, 1]
    assert launcher.entry(Array(96)) == "slow"
    assert slot_offset(SubArray, "header") == slot_offset(Array, "header")


@pytest.mark.parametrize(("hop", "word"), [("grad", HEADER_GRAD), ("dual", HEADER_DUAL)])
def test_gradients_and_duals_are_found_through_the_header(slow: Slow, hop: str, word: int) -> None:
    kernel, launcher = capture(6), NativeLauncher(slow)
    leaves = (HeaderArgument(0, 0, Array, "header", KEY, 1), HeaderArgument(0, 3, Array, "header", OTHER_KEY, 1, hop))
    launcher.install(LaunchPlan(1, leaves, [0] * 6, (), (kernel.variant(),)))
    array, other = Array(1024), Array(4096, (50,), key=OTHER_KEY)
    assert launcher.entry(array) == "slow"
    array.header[word] = other.header.ctypes.data
    assert launcher.entry(array) is None
    assert kernel.words == [1024, 100, 1, 4096, 50, 1]
    other.header[0] = 0
    assert launcher.entry(array) == "slow"


NUMPY_CASES = [(d, e) for d in dt.ALL for e in ((), (3,), (2, 3))]


@pytest.mark.parametrize(("dtype", "element"), NUMPY_CASES, ids=str)
def test_numpy_arrays(slow: Slow, dtype: dt.DType, element: tuple[int, ...]) -> None:
    launcher, kernel = one_leaf(slow, NumpyArgument(0, 0, dtype, 2, element), 5)
    array = np.zeros((4, 6, *element), dtype.numpy)
    size = int(np.prod(element))
    assert launcher.entry(array) is None
    assert kernel.words == [array.ctypes.data, 4, 6, 6 * size, size]
    wrong = dt.i32 if dtype is not dt.i32 else dt.f32
    strided = np.zeros((4, 12, *element), dtype.numpy)[:, ::2]
    swapped = array.astype(array.dtype.newbyteorder()) if dtype.bits > 8 else array.tolist()
    transposed = np.zeros((6, 4, *element), dtype.numpy).swapaxes(0, 1)
    other_rank = np.zeros((4, *element), dtype.numpy)
    for bad in (
        array.astype(wrong.numpy),
        strided,
        swapped,
        transposed,
        other_rank,
        array.tolist(),
        np.ma.masked_array(array),
        array[:0],
    ):
        assert launcher.entry(bad) == "slow"
    if element:
        assert launcher.entry(np.zeros((4, 6, *element[:-1], element[-1] + 1), dtype.numpy)) == "slow"


def test_unaligned_and_read_only_numpy_arrays(slow: Slow) -> None:
    reads, _ = one_leaf(slow, NumpyArgument(0, 0, dt.f64, 1), 3)
    writes, _ = one_leaf(slow, NumpyArgument(0, 0, dt.f64, 1, written=True), 3)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert reads.entry(frozen) is None
    assert writes.entry(frozen) == "slow"
    assert writes.entry(np.zeros(3)) is None
    assert reads.entry(np.zeros(25, np.uint8)[1:].view(np.float64)) == "slow"


def two_numpy(slow: Slow) -> tuple[NativeLauncher, Capture, Capture]:
    fast, safe = capture(6), capture(6)
    launcher = NativeLauncher(slow)
    leaves = (NumpyArgument(0, 0, dt.f32, 1, written=True), NumpyArgument(1, 3, dt.f32, 1))
    launcher.install(LaunchPlan(2, leaves, [0] * 6, (), (fast.variant("no_overlap"), safe.variant())))
    return launcher, fast, safe


@pytest.mark.parametrize(
    ("a", "b", "overlap"),
    [
        ((0, 10), (10, 20), False),
        ((10, 20), (0, 10), False),
        ((0, 10), (9, 20), True),
        ((5, 6), (0, 10), True),
        ((0, 10), (0, 10), True),
    ],
)
def test_the_overlap_guard_selects_the_variant(
    slow: Slow, a: tuple[int, int], b: tuple[int, int], overlap: bool
) -> None:
    launcher, fast, safe = two_numpy(slow)
    base = np.zeros(32, np.float32)
    launcher.entry(base[slice(*a)], base[slice(*b)])
    assert (fast.calls, safe.calls) == ((0, 1) if overlap else (1, 0))


def test_arrays_that_are_only_read_may_overlap(slow: Slow) -> None:
    fast, safe = capture(6), capture(6)
    launcher = NativeLauncher(slow)
    leaves = (NumpyArgument(0, 0, dt.f32, 1), NumpyArgument(1, 3, dt.f32, 1))
    launcher.install(LaunchPlan(2, leaves, [0] * 6, (), (fast.variant("no_overlap"), safe.variant())))
    x = np.zeros(8, np.float32)
    launcher.entry(x, x)
    assert (fast.calls, safe.calls) == (1, 0)


def test_an_array_overlaps_itself_only_as_another_argument(slow: Slow) -> None:
    launcher, fast, safe = two_numpy(slow)
    launcher.entry(np.zeros(8, np.float32), np.zeros(8, np.float32))
    x = np.zeros(8, np.float32)
    launcher.entry(x, x)
    assert (fast.calls, safe.calls) == (1, 1)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 20])
def test_the_overlap_guard_looks_at_every_pair(slow: Slow, count: int) -> None:
    base = np.zeros(8 * count, np.float32)
    for written in range(count):
        fast, safe = capture(3 * count), capture(3 * count)
        launcher = NativeLauncher(slow)
        leaves = tuple(NumpyArgument(n, 3 * n, dt.f32, 1, written=n == written) for n in range(count))
        variants = (fast.variant("no_overlap"), safe.variant())
        launcher.install(LaunchPlan(count, leaves, [0] * 3 * count, (), variants))
        apart = [base[8 * n : 8 * n + 8] for n in range(count)]
        launcher.entry(*apart)
        for other in range(count):
            arrays = list(apart)
            arrays[other] = apart[written]
            launcher.entry(*arrays)
        assert (fast.calls, safe.calls) == (2, count - 1)


def test_extents(slow: Slow) -> None:
    kernel, launcher = capture(5, 5), NativeLauncher(slow)
    leaves = (
        ScalarArgument(0, 0, dt.i32, (int,)),
        NumpyArgument(1, 1, dt.f32, 1),
        ScalarArgument(2, 4, dt.i64, (int,)),
    )
    tasks = ((WordExtent(0, signed32=True), WordExtent(2)), (), (17, WordExtent(4)), (-1,))
    launcher.install(LaunchPlan(3, leaves, [0] * 5, tasks, (kernel.variant(),)))
    array = np.zeros(9, np.float32)
    for n, m in ((4, 5), (0, 0), (-3, -(2**40)), (2**31 - 1, 2**40)):
        launcher.entry(n, array, m)
        assert kernel.extents == [max(n, 0), 9, 17, max(m, 0), -1]


@pytest.mark.parametrize("offset", [-5, 3, 2**33])
def test_extents_with_an_offset(slow: Slow, offset: int) -> None:
    kernel, launcher = capture(4, 2), NativeLauncher(slow)
    leaves = (ScalarArgument(0, 0, dt.i32, (int,)), NumpyArgument(1, 1, dt.f32, 1))
    tasks = ((WordExtent(0, signed32=True, offset=offset), WordExtent(2, offset=offset)),)
    launcher.install(LaunchPlan(2, leaves, [0] * 4, tasks, (kernel.variant(),)))
    for n in (-7, 0, 4, 5, 6, 2**31 - 1):
        launcher.entry(n, np.zeros(4, np.float32))
        assert kernel.extents == [max(n + offset, 0), max(4 + offset, 0)]


Steps = tuple[tuple[str, int], ...]

FORMULAS: list[tuple[Steps, Callable[[int, int], int]]] = [
    ((("word", 0), ("constant", 7), ("add", 0)), lambda a, b: a + 7),
    ((("word", 0), ("word", 1), ("sub", 0)), lambda a, b: a - b),
    ((("word", 0), ("word", 1), ("mul", 0)), lambda a, b: a * b),
    ((("word", 0), ("word", 1), ("min", 0)), min),
    ((("word", 0), ("word", 1), ("max", 0)), max),
    ((("word", 0), ("word", 1), ("floordiv", 0)), lambda a, b: a // b if b else 0),
    ((("word", 0), ("signed", 8)), lambda a, b: (a + 128) % 256 - 128),
    ((("word", 0), ("unsigned", 8)), lambda a, b: a % 256),
    ((("word", 0), ("signed", 64), ("unsigned", 64)), lambda a, b: a),
    (
        (("constant", -(2**63)), ("constant", -1), ("floordiv", 0), ("word", 0), ("sub", 0)),
        lambda a, b: -(2**63) - a + (2**64 if a > 0 else 0),
    ),
    ((("word", 1), ("word", 0), ("word", 1), ("sub", 0), ("mul", 0)), lambda a, b: b * (a - b)),
]


@pytest.mark.parametrize(("steps", "meaning"), FORMULAS)
def test_extents_by_a_formula(slow: Slow, steps: Steps, meaning: Callable[[int, int], int]) -> None:
    kernel, launcher = capture(2, 2), NativeLauncher(slow)
    leaves = (ScalarArgument(0, 0, dt.i64, (int,)), ScalarArgument(1, 1, dt.i64, (int,)))
    launcher.install(LaunchPlan(2, leaves, [0] * 2, ((3, Formula(steps)),), (kernel.variant(),)))
    for a in (-300, -7, -1, 0, 1, 6, 7, 255, 2**31):
        for b in (-3, -1, 0, 1, 2, 7, 130):
            launcher.entry(a, b)
            assert kernel.extents == [3, max(meaning(a, b), 0)]


BAD_FORMULAS = [
    (),
    (("add", 0),),
    (("word", 0), ("word", 0)),
    (("word", 0), ("pow", 0)),
    (("word", 0), ("signed", 65)),
    (("word", 9),),
]


@pytest.mark.parametrize("steps", [*BAD_FORMULAS, (("word", 0),) * 17 + (("add", 0),) * 16])
def test_bad_formulas_are_refused(slow: Slow, steps: Steps) -> None:
    with pytest.raises(ValueError, match=r"formula|out of range"):
        NativeLauncher(slow).install(LaunchPlan(0, (), [0], ((Formula(steps),),), (Variant(1, 0),)))


def test_extents_by_a_function(slow: Slow) -> None:
    kernel, launcher = capture(1, 2), NativeLauncher(slow)

    @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))
    def function(words: Any, extents: Any) -> int:
        extents[0], extents[1] = words[0] * 2, words[0] + 1
        return 0

    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    leaves = (ScalarArgument(0, 0, dt.i64, (int,)),)
    launcher.install(LaunchPlan(1, leaves, [0], ((0, 0),), (kernel.variant(),), extents_function=address))
    launcher.entry(21)
    assert kernel.extents == [42, 22]


def test_fixed_words_stay_and_the_caller_owns_nothing(slow: Slow) -> None:
    kernel, launcher = capture(3), NativeLauncher(slow)
    launcher.install(
        LaunchPlan(1, (ScalarArgument(0, 1, dt.i32, (int,)),), [11, 0, 2**64 - 1], (), (kernel.variant(),))
    )
    launcher.entry(5)
    launcher.entry(6)
    assert kernel.words == [11, 6, 2**64 - 1]


RESULTS = [
    (dt.i64, -5),
    (dt.u64, 2**64 - 3),
    (dt.i32, -7),
    (dt.u32, 2**32 - 9),
    (dt.f64, 0.1),
    (dt.f32, 0.25),
    (dt.u1, True),
    (dt.u1, False),
]


@pytest.mark.parametrize(("dtype", "value"), RESULTS, ids=str)
def test_results(slow: Slow, dtype: dt.DType, value: Any) -> None:
    memory = np.array([value], dtype.numpy)
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1, result=ResultWord(dtype, memory.ctypes.data))
    result = launcher.entry(1)
    assert (type(result), result) == (type(value), value)


def test_finish_gives_the_result_or_raises(slow: Slow) -> None:
    answers: Iterator[Any] = iter([(1, 2), None])

    def finish() -> Any:
        answer = next(answers)
        if answer is None:
            raise KeyError("from finish")
        return answer

    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1, finish=finish)
    assert launcher.entry(1) == (1, 2)
    with pytest.raises(KeyError, match="from finish"):
        launcher.entry(1)
    assert launcher.launches == 2
    assert not slow.calls


def test_a_log_word_calls_after(slow: Slow) -> None:
    log = np.zeros(4, np.int64)
    reports: list[int] = []

    def after() -> str:
        reports.append(int(log.sum()))
        log[:] = 0
        return "reported"

    words = tuple(log.ctypes.data + 8 * n for n in (0, 2, 3))
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1, log=words, after=after)
    assert launcher.entry(1) is None
    log[1] = 99
    assert launcher.entry(1) is None
    for word in (0, 2, 3):
        log[word] = word + 1
        assert launcher.entry(1) == "reported"
    assert reports == [100, 3, 4]
    assert launcher.entry(1) is None


def test_a_status_calls_after_which_sees_it(slow: Slow) -> None:
    kernel = capture(1, status=-4)
    launcher = NativeLauncher(slow)

    def after() -> None:
        raise ValueError(f"status {launcher.status}")

    leaves = (ScalarArgument(0, 0, dt.i32, (int,)),)
    launcher.install(LaunchPlan(1, leaves, [0], (), (kernel.variant(),), after=after))
    for _ in range(2):
        with pytest.raises(ValueError, match="status -4"):
            launcher.entry(1)
    assert kernel.calls == 2


def test_a_status_that_nothing_handles_is_an_error(slow: Slow) -> None:
    launcher = NativeLauncher(slow)
    launcher.install(LaunchPlan(0, (), [], (), (capture(0, status=1).variant(),)))
    with pytest.raises(RuntimeError, match="nothing to handle it"):
        launcher.entry()


def test_keywords_and_counts_reach_the_slow_path_untouched(slow: Slow) -> None:
    launcher, _ = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1)
    assert launcher.entry(x=1, y="z") == "slow"
    assert launcher.entry(1, y=2) == "slow"
    assert launcher.entry() == "slow"
    assert launcher.entry(1, 2) == "slow"
    assert launcher.entry(*range(300)) == "slow"
    assert slow.calls == [((), {"x": 1, "y": "z"}), ((1,), {"y": 2}), ((), {}), ((1, 2), {}), (tuple(range(300)), {})]


def test_exceptions_of_the_slow_path_propagate() -> None:
    def slow(*args: Any) -> None:
        raise ZeroDivisionError(args)

    launcher = NativeLauncher(slow)
    with pytest.raises(ZeroDivisionError, match="7"):
        launcher.entry(7)


def test_plans_are_tried_in_order_up_to_the_limit(slow: Slow) -> None:
    launcher, kernels = NativeLauncher(slow), []
    for dtype in (dt.i32, dt.f32, dt.f64, dt.i64, dt.u8, dt.u16, dt.u32, dt.u64):
        kernels.append(capture(3))
        plan = LaunchPlan(1, (NumpyArgument(0, 0, dtype, 1),), [0] * 3, (), (kernels[-1].variant(),))
        assert launcher.install(plan) is not None
    assert launcher.full
    assert launcher.install(plan) is None
    for dtype, kernel in ((dt.f32, kernels[1]), (dt.u64, kernels[7]), (dt.i32, kernels[0])):
        launcher.entry(np.zeros(3, dtype.numpy))
        assert kernel.calls == 1
    assert launcher.entry(np.zeros(3, np.int16)) == "slow"
    launcher.clear()
    assert launcher.entry(np.zeros(3, np.float32)) == "slow"


BAD_PLANS = [
    {"variants": ()},
    {"variants": (Variant(1, 0, frozenset({"no_overlap"})),)},
    {"variants": (Variant(1, 0, frozenset({"small"})), Variant(1, 0))},
    {"leaves": (ScalarArgument(1, 0, dt.i32, (int,)),)},
    {"leaves": (ScalarArgument(0, 1, dt.i32, (int,)),)},
    {"leaves": (ScalarArgument(0, 0, dt.f16, (float,)),)},
    {"leaves": (NumpyArgument(0, 0, dt.f32, 1),)},
    {"leaves": (HeaderArgument(0, 0, Array, "header", 0, 0),)},
    {"tasks": ((WordExtent(1),),)},
    {"words": [0] * 5000},
]


@pytest.mark.parametrize("change", BAD_PLANS)
def test_contradictory_plans_are_refused(slow: Slow, change: dict[str, Any]) -> None:
    good: dict[str, Any] = {"arguments": 1, "leaves": (), "words": [0], "tasks": (), "variants": (Variant(1, 0),)}
    with pytest.raises(ValueError, match=r"."):
        NativeLauncher(slow).install(LaunchPlan(**(good | change)))


def test_reference_counts_stay_level(slow: Slow) -> None:
    kernel, launcher = capture(10), NativeLauncher(lambda *args: None)
    leaves = (
        HeaderArgument(0, 0, Array, "header", KEY, 1),
        NumpyArgument(1, 3, dt.f32, 1),
        ScalarArgument(2, 6, dt.i64, (int,)),
        ScalarArgument(3, 7, dt.f64, (float,)),
    )
    launcher.install(LaunchPlan(4, leaves, [0] * 10, (), (kernel.variant(),)))
    arguments = [Array(64), np.zeros(4, np.float32), 2**40, 1.2345]
    wrong = [*arguments[:3], "not a number"]
    watched = [*arguments, wrong[3], None, launcher.entry]
    for _ in range(10):
        launcher.entry(*arguments)
        launcher.entry(*wrong)
    before = [sys.getrefcount(w) for w in watched]
    for _ in range(1000):
        launcher.entry(*arguments)
        launcher.entry(*wrong)
    after = [sys.getrefcount(w) for w in watched]
    assert np.abs(np.subtract(after, before)).max() < 50
    assert kernel.calls == 1010


def test_memory_goes_with_the_kernel(slow: Slow) -> None:
    launcher, kernel = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1)
    entry, alive = launcher.entry, weakref.ref(kernel)
    del launcher, kernel
    gc.collect()
    assert entry(3) is None  # the builtin alone keeps everything that it needs
    assert alive() is not None
    del entry
    gc.collect()
    assert alive() is None


_Kernel = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


@pytest.mark.parametrize("release", [True, False])
def test_the_gil_is_released_for_large_work(slow: Slow, release: bool) -> None:
    """While a long launch sleeps outside Python, another thread gets on; a short one keeps the interpreter."""
    pause = ctypes.CDLL(None).usleep
    launcher = NativeLauncher(slow)
    variant = Variant(_sleeping_kernel(ctypes.cast(pause, ctypes.c_void_p).value or 0), 0)
    leaves = (ScalarArgument(0, 0, dt.i64, (int,)),)
    launcher.install(LaunchPlan(1, leaves, [0], ((WordExtent(0),),), (variant,), release=1000))
    assert _ticks_during(launcher, 1000 if release else 999) > 3 if release else _ticks_during(launcher, 999) <= 3


def _sleeping_kernel(usleep: int) -> int:
    from qd_core.codegen.jit import process_jit

    text = """
    declare i32 @qd_test_usleep(i32)
    define i32 @qd_sleeping(ptr %c, ptr %w, ptr %e, ptr %s) {
      %r = call i32 @qd_test_usleep(i32 200000)
      ret i32 0
    }"""
    jit = process_jit()
    code = jit.compile(text, vectorize=False, opt_level=0)
    return jit.load(code, ["qd_sleeping"], {"qd_test_usleep": usleep})["qd_sleeping"]


def _ticks_during(launcher: NativeLauncher, work: int) -> int:
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.02)
    before = ticks[0]
    launcher.entry(work)
    during = ticks[0] - before
    stop.set()
    thread.join()
    return during


def test_a_busy_plan_sends_a_second_launch_to_the_slow_path(slow: Slow) -> None:
    launcher = NativeLauncher(slow)
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value or 0
    plan = LaunchPlan(0, (), [], (), (Variant(_sleeping_kernel(usleep), 0),), release=0.0)
    installed = launcher.install(plan)
    assert installed is not None
    thread = threading.Thread(target=launcher.entry)
    thread.start()
    time.sleep(0.05)
    assert launcher.entry() == "slow"
    begin = time.perf_counter()
    with installed.exclusive():
        waited = time.perf_counter() - begin
        assert launcher.entry() == "slow"
    thread.join()
    assert waited > 0.02
    assert launcher.entry() is None


def test_a_launch_from_within_after_takes_the_slow_path(slow: Slow) -> None:
    results: list[Any] = []
    launcher = NativeLauncher(slow)
    plan = LaunchPlan(0, (), [], (), (capture(0).variant(),), finish=lambda: results.append(launcher.entry()))
    launcher.install(plan)
    launcher.entry()
    assert results == ["slow"]


def test_a_kernel_object_calls_its_entry(slow: Slow) -> None:
    class Kernel:
        """Documentation."""

        __slots__ = ("grad",)

    launcher, kernel = one_leaf(slow, ScalarArgument(0, 0, dt.i32, (int,)), 1)
    kind: Any = callable_class(Kernel, launcher.entry)
    instance = kind()
    assert issubclass(kind, Kernel)
    assert kind.__doc__ == "Documentation."
    assert instance(5) is None
    assert kernel.words == [5]
    assert instance(5, flag=True) == "slow"
    assert slow.calls == [((5,), {"flag": True})]


def test_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from qd_core.runtime.native_layout import disabled_reason

    monkeypatch.setenv("QD_NATIVE_LAUNCH", "0")
    assert disabled_reason() == "QD_NATIVE_LAUNCH=0"
    monkeypatch.setenv("QD_NATIVE_LAUNCH", "1")
    assert disabled_reason() is None


def test_a_moved_field_turns_native_launches_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from qd_core.runtime import native_layout

    monkeypatch.setitem(native_layout._NUMPY_FIELDS, "object.dims", 40)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(native_layout.LayoutError, match="shape"):
        native_layout.probe_layout()


def test_memory_is_zero_and_does_not_move() -> None:
    memory = make_memory(9)
    assert list(memory) == [0] * 9


def test_release_never(slow: Slow) -> None:
    kernel, launcher = capture(0, 1), NativeLauncher(slow)
    launcher.install(LaunchPlan(0, (), [], ((2**62,),), (kernel.variant(),), release=NEVER))
    launcher.entry()
    assert kernel.extents == [2**62]
