"""What NVIDIA's devices are to the code generator: targets, intrinsics, capabilities."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import MappingProxyType

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import Target
from qd_core.codegen.llvm.grid import GridFacts
from qd_core.ir.ops import BITS, NUM

__all__ = ["FACTS", "INLINE_NBYTES", "MODELS", "TRIPLE", "best_model", "facts_of", "ptx_of_driver", "target_of"]

TRIPLE = "nvptx64-nvidia-cuda"

INLINE_NBYTES = 4096
"""Bytes of parameters that every device takes by value."""

FACTS = GridFacts(
    convention="ptx_kernel",
    thread="call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
    block="call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
    block_size="call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()",
    grid_size="call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()",
    barrier="call void @llvm.nvvm.barrier0()",
    shuffle="call i32 @llvm.nvvm.shfl.sync.down.i32(i32 {mask}, i32 {value}, i32 {delta}, i32 31)",
    # Opaque on purpose: where LLVM sees through the halves, it stores the low one straight from a register of a 64-bit
    # real (`st.b32 [a], %rd`), and results of such code were wrong on a device (driver 580.159).
    halves='call {{ i32, i32 }} asm "mov.b64 {{$0, $1}}, $2;", "=r,=r,l"(i64 {0})',
    join='call i64 asm "mov.b64 $0, {{$1, $2}};", "=l,r,r"(i32 {0}, i32 {1})',
    block_scope='syncscope("block")',
    # rsqrt.approx: relative error 2^-22.9; div.full: 2 ulp over the whole range; sqrt.approx: 2^-23 (PTX ISA, 9.7.3).
    fast=MappingProxyType(
        {
            "rsqrt.f32": "call float @llvm.nvvm.rsqrt.approx.f(float {0})",
            "div.f32": "call float @llvm.nvvm.div.full(float {0}, float {1})",
            "sqrt.f32": "call float @llvm.nvvm.sqrt.approx.f(float {0})",
        }
    ),
)

ADD_PAIR = (
    'call void asm sideeffect "red.relaxed.gpu.global.add.v2.f32 [$0], {{$1, $2}};", "l,f,f,~{{memory}}"'
    "({pointer}, float {a}, float {b})"
)
"""Of sm_90 and PTX 8.1 on."""


def facts_of(model: int) -> GridFacts:
    """Return what a model contributes."""
    return replace(FACTS, add_pair=ADD_PAIR) if model >= _PAIRS_FROM else FACTS


_PAIRS_FROM = 90

MODELS: dict[int, int] = {60: 60, 70: 60, 75: 63, 80: 70, 86: 71, 89: 78, 90: 81, 100: 86, 120: 87}
"""Compute capability (major * 10 + minor) to the first PTX version that knows it. Others run the nearest older one's
PTX, which is forward compatible.
"""

_DRIVERS = (
    (13000, 90), (12090, 88), (12080, 87), (12070, 86), (12050, 85), (12040, 84), (12030, 83), (12020, 82), (12010, 81),
    (12000, 80), (11080, 78), (11070, 77), (11060, 76), (11050, 75), (11040, 74), (11030, 73), (11020, 72), (11010, 71),
    (11000, 70), (10020, 65), (10010, 64), (10000, 63), (9020, 61), (9000, 60),
)  # fmt: skip
"""CUDA version of a driver (as `cuDriverGetVersion` counts) and the newest PTX that it takes."""

_FEATURES = frozenset(
    {
        "exchange.dlpack",
        "launch.device_extent",
        "launch.native",
        "log.records",
        "memory.address",
        "memory.private",
        "stream.external",
    }
)


def ptx_of_driver(version: int) -> int:
    """Newest PTX version (times 10) of a driver; 0 for one that is too old."""
    return next((ptx for driver, ptx in _DRIVERS if version >= driver), 0)


def best_model(capability: int, ptx: int = 1000) -> int | None:
    """The newest model of `MODELS` whose code a device runs and a driver with PTX up to ``ptx`` translates."""
    fitting = [model for model, needs in MODELS.items() if model <= capability and needs <= ptx]
    return max(fitting, default=None)


@functools.cache
def target_of(model: int) -> Target:
    """Return the target of a model."""
    capabilities = CapabilitySet(
        types=types(*dt.ALL),
        atomics=atomics(("add", "min", "max", "cas"), NUM)
        | atomics(("and", "or", "xor"), BITS)
        | atomics(("exchange",), dt.ALL),
        features=_FEATURES,
        limits={"inline.nbytes": INLINE_NBYTES, "lanes": 1, "block.threads": 1024},
    )
    return Target(f"sm_{model}", capabilities, (f"ptx{max(MODELS[model], 60)}",))
