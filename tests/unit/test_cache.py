"""The disk cache of compiled code: what decides an entry's name, and what becomes of damaged entries."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from llvm_programs import array, cpu, program, task

from qd_core import dtypes as dt
from qd_core.backend.contract import Artifact, CompileOptions, TaskEntry
from qd_core.ir.program import Program, Variant
from qd_core.runtime.cache import ArtifactCache, ObjectCache, artifact_key, decode, encode

ARTIFACT = Artifact("format", b"\x00\x01code" * 50, (TaskEntry("task_0", 1, (0,), (0,)),), metrics={"emit_s": 0.5})
KEY = "0" * 64


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "entries")


def scaling(factor: float, dtype: dt.DType = dt.f32) -> Program:
    x = array("x", dtype)

    def body(b: Any, i: Any) -> None:
        b.store(x, [i], b.emit("mul", b.load(x, [i]), b.const(dtype, factor)))

    return program([x], task([None], body))


def test_an_entry_comes_back_equal(cache: ArtifactCache) -> None:
    assert cache.load(KEY) is None
    cache.store(KEY, ARTIFACT)
    assert cache.load(KEY) == ARTIFACT
    assert [p.name for p, _ in cache.entries()] == [f"{KEY}.qdc"]


@pytest.mark.parametrize("at", [0, 3, 8, 20, 39, 40, 60, -1])
def test_a_flipped_bit_is_noticed_and_healed(cache: ArtifactCache, at: int) -> None:
    cache.store(KEY, ARTIFACT)
    ((path, _),) = cache.entries()
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))
    assert cache.load(KEY) is None
    cache.store(KEY, ARTIFACT)
    assert cache.load(KEY) == ARTIFACT


@pytest.mark.parametrize("length", [0, 5, 8, 39, 40, 41, 200])
def test_a_torn_entry_is_not_used(cache: ArtifactCache, length: int) -> None:
    cache.store(KEY, ARTIFACT)
    ((path, _),) = cache.entries()
    path.write_bytes(path.read_bytes()[:length])
    assert cache.load(KEY) is None


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 3",)


@pytest.mark.parametrize("value", [Evil(), {"a": 1}, "text", 7])
def test_entries_of_other_things_are_not_used(value: object) -> None:
    payload = pickle.dumps(value)
    good = encode(ARTIFACT)
    import hashlib

    assert decode(good[:8] + hashlib.sha256(payload).digest() + payload) is None


def test_objects_and_artifacts_do_not_mix(cache: ArtifactCache) -> None:
    objects = ObjectCache(cache)
    objects.put("k", b"machine code")
    assert objects.get("k") == b"machine code"
    assert objects.get("other") is None
    assert cache.load("object-k") is None
    cache.store("object-a", ARTIFACT)
    assert objects.get("a") is None


def test_old_entries_go_first(cache: ArtifactCache) -> None:
    size = len(encode(ARTIFACT))
    cache.max_nbytes = 3 * size
    for n in range(5):
        cache.store(str(n), ARTIFACT)
        os.utime(cache.folder / f"{n}.qdc", (1000 + n, 1000 + n))
    cache.load("0")  # used a moment ago: stays
    cache.prune()
    assert sorted(p.stem for p, _ in cache.entries()) == ["0", "3", "4"]


def test_a_folder_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file" / "entries")
    cache.store(KEY, ARTIFACT)
    assert cache.load(KEY) is None
    assert cache.entries() == []


def test_two_writers_of_one_entry(cache: ArtifactCache) -> None:
    def work(_: int) -> bool:
        cache.store(KEY, ARTIFACT)
        return cache.load(KEY) == ARTIFACT

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))
    assert not list(cache.folder.glob("*.tmp"))


OTHER: dict[str, Any] = {
    "fast_math": False,
    "debug": True,
    "check_out_of_bound": True,
    "opt_level": 1,
    "variant": Variant(frozenset({"no_overlap"})),
    "lanes": 4,
    "extra": (("dump", "1"),),
}


def test_every_option_is_in_the_key() -> None:
    assert OTHER.keys() == {f.name for f in fields(CompileOptions)}
    compiler = cpu()[2]
    base = CompileOptions()
    keys = [artifact_key(scaling(2.0), replace(base, **{name: value}), compiler) for name, value in OTHER.items()]
    assert len({*keys, artifact_key(scaling(2.0), base, compiler)}) == len(OTHER) + 1


def test_the_program_and_the_compiler_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, options = cpu()[2], CompileOptions()
    keys = {artifact_key(p, options, compiler) for p in (scaling(2.0), scaling(3.0), scaling(2.0, dt.f64))}
    assert len(keys) == 3
    assert artifact_key(scaling(2.0), options, compiler) in keys
    monkeypatch.setattr(type(compiler), "identity", lambda self: "another compiler")
    assert artifact_key(scaling(2.0), options, compiler) not in keys


START = """
import sys
import qd_core as qd
from qd_core.codegen.jit import Jit

compiled = []
original = Jit.compile
Jit.compile = lambda self, *a, **k: compiled.append(1) or original(self, *a, **k)
qd.init(arch=qd.cpu, log_level="error", cpu_max_num_threads=2)

@qd.kernel
def scale(x: qd.types.ndarray(dtype=qd.f32, ndim=1), a: qd.f32):
    for i in range(x.shape[0]):
        x[i] = a * x[i] + qd.sin(x[i]) * FACTOR

x = qd.ndarray(qd.f32, 100_000)
x.fill(1.0)
for _ in range(3):
    scale(x, 2.0)
print(len(compiled), round(float(x.to_numpy()[5]), 4), "llvmlite" in sys.modules)
"""


def start(folder: Path, seed: int, factor: str) -> tuple[int, float]:
    """Run a program in a process of its own: how many modules it compiled, and a result."""
    script = folder / f"program_{factor}.py"
    script.write_text(START.replace("FACTOR", factor))
    environment = os.environ | {"QD_CACHE_DIR": str(folder / "cache"), "PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    compiled, value, _ = done.stdout.split()
    return int(compiled), float(value)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold, value = start(tmp_path, 1, "0.5")
    assert cold >= 2  # the kernel and the pool, and the launch entry where there is one
    assert start(tmp_path, 2, "0.5") == (0, value)
    changed, other = start(tmp_path, 3, "0.25")
    assert changed == 1
    assert other != value
    for entry in (tmp_path / "cache").glob("*.qdc"):
        entry.write_bytes(entry.read_bytes()[:-7])
    assert start(tmp_path, 4, "0.5") == (cold, value)
    assert start(tmp_path, 5, "0.5") == (0, value)
