"""The source cache: a later process takes code without the front end, and never code of something that has changed."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.cpu.compiler import CpuCompiler
from qd_core.frontend.context import Lowering
from qd_core.frontend.signature import KernelInfo
from qd_core.runtime.options import Options

Run = Callable[..., "list[str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a program as a process of its own would, over one cache.

    Returns the words that it printed, then the names of the kernels that the front end lowered.
    """
    lowered: list[str] = []
    made = Lowering.__init__

    def counting(self: Lowering, info: KernelInfo, *rest: Any) -> None:
        lowered.append(info.name)
        made(self, info, *rest)

    monkeypatch.setattr(Lowering, "__init__", counting)
    monkeypatch.setenv("QD_CACHE_DIR", str(tmp_path / "cache"))

    def run(text: str, **options: Any) -> list[str]:
        lowered.clear()
        file = tmp_path / "program.py"
        file.write_text(text)
        linecache.clearcache()
        printed: list[Any] = []
        qd.init(arch=qd.cpu, **{"log_level": "error", "offline_cache": True, **options})
        module = types.ModuleType("program")
        monkeypatch.setitem(sys.modules, "program", module)
        vars(module).update(np=np, qd=qd, x=qd.ndarray(qd.f32, (4,)))
        vars(module).update(print=lambda *words: printed.extend(map(str, words)))
        exec(compile(text, str(file), "exec", dont_inherit=True), vars(module))
        return [*printed, "lowered", *lowered]

    yield run
    qd.reset()


KERNEL = """
C = 3.0
@qd.func
def inner(v):
    return v * C
@qd.func
def outer(v):
    return inner(v) + 1.0
@qd.kernel
def k(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in x:
        x[i] = outer(x[i] + 1.0)
k(x)
print(x[0])
"""


def test_a_second_start_does_not_lower(run: Run) -> None:
    assert run(KERNEL) == ["4.0", "lowered", "k"]
    assert run(KERNEL) == ["4.0", "lowered"]


def test_processes_with_other_hash_seeds_share_entries(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import qd_core as qd\nqd.init(arch=qd.cpu)\nx = qd.ndarray(qd.f32, (4,))\n"
        f"{KERNEL}\nfrom qd_core.runtime.context import current\nprint(len(current().cache.entries()))"
    )
    environment = {**os.environ, "QD_CACHE_DIR": str(tmp_path / "cache"), "QD_LOG_LEVEL": "error"}
    command = [sys.executable, str(tmp_path / "program.py")]
    first, second = (
        subprocess.run(command, env={**environment, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    )
    assert first == second != b""


EDITS = {
    "a constant": ("C = 3.0", "C = 4.0", "5.0"),
    "type of a constant": ("C = 3.0", "C = qd.i32(3)", "4.0"),
    "a callee": ("inner(v) + 1.0", "inner(v) + 2.0", "5.0"),
    "a callee's callee": ("return v * C", "return v * C * 2.0", "7.0"),
    "the kernel": ("x[i] + 1.0", "x[i] + 2.0", "7.0"),
    "a lookup that now finds another": ("@qd.kernel", "@qd.func\ndef inner(v):\n    return v\n@qd.kernel", "2.0"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_seen(run: Run, edit: str) -> None:
    old, new, result = EDITS[edit]
    run(KERNEL)
    assert run(KERNEL.replace(old, new)) == [result, "lowered", "k"]
    assert run(KERNEL) == ["4.0", "lowered"]  # both are kept


OTHER: dict[str, Any] = {
    "default_ip": qd.i64,
    "default_fp": qd.f64,
    "debug": True,
    "check_out_of_bound": True,
    "fast_math": False,
    "opt_level": 1,
    "short_circuit_operators": False,
    "unrolling_limit": 7,
    "cpu_max_num_threads": 1,
    "random_seed": 3,
    "ad_residual_bytes": 1024,
    "offline_cache_max_size_of_files": 1 << 20,
    "offline_cache_cleaning_policy": "fifo",
    "offline_cache_cleaning_factor": 0.5,
    "print_ir": True,
    "debug_dump_path": "elsewhere",
    "raise_on_templated_floats": True,
    "log_level": "critical",
    "device_options": (("a", 1),),
}
WHERE = {"offline_cache", "offline_cache_file_path", "device"}
"""Options that say whether and where entries are kept, and which device: its compiler's identity is in the key."""


def test_every_option_is_in_the_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {f.name for f in fields(Options)} == OTHER.keys() | WHERE
    run(KERNEL)
    for name, value in OTHER.items():
        assert run(KERNEL, **{name: value})[-1] == "k", name
    monkeypatch.setenv("QD_FAST_MATH", "0")
    assert run(KERNEL)[-1] == "lowered"  # as with the keyword
    monkeypatch.setattr(CpuCompiler, "identity", lambda self: "another")
    assert run(KERNEL)[-1] == "k"


CAPTURES = """
import dataclasses, enum, types
class Mode(enum.Enum):
    A = {0}
class Config:
    n = {1}
    inner = types.SimpleNamespace(scale={2})
@dataclasses.dataclass
class Settings:
    gain: float = {3}
settings = Settings()
table = [1.0, {4}]
weights = np.array([1.0, {5}], np.float32)
names = dict(bias={6})
def decorated(f):
    offset = {7}
    @qd.func
    def inner(v, extra=offset):
        return v + extra
    return inner
@decorated
def g(v): pass
@qd.data_oriented
class Solver:
    def __init__(self):
        self.steps = {8}
        self.field = qd.ndarray(qd.f32, (4,))
    @qd.func
    def own(self, v):
        return v + {9}
    @qd.kernel
    def run(self, x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in x:
            t = x[i] + Mode.A.value + Config.n + Config.inner.scale + settings.gain
            for j in qd.static(range(2)):
                t += table[j] * weights[j]
            t += names["bias"] + g(1.0) + self.own(1.0)
            for _ in range(self.steps):
                t += 1.0
            x[i] = t
def make(n):
    @qd.kernel
    def closed(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
        for i in x:
            y: {10} = x[i] + n
            x[i] = y
    return closed
Solver().run(x)
make({11})(x)
print(x[0])
"""
VALUES = ["1", "2", "3.0", "4.0", "5.0", "6.0", "7.0", "8.0", "9", "10.0", "qd.f32", "0.25"]


def test_captured_values_of_every_kind(run: Run) -> None:
    def program(values: list[str]) -> str:
        return CAPTURES.format(*values)

    expected = 1 + 2 + 3 + 4 + 1 + 5 * 6 + 7 + 1 + 8 + 1 + 10 + 9 + 0.25
    assert run(program(VALUES)) == [str(expected), "lowered", "run", "closed"]
    assert run(program(VALUES)) == [str(expected), "lowered"]
    changed = [*VALUES]
    for at, value in enumerate(VALUES):
        changed[at] = "qd.i32" if at == 10 else str(eval(value) + 1)
        result = eval(run(program(changed))[0])
        factor = {4: 6.0, 5: 6.0}.get(at, 1.0)
        expected = int(expected) if at == 10 else expected + factor
        assert result == (int(expected) if at >= 10 else expected), at
        assert run(program(changed)) == [str(result), "lowered"]


REFUSED = """
import random
def choose():
    return {0}
class Vec:
    def __getitem__(self, i):
        return {0}
    def __add__(self, other):
        return {0}
    def __len__(self):
        return 3
v = Vec()
@qd.kernel
def calls(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in x:
        x[i] = qd.static(choose())
@qd.kernel
def adds(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in x:
        x[i] += qd.static(v + 1)
calls(x)
adds(x)
print(x[0])
"""


def test_what_cannot_be_told_is_lowered_again(run: Run) -> None:
    assert run(REFUSED.format(1.0)) == ["2.0", "lowered", "calls", "adds"]
    assert run(REFUSED.format(2.0)) == ["4.0", "lowered", "calls", "adds"]


ARRAYS = """
a = qd.field(qd.f32, shape=({0},)) if {1} else qd.Vector.field({0}, qd.f32, shape=(2,))
b = qd.field(qd.f32, shape=(4,)) if {2} else a
@qd.kernel
def total() -> qd.f32:
    s = 0.0
    for i in a:
        if qd.static({1}):
            s += a[i]
        else:
            s += a[i].sum()
    for i in b:
        b[i] *= 3.0
        s += b[i]
    return s
a.fill(1.0)
b.fill(2.0)
print(total(), total())
"""


def test_fields_that_are_made_otherwise(run: Run) -> None:
    cases = {("4", "1", "1"): "28.0", ("5", "1", "1"): "29.0", ("4", "0", "1"): "32.0", ("4", "1", "0"): "32.0"}
    for case, expected in cases.items():
        text = ARRAYS.format(*case)
        first = run(text)
        assert (first[0], first[2:]) == (expected, ["lowered", "total"])
        assert run(text) == [*first[:2], "lowered"]


GRADIENT = """
@qd.kernel
def loss(x: qd.types.ndarray(), y: qd.types.ndarray()):
    for i in x:
        y[0] += x[i] * x[i] * x[i]
x = qd.ndarray(qd.f32, (3,), needs_grad=True)
y = qd.ndarray(qd.f32, (1,), needs_grad=True)
x.fill(2.0)
y.grad.fill(1.0)
loss(x, y)
loss.grad(x, y)
z = qd.ndarray(qd.f32, (1,), needs_grad=True)
with qd.ad.Tape(z):
    loss(x, z)
print(y[0], x.grad[0])
"""


def test_derivatives_are_recalled_and_tapes_are_whole(run: Run) -> None:
    first = run(GRADIENT)
    assert first == ["24.0", "24.0", "lowered", "loss", "loss"]
    assert run(GRADIENT) == ["24.0", "24.0", "lowered", "loss", "loss"]  # those of the tape


OWNED = """
import dataclasses
@qd.func
def double(v): return v * {0}
@qd.func
def triple(v): return v * 3.0
@dataclasses.dataclass
class Body:
    pos: qd.types.ndarray(dtype=qd.f32, ndim=1)
    scale: {1}
    @qd.func
    def moved(self, v):
        return v + {2}
@qd.kernel
def k(body: Body, f: qd.template(), fs: qd.template()):
    for i in body.pos:
        body.pos[i] = fs[0](f(body.moved(body.pos[i]))) * body.scale
k(Body(x, 2.5), {3}, [{3}, double])
k(Body(x, 1.5), {3}, [{3}, double])
print(x[0])
"""


def test_functions_and_members_of_arguments(run: Run) -> None:
    for values, expected in (
        (("2.0", "qd.f32", "1.0", "double"), 66.0),
        (("4.0", "qd.f32", "1.0", "double"), 984.0),
        (("2.0", "qd.f32", "2.0", "double"), 132.0),
        (("2.0", "qd.f32", "1.0", "triple"), 9 * 1.5 * (9 * 2.5 + 1)),
    ):
        text = OWNED.format(*values)
        assert run(text) == [str(expected), "lowered", "k"]
        assert run(text) == [str(expected), "lowered"]


RETURNING = """
pair = qd.types.struct(a=qd.f32, v=qd.types.vector(2, qd.i32))
@qd.kernel
def several() -> tuple[qd.types.vector(2, qd.f32), bool, pair]:
    return qd.Vector([1.0, 2.0]), x[0] == 0.0, pair(a=3.0, v=qd.Vector([4, 5]))
v, truth, s = several()
print(v.to_list(), truth, s.a, s.v.to_list(), type(s).__name__)
"""


def test_results_of_every_kind(run: Run) -> None:
    first = run(RETURNING)
    assert first == ["[1.0, 2.0]", str(first[1]), "3.0", "[4, 5]", "Struct", "lowered", "several"]
    assert run(RETURNING) == first[:-1]


def test_code_that_is_gone_is_made_again(run: Run, tmp_path: Path) -> None:
    run(KERNEL)
    for entry in (tmp_path / "cache").glob("*.qdc"):
        if not entry.name.startswith("source-"):
            entry.unlink()
    assert run(KERNEL) == ["4.0", "lowered", "k"]
    assert run(KERNEL) == ["4.0", "lowered"]


@pytest.mark.parametrize("damage", ["torn", "flipped", "foreign"])
def test_damaged_entries_heal(run: Run, tmp_path: Path, damage: str) -> None:
    run(KERNEL)
    for entry in (tmp_path / "cache").glob("*.qdc"):
        data = bytearray(entry.read_bytes())
        data[60] ^= 1
        entry.write_bytes({"torn": data[: len(data) // 2], "flipped": data, "foreign": b"other" * 99}[damage])
    assert run(KERNEL) == ["4.0", "lowered", "k"]
    assert run(KERNEL) == ["4.0", "lowered"]
