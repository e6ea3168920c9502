"""What a physical device can do: a target for the compiler, and claims for core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import Target
from qd_core.codegen.spirv.target import SpirvTarget
from qd_core.dtypes import DType
from qd_core.ir.ops import BITS

if TYPE_CHECKING:
    from qd_vulkan.instance import Physical

__all__ = ["BASE", "spirv_target", "target_from", "target_of"]

_INTEGERS = ("add", "min", "max", "and", "or", "xor", "exchange")
_MODES = {
    "signedZeroInfNanPreserve": "SignedZeroInfNanPreserve",
    "denormPreserve": "DenormPreserve",
    "roundingModeRTE": "RoundingModeRTE",
}
_WIDTHS = (16, 32, 64)
_COMPUTE = 0x20
_SUBGROUP = {"subgroup.reduce": 4, "subgroup.ballot": 8, "subgroup.shuffle": 16}
"""Bit of the stage, and of each kind of operation."""

_ONLY_32, _ALL = 0, 1
"""Which widths can have float modes of their own: f32 alone, or each."""


def target_of(physical: Physical) -> Target:
    """Return the target that a device advertises; `probing` finds out what it serves of it."""
    kinds = _types(physical)
    features = [
        *(f"type.{d.name}" for d in dt.ALL if d in kinds),
        *_native_atomics(physical),
        *_float_modes(physical, kinds),
    ]
    features.append("atomics32")
    if physical.features12.shaderBufferInt64Atomics:
        features.append("atomics64")
    if physical.clock.shaderSubgroupClock:
        features.append("clock")
    limits, p11 = physical.properties.limits, physical.properties11
    group = min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0])
    features += [f"group.{group}", f"shared.{limits.maxComputeSharedMemorySize}"]
    if p11.subgroupSupportedStages & _COMPUTE:
        features.append(f"subgroup.{max(p11.subgroupSize, 1)}")
        features += [name for name, bit in _SUBGROUP.items() if p11.subgroupSupportedOperations & bit]
    return target_from("spirv1.5 " + physical.name, tuple(features), physical)


def _types(physical: Physical) -> set[DType]:
    f, f11, f12 = physical.features, physical.features11, physical.features12
    kinds = {dt.i32, dt.u32, dt.i64, dt.u64, dt.f32}
    if f12.shaderInt8 and f12.storageBuffer8BitAccess:
        kinds |= {dt.i8, dt.u8, dt.u1}
    if f.shaderInt16 and f11.storageBuffer16BitAccess:
        kinds |= {dt.i16, dt.u16}
        kinds |= {dt.f16} if f12.shaderFloat16 else set()
    return kinds | ({dt.f64} if f.shaderFloat64 else set())


def _native_atomics(physical: Physical) -> list[str]:
    f, found = physical.atomic_float, list[str]()
    for bits in (32, 64):
        if getattr(f, f"shaderBufferFloat{bits}AtomicAdd"):
            found.append(f"native.add.f{bits}")
    return found


def _float_modes(physical: Physical, kinds: set[DType]) -> list[str]:
    """Modes that hold together: where the device ties widths, those that are tied have a mode all or none."""
    p = physical.properties12
    widths = [n for n, bits in enumerate(_WIDTHS) if any(d.is_real and d.bits == bits for d in kinds)]
    found: list[str] = []
    for field, mode in _MODES.items():
        flags = getattr(p, field)
        independence = {
            "denormPreserve": p.denormBehaviorIndependence,
            "roundingModeRTE": p.roundingModeIndependence,
        }.get(field, _ALL)
        for tied in _tied(independence, widths):
            if all(flags[n] for n in tied):
                found += [f"mode.{mode}.{_WIDTHS[n]}" for n in tied]
    return found


def _tied(independence: int, widths: list[int]) -> list[list[int]]:
    """Widths (positions in `_WIDTHS`) that must have the same mode."""
    if independence == _ALL:
        return [[n] for n in widths]
    if independence == _ONLY_32:
        return [[n for n in widths if _WIDTHS[n] == 32], [n for n in widths if _WIDTHS[n] != 32]]
    return [widths]


def target_from(name: str, features: tuple[str, ...], physical: Physical | None = None) -> Target:
    """Return the target that these features describe."""
    spirv = _from_features(features)
    return Target(name, _claims(spirv, features, physical), features)


def _claims(spirv: SpirvTarget, features: tuple[str, ...], physical: Physical | None) -> CapabilitySet:
    widths = spirv.atomic_widths
    able = [d for d in spirv.types if (64 if d.bits == 64 else 32) in widths]
    numbers = [d for d in able if d is not dt.u1]
    limits = {"block.threads": spirv.max_group, "inline.nbytes": 8 * spirv.push_words, "lanes": 1}
    if physical is not None:
        limits["lanes"] = _number(features, "subgroup", 1)
        limits["memory.nbytes"] = memory_nbytes(physical)
        limits["allocation.nbytes"] = physical.properties11.maxMemoryAllocationSize or limits["memory.nbytes"]
    return CapabilitySet(
        types=types(*spirv.types) | types(dt.u1, spaces=("private",)),
        atomics=atomics(("add", "min", "max", "cas"), numbers)
        | atomics(("and", "or", "xor"), [d for d in able if d in BITS])
        | atomics(("exchange",), able),
        features=frozenset({"launch.device_extent", "log.records", "memory.address", "memory.private"}),
        limits=limits,
    )


def memory_nbytes(physical: Physical) -> int:
    """Bytes of the largest device-local heap."""
    memory = physical.memory
    return max(
        (memory.memoryHeaps[n].size for n in range(memory.memoryHeapCount) if memory.memoryHeaps[n].flags & 1),
        default=0,
    )


def spirv_target(target: Target) -> SpirvTarget:
    """Return what the emitter needs to know of a target of `target_of`."""
    return _from_features(target.features)


def _from_features(features: tuple[str, ...]) -> SpirvTarget:
    kinds = frozenset(dt.by_name(f.partition(".")[2]) for f in features if f.startswith("type."))
    widths = frozenset(bits for bits in (32, 64) if f"atomics{bits}" in features)
    whole = [d for d in kinds if d.kind in "iu" and d.bits in widths]
    native = {(kind, d) for kind in _INTEGERS for d in whole}
    native |= {("exchange", d) for d in kinds if d.is_real and d.bits in widths}
    native |= {
        (kind, dt.by_name(name)) for _, kind, name in (f.split(".") for f in features if f.startswith("native."))
    }
    native -= {
        (kind, dt.by_name(name)) for _, kind, name in (f.split(".") for f in features if f.startswith("emulated."))
    }
    modes = frozenset((mode, int(bits)) for _, mode, bits in (f.split(".") for f in features if f.startswith("mode.")))
    group = _number(features, "group", 128)
    return SpirvTarget(
        "vulkan",
        kinds,
        frozenset(native),
        widths,
        max_group=group,
        group=min(256, group),
        shared_nbytes=_number(features, "shared", 0),
        float_modes=modes,
        plain_products="plain_products" in features,
        loop_limit="loop_limit" in features,
    )


def _number(features: tuple[str, ...], name: str, default: int) -> int:
    """The number of a feature such as ``"group.256"``."""
    found = [f.partition(".")[2] for f in features if f.startswith(name + ".")]
    return next((int(text) for text in found if text.isdigit()), default)


BASE = target_from("spirv1.5", (*(f"type.{d.name}" for d in dt.ALL), "atomics32", "atomics64", "group.256"))
"""A device with every optional type: for compiling without hardware."""
