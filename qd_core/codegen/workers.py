"""Processes that turn LLVM's text into objects, for compiling several kernels at once.

Threads do not help: llvmlite takes one lock around every call into LLVM, passes and emission included. A worker gets
text and returns an object; it imports nothing of the user's program, so any program may have workers, started by any
method.

A message is its length in eight bytes and a pickle of plain values.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from types import TracebackType
from typing import IO, Any

__all__ = ["Workers"]

_COMMAND = "from qd_core.codegen.workers import serve; serve()"


class Workers:
    """A number of worker processes; a context manager that ends them.

    Parameters
    ----------
    count : int
        How many.
    """

    def __init__(self, count: int) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._free = threading.Semaphore(count)
        self._lock = threading.Lock()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-c", _COMMAND]
        for _ in range(count):
            pipe = subprocess.PIPE
            self._idle.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment))
        self._all = list(self._idle)

    def compile(self, ir_text: str, vectorize: bool, opt_level: int) -> tuple[bytes, dict[str, float]]:
        """Return the object of an LLVM module, and how long its parts took; waits for a free worker.

        Raises
        ------
        RuntimeError
            The text is no valid IR, or the worker died.
        """
        with self._free:
            with self._lock:
                worker = self._idle.pop()
            try:
                assert worker.stdin is not None
                assert worker.stdout is not None
                _send(worker.stdin, (ir_text, vectorize, opt_level))
                answer = _receive(worker.stdout)
            except (OSError, EOFError) as error:
                raise RuntimeError(f"a process that compiles ended with status {worker.wait()}") from error
            finally:
                with self._lock:
                    self._idle.append(worker)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._all:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.close()
            worker.wait()
            worker.stdout.close()


def serve() -> None:
    """Answer requests on standard input until it ends."""
    from qd_core.codegen.jit import process_jit

    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    jit = process_jit()
    while True:
        try:
            text, vectorize, opt_level = _receive(source)
        except EOFError:
            return
        times: dict[str, float] = {}
        try:
            answer: Any = jit.compile(text, vectorize=vectorize, opt_level=opt_level, times=times), times
        except Exception as error:
            answer = str(error)
        _send(target, answer)


def _send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(pipe.read(int.from_bytes(head, "little")))
