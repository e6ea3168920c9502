"""The worker pool: every iteration runs exactly once, whoever launches, and residual memory stays valid."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from qd_core.codegen.jit import process_jit
from qd_core.cpu.arena_ir import WORKER, arena_alloc_ir
from qd_core.cpu.pool import Pool, has_pthread
from qd_core.cpu.pool_ir import CONTEXT

# words of the tasks below: 0 address of an i64 array, 1 a number or a second address, 2 the context
_TASKS = f"""
{arena_alloc_ir()}

define void @count(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w) {{
entry:
  %a = load ptr, ptr %words
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %at = getelementptr i64, ptr %a, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}

; a[i] += i rounds of a recurrence that no compiler shortens; the cost of an iteration grows with i
define void @skewed(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w) {{
entry:
  %a = load ptr, ptr %words
  br label %outer
outer:
  %i = phi i64 [ %begin, %entry ], [ %i1, %stored ]
  br label %inner
inner:
  %k = phi i64 [ 0, %outer ], [ %k1, %inner ]
  %x = phi i64 [ %i, %outer ], [ %x2, %inner ]
  %x1 = mul i64 %x, 6364136223846793005
  %x2 = add i64 %x1, 1442695040888963407
  %k1 = add i64 %k, 1
  %again = icmp slt i64 %k1, %i
  br i1 %again, label %inner, label %stored
stored:
  %at = getelementptr i64, ptr %a, i64 %i
  store i64 %x2, ptr %at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %outer, label %done
done:
  ret void
}}

; each iteration launches @count over row i of a (rows x words[1])
define void @nested(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w) {{
entry:
  %a = load ptr, ptr %words
  %n_at = getelementptr i64, ptr %words, i64 1
  %n = load i64, ptr %n_at
  %ctx_at = getelementptr i64, ptr %words, i64 2
  %ctx = load ptr, ptr %ctx_at
  %run_at = getelementptr i8, ptr %ctx, i64 {CONTEXT["run"]}
  %run = load ptr, ptr %run_at
  %inner_words = alloca i64
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %loop ]
  %offset = mul i64 %i, %n
  %row = getelementptr i64, ptr %a, i64 %offset
  store ptr %row, ptr %inner_words
  call void %run(ptr %ctx, ptr @count, ptr %inner_words, ptr null, i64 %n, i64 1)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}

; iteration i allocates words[1] blocks of 8*(i+1) bytes, writes i+j into all of block j, then sums first and last words
define void @residuals(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w) {{
entry:
  %a = load ptr, ptr %words
  %m_at = getelementptr i64, ptr %words, i64 1
  %m = load i64, ptr %m_at
  %used_at = getelementptr i8, ptr %w, i64 {WORKER["arena_used"]}
  %table_bytes = mul i64 %m, 8
  br label %iteration
iteration:
  %i = phi i64 [ %begin, %entry ], [ %i1, %next ]
  %mark = load i64, ptr %used_at
  %table = call ptr @qd_arena_alloc(ptr %w, i64 %table_bytes)
  %n = add i64 %i, 1
  %bytes = mul i64 %n, 8
  br label %write
write:
  %j = phi i64 [ 0, %iteration ], [ %j1, %filled ]
  %block = call ptr @qd_arena_alloc(ptr %w, i64 %bytes)
  %slot = getelementptr i64, ptr %table, i64 %j
  store ptr %block, ptr %slot
  %value = add i64 %i, %j
  br label %fill
fill:
  %k = phi i64 [ 0, %write ], [ %k1, %fill ]
  %cell = getelementptr i64, ptr %block, i64 %k
  store i64 %value, ptr %cell
  %k1 = add i64 %k, 1
  %k_more = icmp slt i64 %k1, %n
  br i1 %k_more, label %fill, label %filled
filled:
  %j1 = add i64 %j, 1
  %j_more = icmp slt i64 %j1, %m
  br i1 %j_more, label %write, label %read
read:
  %r = phi i64 [ 0, %filled ], [ %r1, %read ]
  %sum = phi i64 [ 0, %filled ], [ %sum3, %read ]
  %r_slot = getelementptr i64, ptr %table, i64 %r
  %r_block = load ptr, ptr %r_slot
  %first = load i64, ptr %r_block
  %last_at = getelementptr i64, ptr %r_block, i64 %i
  %last = load i64, ptr %last_at
  %address = ptrtoint ptr %r_block to i64
  %odd = and i64 %address, 31
  %sum1 = add i64 %sum, %first
  %sum2 = add i64 %sum1, %last
  %sum3 = add i64 %sum2, %odd
  %r1 = add i64 %r, 1
  %r_more = icmp slt i64 %r1, %m
  br i1 %r_more, label %read, label %next
next:
  %out = getelementptr i64, ptr %a, i64 %i
  store i64 %sum3, ptr %out
  store i64 %mark, ptr %used_at
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %iteration, label %done
done:
  ret void
}}

; a[chunk start] = 1 + the worker that ran it, b[chunk start] = its end; then wait long enough for others to join
define void @trace(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w) {{
entry:
  %a = load ptr, ptr %words
  %b_at = getelementptr i64, ptr %words, i64 1
  %b = load ptr, ptr %b_at
  %index = load i64, ptr %w
  %number = add i64 %index, 1
  %at = getelementptr i64, ptr %a, i64 %begin
  store i64 %number, ptr %at
  %end_at = getelementptr i64, ptr %b, i64 %begin
  store i64 %end, ptr %end_at
  br label %wait
wait:
  %k = phi i64 [ 0, %entry ], [ %k1, %wait ]
  %x = phi i64 [ %begin, %entry ], [ %x1, %wait ]
  %x1 = mul i64 %x, 6364136223846793005
  store volatile i64 %x1, ptr %at
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 20000
  br i1 %more, label %wait, label %done
done:
  store i64 %number, ptr %at
  ret void
}}
"""

_NAMES = ("count", "skewed", "nested", "residuals", "trace")


@pytest.fixture(scope="module")
def tasks() -> dict[str, int]:
    jit = process_jit()
    return jit.load(jit.compile(_TASKS, vectorize=False, opt_level=1), _NAMES)


_FLAVOURS = [
    pytest.param(True, id="pthread", marks=pytest.mark.skipif(not has_pthread(), reason="no POSIX threads here")),
    pytest.param(False, id="threading"),
]


@pytest.fixture(params=_FLAVOURS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    pool = Pool(4, pthread=request.param)
    yield pool
    pool.set_threads(1)


def _launch(pool: Pool, task: int, array: np.ndarray, second: int, count: int, min_chunk: int) -> None:
    words = np.array([array.ctypes.data, second, pool.context_address], np.int64)
    pool.run(task, words.ctypes.data, 0, count, min_chunk)


@pytest.mark.parametrize("min_chunk", [1, 7, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 2, 13, 1023, 300_001])
def test_every_iteration_runs_once(pool: Pool, tasks: dict[str, int], count: int, min_chunk: int) -> None:
    hits = np.zeros(count + 1, np.int64)
    for _ in range(20):
        _launch(pool, tasks["count"], hits, 0, count, min_chunk)
    assert hits[count] == 0
    assert (hits[:count] == 20).all()


def test_a_negative_count_runs_nothing(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros(8, np.int64)
    _launch(pool, tasks["count"], hits, 0, -3, 1)
    assert not hits.any()


def test_back_to_back_launches_leave_no_iteration_behind(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros(64, np.int64)
    for _ in range(5000):
        _launch(pool, tasks["count"], hits, 0, 64, 1)
    assert (hits == 5000).all()


def _recurrence(count: int) -> np.ndarray:
    x = np.arange(count, dtype=np.uint64)
    rounds = np.maximum(np.arange(count), 1)
    for k in range(int(rounds.max())):
        x = np.where(k < rounds, x * np.uint64(6364136223846793005) + np.uint64(1442695040888963407), x)
    return x.view(np.int64)


def test_skewed_work(pool: Pool, tasks: dict[str, int]) -> None:
    out = np.zeros(3000, np.int64)
    _launch(pool, tasks["skewed"], out, 0, 3000, 1)
    assert (out == _recurrence(3000)).all()


def test_chunks_are_multiples_of_min_chunk_and_shared(pool: Pool, tasks: dict[str, int]) -> None:
    count, min_chunk = 10_000, 24
    workers, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    _launch(pool, tasks["trace"], workers, ends.ctypes.data, count, min_chunk)
    starts = np.flatnonzero(ends)
    assert (starts % min_chunk == 0).all()
    assert (ends[starts] == np.append(starts[1:], count)).all()
    assert set(workers[starts]) <= {1, 2, 3, 4}
    assert len(starts) > 32


def test_several_workers_take_part(pool: Pool, tasks: dict[str, int]) -> None:
    seen: set[int] = set()
    deadline = time.monotonic() + 20
    while len(seen) < 2 and time.monotonic() < deadline:
        workers, ends = np.zeros(512, np.int64), np.zeros(512, np.int64)
        _launch(pool, tasks["trace"], workers, ends.ctypes.data, 512, 1)
        seen |= set(workers[np.flatnonzero(ends)].tolist())
    assert len(seen) >= 2


def test_nested_launches(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros((200, 37), np.int64)
    _launch(pool, tasks["nested"], hits, 37, 200, 1)
    assert (hits == 1).all()


def test_two_python_threads_at_once(pool: Pool, tasks: dict[str, int]) -> None:
    failures: list[int] = []

    def work(seed: int) -> None:
        for _ in range(60):
            out = np.zeros(400, np.int64)
            _launch(pool, tasks["residuals"], out, 5 + seed, 400, 1)
            if not (out == _residual_sum(400, 5 + seed)).all():
                failures.append(seed)

    _run_threads(work, 3)
    assert not failures


def _run_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _residual_sum(count: int, blocks: int) -> np.ndarray:
    i = np.arange(count)
    return 2 * (blocks * i + blocks * (blocks - 1) // 2)


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (50, 3), (400, 60), (3000, 40)])
def test_residuals_survive_growth(pool: Pool, tasks: dict[str, int], count: int, blocks: int) -> None:
    """(3000, 40) needs up to 1 MB an iteration: 16 times the first block."""
    for _ in range(3):
        out = np.zeros(count, np.int64)
        _launch(pool, tasks["residuals"], out, blocks, count, 1)
        assert (out == _residual_sum(count, blocks)).all()


def test_the_arena_becomes_one_block(pool: Pool, tasks: dict[str, int]) -> None:
    pool.set_threads(1)
    out = np.zeros(3000, np.int64)
    for _ in range(3):
        _launch(pool, tasks["residuals"], out, 40, 3000, 1)
    worker = ctypes.c_int64.from_address(pool._memory._workers + WORKER["arena_start"])  # pyright: ignore[reportPrivateUsage]
    assert worker.value == 0


def test_set_threads(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros(5000, np.int64)
    for rounds, threads in enumerate([1, 2, 6, 3, 1, 4], start=1):
        pool.set_threads(threads)
        for _ in range(50):
            _launch(pool, tasks["count"], hits, 0, 5000, 1)
        assert pool.threads == threads
        assert (hits == 50 * rounds).all()
    assert pool.started == 5


def test_one_thread_creates_none(tasks: dict[str, int]) -> None:
    pool = Pool(1)
    hits = np.zeros(100_000, np.int64)
    _launch(pool, tasks["count"], hits, 0, 100_000, 1)
    assert (hits == 1).all()
    assert pool.started == 0


def test_little_work_creates_no_thread(tasks: dict[str, int]) -> None:
    pool = Pool(4)
    hits = np.zeros(100, np.int64)
    _launch(pool, tasks["count"], hits, 0, 100, 10)
    assert (hits == 1).all()
    assert pool.started == 0


@pytest.mark.parametrize("min_chunk", [-100, 500])
def test_a_launch_that_turns_out_long_wakes_the_others(tasks: dict[str, int], min_chunk: int) -> None:
    pool = Pool(2)  # by its number of chunks it is too small, or its size is a guess
    values = np.zeros(6000, np.int64)
    _launch(pool, tasks["skewed"], values, 0, 6000, min_chunk)
    assert pool.started == 1
    once = values.copy()
    _launch(Pool(1), tasks["skewed"], values, 0, 6000, min_chunk)
    assert np.array_equal(values, once)


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_a_thread_count_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 256, got {threads}"):
        Pool(threads)


def test_idle_workers_sleep_and_wake(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros(50_000, np.int64)
    for rounds in range(1, 6):
        _launch(pool, tasks["count"], hits, 0, 50_000, 1)
        assert (hits == rounds).all()
        deadline = time.monotonic() + 20
        while pool.sleepers < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert pool.sleepers == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_its_own_workers(pool: Pool, tasks: dict[str, int]) -> None:
    hits = np.zeros(100_000, np.int64)
    _launch(pool, tasks["count"], hits, 0, 100_000, 1)
    assert pool.started == 3
    child = os.fork()
    if child == 0:
        os._exit(_child(pool, tasks, hits))
    assert _exit_code(child) == 0
    _launch(pool, tasks["count"], hits, 0, 100_000, 1)
    assert (hits == 2).all()


def _child(pool: Pool, tasks: dict[str, int], hits: np.ndarray) -> int:
    started = pool.started
    for _ in range(20):
        _launch(pool, tasks["count"], hits, 0, 100_000, 1)
    return 0 if started == 0 and pool.started == 3 and (hits == 21).all() else 1


def _exit_code(child: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1
