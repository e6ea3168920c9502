"""What can be compiled for on this host."""

from __future__ import annotations

import functools

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


def vector_bits(features: frozenset[str]) -> int:
    """Return the width of a vector register; 128 where nothing is known, which LLVM can always split."""
    return next((bits for name, bits in _WIDTHS if name in features), 128)


@functools.cache
def host_target() -> Target:
    """Return the host as a target: its features are what LLVM finds."""
    from qd_core.codegen.jit import host_features, host_triple
    from qd_core.cpu.pool import default_threads

    features = host_features()
    bits = vector_bits(features)
    # Without conversions in hardware, f16 needs runtime functions that a process need not have.
    without = frozenset() if _HALF & features else frozenset({dt.f16})
    capabilities = CapabilitySet(
        types=types(*(d for d in dt.ALL if d not in without)),
        atomics=atomics(("add", "min", "max"), NUM - without)
        | atomics(("and", "or", "xor"), BITS)
        | atomics(("exchange",), set(dt.ALL) - without),
        features=_FEATURES,
        limits={"lanes": bits // 32, "workers": default_threads()},
    )
    return Target(f"{host_triple().partition('-')[0]}-{bits}", capabilities, tuple(sorted(features)))
