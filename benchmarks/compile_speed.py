"""Compile time against kernel size, stage by stage, and first results in fresh processes.

    python benchmarks/compile_speed.py [--sizes 100 500 2000 8000] [--rounds 3]

Stages, in processor seconds of one process whose modules are loaded: front end (Python source to IR), offload and
legalisation, LLVM text, LLVM (passes and machine code); for the reverse mode, the transform. The kernel is a straight
line of small-vector and scalar arithmetic with an `if` or a loop every twenty statements. Writes
``benchmarks/results/compile.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import machine  # noqa: E402
from benchmarks.workloads.launch import module_of  # noqa: E402

STAGES = ("front end", "offload, legalise", "text", "LLVM", "reverse")

TINY = """
import time
begin = time.process_time()
import qd_core as qd
imported = time.process_time()
import numpy
loaded = time.process_time()
qd.init(qd.cpu, log_level="error")
opened = time.process_time()
import llvmlite.binding
linked = time.process_time()

@qd.kernel
def scale(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in range(x.shape[0]):
        x[i] = x[i] * 2.0 + 1.0

x = qd.ndarray(qd.f32, 256)
x.fill(1.0)
defined = time.process_time()
scale(x)
first = time.process_time()
assert x.to_numpy()[7] == 3.0
scale(x)
second = time.process_time()
times = dict(imported=imported - begin, init=opened - loaded, defined=defined - linked, first=first - defined,
             second=second - first, total=first - begin)
import json
print(json.dumps(times))
"""


def source(statements: int) -> str:
    """A kernel of about five IR operations a statement."""
    rng = random.Random(1)
    lines = ["import qd_core as qd", "vec3 = qd.types.vector(3, qd.f32)", "@qd.kernel"]
    lines += ["def big(x: qd.types.ndarray(dtype=vec3, ndim=1), y: qd.types.ndarray(dtype=vec3, ndim=1)):"]
    lines += ["    for i in range(x.shape[0]):"]
    lines += [f"        v{k} = x[i] * {0.5 + k / 8}" for k in range(4)] + ["        s = v0.dot(v1)"]
    for k in range(statements):
        a, b, c = rng.sample(range(4), 3)
        if k % 20 == 10:
            lines += [f"        if s > v{a}[0]:", f"            v{b} = v{b} * 0.9 - v{c}"]
        elif k % 20 == 19:
            lines += ["        for t in range(3):", f"            v{b} = v{b} * 0.4 + v{c} * s"]
        else:
            lines += ["        " + rng.choice([f"v{a} = v{b} * s + v{c}", f"s = 0.5 * s + v{a}.dot(v{b})"])]
    return "\n".join([*lines, "        y[i] = v0 + v1 + v2 + v3 * s", ""])


def timed(table: dict[str, float], stage: str, run: Callable[[], Any]) -> Any:
    begin = time.process_time()
    result = run()
    table[stage] = time.process_time() - begin
    return result


def stages(statements: int) -> dict[str, float]:
    """Compile one kernel and return the seconds of each stage, with ``ops`` and ``instructions``."""
    import qd_core as qd
    from qd_core.api.kernel import compile_options
    from qd_core.autodiff.reverse import reverse
    from qd_core.codegen.llvm import emit_module
    from qd_core.codegen.llvm.cost import count_nodes
    from qd_core.passes.offload import offload
    from qd_core.runtime.context import current

    kernel = module_of(source(statements)).big
    compiler = current().compiler
    x, y = (qd.Vector.ndarray(3, qd.f32, 8) for _ in range(2))
    table: dict[str, float] = {}
    function = timed(table, "front end", lambda: kernel.lowered((x, y))[0])
    table["ops"] = count_nodes(function.body)

    def legal() -> Any:
        program = offload(function)
        for step in compiler.pipeline():
            program = step(program)
        return program

    program = timed(table, "offload, legalise", legal)
    table["instructions"] = sum(count_nodes(t.body) for t in program.tasks)
    text = timed(table, "text", lambda: emit_module(program, compiler.llvm, compile_options(current().options)))
    table["lines"] = text.count("\n")
    begin = time.process_time()
    artifact = compiler.compile(program, compile_options(current().options))
    table["LLVM"] = time.process_time() - begin - table["text"]
    timed(table, "reverse", lambda: reverse(kernel.lowered((x, y))[0], frozenset({"x", "y"})))
    table["reverse"] -= table["front end"]
    table["bytes"] = len(artifact.blob)
    return table


def measured(statements: int, rounds: int) -> dict[str, float]:
    runs = [stages(statements) for _ in range(rounds)]
    return {name: statistics.median(r[name] for r in runs) for name in runs[0]}


def first_results(cache: str) -> dict[str, float]:
    """Start a process with a given disk cache and return its own account."""
    path = Path(tempfile.mkdtemp()) / "tiny.py"
    path.write_text(TINY)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "QD_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def starts(rounds: int) -> dict[str, dict[str, float]]:
    """First results, cold and warm, as medians."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as cache:
            for rows in found.values():
                rows.append(first_results(cache))
    return {p: {k: statistics.median(r[k] for r in rows[1:]) for k in rows[0]} for p, rows in found.items()}


def table(rows: list[dict[str, float]]) -> list[str]:
    """Markdown: milliseconds of each stage, and operations a millisecond."""
    lines = ["| ops of the front end | instructions | " + " | ".join(STAGES) + " | source to machine code |"]
    lines.append("|---" * (len(STAGES) + 3) + "|")
    for row in rows:
        cells = [f"{row['ops']:.0f}", f"{row['instructions']:.0f}"]
        for stage in STAGES:
            rate = row["ops" if stage in ("front end", "reverse") else "instructions"] / max(row[stage] * 1e3, 1e-6)
            cells.append(f"{row[stage] * 1e3:.1f} ms ({rate:.0f}/ms)")
        cells.append(f"{sum(row[s] for s in STAGES[:4]) * 1e3:.0f} ms")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 100, 400, 1600], help="statements")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    import qd_core as qd

    before = machine()
    first = starts(args.rounds)
    qd.init(arch=qd.cpu, offline_cache=False, log_level="error")
    measured(20, 1)  # loads every module
    rows = [measured(size, args.rounds) for size in args.sizes]
    lines = ["# Compile time", "", ", ".join(before.values()), "", *table(rows), ""]
    lines += [
        "Processor milliseconds of a fresh process with a tiny kernel (NumPy's and LLVM's load counted apart):",
        "",
    ]
    lines += [
        "| disk cache | import qd_core | init | kernel defined, array made | first launch | second launch |",
        "|---" * 6 + "|",
    ]
    for phase, row in first.items():
        cells = (f"{row[k] * 1e3:.1f}" for k in ("imported", "init", "defined", "first", "second"))
        lines.append(f"| {phase} | " + " | ".join(cells) + " |")
    folder = ROOT / "benchmarks" / "results"
    (folder / "compile.json").write_text(
        json.dumps({"machine": before, "stages": rows, "first": first}, indent=1) + "\n"
    )
    (folder / "compile.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
