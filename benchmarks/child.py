"""One workload by one peer, in the peer's own interpreter: prints one line of JSON.

python -m benchmarks.child --workload "saxpy 3e6" --peer numba
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
import traceback

from benchmarks.harness import THREADS, checksum, measure
from benchmarks.workloads import WORKLOADS

DISTRIBUTION = {"qd_core": "qd-core", "warp": "warp-lang"}


def version(peer: str) -> str:
    name = peer.split()[0]
    try:
        return importlib.metadata.version(DISTRIBUTION.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "source"


def report(name: str, peer: str, budget_s: float) -> dict[str, object]:
    workload = WORKLOADS[name]
    begin = time.perf_counter()
    step = workload.implementations()[peer](workload.n, **workload.options)
    step.run()
    step.wait()
    found: dict[str, object] = {"first_s": time.perf_counter() - begin, "checksum": checksum(step.result())}
    found["note"] = step.note()
    found |= measure(step, budget_s)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of sampling")
    args = parser.parse_args()
    os.environ.setdefault("NUMBA_NUM_THREADS", str(THREADS))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    line: dict[str, object] = {"workload": args.workload, "peer": args.peer, "version": version(args.peer)}
    try:
        line |= report(args.workload, args.peer, args.budget)
    except Exception as error:
        traceback.print_exc()
        line["error"] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(line), flush=True)
    sys.stdout.flush()
    os._exit(0)  # some peers' thread pools do not end


if __name__ == "__main__":
    main()
