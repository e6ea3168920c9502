"""Runs kernels in the Metal Shading Language on the host: clang compiles them against the header in ``include``,
threads run one by one.

For tests on machines without Metal. Needs clang 16 or later (half precision). Kernels with threadgroup memory or
barriers are refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Kernel", "MslError", "clang", "compile_msl", "slots"]

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
    source = _single_precision(text) + _driver(text, entry)
    folder = folder or Path(tempfile.mkdtemp(prefix="msl"))
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256((source + (include / "metal_stdlib").read_text()).encode()).hexdigest()[:24]
    target = folder / f"{key}.so"
    if not target.exists():
        unit = target.with_suffix(".o")
        _call([compiler, *_FLAGS, f"-I{include}", "-", "-o", str(unit)], source)
        # The linker by itself: clang's driver takes longer to start it than compiling takes.
        _call(["ld", "-shared", str(unit), _half_conversions(compiler), "-o", str(target)], "")
        unit.unlink()
    return Kernel(ctypes.CDLL(str(target)))


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
