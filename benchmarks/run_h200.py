"""Runs the CUDA plugin on an NVIDIA H200: a smoke test, the table of workloads, the conformance kit.

``python benchmarks/run_h200.py --out DIR [--bench DIR] [--only smoke,speed,kit] [--budget-s 500]``

Steps are ordered by value. Each writes its line to ``DIR/results.jsonl`` at once and is left out when that file already
has it, so that a run that was cut off goes on where it stopped. PTX is kept in ``DIR/cache`` and the driver's
translations where the driver keeps them. Nothing is installed: the distributions' entry points are written to a
temporary folder.
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


def speed_steps(bench: Path) -> Iterator[Step]:
    """The workloads of the table, in its order."""
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
    env = {"BENCH_ARCH": "cuda", "BENCH_BUDGET": "1"}
    for name, (file, *rest) in rows.items():
        yield Step(name, "speed", [sys.executable, str(bench / file), "--peer", "qd_core", *rest], env)


def agree_steps(bench: Path) -> Iterator[Step]:
    """Small sizes on the CPU and on the device: the same checksums."""
    rows = {
        "saxpy": ["bench_saxpy.py"], "stencil5": ["bench_saxpy.py", "--op", "stencil5"], "sum": ["bench_reduce.py"],
        "hist": ["bench_reduce.py", "--op", "hist"], "nbody": ["bench_nbody.py"], "mpm88": ["bench_mpm88.py"],
        "rigid": ["bench_rigid.py"], "ad_loop": ["bench_ad_loop.py"], "ad_sim": ["bench_ad_sim.py"],
    }  # fmt: skip
    for name, (file, *rest) in rows.items():
        for arch in ("cpu", "cuda"):
            command = [sys.executable, str(bench / file), "--peer", "qd_core", "--n", "2048", "--repeat", "1", *rest]
            yield Step(f"agree_{name}_{arch}", "agree", command, {"BENCH_ARCH": arch, "BENCH_BUDGET": "0.01"})


def steps(bench: Path, out: Path) -> Iterator[Step]:
    """All steps, most valuable first."""
    yield Step("smoke", "smoke", [sys.executable, str(ROOT / "benchmarks" / "h200_smoke.py")])
    yield from speed_steps(bench)
    yield from agree_steps(bench)
    kit = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "12",
        "--qd-backend",
        "cuda",
        "--qd-require",
        "cuda",
        "--maxfail=80",
    ]
    kit += ["-p", "no:cacheprovider", "-p", "no:benchmark", "--no-header", "--tb=short", "tests/device"]
    yield Step("kit", "kit", kit, timeout_s=400)


def entry_points(folder: Path) -> None:
    """Describe both distributions as an installation would."""
    points = {
        "qd_core-0.1.0": (
            "qd-core",
            "[qd_core.backends]\ncpu = qd_core.cpu:CpuBackend\nreference = qd_core.reference:ReferenceBackend\n\n"
            "[pytest11]\nqd_core = qd_core.testing.plugin\n",
        ),
        "qd_cuda-0.1.0": ("qd-cuda", "[qd_core.backends]\ncuda = qd_cuda:CudaBackend\n"),
    }  # fmt: skip
    for stem, (name, text) in points.items():
        info = folder / f"{stem}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(text)


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
            [folder, str(ROOT), str(ROOT / "backends" / "qd_cuda"), os.environ.get("PYTHONPATH", "")]
        )
        env = {**os.environ, "PYTHONPATH": path, "QD_CACHE_DIR": str(logs / "cache"), "QD_LOG_LEVEL": "error"}
        for step in steps(args.bench, args.out):
            left = deadline - time.perf_counter()
            if step.name in known or (wanted and not {step.name, step.group} & wanted) or left < 5:
                continue
            record = run(step, env, left, logs)
            with log.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(show(record), flush=True)
            if step.name == "kit":
                (args.out / "kit.log").write_text((logs / "kit.log").read_text()[-2_000_000:])


if __name__ == "__main__":
    main()
