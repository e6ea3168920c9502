"""What can be compiled for on this host."""

from __future__ import annotations

import functools
import platform

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import Target
from qd_core.ir.ops import BITS, NUM

__all__ = ["host_target", "vector_bits"]

_FEATURES = frozenset(
    {
        "exchange.dlpack",
        "launch.device_extent",
        "launch.native",
        "log.records",
        "memory.address",
        "memory.host_address",
        "memory.private",
    }
)

_WIDTHS = (("avx512f", 512), ("avx", 256), ("sse2", 128), ("neon", 128), ("vsx", 128))
"""Feature of the processor and the vector width it brings; the first that is present counts."""


_HALF = frozenset({"f16c", "fullfp16", "neon"})
"""Features that bring conversions between f16 and f32."""

_KNOWN = _HALF | {name for name, _ in _WIDTHS}


def vector_bits(features: frozenset[str]) -> int:
    """Return the width of a vector register; 128 where nothing is known, which LLVM can always split."""
    return next((bits for name, bits in _WIDTHS if name in features), 128)


@functools.cache
def host_target() -> Target:
    """Return the host as a target."""
    from qd_core.cpu.pool import default_threads

    features = _features()
    bits = vector_bits(features)
    # Without conversions in hardware, f16 needs runtime functions that a process need not have.
    without = frozenset() if _HALF & features else frozenset({dt.f16})
    capabilities = CapabilitySet(
        types=types(*(d for d in dt.ALL if d not in without)),
        atomics=atomics(("add", "min", "max", "cas"), NUM - without)
        | atomics(("and", "or", "xor"), BITS)
        | atomics(("exchange",), set(dt.ALL) - without),
        features=_FEATURES,
        limits={"lanes": bits // 32, "workers": default_threads()},
    )
    return Target(f"{_architecture()}-{bits}", capabilities, tuple(sorted(features)))


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _features() -> frozenset[str]:
    """Those features of the processor that change what is claimed here; the compiler's identity has all of them."""
    return (_listed_features() or _llvm_features()) & _KNOWN


def _listed_features() -> frozenset[str]:
    """Features of an x86 processor as the operating system lists them, without LLVM; empty where it does not."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            line = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def _llvm_features() -> frozenset[str]:
    from qd_core.codegen.jit import host_features

    return host_features()
