"""Finding and running `ptxas`, from a PyPI wheel or the path."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """What `ptxas` reports of a kernel: registers a thread, bytes spilled, bytes of shared memory a block."""

    registers: int
    spilled: int
    shared: int


@functools.cache
def assemblers() -> dict[str, Path]:
    """Every `ptxas` at hand by version: ``QD_PTXAS`` (paths), installed wheels of the CUDA compiler, the path."""
    places = [Path(p) for p in os.environ.get("QD_PTXAS", "").split(os.pathsep) if p]
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        places += sorted(Path(root).glob("*/bin/ptxas"))
    if found := shutil.which("ptxas"):
        places.append(Path(found))
    return {version: place for place in places if (version := _version(place))}


def _version(place: Path) -> str:
    try:
        text = subprocess.run([str(place), "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    match = re.search(r"release ([\d.]+)", text)
    return match.group(1) if match else ""


@functools.cache
def models_of(place: Path) -> frozenset[int]:
    """Models that an assembler knows."""
    text = subprocess.run([str(place), "--help"], capture_output=True, text=True, check=True).stdout
    return frozenset(int(m) for m in re.findall(r"'sm_(\d+)'", text))


def assemble(place: Path, model: int, ptx: bytes, folder: Path) -> list[Resources]:
    """Assemble; raise with the assembler's words where it refuses."""
    source = folder / "kernel.ptx"
    source.write_bytes(ptx)
    command = [str(place), f"-arch=sm_{model}", "-v", str(source), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    used = re.findall(r"Used (\d+) registers[^\n]*", done.stderr)
    shared = [
        int(m.group(1)) if (m := re.search(r"(\d+) bytes smem", line)) else 0
        for line in re.findall(r"Used [^\n]*", done.stderr)
    ]
    return [Resources(int(r), s, m) for r, s, m in zip(used, spills, shared, strict=True)]
