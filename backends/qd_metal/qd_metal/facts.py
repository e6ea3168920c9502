"""What a device can do: a target for the compiler, and claims for core.

Features: ``type.<name>``, ``native.add.f32`` (atomic addition of f32 is one instruction), ``group.<threads>``.
"""

from __future__ import annotations

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet, atomics, types
from qd_core.backend.contract import Target
from qd_core.codegen.cstyle.grid import GridDialect
from qd_core.ir.ops import BITS
from qd_metal.language import TYPES, dialect

__all__ = ["BASE", "COMMON", "dialect_of", "target_from"]

COMMON = tuple(f"type.{d.name}" for d in TYPES)
"""What every device of the family Metal 3 has. Reals of 64 bits and atomics of 64 bits it has not."""


def dialect_of(target: Target) -> GridDialect:
    """Return the language as a target takes it."""
    group = next((int(f.partition(".")[2]) for f in target.features if f.startswith("group.")), 256)
    return dialect(target.features, group)


def target_from(name: str, features: tuple[str, ...], memory_nbytes: int = 0) -> Target:
    """Return the target that these features describe."""
    kinds = [dt.by_name(f.partition(".")[2]) for f in features if f.startswith("type.")]
    able = [d for d in kinds if d.bits <= 32]
    numbers = [d for d in able if d is not dt.u1]
    group = next((int(f.partition(".")[2]) for f in features if f.startswith("group.")), 256)
    limits = {"block.threads": group, "inline.nbytes": 0, "lanes": 32}
    if memory_nbytes:
        limits["memory.nbytes"] = memory_nbytes
    claims = CapabilitySet(
        types=types(*kinds) | types(dt.u1, spaces=("private",)),
        atomics=atomics(("add", "min", "max", "cas"), numbers)
        | atomics(("and", "or", "xor"), [d for d in able if d in BITS])
        | atomics(("exchange",), able),
        features=frozenset({"launch.device_extent", "log.records", "memory.address", "memory.private"}),
        limits=limits,
    )
    return Target(name, claims, features)


BASE = target_from("msl3.0", (*COMMON, "native.add.f32", "group.256"))
"""A device of the family Metal 3, for compiling without one."""
