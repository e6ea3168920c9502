"""`qd.compile`, processes that compile, the compiler's profile, and the line about slow kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qd_core as qd
from qd_core.codegen.workers import Workers
from qd_core.cpu.compiler import CpuCompiler
from qd_core.runtime import progress

Vector = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def add(x: Vector, a: qd.f32):
    for i in x:
        x[i] += a


@qd.kernel
def scale(x: Vector, y: Vector):
    for i in x:
        for _ in range(3):
            y[i] = y[i] * x[i]


@qd.kernel
def dot(v: qd.types.vector(3, qd.f32), k: qd.template()) -> qd.f32:
    return v.dot(v) * k


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    qd.init(arch=qd.cpu, offline_cache=False, log_level="error")
    yield
    qd.reset()


def refuse(*_: Any, **__: Any) -> bytes:
    raise AssertionError("a launch compiles")


@pytest.mark.parametrize("processes", [0, 2])
def test_kernels_are_ready_after_it(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    x, y = qd.ndarray(qd.f32, (4,)), qd.ndarray(qd.f32, (4,))
    x.fill(2.0)
    y.fill(1.0)
    v = qd.Vector([1.0, 2.0, 2.0])
    qd.compile(add, scale, (dot, v, 5), processes=processes)
    assert x.to_numpy().tolist() == [2.0] * 4
    monkeypatch.setattr(CpuCompiler, "compile", refuse)
    add(x, 1.0)
    scale(x, y)
    scale(x, x)
    assert (y[0], x[0], dot(v, 5)) == (27.0, 3.0**8, 45.0)
    with pytest.raises(AssertionError, match="a launch compiles"):
        dot(v, 6)


def test_what_does_not_say_its_types_is_refused() -> None:
    with pytest.raises(qd.QuadrantsTypeError, match="parameter 'k' of 'dot' does not say its type"):
        qd.compile(dot)
    with pytest.raises(qd.QuadrantsTypeError, match="takes kernels"):
        qd.compile(len)


def test_workers_report_errors_and_their_death() -> None:
    with Workers(1) as workers:
        with pytest.raises(RuntimeError, match="expected top-level entity"):
            workers.compile("no module", False, 2)
        code, times = workers.compile("define i32 @f() {\n  ret i32 1\n}", False, 2)
        assert code[1:4] == b"ELF" or code
        assert times.keys() == {"LLVM passes_s", "LLVM emission_s"}
        workers._all[0].kill()
        with pytest.raises(RuntimeError, match="ended with status"):
            workers.compile("", False, 2)


def test_the_profile_has_every_stage_inside_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_PROFILE_COMPILE", str(tmp_path / "trace.json"))
    qd.compile(add)
    progress.write()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [e for e in events if e["name"] == "add"]
    names = {"front end", "transforms", "code generation", "LLVM text", "LLVM passes", "LLVM emission"}
    assert names <= {e["name"] for e in events}
    assert __file__ in bars[0]["args"]["place"]
    for event in events:
        if event["name"] in names:
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert any(b["ts"] <= begin and end <= b["ts"] + b["dur"] + 1 for b in bars), event["name"]


def test_a_slow_kernel_is_mentioned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    qd.set_logging_level("info")
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    qd.compile(scale)
    shown = capsys.readouterr().out
    assert f"compiling the kernel 'scale' of {__file__}" in shown
    assert "compiled the kernel 'scale' in" in shown
