"""Runs kernels in the Metal Shading Language on the host: clang compiles them against the header in ``include``,
threads run one by one.

For tests on machines without Metal. Needs clang 16 or later (half precision). Kernels with threadgroup memory or
barriers are refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Kernel", "Library", "MslError", "Resident", "clang", "compile_library", "compile_msl", "slots"]

INCLUDE = Path(__file__).parent / "include"
_FLAGS = [
    "-std=c++17", "-O1", "-c", "-fPIC", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-nostdinc++", "-x",
    "c++",
    "-Wno-unknown-attributes", "-Wno-unused-value", "-Wno-return-type-c-linkage", "-fbracket-depth=4096",
]  # fmt: skip
_ARGUMENT = re.compile(r"^(?P<type>.*?[\s*&])(?P<name>\w+) \[\[(?P<attribute>\w+)(?:\((?P<slot>\d+)\))?\]\]$")
_LITERAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)(?![\w.])")
_BUILTINS = {
    "thread_position_in_grid": "uint3{x, y, 0}",
    "threads_per_grid": "uint3{gx * n, gy, 1}",
    "threadgroups_per_grid": "uint3{gx, gy, 1}",
    "threadgroup_position_in_grid": "uint3{x / n, y, 0}",
    "thread_position_in_threadgroup": "uint3{x % n, 0, 0}",
    "threads_per_threadgroup": "uint3{n, 1, 1}",
}


class MslError(Exception):
    """A kernel cannot be compiled or has a form that the host cannot run."""


@dataclass(frozen=True)
class _Argument:
    type: str
    attribute: str
    slot: int


class Kernel:
    """A compiled kernel.

    Parameters
    ----------
    library : ctypes.CDLL
        Its shared library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.qd_run
        self._run.restype, self._run.argtypes = None, [ctypes.c_void_p, *[ctypes.c_uint32] * 3]

    def run(self, buffers: Mapping[int, int], groups: tuple[int, int], threads: int) -> None:
        """Run all threads of a grid in order.

        Parameters
        ----------
        buffers : mapping of int to int
            Host address of the buffer at each slot.
        groups : (int, int)
            Threadgroups along x and y.
        threads : int
            Threads of a group, along x.
        """
        table = (ctypes.c_void_p * 31)()
        for slot, address in buffers.items():
            table[slot] = address
        self._run(ctypes.addressof(table), *groups, threads)


def clang() -> str | None:
    """Return a clang++ that knows half precision, or None."""
    for version in range(22, 15, -1):
        path = shutil.which(f"clang++-{version}")
        if path:
            return path
    path = shutil.which("clang++")
    if path is None:
        return None
    found = re.search(r"version (\d+)", subprocess.run([path, "--version"], capture_output=True, text=True).stdout)
    return path if found and int(found[1]) >= 16 else None


def slots(text: str, entry: str = "main0") -> set[int]:
    """Return the buffer slots that a kernel uses."""
    return {a.slot for a in _arguments(text, entry) if a.attribute == "buffer"}


def compile_msl(text: str, folder: Path | None = None, entry: str = "main0", include: Path = INCLUDE) -> Kernel:
    """Compile the kernel ``entry`` of a source text.

    Parameters
    ----------
    text : str
        Metal Shading Language.
    folder : Path or None
        Where shared libraries are kept by the text's hash; a temporary one by default.
    include : Path
        Folder of the header.

    Raises
    ------
    MslError
        clang's messages, or what the host cannot run.
    """
    compiler = clang()
    if compiler is None:
        raise MslError("there is no clang++ of version 16 or later")
    return Kernel(_shared_library(compiler, _single_precision(text) + _driver(text, entry), folder, include, _FLAGS))


def _shared_library(
    compiler: str, source: str, folder: Path | None, include: Path, flags: Sequence[str]
) -> ctypes.CDLL:
    """Compile a source text, or take what was made of the same text before."""
    folder = folder or Path(tempfile.mkdtemp(prefix="msl"))
    folder.mkdir(parents=True, exist_ok=True)
    content = source + (include / "metal_stdlib").read_text() + " ".join(flags)
    target = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        unit, made = (target.with_suffix(f".{os.getpid()}.{kind}") for kind in ("o", "so"))
        _call([compiler, *flags, f"-I{include}", "-", "-o", str(unit)], source)
        # The linker by itself: clang's driver takes longer to start it than compiling takes.
        _call(["ld", "-shared", str(unit), _half_conversions(compiler), "-o", str(made)], "")
        unit.unlink()
        made.replace(target)
    return ctypes.CDLL(str(target))


class Resident(ctypes.Structure):
    """What a dispatch may touch: sorted ranges of device addresses, and the address that was none of them (or 0)."""

    class Range(ctypes.Structure):
        """Addresses from ``begin`` to before ``end`` and their place in host memory."""

        _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("host", ctypes.c_void_p))

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(Range)),
        ("bad", ctypes.c_uint64),
        ("leave", ctypes.c_void_p * 5),
    )


class Library:
    """Kernels of one source text, whose device pointers are checked.

    Parameters
    ----------
    library : ctypes.CDLL
        Its shared library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def run(self, entry: str, buffer: int, resident: Resident, groups: int, threads: int) -> int:
        """Run all threads of a kernel in order.

        Parameters
        ----------
        entry : str
            Name of the kernel.
        buffer : int
            Host address of the buffer at slot 0.
        resident : Resident
            What it may touch.
        groups, threads : int
            Threadgroups, and threads of one.

        Returns
        -------
        int
            0, or the address that lies in nothing resident.
        """
        resident.bad = 0
        run = getattr(self._library, f"qd_run_{entry}")
        run.restype = None
        run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint32] * 2]
        run(buffer, ctypes.addressof(resident), groups, threads)
        return resident.bad


def compile_library(
    text: str, entries: Sequence[str], folder: Path | None = None, include: Path = INCLUDE, optimize: bool = True
) -> Library:
    """Compile several kernels of a source text with checked device pointers; see `compile_msl`."""
    compiler = clang()
    if compiler is None:
        raise MslError("there is no clang++ of version 16 or later")
    drivers = [_DRIVER.format(entry=e, values=", ".join(map(_checked_value, _arguments(text, e)))) for e in entries]
    source = "\n".join([text, "#undef reinterpret_cast", *drivers])
    level = "-O1" if optimize else "-O0"
    flags = [level if f == "-O1" else f for f in _FLAGS] + ["-DQD_CHECKED_DEVICE_POINTERS", "-fno-exceptions"]
    return Library(_shared_library(compiler, source, folder, include, flags))


_DRIVER = """
extern "C" void qd_run_{entry}(void* buffer, qd_space* space, unsigned gx, unsigned n) {{
    static const qd_range nothing = {{}};
    qd_resident = space;
    qd_latest = &nothing;
    if (__builtin_setjmp(space->leave)) return;
    for (unsigned x = 0; x < gx * n; x++) {entry}({values});
}}"""


def _checked_value(argument: _Argument) -> str:
    if argument.attribute == "buffer":
        return f"({argument.type})buffer"
    if argument.attribute not in _LINEAR:
        raise MslError(f"the host has no {argument.attribute!r}")
    return _LINEAR[argument.attribute]


_LINEAR = {"thread_position_in_grid": "uint3{x, 0, 0}", "threads_per_grid": "uint3{gx * n, 1, 1}"}


@lru_cache(maxsize=1)
def _half_conversions(compiler: str) -> str:
    """Archive of the compiler's own functions: conversions of half, where the processor has no instruction."""
    done = subprocess.run([compiler, "--print-libgcc-file-name"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _call(command: list[str], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise MslError(done.stderr)


def _single_precision(text: str) -> str:
    """Literals without a suffix are float in Metal and double in C++."""
    return _LITERAL.sub(r"\1f", text)


def _arguments(text: str, entry: str) -> list[_Argument]:
    found = re.search(rf"kernel void {entry}\((.*?)\)\s*\{{", text, re.DOTALL)
    if found is None:
        raise MslError(f"there is no kernel {entry!r}")
    result: list[_Argument] = []
    for part in filter(None, (" ".join(p.split()) for p in re.split(r",\s*(?![^\[]*\]\])", found[1]))):
        argument = _ARGUMENT.match(part)
        if argument is None:
            raise MslError(f"an argument has an unknown form: {part!r}")
        result.append(_Argument(argument["type"].strip(), argument["attribute"], int(argument["slot"] or 0)))
    return result


def _driver(text: str, entry: str) -> str:
    """A C function that runs the kernel's threads in order."""
    if "threadgroup_barrier" in text or re.search(r"threadgroup \w+ \w+\[", text):
        raise MslError("threadgroup memory and barriers need the threads of a group to run together")
    values = ", ".join(map(_value, _arguments(text, entry)))
    return f"""
extern "C" void qd_run(void** buffers, unsigned gx, unsigned gy, unsigned n) {{
    for (unsigned y = 0; y < gy; y++)
        for (unsigned x = 0; x < gx * n; x++)
            {entry}({values});
}}
"""


def _value(argument: _Argument) -> str:
    if argument.attribute == "buffer":
        kind = argument.type.rstrip("&*").strip()
        pointer = f"reinterpret_cast<{kind}*>(buffers[{argument.slot}])"
        return f"*{pointer}" if argument.type.endswith("&") else pointer
    if argument.attribute not in _BUILTINS:
        raise MslError(f"the host has no {argument.attribute!r}")
    return _BUILTINS[argument.attribute]
