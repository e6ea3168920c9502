"""The CPU through the contract: targets, devices, memory, artifacts, streams."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvm_programs import EXACT, array, pack, program, task

from qd_core import dtypes as dt
from qd_core.backend.contract import Artifact, BufferRef, CompileOptions, HostSpan, Launch
from qd_core.cpu import CpuBackend
from qd_core.cpu.compiler import FORMAT, CpuCompiler
from qd_core.cpu.device import CpuDevice
from qd_core.cpu.pool import process_pool
from qd_core.cpu.target import vector_bits
from qd_core.errors import ClosedError, DeviceFault, InvalidIRError, LaunchError
from qd_core.ir.nodes import Param
from qd_core.ir.program import Program


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    backend = CpuBackend()
    opened = backend.open(backend.devices()[0], {})
    assert isinstance(opened, CpuDevice)
    yield opened
    opened.pool.set_threads(1)


@pytest.fixture
def compiler() -> CpuCompiler:
    backend = CpuBackend()
    made = backend.compiler(backend.targets()[0])
    assert isinstance(made, CpuCompiler)
    return made


def _double() -> tuple[Program, Param]:
    x = array("x", dt.f32)
    return program([x], task([None], lambda b, i: b.store(x, [i], b.emit("add", b.load(x, [i]), b.load(x, [i]))))), x


def _bytes(values: Any) -> HostSpan:
    return HostSpan(values.ctypes.data, values.nbytes, values)


def test_the_host_is_available_and_described() -> None:
    backend = CpuBackend()
    assert backend.probe().available
    (info,) = backend.devices()
    assert info.name
    assert info.memory_nbytes > 1 << 20
    assert info.target == backend.targets()[0]
    assert info.target.capabilities.has("type.f64")
    assert info.target.capabilities.has("atomic.add.f32")
    assert info.target.capabilities.limit("lanes") == vector_bits(frozenset(info.target.features)) // 32


def test_vector_width_follows_the_features() -> None:
    assert vector_bits(frozenset({"sse2", "avx", "avx512f"})) == 512
    assert vector_bits(frozenset({"sse2", "avx", "avx2"})) == 256
    assert vector_bits(frozenset({"neon"})) == 128
    assert vector_bits(frozenset()) == 128


def test_identity_names_versions_and_host(compiler: CpuCompiler) -> None:
    import llvmlite

    identity = compiler.identity()
    assert llvmlite.__version__ in identity
    assert "emitter" in identity
    assert identity == CpuCompiler(compiler.target).identity()


def test_objects_are_identical_run_to_run(compiler: CpuCompiler) -> None:
    assert compiler.compile(_double()[0], EXACT).blob == compiler.compile(_double()[0], EXACT).blob


def test_an_artifact_runs_in_another_process(compiler: CpuCompiler, tmp_path: Any) -> None:
    artifact = compiler.compile(_double()[0], EXACT)
    (tmp_path / "blob").write_bytes(artifact.blob)
    code = f"""
import numpy as np
from qd_core.backend.contract import Artifact, Launch
from qd_core.cpu import CpuBackend
backend = CpuBackend()
device = backend.open(backend.devices()[0], {{}})
module = device.load(Artifact({FORMAT!r}, open({str(tmp_path / "blob")!r}, "rb").read(), ()))
x = np.arange(21, dtype=np.float32)
words = memoryview(np.array([x.ctypes.data, 21, 1], np.uint64))
device.default_stream.run(module, Launch(words, [21], ()))
print(x.tolist() == [2.0 * i for i in range(21)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_native_entry_runs_the_kernel(device: CpuDevice, compiler: CpuCompiler) -> None:
    p, _ = _double()
    module = device.load(compiler.compile(p, EXACT))
    entry = module.native()
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(entry.function)
    x = np.arange(100, dtype=np.float32)
    words, extents = np.frombuffer(pack(p.params, [x], lambda _, v: v.ctypes.data), np.uint64), np.array([100])
    assert function(entry.context, words.ctypes.data, extents.ctypes.data, None) == 0
    np.testing.assert_array_equal(x, 2 * np.arange(100))


def test_dumps_hold_every_stage(compiler: CpuCompiler) -> None:
    artifact = compiler.compile(_double()[0], CompileOptions(extra=(("dump", "1"),)))
    assert "define void @task_0" in artifact.stages["llvm"]
    assert "task_0" in artifact.stages["optimized"]
    assert "task_0" in artifact.stages["asm"]
    assert not compiler.compile(_double()[0], EXACT).stages


def test_the_number_of_threads_is_an_option() -> None:
    backend = CpuBackend()
    info = backend.devices()[0]
    for count in (1, 3):
        opened = backend.open(info, {"cpu_max_num_threads": count})
        assert isinstance(opened, CpuDevice)
        assert opened.pool.threads == count
    opened.pool.set_threads(1)


def test_memory_is_aligned_copied_filled_and_viewed(device: CpuDevice) -> None:
    stream, n = device.default_stream, 1000
    a, b = device.allocate(n * 4), device.allocate(n * 4, alignment=4096)
    ra, rb = BufferRef(a, 0, n * 4), BufferRef(b, 0, n * 4)
    assert device.address(ra) % 256 == 0
    assert device.address(rb) % 4096 == 0
    source, target = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    stream.copy_in(ra, _bytes(source))
    stream.copy(rb, ra)
    stream.copy_out(_bytes(target), rb)
    np.testing.assert_array_equal(target, source)
    stream.fill(BufferRef(a, 4, 13), b"\x01\x02\x03\x04")
    span = device.host_view(ra)
    assert span is not None
    seen = bytes((ctypes.c_char * 24).from_address(span.address))
    assert seen == bytes(4) + b"\x01\x02\x03\x04" * 3 + b"\x01" + source[4:6].tobytes()[1:]


def test_empty_buffers(device: CpuDevice) -> None:
    buffer = device.allocate(0)
    ref = BufferRef(buffer, 0, 0)
    device.default_stream.copy_in(ref, _bytes(np.zeros(0)))
    device.default_stream.fill(ref, b"\0")
    device.address(ref)
    device.free(buffer)


def test_adopted_memory_is_used_in_place(device: CpuDevice) -> None:
    x = np.arange(6.0).reshape(2, 3)
    buffer = device.adopt(x)
    assert buffer is not None
    assert buffer.owner is x
    assert device.address(BufferRef(buffer, 8, 8)) == x.ctypes.data + 8
    assert device.adopt(x.T) is None
    x.flags.writeable = False
    assert device.adopt(x) is None
    assert device.adopt("text") is None


def test_wrong_use_of_memory_is_refused(device: CpuDevice) -> None:
    buffer = device.allocate(16)
    with pytest.raises(DeviceFault, match="outside"):
        device.address(BufferRef(buffer, 8, 16))
    with pytest.raises(DeviceFault, match="do not fit"):
        device.default_stream.copy_in(BufferRef(buffer, 0, 8), _bytes(np.zeros(3)))
    other = CpuBackend().open(CpuBackend().devices()[0], {})
    with pytest.raises(DeviceFault, match="another device"):
        other.address(BufferRef(buffer, 0, 8))
    device.free(buffer)
    with pytest.raises(DeviceFault, match="freed"):
        device.address(BufferRef(buffer, 0, 8))
    with pytest.raises(DeviceFault, match="twice"):
        device.free(buffer)
    with pytest.raises(DeviceFault, match="cannot be allocated"):
        device.allocate(1 << 60)


def test_a_closed_device_refuses_work(device: CpuDevice, compiler: CpuCompiler) -> None:
    artifact = compiler.compile(_double()[0], EXACT)
    module = device.load(artifact)
    device.close()
    with pytest.raises(ClosedError):
        device.default_stream.run(module, Launch(memoryview(np.zeros(3, np.uint64)), [0], ()))
    with pytest.raises(ClosedError):
        device.allocate(4)
    with pytest.raises(ClosedError):
        device.load(artifact)


def test_foreign_artifacts_are_refused(device: CpuDevice) -> None:
    with pytest.raises(LaunchError, match="something"):
        device.load(Artifact("something", b"", ()))


def test_programs_that_were_not_legalised_are_refused(compiler: CpuCompiler) -> None:
    x = array("x", dt.f32)
    p = program([x], task([None], lambda b, i: b.store(x, [i], b.emit("sin", b.load(x, [i])))))
    with pytest.raises(InvalidIRError, match="sin"):
        compiler.compile(p, EXACT)
    for step in compiler.pipeline():
        p = step(p)
    assert compiler.compile(p, EXACT).blob


def test_messages_without_a_log_are_refused(compiler: CpuCompiler) -> None:
    x = array("x", dt.f32)
    p = program([x], task([None], lambda b, i: b.check("assert", b.emit("gt", i, b.const(dt.i32, 3)), [], site=0)))
    with pytest.raises(InvalidIRError, match="log"):
        compiler.compile(p, EXACT)


def test_loading_the_backend_loads_no_llvm() -> None:
    code = "import sys, qd_core.cpu; print('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_arch_keeps_its_name_when_the_backend_is_loaded() -> None:
    code = """
import qd_core as qd
arch = qd.cpu
import qd_core.cpu.compiler, qd_core.reference
assert qd.cpu is arch and qd.reference.name == "reference"
qd.init(arch=qd.cpu)
qd.init(arch=qd.cpu)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pool_is_made_by_the_first_launch_that_shares_work(
    monkeypatch: pytest.MonkeyPatch, compiler: CpuCompiler
) -> None:
    from qd_core.cpu import device as module_of_device

    made: list[int] = []

    def counted(threads: int) -> Any:
        made.append(threads)
        pool = process_pool()
        pool.set_threads(threads)
        return pool

    monkeypatch.setattr(module_of_device, "_pool_of", counted)
    backend = CpuBackend()
    device = backend.open(backend.devices()[0], {"cpu_max_num_threads": 2})
    p, _ = _double()
    kernel = device.load(compiler.compile(p, EXACT))
    for n, pools in ((0, 0), (5, 0), (200_000, 1), (200_000, 1)):
        x = np.arange(n, dtype=np.float32)
        device.default_stream.run(kernel, Launch(pack(p.params, [x], lambda _, v: v.ctypes.data), [n], ()))
        assert np.array_equal(x, 2 * np.arange(n, dtype=np.float32))
        assert made == [2] * pools
    device.pool.set_threads(1)


FAILING = """
import signal
import time
import numpy as np
import qd_core as qd
from qd_core.cpu import device

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

def fail(threads):
    if ERROR is KeyboardInterrupt and calls:
        return original(threads)
    calls.append(1)
    raise ERROR("no pool today")

calls, ERROR = [], {error}
original, device._pool_of = device._pool_of, fail
qd.init(arch=qd.cpu, log_level="error", offline_cache=False, cpu_max_num_threads=2)

@qd.kernel
def double(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in range(x.shape[0]):
        x[i] *= 2.0

x = np.ones(200_000, np.float32)
try:
    double(x)
    for _ in range(1000):
        time.sleep(0.01)
except KeyboardInterrupt:
    print("interrupted", x.sum())
else:
    print("finished", x.sum())
"""


@pytest.mark.parametrize(("error", "said"), [("OSError", "no pool today"), ("KeyboardInterrupt", "interrupted 400000")])
def test_a_pool_that_cannot_be_made_is_not_silent(tmp_path: Path, error: str, said: str) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(error=error))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (error == "KeyboardInterrupt")
