"""The reference interpreter as a backend.

Its artifact is the program's text. It has no addresses: an array's first word is an ordinal of the launch's buffers.
A device with an address space of its own subclasses :class:`ReferenceDevice` and overrides
:meth:`ReferenceDevice.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import (
    ArgumentABI,
    Artifact,
    Availability,
    Backend,
    CompileOptions,
    Compiler,
    ContractVersion,
    Device,
    DeviceInfo,
    Launch,
    Module,
    Target,
    TaskEntry,
)
from qd_core.backend.host import HostDevice, HostStream
from qd_core.errors import LaunchError
from qd_core.ir.ops import BITS, NUM
from qd_core.ir.parse import parse_program
from qd_core.ir.print import print_program
from qd_core.ir.program import Program
from qd_core.ir.verify import verify
from qd_core.reference.interpreter import Interpreter, Prepared
from qd_core.reference.memory import Memory, OrdinalMemory

__all__ = [
    "CAPABILITIES",
    "ReferenceBackend",
    "ReferenceCompiler",
    "ReferenceDevice",
    "ReferenceModule",
    "ReferenceStream",
]

FORMAT = "qd-ir-text"

CAPABILITIES = CapabilitySet(
    types=types(*dt.ALL),
    atomics=atomics(("add", "min", "max", "cas"), NUM)
    | atomics(("and", "or", "xor"), BITS)
    | atomics(("exchange",), dt.ALL),
    features=frozenset({"exchange.dlpack", "launch.device_extent", "log.records", "memory.private"}),
    limits={"lanes": 1, "workers": 1},
)
"""What the interpreter does: everything that the IR can say."""

_FRESH = 0xFF
"""Byte of new memory: NaN and -1, so that relying on zeros shows."""


class ReferenceCompiler(Compiler):
    """Checks a program and keeps its text."""

    def __init__(self, target: Target, abi: ArgumentABI | None = None) -> None:
        self.target, self.abi = target, abi or ArgumentABI(pointers="ordinal")

    def identity(self) -> str:
        """Format of the text and NumPy's version, which elementary functions depend on."""
        return f"{self.target.name} {FORMAT} 1 numpy {np.__version__}"

    def compile(self, program: Program, options: CompileOptions) -> Artifact:
        """Return the program's text; `InvalidIRError` for an invalid program. Options change nothing here."""
        verify(program)
        text = print_program(program, locations=True)
        tasks = tuple(TaskEntry.of(program, n, f"{task.name}.{n}") for n, task in enumerate(program.tasks))
        return Artifact(FORMAT, text.encode(), tasks, program.sites, {"ir": text})


class ReferenceModule(Module):
    """A program read back from its text."""

    def __init__(self, artifact: Artifact) -> None:
        if artifact.format != FORMAT:
            raise LaunchError(
                f"an artifact of format {artifact.format!r} is no program text", why=f"this device loads {FORMAT!r}"
            )
        self.artifact = artifact
        self.program = parse_program(artifact.blob.decode())
        verify(self.program)
        self.prepared = Prepared(self.program)


class ReferenceStream(HostStream):
    """Runs and copies at once, in the calling thread."""

    def __init__(self, device: ReferenceDevice) -> None:
        super().__init__(device)
        self.reference = device

    def run(self, module: Module, launch: Launch) -> None:
        """Interpret all tasks; `InterpreterError` where the program leaves an array."""
        assert isinstance(module, ReferenceModule)
        self.reference.check_open()
        memory = self.reference.memory(module, launch)
        Interpreter(module.prepared, memory).run(launch.extents)


class ReferenceDevice(HostDevice):
    """Host memory seen through NumPy. Addresses only order and compare buffers: the interpreter uses ordinals.

    New memory is filled with a pattern that shows.
    """

    fresh = _FRESH

    def __init__(self, info: DeviceInfo) -> None:
        super().__init__(info)
        self.default_stream = ReferenceStream(self)

    def memory(self, module: ReferenceModule, launch: Launch) -> Memory:
        """Return the arguments of a launch: what the words of array leaves mean on this device."""
        return OrdinalMemory(launch.words, launch.uses)

    def load(self, artifact: Artifact) -> Module:
        """Read a program's text."""
        self.check_open()
        return ReferenceModule(artifact)


class ReferenceBackend(Backend):
    """The interpreter as `qd.reference`."""

    name = "reference"
    contract = ContractVersion(1, 0)
    priority = -100

    def probe(self) -> Availability:
        """NumPy is core's own dependency: always available."""
        return Availability(True)

    def targets(self) -> Sequence[Target]:
        """The one target."""
        return (Target("numpy", CAPABILITIES),)

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return (DeviceInfo(0, "NumPy interpreter", self.targets()[0]),)

    def compiler(self, target: Target) -> Compiler:
        """Return the compiler."""
        return ReferenceCompiler(target)

    def open(self, info: DeviceInfo, options: Mapping[str, Any]) -> Device:
        """Open the interpreter; it has no options."""
        return ReferenceDevice(info)
