"""Where compile time goes: a trace for viewers of flame graphs, and a line when a kernel takes long.

``QD_PROFILE_COMPILE=1`` writes ``qd_compile_profile.json`` when the process ends (any other value is the file's name):
one bar a kernel, in it the front end, the transforms, the generation of code and its parts, and the loading. The format
is that of Chrome's trace viewer, which Perfetto and speedscope read.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qd_core import _logging
from qd_core.errors import Span

__all__ = ["PATIENCE_S", "compiling", "place_of", "stage", "told"]

PATIENCE_S = 2.0
"""Seconds after which a kernel that is still compiled is mentioned."""

_running = threading.local()
_events: list[dict[str, Any]] = []


@contextmanager
def compiling(kernel: str, place: str) -> Generator[None]:
    """Compile ``kernel``, defined at ``place``: the outermost bar; a line after `PATIENCE_S`, and when it is done."""
    stack: list[str] = []
    outer, _running.stack = getattr(_running, "stack", None), stack
    begin = time.perf_counter()

    def mention() -> None:
        what = f" ({stack[-1]})" if stack else ""
        _logging.info(f"compiling the kernel {kernel!r} of {place} for {time.perf_counter() - begin:.0f} s{what} ...")

    timer = threading.Timer(PATIENCE_S, mention)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _running.stack = outer
        took = time.perf_counter() - begin
        if took > PATIENCE_S:
            _logging.info(f"compiled the kernel {kernel!r} in {took:.1f} s")
        _note(kernel, begin, took, {"place": place})


def place_of(span: Span | None) -> str:
    """``file:line`` of a kernel, for a message."""
    return f"{span.file}:{span.line}" if span is not None else "unknown source"


@contextmanager
def stage(name: str) -> Generator[None]:
    """Do one stage of a kernel's compilation: a bar inside the kernel's."""
    stack: list[str] | None = getattr(_running, "stack", None)
    if stack is not None:
        stack.append(name)
    begin = time.perf_counter()
    try:
        yield
    finally:
        if stack is not None:
            stack.pop()
        _note(name, begin, time.perf_counter() - begin)


def told(metrics: Mapping[str, float]) -> None:
    """Note parts of the stage that is about to end, from a compiler's metrics: those in seconds, one after another."""
    parts = [(name.removesuffix("_s"), seconds) for name, seconds in metrics.items() if name.endswith("_s")]
    begin = time.perf_counter() - sum(seconds for _, seconds in parts)
    for name, seconds in parts:
        _note(name, begin, seconds)
        begin += seconds


def _note(name: str, begin: float, seconds: float, facts: Mapping[str, str] | None = None) -> None:
    if not os.environ.get("QD_PROFILE_COMPILE"):
        return
    if not _events:
        atexit.register(write)
    event = {"name": name, "ph": "X", "ts": begin * 1e6, "dur": seconds * 1e6, "pid": os.getpid()}
    _events.append({**event, "tid": threading.get_native_id(), "args": dict(facts or {})})


def write() -> None:
    """Write what was noted, and forget it."""
    wanted = os.environ.get("QD_PROFILE_COMPILE", "")
    file = Path("qd_compile_profile.json" if wanted in ("", "1") else wanted)
    events = sorted(_events, key=lambda event: (event["ts"], -event["dur"]))
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    _events.clear()
