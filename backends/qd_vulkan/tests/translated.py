"""The backend's code on its way to MoltenVK, without a Mac.

MoltenVK hands SPIR-V to SPIRV-Cross, which writes Metal Shading Language. Here the same SPIR-V goes through
SPIRV-Cross's command,
the text is compiled by clang against the header of `msl_host`, and its threads run on the host. Memory is the host's,
so addresses are real.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msl_host
from qd_vulkan.compiler import VulkanCompiler, unpack
from qd_vulkan.facts import target_from
from qd_vulkan.module import LIMITS

from qd_core.backend.contract import (
    Artifact,
    Availability,
    Backend,
    BufferUse,
    Compiler,
    ContractVersion,
    Device,
    DeviceInfo,
    Launch,
    Module,
    Target,
)
from qd_core.codegen.dispatch import argument_block
from qd_core.errors import DeviceFault
from qd_core.reference.backend import ReferenceDevice, ReferenceStream

__all__ = ["TRANSLATED", "TranslatedBackend", "translate"]

MAX_SLOTS = 4
_CACHE = Path(tempfile.gettempdir()) / "qd_msl_host"
_POOL_NBYTES = 64 << 20

TRANSLATED = target_from(
    "spirv1.5 translated",
    (
        *(f"type.{d}" for d in ("i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64", "f16", "f32")),
        "atomics32",
        "group.1024",
        "plain_products",
    ),
)
"""What MoltenVK offers: no f64, no 64-bit atomics, and here no atomic addition of reals, which this SPIRV-Cross
cannot write.
"""


def translate(binary: bytes, version: str = "30000") -> str:
    """Return SPIR-V as Metal Shading Language."""
    with tempfile.NamedTemporaryFile(suffix=".spv") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run(
            ["spirv-cross", "--msl", "--msl-version", version, file.name], capture_output=True, text=True
        )
    if done.returncode:
        raise msl_host.MslError(done.stderr)
    return done.stdout


def why_not() -> str:
    """What the machine lacks, empty for nothing."""
    if shutil.which("spirv-cross") is None:
        return "spirv-cross is not installed"
    return "" if msl_host.clang() else "clang++ 16 or later is not installed"


class TranslatedModule(Module):
    """Kernels compiled from translated text."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.code = artifact, unpack(artifact)
        self.texts = [translate(task.binary) for task in self.code.tasks]
        for text in self.texts:
            used = msl_host.slots(text)
            assert len(used) <= MAX_SLOTS, f"{len(used)} buffer slots"
        self.kernels = [msl_host.compile_msl(text, _CACHE) for text in self.texts]


class TranslatedStream(ReferenceStream):
    """Runs tasks one after the other."""

    def run(self, module: Module, launch: Launch) -> None:
        """Run all tasks; their threads in order."""
        assert isinstance(module, TranslatedModule)
        device = self.device
        assert isinstance(device, TranslatedDevice)
        device.check_open()
        _check(launch.uses, device)
        code = module.code
        pool = device.pool_words() if code.pooled else b""
        words = argument_block(launch.words.tobytes(), code.words, launch.extents, code.extents, pool)
        block = ctypes.create_string_buffer(words, max(len(words), 8))
        address = ctypes.c_uint64(ctypes.addressof(block))
        slot = ctypes.addressof(block) if module.code.inline else ctypes.addressof(address)
        for kernel, task, groups in zip(
            module.kernels, code.tasks, LIMITS.grids(module.artifact, code.tasks, launch.extents), strict=True
        ):
            if groups:
                kernel.run({0: slot}, (groups, 1), task.group)
        device.check_pool()


def _check(uses: Sequence[BufferUse], device: Device) -> None:
    for use in uses:
        if use.ref.buffer.freed or use.ref.buffer.device is not device:
            raise DeviceFault(f"{use.path} is not memory of this device")


class TranslatedDevice(ReferenceDevice):
    """Host memory."""

    def __init__(self, info: DeviceInfo) -> None:
        super().__init__(info)
        self.default_stream = TranslatedStream(self)
        self._pool: Any = None
        self._fault = ctypes.c_uint64()
        self._needs = (ctypes.c_uint32 * 1024)()

    def load(self, artifact: Artifact) -> Module:
        """Translate and compile."""
        self.check_open()
        return TranslatedModule(artifact)

    def pool_words(self) -> bytes:
        """Return the pool's words."""
        if self._pool is None:
            self._pool = ctypes.create_string_buffer(_POOL_NBYTES)
        ctypes.memset(self._needs, 0, ctypes.sizeof(self._needs))
        return struct.pack(
            "<QQQQ",
            ctypes.addressof(self._pool),
            _POOL_NBYTES // 4,
            ctypes.addressof(self._fault),
            ctypes.addressof(self._needs),
        )

    def check_pool(self) -> None:
        """Raise `DeviceFault` if a kernel needed more private memory than there is."""
        needed, self._fault.value = self._fault.value, 0
        if needed:
            raise DeviceFault(f"an iteration needs {4 * needed} bytes of private memory")


class TranslatedBackend(Backend):
    """The path to MoltenVK as a backend of the kit."""

    name = "vulkan_translated"
    contract = ContractVersion(1, 0)
    priority = -200

    def probe(self) -> Availability:
        """Whether SPIRV-Cross and clang are there."""
        missing = why_not()
        return Availability(not missing, missing, "install spirv-cross and clang-16")

    def targets(self) -> Sequence[Target]:
        """The one target."""
        return (TRANSLATED,)

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return (DeviceInfo(0, "SPIRV-Cross and clang", TRANSLATED),)

    def compiler(self, target: Target) -> Compiler:
        """Return the backend's own compiler."""
        return VulkanCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open the device."""
        return TranslatedDevice(info)
