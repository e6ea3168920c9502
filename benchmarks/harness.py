"""What every workload is given and gives back, and how one is timed."""

from __future__ import annotations

import importlib
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = int(os.environ.get("BENCH_THREADS", "2"))
LANGUAGE = ("qd_core", "quadrants", "taichi")
"""Implementations of the same language: they share the source of a workload."""


@dataclass
class Step:
    """One implementation, ready to run.

    Attributes
    ----------
    run : callable
        Does the work once; may return before it is done.
    result : callable
        Gives what is compared between implementations, after one run.
    wait : callable
        Returns when the work is done.
    note : callable
        Gives a remark for the table, such as the error of a gradient.
    """

    run: Callable[[], Any]
    result: Callable[[], Any]
    wait: Callable[[], Any] = lambda: None
    note: Callable[[], str] = lambda: ""


def language(name: str, **options: Any) -> Any:
    """Return an implementation of the language, started on the CPU with `THREADS` threads and no disk cache."""
    module = importlib.import_module(name)
    common = {"cpu_max_num_threads": THREADS, "offline_cache": False, "log_level": "error"}
    module.init(arch=module.cpu, **{**common, **options})
    return module


def checksum(values: Any) -> list[float]:
    """Two numbers that depend on every value and on their order."""
    flat = np.asarray(values, np.float64).ravel()
    weights = np.sin(0.7 + 0.3 * np.arange(flat.size))
    return [float(np.sum(flat)), float(flat @ weights)]


def measure(step: Step, budget_s: float, samples: int = 60) -> dict[str, float]:
    """Time a step.

    A sample is as many runs as take 10 ms; samples follow each other without a pause, after a tenth of a second of
    runs, so that all threads are awake and have a processor. None is left out: on a busy machine the undisturbed ones
    would be those in which some thread slept.

    Returns
    -------
    dict
        ``median_s`` and ``min_s`` of one run, the number of ``samples``, and ``cpus``: processor time over time.
    """
    repeat = _repeat(step)
    found: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(found) < samples and (time.perf_counter() - begin < budget_s or len(found) < 3):
        found.append(_sample(step, repeat))
    return {
        "median_s": statistics.median(s[0] for s in found),
        "min_s": min(s[0] for s in found),
        "samples": len(found),
        "cpus": round(statistics.median(s[1] for s in found), 2),
    }


def _repeat(step: Step) -> int:
    best, start, count = 1.0, time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < 0.1:
        begin = time.perf_counter()
        step.run()
        step.wait()
        best = min(best, time.perf_counter() - begin)
        count += 1
    return max(1, int(1e-2 / best))


def _sample(step: Step, repeat: int) -> tuple[float, float]:
    used = _used_s()
    begin = time.perf_counter()
    for _ in range(repeat):
        step.run()
    step.wait()
    took = time.perf_counter() - begin
    return took / repeat, (_used_s() - used) / took


def _used_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
