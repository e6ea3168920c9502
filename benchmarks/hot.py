"""Runs a workload of the peers' comparison without pauses between its samples.

    python benchmarks/hot.py ../shared/bench/bench_saxpy.py --peer qd_core --n 100000000

Its own measurement sleeps between samples, so that samples on a shared processor are clean. A GPU whose driver lowers
the clock when it idles, as some do outside their own compute interface, is then measured at the low clock. Here, 3 s
of runs come first, and samples of at least 20 ms follow each other; the line that is printed has the same fields.
"""

from __future__ import annotations

import math
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_S, SAMPLE_S, BUDGET_S = 3.0, 0.02, 1.0


def measure(step: Callable[[], None], sync: Callable[[], None] | None, repeat: int, **ignored: Any) -> dict[str, Any]:
    """Seconds a step: the median of samples that follow each other."""
    wait = sync or (lambda: None)

    def sample(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - begin) / count

    begin, one = time.perf_counter(), sample(1)
    while time.perf_counter() - begin < WARM_S:
        one = min(one, sample(1))
    inner = max(1, math.ceil(SAMPLE_S / one))
    begin, samples = time.perf_counter(), list[float]()
    while len(samples) < 3 or (len(samples) < repeat and time.perf_counter() - begin < BUDGET_S):
        samples.append(sample(inner))
    return {"median_s": statistics.median(samples), "min_s": min(samples), "samples": len(samples), "inner": inner}


def main() -> None:
    """Run the workload's script with this measurement in place of its own."""
    script = Path(sys.argv[1])
    sys.path.insert(0, str(script.parent))
    import common  # pyright: ignore[reportMissingImports]

    common.measure = measure
    sys.argv = sys.argv[1:]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
