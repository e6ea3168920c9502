"""Runs a plugin on an NVIDIA H200: a smoke test, the table of workloads, the conformance kit.

``python benchmarks/run_h200.py --out DIR [--backend vulkan] [--bench DIR] [--only smoke,speed,kit] [--budget-s 500]``

Steps are ordered by value. Each writes its line to ``DIR/results.jsonl`` at once and is left out when that file already
has it, so that a run that was cut off goes on where it stopped. Compiled code is kept while the script runs, and the
driver's translations where the driver keeps them. Nothing is installed: the distributions' entry points are written to
a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BIG = 100_000_000


@dataclass
class Step:
    """One process."""

    name: str
    group: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 90.0


def speed_steps(bench: Path, backend: str) -> Iterator[Step]:
    """The workloads of the table, in its order, and launches without waiting."""
    rows = {
        "saxpy": ["bench_saxpy.py", "--n", str(BIG)],
        "stencil5": ["bench_saxpy.py", "--op", "stencil5", "--n", str(BIG)],
        "sum": ["bench_reduce.py", "--n", str(BIG)],
        "hist": ["bench_reduce.py", "--op", "hist", "--n", str(BIG)],
        "nbody_aos": ["bench_nbody.py", "--n", "32768", "--layout", "aos"],
        "nbody_soa": ["bench_nbody.py", "--n", "32768", "--layout", "soa"],
        "mpm88_8192": ["bench_mpm88.py", "--n", "8192"],
        "mpm88_262144": ["bench_mpm88.py", "--n", "262144"],
        "rigid": ["bench_rigid.py", "--n", "65536"],
        "ad_loop": ["bench_ad_loop.py", "--n", "1000000"],
        "ad_sim": ["bench_ad_sim.py", "--n", "4096"],
        "launch_1": ["bench_launch.py", "--nargs", "1", "--par", "1"],
        "launch_5": ["bench_launch.py", "--nargs", "5", "--par", "1"],
        "launch_20": ["bench_launch.py", "--nargs", "20", "--par", "1"],
    }
    env = {"BENCH_ARCH": backend, "BENCH_BUDGET": "1"}
    batched = str(ROOT / "benchmarks" / "launch_batched.py")
    yield Step("launch_batched", "speed", [sys.executable, batched, "--arch", backend])
    measured = [] if backend == "cuda" else [str(ROOT / "benchmarks" / "hot.py")]
    for name, (file, *rest) in rows.items():
        yield Step(name, "speed", [sys.executable, *measured, str(bench / file), "--peer", "qd_core", *rest], env)


def agree_steps(bench: Path, backend: str) -> Iterator[Step]:
    """Small sizes on the CPU and on the device: the same checksums."""
    rows = {
        "saxpy": ["bench_saxpy.py"], "stencil5": ["bench_saxpy.py", "--op", "stencil5"], "sum": ["bench_reduce.py"],
        "hist": ["bench_reduce.py", "--op", "hist"], "nbody": ["bench_nbody.py"], "mpm88": ["bench_mpm88.py"],
        "rigid": ["bench_rigid.py"], "ad_loop": ["bench_ad_loop.py"], "ad_sim": ["bench_ad_sim.py"],
    }  # fmt: skip
    for name, (file, *rest) in rows.items():
        for arch in ("cpu", backend):
            command = [sys.executable, str(bench / file), "--peer", "qd_core", "--n", "2048", "--repeat", "1", *rest]
            yield Step(f"agree_{name}_{arch}", "agree", command, {"BENCH_ARCH": arch, "BENCH_BUDGET": "0.01"})


def steps(bench: Path, backend: str) -> Iterator[Step]:
    """All steps, most valuable first."""
    if backend == "cuda":
        yield Step("smoke", "smoke", [sys.executable, str(ROOT / "benchmarks" / "h200_smoke.py")])
    yield from speed_steps(bench, backend)
    yield from agree_steps(bench, backend)
    words = ["-q", "-n", "12", "--qd-require", backend, "--maxfail=80", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    words += ["--no-header", "--tb=short"]
    pytest = [sys.executable, "-m", "pytest", *words]
    yield Step("kit", "kit", [*pytest, "--qd-backend", backend, "tests/device"], timeout_s=400)
    yield Step("plugin", "kit", [*pytest, f"backends/qd_{backend}/tests"], timeout_s=200)


def entry_points(folder: Path) -> None:
    """Describe core and all plugins as an installation would."""
    for file in [ROOT / "pyproject.toml", *ROOT.glob("backends/qd_*/pyproject.toml")]:
        project = tomllib.loads(file.read_text())["project"]
        info = folder / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
        groups = project["entry-points"].items()
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
        (info / "entry_points.txt").write_text("\n".join(lines))


def run(step: Step, env: dict[str, str], left_s: float, out: Path) -> dict[str, object]:
    """Run a step; return its record."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            step.command,
            env={**env, **step.env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=min(step.timeout_s, left_s),
        )
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, output = -1, ((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace")
    (out / f"{step.name}.log").write_text(output)
    record: dict[str, object] = {
        "step": step.name,
        "group": step.group,
        "status": code,
        "wall_s": round(time.perf_counter() - begin, 2),
    }
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                record["result"] = json.loads(line)
            except ValueError:
                continue
    if "result" not in record:
        record["tail"] = output[-3000:]
    return record


def show(record: dict[str, object]) -> str:
    """One line for the terminal."""
    result = record.get("result")
    if isinstance(result, dict) and "median_s" in result:
        text = f"{result['median_s'] * 1e3:.4f} ms  {result.get('throughput')} {result.get('unit')}"
        text += f"  sum={result['checksum']} {result.get('note') or ''}"
    elif isinstance(result, dict):
        text = json.dumps(result)[:3000]
    else:
        text = str(record.get("tail", ""))[-2500:]
    return f"{record['step']:22} {record['wall_s']:>6} s  {text}"


def main() -> None:
    """Run what has not been run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--bench", type=Path, default=ROOT.parent / "shared" / "bench")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget-s", type=float, default=500)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "results.jsonl"
    known = {json.loads(line)["step"] for line in log.read_text().splitlines()} if log.exists() else set()
    wanted = {w for w in args.only.split(",") if w}
    deadline = time.perf_counter() + args.budget_s
    logs = Path(tempfile.mkdtemp())
    with tempfile.TemporaryDirectory() as folder:
        entry_points(Path(folder))
        path = os.pathsep.join(
            [folder, str(ROOT), *map(str, ROOT.glob("backends/qd_*")), os.environ.get("PYTHONPATH", "")]
        )
        env = {**os.environ, "PYTHONPATH": path, "QD_CACHE_DIR": str(logs / "cache"), "QD_LOG_LEVEL": "error"}
        for step in steps(args.bench, args.backend):
            left = deadline - time.perf_counter()
            if step.name in known or (wanted and not {step.name, step.group} & wanted) or left < 5:
                continue
            record = run(step, env, left, logs)
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(show(record), flush=True)
            if step.group == "kit":
                log_text = (logs / f"{step.name}.log").read_text()
                (args.out / f"{step.name}.log").write_text(log_text[-2_000_000:])


if __name__ == "__main__":
    main()
