"""The context that generated code gets: through it, a kernel reaches the worker pool, and nobody before it needs one.

A kernel asks for ``run`` only when a task is worth sharing. Until that happens for the first time, ``run`` is a
callback that makes the pool, which is machine code and has to be compiled or linked, and puts the pool's own function
in its place.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from qd_core.cpu.pool import Pool
from qd_core.cpu.pool_ir import CACHE_LINE, CONTEXT_NBYTES

__all__ = ["Context"]

_Run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)


def _interrupt_soon() -> None:
    time.sleep(1e-3)  # not before the callback has returned, where the exception would get lost
    _thread.interrupt_main()


class Context:
    """Memory of one context, with the pool behind it.

    Parameters
    ----------
    make : callable
        Makes the pool; called once, at the first launch that shares work or asks for `pool`.
    """

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._memory = ctypes.create_string_buffer(CONTEXT_NBYTES + CACHE_LINE)
        self.address = -(-ctypes.addressof(self._memory) // CACHE_LINE) * CACHE_LINE
        self._first = _Run(self._run)
        Pool.write_context(self.address, ctypes.cast(self._first, ctypes.c_void_p).value or 0, 0)

    @property
    def pool(self) -> Pool:
        """The pool, made now if there is none."""
        with self._lock:
            if self._pool is None:
                self._pool = self._make()
                self._pool.connect(self.address)
            return self._pool

    def _run(self, context: int, task: int, words: int, extents: int, count: int, min_chunk: int) -> None:
        """Make the pool and run on it; called by machine code, which no exception can pass."""
        interrupted = False
        while True:
            try:
                pool = self.pool
                break
            except KeyboardInterrupt:  # the launch has begun and must be done before anybody hears of it
                interrupted = True
            except Exception:
                traceback.print_exc()
                print("qd_core: the worker pool cannot be made, and a launch cannot be left half done", file=sys.stderr)
                os.abort()
        pool.run(task, words, extents, count, min_chunk)
        if interrupted:
            _thread.start_new_thread(_interrupt_soon, ())
