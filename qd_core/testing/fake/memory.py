"""The fake device's address space: who owns an address, which bytes were ever written, and what a launch may touch."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.backend.contract import Access, BufferRef, BufferUse, Launch
from qd_core.ir.nodes import ArrayType, Param
from qd_core.ir.program import Program
from qd_core.reference.memory import InterpreterError, Memory, word_offsets

if TYPE_CHECKING:
    from qd_core.testing.fake.device import FakeDevice

__all__ = ["AddressSpace", "Allocation", "FakeMemory", "FakeViolation", "named"]

Array = np.ndarray[Any, Any]

WRITES = (Access.WRITE, Access.READ_WRITE)
READS = (Access.READ, Access.READ_WRITE)

FRESH = 0xFF
"""Byte of new memory: NaN and -1, so that relying on zeros shows."""

SPACE_BYTES = 1 << 40
GUARD_BYTES = 4096
FIRST_ADDRESS = 0x7A00_0000_0000_0000
"""Beyond what any host process can map."""

_bases = itertools.count(FIRST_ADDRESS, SPACE_BYTES)


class FakeViolation(AssertionError):
    """A promise of the backend contract was broken; the message names the argument and its role.

    Attributes
    ----------
    path : str
        The argument as the user calls it, empty where none is concerned.
    role : str
        What it is for.
    """

    def __init__(self, message: str, path: str = "", role: str = "") -> None:
        super().__init__(message)
        self.path, self.role = path, role


def named(path: str, role: str) -> str:
    """Return how messages speak of an argument."""
    return f"argument {path!r} ({role})"


class Allocation:
    """Memory of one buffer.

    Attributes
    ----------
    base : int
        Its first address.
    data, defined : ndarray
        ``(nbytes,) uint8``: contents, and 0xFF for each byte that was ever written.
    staged : bool
        Its first contents came from the host: core copies an argument in, and must copy back what is written.
    unread : BufferUse or None
        The use through which a kernel last wrote it, until somebody copies it out.
    """

    __slots__ = ("base", "data", "defined", "issued", "nbytes", "released", "staged", "touched", "unread", "writer")

    def __init__(self, base: int, nbytes: int) -> None:
        self.base, self.nbytes = base, nbytes
        self.data = np.full(nbytes, FRESH, np.uint8)
        self.defined = np.zeros(nbytes, np.uint8)
        self.issued: set[int] = set()
        self.released = self.staged = self.touched = False
        self.unread: BufferUse | None = None
        self.writer = ""

    def release(self) -> None:
        """Forget the contents; the addresses stay known, for messages."""
        self.released = True
        self.data = self.defined = np.zeros(0, np.uint8)

    def holds(self, address: int) -> bool:
        """Whether ``address`` belongs to this allocation; a buffer without bytes has one address all the same."""
        return self.base <= address < self.base + max(self.nbytes, 1)


class AddressSpace:
    """Addresses of one fake device: never reused, far from each other and from every host address."""

    def __init__(self) -> None:
        self.base = self._next = next(_bases)
        self.allocations: list[Allocation] = []
        self._starts: list[int] = []

    def allocate(self, nbytes: int, alignment: int) -> Allocation:
        """Reserve ``nbytes`` at an address that is a multiple of ``alignment`` and of no larger power of two."""
        base = -(-self._next // (2 * alignment)) * 2 * alignment + alignment
        self._next = base + nbytes + GUARD_BYTES
        allocation = Allocation(base, nbytes)
        self.allocations.append(allocation)
        self._starts.append(base)
        return allocation

    def find(self, address: int) -> Allocation | None:
        """Return the allocation at ``address``, released or not."""
        position = bisect.bisect_right(self._starts, address) - 1
        allocation = self.allocations[position] if position >= 0 else None
        return allocation if allocation is not None and allocation.holds(address) else None

    def is_own(self, address: int) -> bool:
        """Whether ``address`` lies in this device's space at all."""
        return self.base <= address < self.base + SPACE_BYTES

    def blame(self, word: int) -> str:
        """Say what is wrong with ``word`` as an address, or return an empty string."""
        address = word & (2**64 - 1)
        if address == 0:
            return "is the null address"
        if not self.is_own(address):
            owner = "another device" if FIRST_ADDRESS <= address < FIRST_ADDRESS << 1 else "the host"
            return f"is {address:#x}, an address of {owner}"
        allocation = self.find(address)
        if allocation is None:
            return f"is {address:#x}, which lies outside every buffer"
        if allocation.released:
            return f"is {address:#x} in a buffer that was freed"
        if address not in allocation.issued:
            return f"is {address:#x}, which did not come from Device.address"
        return ""


class FakeMemory(Memory):
    """Arguments of one launch on a fake device; every array leaf is checked when this is made.

    Parameters
    ----------
    device : FakeDevice
        Owner of the addresses.
    program : Program
        What runs.
    launch : Launch
        Words and uses.

    Raises
    ------
    FakeViolation
        A word is no address of a live buffer of this device, or the launch's uses do not match the words.
    """

    def __init__(self, device: FakeDevice, program: Program, launch: Launch) -> None:
        super().__init__(launch.words)
        self.words = self.words.copy()  # a plugin may not rely on the caller's memory after `run` returned
        self.device, self.kernel = device, launch.name or program.name
        self.uses = _matched(program, launch.uses, self.kernel)
        self.shadows: dict[Param, Array] = {}
        for param, offset in word_offsets(program.params).items():
            if isinstance(param.type, ArrayType):
                self._check_word(param, int(self.words[offset]))
            elif int(self.words[offset]) & (2**64 - 1) >> 8 * param.type.nbytes << 8 * param.type.nbytes:
                raise self.fail(param, f"is packed as {int(self.words[offset]):#x}, which is not zero-extended")

    def fail(self, param: Param, text: str) -> FakeViolation:
        """Return the error for an argument."""
        role = param.role.value
        return FakeViolation(f"kernel {self.kernel!r}: {named(param.path, role)} {text}", param.path, role)

    def _check_word(self, param: Param, word: int) -> None:
        wrong = self.device.space.blame(word)
        if wrong:
            raise self.fail(param, wrong)
        use, address = self.uses[param], word & (2**64 - 1)
        start = _start(self.device, use.ref, lambda text: self.fail(param, text))
        if not start <= address < start + max(use.ref.nbytes, 1):
            raise self.fail(param, f"is packed as {address:#x} and Launch.uses names other memory, from {start:#x}")

    def locate(self, param: Param, word: int) -> Array:
        """Return the bytes from the argument's first element to the end of its use."""
        allocation, start, stop = self._range(param, word)
        return allocation.data[start:stop]

    def _range(self, param: Param, word: int) -> tuple[Allocation, int, int]:
        ref = self.uses[param].ref
        allocation: Allocation = ref.buffer.handle
        return allocation, (word & (2**64 - 1)) - allocation.base, ref.offset + ref.nbytes

    def resolve(self, param: Param, words: Array) -> Array:
        """Return the argument's view, with a shadow of the bytes that were written; `FakeViolation` outside its use."""
        try:
            view = super().resolve(param, words)
        except InterpreterError as error:
            raise self.fail(param, f"reaches outside its buffer: {error.message}") from error
        kind = np.dtype(f"u{view.itemsize}")
        if view.size:
            allocation, start, stop = self._range(param, int(words[0]))
            self.shadows[param] = np.ndarray(view.shape, kind, allocation.defined[start:stop], 0, view.strides)
        else:
            self.shadows[param] = np.zeros(view.shape, kind)
        return view

    def check_read(self, param: Param, places: tuple[Array, ...]) -> None:
        """Refuse to read what the use does not allow or what nobody ever wrote."""
        use = self.uses[param]
        if use.access not in READS:
            raise self.fail(param, f"is read by the kernel, and its use says {use.access.name}")
        undefined = _incomplete(self.shadows[param][places])
        if undefined.any():
            first = tuple(int(p.reshape(-1)[int(np.argmax(undefined))]) for p in places)
            missing = "where nothing was ever written: a copy to the device is missing"
            raise self.fail(param, f"is read at {first}, {missing}")

    def mark_written(self, param: Param, places: tuple[Array, ...]) -> None:
        """Record a write; refuse one that the use does not allow."""
        use = self.uses[param]
        if use.access not in WRITES:
            raise self.fail(param, f"is written by the kernel, and its use says {use.access.name}")
        shadow = self.shadows[param]
        shadow[places] = np.iinfo(shadow.dtype).max
        allocation: Allocation = use.ref.buffer.handle
        allocation.unread, allocation.writer = use, self.kernel


def _incomplete(shadow: Array) -> Array:
    return np.asarray(shadow != np.iinfo(shadow.dtype).max).reshape(-1)


def _start(device: FakeDevice, ref: BufferRef, fail: Callable[[str], FakeViolation]) -> int:
    """Return the address of ``ref``; fail where its buffer is foreign or freed or its bytes lie outside."""
    wrong = device.blame_ref(ref)
    if wrong:
        raise fail(f"has a use whose {wrong}")
    allocation: Allocation = ref.buffer.handle
    return allocation.base + ref.offset


def _matched(program: Program, uses: Sequence[BufferUse], kernel: str) -> dict[Param, BufferUse]:
    """Return the use of each array parameter: they must be the same, in the same order."""
    arrays = [p for p in program.params if isinstance(p.type, ArrayType)]
    paths = [u.path for u in uses]
    for position, param in enumerate(arrays):
        role = param.role.value
        if param.path not in paths:
            text = f"kernel {kernel!r}: {named(param.path, role)} is packed and missing from Launch.uses"
            raise FakeViolation(text, param.path, role)
        use = uses[position]
        if use.path != param.path or use.role is not param.role:
            other = named(use.path, use.role.value)
            text = f"kernel {kernel!r}: use {position} is {other}, not {named(param.path, role)}"
            raise FakeViolation(text, param.path, role)
    if len(uses) != len(arrays):
        raise FakeViolation(f"kernel {kernel!r}: {len(uses)} uses for {len(arrays)} arrays", paths[-1])
    return dict(zip(arrays, uses, strict=True))
