"""The reference as a backend: artifacts, buffers, launches, and a subclass with addresses of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qd_core import dtypes as dt
from qd_core.backend.contract import (
    Access,
    Artifact,
    Buffer,
    BufferRef,
    BufferUse,
    CompileOptions,
    Device,
    HostSpan,
    Launch,
    Role,
)
from qd_core.errors import ClosedError, DeviceFault, InvalidIRError, LaunchError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Param, Region, Value
from qd_core.ir.program import Program
from qd_core.passes.offload import offload
from qd_core.reference import ReferenceBackend
from qd_core.reference.backend import ReferenceCompiler, ReferenceDevice, ReferenceModule
from qd_core.reference.memory import Memory
from qd_core.testing.kernels import array, parallel


@pytest.fixture
def device() -> ReferenceDevice:
    backend = ReferenceBackend()
    opened = backend.open(backend.devices()[0], {})
    assert isinstance(opened, ReferenceDevice)
    return opened


def compiler() -> ReferenceCompiler:
    return ReferenceCompiler(ReferenceBackend().targets()[0])


def scale_program() -> Program:
    """y[i] = x[i] * a for i < n."""
    n, a, x, y = Param(dt.i32, "n"), Param(dt.f64, "a"), array(dt.f64, "x"), array(dt.f64, "y")
    return offload(parallel([n, a, x, y], lambda b: n, lambda b, i: b.store(y, [i], b.emit("mul", b.load(x, [i]), a))))


def bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def whole(buffer: Buffer) -> BufferRef:
    return BufferRef(buffer, 0, buffer.nbytes)


def span(data: np.ndarray) -> HostSpan:
    return HostSpan(data.ctypes.data, data.nbytes, data)


def launch(words: Sequence[int], extents: Sequence[int], refs: Sequence[BufferRef]) -> Launch:
    uses = [BufferUse(r, Access.READ_WRITE, Role.DATA, f"array{n}") for n, r in enumerate(refs)]
    return Launch(memoryview(np.array(words, np.int64)), extents, uses, "k")


def load(device: Device, program: Program) -> Any:
    return device.load(compiler().compile(program, CompileOptions()))


def test_the_artifact_is_the_text_and_names_what_tasks_use() -> None:
    artifact = compiler().compile(scale_program(), CompileOptions())
    assert artifact.blob.decode() == artifact.stages["ir"]
    (task,) = artifact.tasks
    assert (task.uses, task.writes, task.after) == ((2, 3), (3,), ())
    assert "numpy" in compiler().identity()


def test_an_invalid_program_is_not_compiled() -> None:
    program = scale_program()
    program.writes = frozenset()
    with pytest.raises(InvalidIRError, match="not listed as written"):
        compiler().compile(program, CompileOptions())


def test_a_launch_reads_and_writes_parts_of_buffers(device: ReferenceDevice) -> None:
    data = np.arange(8.0)
    buffer = device.allocate(128)
    device.default_stream.copy_in(BufferRef(buffer, 0, 64), span(data))
    refs = [BufferRef(buffer, 16, 48), BufferRef(buffer, 64, 64)]
    words = [3, bits(10), 0, 3, 2, 1, 3, 1]
    device.default_stream.run(load(device, scale_program()), launch(words, [3], refs))
    out = np.zeros(8)
    device.default_stream.copy_out(span(out), refs[1])
    assert out[:3].tolist() == [20, 40, 60]
    assert np.isnan(out[3:]).all()


def test_a_view_that_leaves_its_buffer_is_an_error(device: ReferenceDevice) -> None:
    refs = [whole(device.allocate(24)), whole(device.allocate(24))]
    with pytest.raises(IndexError, match=r"'x' of shape \(4,\)"):
        device.default_stream.run(load(device, scale_program()), launch([4, 0, 0, 4, 1, 1, 4, 1], [4], refs))


def test_an_ordinal_without_buffer_is_an_error(device: ReferenceDevice) -> None:
    refs = [whole(device.allocate(24))]
    with pytest.raises(IndexError, match="'y': ordinal 1 names none"):
        device.default_stream.run(load(device, scale_program()), launch([3, 0, 0, 3, 1, 1, 3, 1], [3], refs))


def test_a_freed_buffer_is_an_error(device: ReferenceDevice) -> None:
    refs = [whole(device.allocate(24)), whole(device.allocate(24))]
    device.free(refs[1].buffer)
    with pytest.raises(DeviceFault, match="freed"):
        device.default_stream.run(load(device, scale_program()), launch([3, 0, 0, 3, 1, 1, 3, 1], [3], refs))
    with pytest.raises(DeviceFault, match="freed twice"):
        device.free(refs[1].buffer)


def test_an_extent_that_the_host_owes_is_an_error(device: ReferenceDevice) -> None:
    refs = [whole(device.allocate(24)), whole(device.allocate(24))]
    with pytest.raises(InvalidIRError, match="does not give an extent"):
        device.default_stream.run(load(device, scale_program()), launch([3, 0, 0, 3, 1, 1, 3, 1], [-1], refs))


def test_extents_that_a_task_wrote(device: ReferenceDevice) -> None:
    """The loop's bound is an element that serial code changes first."""
    x = array(dt.i32, "x")
    function = Function("k", [x], Region())
    b = Builder(function.body)
    zero = b.const(dt.i32, 0)
    b.store(x, [zero], b.emit("add", b.load(x, [zero]), b.const(dt.i32, 1)))
    with b.inside([(dt.i32, "i")], loop=True) as body:
        b.store(x, [b.emit("add", body.args[0], b.const(dt.i32, 1))], body.args[0])
        b.yield_()
    b.parallel_for([(zero, b.load(x, [zero]))], body)
    b.yield_()
    program = offload(function)
    data, temporary = np.array([2, -1, -1, -1, -1], np.int32), device.allocate(8)
    adopted = device.adopt(data)
    assert adopted is not None
    words = {"x": [0, 5, 1], "temporary.i64": [1, 1, 1]}
    packed = [w for p in program.params for w in words[p.path]]
    extents = [-1 for t in program.tasks for _ in t.extents]
    device.default_stream.run(load(device, program), launch(packed, extents, [whole(adopted), whole(temporary)]))
    assert data.tolist() == [3, 0, 1, 2, -1]


def test_new_memory_shows_that_it_was_not_written(device: ReferenceDevice) -> None:
    out = np.zeros(3)
    device.default_stream.copy_out(span(out), whole(device.allocate(24)))
    assert np.isnan(out).all()


def test_allocation(device: ReferenceDevice) -> None:
    assert device.address(whole(device.allocate(10, alignment=1024))) % 1024 == 0
    assert device.allocate(0).nbytes == 0
    with pytest.raises(DeviceFault, match="cannot be allocated"):
        device.allocate(1 << 60)


@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x00\x00\x80\x3f", b"12345678"])
def test_fill_and_copy(device: ReferenceDevice, pattern: bytes) -> None:
    buffer = device.allocate(32)
    stream = device.default_stream
    stream.fill(whole(buffer), b"\x00")
    stream.fill(BufferRef(buffer, 8, 16), pattern)
    stream.copy(BufferRef(buffer, 12, 16), BufferRef(buffer, 8, 16))
    out = np.zeros(32, np.uint8)
    stream.copy_out(span(out), whole(buffer))
    filled = (pattern * 16)[:16]
    assert out.tobytes() == bytes(8) + filled[:4] + filled + bytes(4)


def test_copies_stay_inside(device: ReferenceDevice) -> None:
    with pytest.raises(DeviceFault, match="leave a buffer of 8 bytes"):
        device.default_stream.fill(BufferRef(device.allocate(8), 4, 8), b"\x00")


def test_buffers_of_another_device_are_refused(device: ReferenceDevice) -> None:
    other = ReferenceDevice(device.info)
    with pytest.raises(DeviceFault, match="another device"):
        device.default_stream.fill(whole(other.allocate(8)), b"\x00")


def test_adoption_is_in_place_or_refused(device: ReferenceDevice) -> None:
    data = np.zeros((2, 3), np.float32)
    buffer = device.adopt(data)
    assert buffer is not None
    assert buffer.owner is data
    device.default_stream.fill(whole(buffer), b"\x00\x00\x80\x3f")
    assert (data == 1).all()
    data.flags.writeable = False
    assert device.adopt(data) is None
    assert device.adopt(np.zeros((4, 4))[:, ::2]) is None
    assert device.adopt([1.0]) is None


def test_host_view_shares_memory(device: ReferenceDevice) -> None:
    buffer = device.allocate(8)
    view = device.host_view(whole(buffer))
    assert view is not None
    device.default_stream.copy_in(BufferRef(buffer, 0, 8), span(np.array([3.5])))
    assert np.frombuffer(view.owner, np.float64)[0] == 3.5  # type: ignore[call-overload]


def test_a_closed_device_refuses(device: ReferenceDevice) -> None:
    module = load(device, scale_program())
    device.close()
    with pytest.raises(ClosedError):
        device.allocate(8)
    with pytest.raises(ClosedError):
        device.default_stream.run(module, launch([0, 0, 0, 0, 1, 1, 0, 1], [0], []))


def test_foreign_artifacts_are_refused(device: ReferenceDevice) -> None:
    with pytest.raises(LaunchError, match="format 'elf'"):
        device.load(Artifact("elf", b"", ()))


# -- a device with addresses -----------------------------------------------------------------------------------------
class AddressMemory(Memory):
    """Finds an array by an address of the device's own space."""

    def __init__(self, words: Any, device: AddressDevice) -> None:
        super().__init__(words)
        self.device = device

    def locate(self, param: Param, word: int) -> np.ndarray:
        for base, buffer in self.device.space.items():
            if base <= word < base + buffer.nbytes:
                return self.device.bytes_of(BufferRef(buffer, word - base, buffer.nbytes - (word - base)))
        raise DeviceFault(f"argument {param.path!r} ({param.role.value}): {word:#x} is no address of this device")


class AddressDevice(ReferenceDevice):
    """Buffers get made-up addresses, which mean nothing to the host."""

    def __init__(self, info: Any) -> None:
        super().__init__(info)
        self.space: dict[int, Buffer] = {}

    def allocate(self, nbytes: int, **options: Any) -> Buffer:
        buffer = super().allocate(nbytes, **options)
        self.space[(len(self.space) + 1) << 40] = buffer
        return buffer

    def address(self, ref: BufferRef) -> Any:
        return next(base for base, buffer in self.space.items() if buffer is ref.buffer) + ref.offset

    def memory(self, module: ReferenceModule, launch: Launch) -> Memory:
        return AddressMemory(launch.words, self)


def test_a_subclass_gives_words_another_meaning(device: ReferenceDevice) -> None:
    fake = AddressDevice(device.info)
    module = load(fake, scale_program())
    x, y = (fake.allocate(24) for _ in range(2))
    fake.default_stream.copy_in(whole(x), span(np.array([1.0, 2, 3])))
    refs = [BufferRef(x, 8, 16), whole(y)]
    fake.default_stream.run(
        module, launch([2, bits(3), fake.address(refs[0]), 2, 1, fake.address(refs[1]), 2, 1], [2], refs)
    )
    out = np.zeros(2)
    fake.default_stream.copy_out(span(out), BufferRef(y, 0, 16))
    assert out.tolist() == [6, 9]
    host = np.zeros(3)
    with pytest.raises(DeviceFault, match=r"argument 'x' \(data\)"):
        fake.default_stream.run(module, launch([2, 0, host.ctypes.data, 2, 1, fake.address(whole(y)), 2, 1], [2], refs))


def test_zero_sized_arrays_run_and_do_nothing(device: ReferenceDevice) -> None:
    fake = AddressDevice(device.info)
    fake.default_stream.run(load(fake, scale_program()), launch([0, 0, 0, 0, 1, 0, 0, 1], [0], []))


def test_everything_claimed_is_registered() -> None:
    (info,) = ReferenceBackend().devices()
    assert not info.target.capabilities.missing(["type.f64", "atomic.add.f16", "log.records", "launch.device_extent"])


def test_results_and_scalars_of_every_type(device: ReferenceDevice) -> None:
    """A scalar's word is its bits, zero-extended."""
    for kind, value in (
        (dt.i8, -3),
        (dt.u1, True),
        (dt.f16, 1.5),
        (dt.u64, 2**64 - 1),
        (dt.i64, -(2**63)),
        (dt.f32, -2.5),
    ):
        s, y = Param(kind, "s"), Param(ArrayType(kind, 0), "y")

        def write(b: Builder, i: Value, s: Param = s, y: Param = y) -> None:
            b.store(y, [], s)

        buffer = device.allocate(8)
        word = np.zeros(8, np.uint8)
        word[: kind.nbytes] = np.array([value], kind.numpy).view(np.uint8)
        packed = [int(word.view(np.int64)[0]), 0]
        device.default_stream.run(
            load(device, offload(parallel([s, y], 1, write))), launch(packed, [1], [whole(buffer)])
        )
        out = np.zeros(1, kind.numpy)
        device.default_stream.copy_out(span(out), whole(buffer))
        assert out[0] == value
