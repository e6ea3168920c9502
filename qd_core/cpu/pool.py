"""The worker pool of the CPU device: threads that run chunks of a parallel task, without Python on their path.

Generated code reaches it through a context structure (`Pool.context_address`), so no address is baked into an object:

    void qd_pool_run(ctx*, task*, i64 *words, i64 *extents, i64 count, i64 min_chunk)
    void task(i64 *words, i64 *extents, i64 begin, i64 end, worker*)

`qd_pool_run` runs `task` over [0, count) and returns when all of it is done. `min_chunk` is the number of iterations
that are worth handing to another thread, about 2 µs of work: every chunk begins at a multiple of it, and work of up to
one min_chunk runs on the caller as the single chunk [0, count). Sleeping workers are woken (10 to 25 µs) at once for
`wake_chunks` of them; where `min_chunk` is negative, which says that its size is a guess because inner loops may have
any length, and for less work, only when the caller finds that the launch has taken `WAKE_US`. A nested launch, and one
that another Python thread makes meanwhile, runs on its own caller.
See `pool_ir` for the rendezvous and `arena_ir` for the worker's structure.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

from qd_core.codegen.jit import LoadedObject, process_jit
from qd_core.cpu.arena_ir import WORKER, WORKER_NBYTES
from qd_core.cpu.pool_ir import (
    CONTEXT,
    CONTEXT_NBYTES,
    POOL,
    POOL_NBYTES,
    PTHREAD_SYMBOLS,
    SLOT_NBYTES,
    SYMBOLS,
    pool_ir,
)

MAX_THREADS = 256
STACK_NBYTES = 16 << 20
SPIN_US = 150
WAKE_CHUNKS = 16
WAKE_US = 20
CHUNKS_PER_THREAD = 16

_ALIGNMENT = 128
_OPAQUE_NBYTES = 256  # room for any system's pthread_attr_t or sigset_t
_SYNCHRONOUS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP")

_Run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)
_Spin = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_Now = ctypes.CFUNCTYPE(ctypes.c_int64)
_Serve = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_Start = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
_Wake = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def default_threads() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MAX_THREADS)
    return min(os.cpu_count() or 1, MAX_THREADS)


@functools.cache
def pool_object(*, pthread: bool) -> bytes:
    """Return the pool's machine code. No passes: they take ten times as long and save 5 ns a launch."""
    return process_jit().compile_kept(pool_ir(pthread=pthread), vectorize=False, opt_level=0)


class Pool:
    """A pool of worker threads, created at the first run that is large enough to wake somebody.

    Its memory and its code live as long as the process: workers may be looking at them at any time.

    Parameters
    ----------
    threads
        Threads that work, the caller included; None takes `default_threads()`.
    spin_us
        How long an idle worker keeps looking for work, in microseconds, before it sleeps.
    pthread
        Create threads by `pthread_create`, or by `threading`; None takes the former where there is one.
    """

    def __init__(
        self,
        threads: int | None = None,
        *,
        spin_us: float = SPIN_US,
        pthread: bool | None = None,
    ) -> None:
        self._pthread = has_pthread() if pthread is None else pthread
        self._memory = _Memory()
        self._symbols = _load(self._pthread)
        self._run = _Run(self._symbols["qd_pool_run"])
        self._parked = threading.Condition()
        self._fill(spin_us)
        self.set_threads(default_threads() if threads is None else threads)
        _live.add(self)
        _keep_for_ever.append(self)

    @property
    def context_address(self) -> int:
        """Address of the structure that generated code gets as `ctx` (`pool_ir.CONTEXT`)."""
        return self._memory.context

    @staticmethod
    def write_context(context: int, run: int, pool: int) -> None:
        """Write the two words of the context at an address; ``run`` last, because a launch may be reading them."""
        _word(context + CONTEXT["pool"]).value = pool
        _word(context + CONTEXT["run"]).value = run

    def connect(self, context: int) -> None:
        """Let code that gets the context at this address use the pool."""
        self.write_context(context, self._symbols["qd_pool_run"], self._memory.pool)

    @property
    def threads(self) -> int:
        """Threads that work, the caller included; lower than asked for if the system refused to create some."""
        return self._memory.read("active")

    @property
    def started(self) -> int:
        """Worker threads that exist."""
        return self._memory.read("started")

    @property
    def sleepers(self) -> int:
        """Worker threads that sleep at this moment."""
        return self._memory.read("sleepers")

    def private_nbytes(self) -> int:
        """Bytes that the arenas of all workers have reached since the process started."""
        return self._memory.private_nbytes()

    def set_threads(self, count: int) -> None:
        """Use `count` threads from the next launch on; surplus workers sleep.

        Raises
        ------
        ValueError
            `count` is not in 1 to `MAX_THREADS`.
        """
        if not 1 <= count <= MAX_THREADS:
            raise ValueError(f"the number of threads must be 1 to {MAX_THREADS}, got {count}")
        self._memory.write("active", count)

    def run(self, task: int, words: int, extents: int, count: int, min_chunk: int) -> None:
        """Run the task at address `task` over [0, count); releases the GIL meanwhile."""
        self._run(self._memory.context, task, words, extents, count, min_chunk)

    def _fill(self, spin_us: float) -> None:
        memory = self._memory
        memory.connect(self._symbols["qd_pool_run"], self._symbols["qd_arena_grow"])
        memory.write("wake_chunks", WAKE_CHUNKS)
        memory.write("chunks_per_thread", CHUNKS_PER_THREAD)
        now = _Now(self._symbols["qd_now"])
        begin, ticks = time.perf_counter(), now()
        memory.write("spins", _calibrated(_Spin(self._symbols["qd_spin"]), memory.pool, spin_us))
        memory.write("wake_ticks", int((now() - ticks) / (time.perf_counter() - begin) * WAKE_US * 1e-6))
        if self._pthread:
            memory.write("start", self._symbols["qd_thread_start"])
            memory.write("wake", self._symbols["qd_wake"])
            memory.write("block_signals", int(signal.SIG_BLOCK))
            memory.prepare_pthread()
        else:
            self._install_callbacks()

    def _install_callbacks(self) -> None:
        self._callbacks = (_Start(self._start_thread), _Wake(self._wake))
        self._serve = _Serve(self._symbols["qd_worker_serve"])
        for name, callback in zip(("start", "wake"), self._callbacks, strict=True):
            self._memory.write(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)

    def _start_thread(self, pool: int, worker: int) -> int:
        previous = threading.stack_size(STACK_NBYTES)
        try:
            threading.Thread(target=self._worker_loop, args=(worker,), daemon=True, name="qd_core worker").start()
        except RuntimeError:  # the system has no more threads
            return 1
        finally:
            threading.stack_size(previous)
        return 0

    def _worker_loop(self, worker: int) -> None:
        while self._serve(worker) == 0:
            with self._parked:
                self._memory.add("sleepers", 1)
                # The gate is read after the sleepers were raised, under the lock that `_wake` takes: no wake is lost.
                if not self._memory.job_for(worker):
                    self._parked.wait()
                self._memory.add("sleepers", -1)

    def _wake(self, pool: int) -> None:
        with self._parked:
            self._parked.notify_all()

    def _after_fork(self) -> None:
        """Forget the threads, which the child does not have; the next large launch creates new ones."""
        self._parked = threading.Condition()
        self._memory.forget_threads()
        if self._pthread:
            self._memory.prepare_pthread()


class _Memory:
    """The structures that workers share, in one aligned allocation that is never freed (the pool is not either)."""

    def __init__(self) -> None:
        each = (WORKER_NBYTES + SLOT_NBYTES) * MAX_THREADS
        parts = (POOL_NBYTES, CONTEXT_NBYTES, _OPAQUE_NBYTES, _OPAQUE_NBYTES, each)
        self._raw = ctypes.create_string_buffer(sum(parts) + _ALIGNMENT)
        self.pool = -(-ctypes.addressof(self._raw) // _ALIGNMENT) * _ALIGNMENT
        self.context = self.pool + POOL_NBYTES
        self._attributes = self.context + CONTEXT_NBYTES
        self._signals = self._attributes + _OPAQUE_NBYTES
        self._workers = self._signals + _OPAQUE_NBYTES

    def read(self, name: str) -> int:
        return _word(self.pool + POOL[name]).value

    def write(self, name: str, value: int) -> None:
        _word(self.pool + POOL[name]).value = value

    def add(self, name: str, value: int) -> None:
        """Add without atomicity: callers hold the lock of whatever the word counts."""
        _word(self.pool + POOL[name]).value += value

    def connect(self, run: int, grow: int) -> None:
        """Write the addresses that generated code finds in the context and in the workers."""
        _word(self.context + CONTEXT["run"]).value = run
        _word(self.context + CONTEXT["pool"]).value = self.pool
        self.write("workers", self._workers)
        self.write("slots", self._workers + MAX_THREADS * WORKER_NBYTES)
        for index in range(MAX_THREADS):
            worker = self._workers + index * WORKER_NBYTES
            for name, value in (("worker_index", index), ("arena_grow", grow), ("pool", self.pool)):
                _word(worker + WORKER[name]).value = value

    def job_for(self, worker: int) -> bool:
        """Whether a job is open that this worker has not joined, or the pool stops."""
        gate, seen = self.read("gate"), _word(worker + WORKER["seen"]).value
        return bool(gate & 0x8000 and gate >> 16 != seen) or self.read("stop") != 0

    def forget_threads(self) -> None:
        self.write("gate", self.read("gate") >> 16 << 16)
        for name in ("busy", "started", "sleepers"):
            self.write(name, 0)
        for index in range(MAX_THREADS):
            _word(self._workers + index * WORKER_NBYTES + WORKER["arena_used"]).value = 0

    def private_nbytes(self) -> int:
        """Sum of the largest sizes of the workers' arenas."""
        peaks = (self._workers + n * WORKER_NBYTES + WORKER["arena_peak"] for n in range(MAX_THREADS))
        return sum(_word(peak).value for peak in peaks)

    def prepare_pthread(self) -> None:
        """Initialise mutex, condition, thread attributes and the set of signals that workers block."""
        process = ctypes.CDLL(None)
        _check(process.pthread_mutex_init(ctypes.c_void_p(self.pool + POOL["mutex"]), None))
        _check(process.pthread_cond_init(ctypes.c_void_p(self.pool + POOL["condition"]), None))
        _check(process.pthread_attr_init(ctypes.c_void_p(self._attributes)))
        _check(process.pthread_attr_setstacksize(ctypes.c_void_p(self._attributes), ctypes.c_size_t(STACK_NBYTES)))
        _check(process.sigfillset(ctypes.c_void_p(self._signals)))
        for name in _SYNCHRONOUS:  # a fault in a worker still reaches the fault handler
            _check(process.sigdelset(ctypes.c_void_p(self._signals), int(getattr(signal, name))))
        self.write("attributes", self._attributes)
        self.write("signals", self._signals)


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, f"the system refused to set up the worker pool: {os.strerror(code)}")


def has_pthread() -> bool:
    """Return whether threads can be created by `pthread_create` here."""
    if sys.platform == "win32":
        return False
    return hasattr(ctypes.CDLL(None), "pthread_create")


def _load(pthread: bool) -> LoadedObject:
    symbols = SYMBOLS + (PTHREAD_SYMBOLS if pthread else ())
    return process_jit().load(pool_object(pthread=pthread), symbols)


def _calibrated(spin: Callable[[int, int], None], pool: int, spin_us: float) -> int:
    """Return how many looks at the gate take `spin_us`; the shortest of three tries, for a busy machine."""
    probe = 1000
    spin(pool, probe)
    best = min(_seconds(lambda: spin(pool, probe)) for _ in range(3))
    return max(1, int(spin_us * 1e-6 / best * probe))


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return max(time.perf_counter() - begin, 1e-9)


_live: weakref.WeakSet[Pool] = weakref.WeakSet()
_keep_for_ever: list[Pool] = []


def _rebuild_all() -> None:
    for pool in list(_live):
        pool._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rebuild_all)


def process_pool() -> Pool:
    """Return the pool that launches of this process share."""
    with _making:  # threads that ask first at the same time get the same one
        return _pool()


@functools.cache
def _pool() -> Pool:
    return Pool()


_making = threading.RLock()
