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


def measure(step: Step, budget_s: float, samples: int = 100) -> dict[str, float]:
    """Time a step.

    A sample is as many runs as take 3 ms; samples follow each other without a pause, after a tenth of a second of
    runs, so that all threads are awake and have a processor. One during which the system took a processor away from the
    process is not counted, as long as three others remain; otherwise the shortest sample is what there is to report.

    Returns
    -------
    dict
        ``median_s`` and ``min_s`` of one run, ``quiet`` samples of ``samples``, and ``cpus``: processor time over time.
    """
    repeat = _repeat(step)
    found: list[tuple[bool, float, float]] = []
    begin = time.perf_counter()
    while len(found) < samples and (time.perf_counter() - begin < budget_s or len(found) < 3):
        found.append(_sample(step, repeat))
    quiet = [s for s in found if s[0]]
    chosen = quiet if len(quiet) >= 3 else [min(found, key=lambda s: s[1])]
    return {
        "median_s": statistics.median(s[1] for s in chosen),
        "min_s": min(s[1] for s in found),
        "quiet": len(quiet),
        "samples": len(found),
        "cpus": round(statistics.median(s[2] for s in chosen), 2),
    }


def _repeat(step: Step) -> int:
    best, start, count = 1.0, time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < 0.1:
        begin = time.perf_counter()
        step.run()
        step.wait()
        best = min(best, time.perf_counter() - begin)
        count += 1
    return max(1, int(3e-3 / best))


def _sample(step: Step, repeat: int) -> tuple[bool, float, float]:
    waited = _waited_s()
    used = _used_s()
    begin = time.perf_counter()
    for _ in range(repeat):
        step.run()
    step.wait()
    took = time.perf_counter() - begin
    return _waited_s() - waited < 0.04 * took, took / repeat, (_used_s() - used) / took


def _used_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _waited_s() -> float:
    """Seconds that threads of this process wanted to run and did not (Linux; elsewhere every sample counts)."""
    total = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError):
        pass
    return total * 1e-9
