"""Run workloads here and by peers in turns; write medians and ratios as JSON, Markdown and an HTML page.

    python benchmarks/run.py slice --peer numba=/path/to/venv/bin/python --peer jax=/path/to/other/bin/python

A peer needs an interpreter of its own, with the peer and NumPy installed (quadrants, taichi, warp-lang, numba, jax).
The runs of one workload alternate between the peers, so that a change of the machine's speed hits all of them. Without
any ``--peer`` only this project is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import THREADS  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.page import OURS, markdown, page, scaled  # noqa: E402
from benchmarks.workloads import SETS, WORKLOADS  # noqa: E402


def one(workload: str, peer: str, python: str, budget_s: float, timeout_s: float) -> dict[str, Any]:
    """Run one child and return its line."""
    words = [python, "-m", "benchmarks.child", "--workload", workload, "--peer", peer, "--budget", str(budget_s)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"workload": workload, "peer": peer, "error": f"not done in {timeout_s:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"workload"')]
    if not lines:
        return {"workload": workload, "peer": peer, "error": done.stderr.strip()[-300:] or f"exit {done.returncode}"}
    return json.loads(lines[-1])


def combined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rounds of one peer as one row."""
    good = [r for r in runs if "median_s" in r]
    if not good:
        return runs[-1]
    row = dict(good[-1])
    row["rounds"] = [r["median_s"] for r in good]
    row["median_s"] = statistics.median(row["rounds"])
    row["min_s"] = min(r["min_s"] for r in good)
    row["cpus"] = statistics.median(r["cpus"] for r in good)
    return row


def compare(rows: Sequence[dict[str, Any]], tolerance: float) -> None:
    """Say in each row where its result differs from ours."""
    ours = next((r["checksum"] for r in rows if r["peer"] == OURS and "checksum" in r), None)
    for row in rows:
        if ours is None or "checksum" not in row:
            continue
        scale = max(*(abs(v) for v in ours), 1e-30)
        worst = max(abs(a - b) for a, b in zip(ours, row["checksum"], strict=True)) / scale
        if not worst <= tolerance:
            row["mismatch"] = f"result differs by {worst:.1e}"


def run(
    names: Sequence[str], peers: dict[str, str], rounds: int, budget_s: float, timeout_s: float
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for name in names:
        chosen = [(p, peers[p.split()[0]]) for p in WORKLOADS[name].implementations() if p.split()[0] in peers]
        runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer, _ in chosen}
        for _ in range(rounds):
            for peer, python in chosen:
                runs[peer].append(one(name, peer, python, budget_s, timeout_s))
        rows = [combined(r) for r in runs.values()]
        compare(rows, WORKLOADS[name].tolerance)
        for row in sorted(rows, key=lambda r: r.get("median_s", 9e9)):
            text = scaled(row["median_s"]) if "median_s" in row else row.get("error", "")
            print(f"{name:26} {row['peer']:24} {text} {row.get('note', '')} {row.get('mismatch', '')}", flush=True)
        results += rows
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", default="all", choices=SETS)
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="these workloads instead of a set")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of sampling in each run")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--append", action="store_true", help="keep rows of other workloads that the files have")
    parser.add_argument("--out", help="name of the files in benchmarks/results (default: the set)")
    args = parser.parse_args()
    peers = {OURS: sys.executable, "numpy": sys.executable} | dict(p.split("=", 1) for p in args.peer)
    before = machine()
    begin = time.time()
    results = run(args.only or SETS[args.set], peers, args.rounds, args.budget, args.timeout)
    data = {
        "title": f"Workloads against peers: {args.out or args.set}",
        "date": date.today().isoformat(),
        "machine": before,
        "rounds": args.rounds,
        "threads": THREADS,
        "took_s": round(time.time() - begin),
        "results": results,
    }
    name = args.out or args.set
    if args.append:
        keep(name, data)
    write(name, data)


def keep(name: str, data: dict[str, Any]) -> None:
    """Put rows of an earlier run, for workloads that this one left out, in front, and keep its title."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    if not path.exists():
        return
    before = json.loads(path.read_text())
    done = {row["workload"] for row in data["results"]}
    data["results"] = [row for row in before["results"] if row["workload"] not in done] + data["results"]
    data["title"] = before["title"]


def write(name: str, data: dict[str, Any]) -> None:
    """Write the three files of one set of results."""
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(data))
    (folder / f"{name}.html").write_text(page(data))
    print(f"benchmarks/results/{name}.json, .md, .html")


if __name__ == "__main__":
    main()
