"""Cost of launches that nobody waits for: until one is recorded, and until all have run.

    python benchmarks/launch_batched.py --arch vulkan

Prints one JSON line: for kernels of 1, 5 and 20 arrays of 1000 elements, microseconds a launch (best of five rounds)
until the call returns, until 20 000 launches have run, and for one launch that is waited for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import qd_core as qd

LAUNCHES, ROUNDS, N = 20_000, 5, 1000


def kernel(count: int) -> Any:
    """A kernel that adds one to each of ``count`` arrays."""
    arrays = [f"a{n}" for n in range(count)]
    lines = "\n".join(f"        {a}[i] += 1.0" for a in arrays)
    parameters = ", ".join(f"{a}: A" for a in arrays)
    text = f"""import qd_core as qd

A = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def k({parameters}):
    for i in range(a0.shape[0]):
{lines}
"""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(Path(file.name).stem, file.name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.k


def measure(count: int) -> dict[str, float]:
    """Microseconds a launch of a kernel with ``count`` arrays."""
    k, arrays = kernel(count), [qd.ndarray(qd.f32, N) for _ in range(count)]
    for _ in range(200):
        k(*arrays)
    qd.sync()
    recorded, run, waited = [], [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            k(*arrays)
        middle = time.perf_counter()
        qd.sync()
        end = time.perf_counter()
        for _ in range(200):
            k(*arrays)
            qd.sync()
        recorded.append((middle - begin) / LAUNCHES)
        run.append((end - begin) / LAUNCHES)
        waited.append((time.perf_counter() - end) / 200)
    launched = 200 + ROUNDS * (LAUNCHES + 200)
    assert arrays[-1].to_numpy()[-1] == launched, "launches were lost"
    return {
        "returned_us": round(min(recorded) * 1e6, 3),
        "run_us": round(min(run) * 1e6, 3),
        "waited_us": round(min(waited) * 1e6, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="cpu")
    arch = parser.parse_args().arch
    qd.init(arch=arch, enable_fallback=False, log_level="error")
    print(json.dumps({"workload": "launch_batched", "arch": arch, **{f"arrays_{n}": measure(n) for n in (1, 5, 20)}}))


if __name__ == "__main__":
    main()
