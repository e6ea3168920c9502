"""What a device can do, as claims that the conformance kit proves.

A :class:`CapabilitySet` is probed from a device (the static part comes with a target) and never looked up by the
device's name. Claims have text names, used alike by tests (``@requires``), by compilers and in errors:

=================================== ====================================================================
name                                claim
=================================== ====================================================================
``type.f64``                        values of f64 can be computed with and kept in global memory
``type.f16.shared``                 f16 can be kept in shared memory
``atomic.add.f32``                  atomic add of f32 on global memory, returning the old value
``atomic.min.i32.shared``           the same on shared memory
``subgroup.shuffle``                a feature of the registry below
=================================== ====================================================================

Names state semantics, never a vendor or a programming interface. Extensions register their own under their own prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qd_core import dtypes
from qd_core.dtypes import DType
from qd_core.errors import Span, UnsupportedError
from qd_core.ir.ops import ATOMIC_KINDS

__all__ = [
    "EXTENSIONS",
    "SPACES",
    "CapabilitySet",
    "atomics",
    "describe",
    "enabled_extensions",
    "feature_names",
    "register_feature",
    "register_limit",
    "types",
]

SPACES = ("global", "shared", "private")
"""Address spaces: of the device, of a block, of one iteration."""

_FEATURES: dict[str, str] = {
    "block.barrier": "Threads of a block can wait for each other.",
    "exchange.dlpack": "Another library's memory on this device is used in place (`Device.adopt`, `export`).",
    "graph.replay": "A recorded list of launches is replayed by the device (`Device.graph`).",
    "launch.device_extent": "A task's extent may be a word that an earlier task wrote.",
    "launch.native": "Modules offer a native entry (`Module.native`).",
    "log.records": "`print`, `assert` and failed checks inside a kernel reach the host.",
    "memory.address": "Device code takes 64-bit addresses; without it, ordinals of the launch's buffers.",
    "memory.host_address": "Device code reads and writes ordinary host memory at its host address.",
    "memory.private": "An iteration can own memory of a length known at run time.",
    "memory.shared": "A block can own memory.",
    "stream.external": "A foreign stream can be wrapped (`Device.stream(external=…)`).",
    "subgroup.ballot": "Lanes of a subgroup can gather one bit each.",
    "subgroup.reduce": "Lanes of a subgroup can reduce and scan.",
    "subgroup.shuffle": "Lanes of a subgroup can read each other's registers.",
}

_LIMITS: dict[str, str] = {
    "allocation.nbytes": "bytes of the largest single buffer",
    "block.threads": "threads of the largest block",
    "inline.nbytes": "bytes of arguments passed without a buffer",
    "lanes": "iterations that one thread or subgroup executes in lock step",
    "memory.nbytes": "bytes of device memory",
    "shared.nbytes": "bytes of shared memory of one block",
    "workers": "threads, or blocks resident at a time",
}


def feature_names() -> Mapping[str, str]:
    """Every registered feature and what it claims."""
    return dict(_FEATURES)


def register_feature(name: str, claim: str) -> None:
    """Add a feature of an extension.

    Parameters
    ----------
    name : str
        ``prefix.feature``; the prefix belongs to the extension and is none of core's own.
    claim : str
        One sentence that says what holds where the feature is claimed.

    Raises
    ------
    ValueError
        The name has no prefix, a prefix of core, or another claim already.
    """
    _register(_FEATURES, name, claim)


def register_limit(name: str, meaning: str) -> None:
    """Add an integer limit of an extension; `meaning` states the unit. Raises as :func:`register_feature` does."""
    _register(_LIMITS, name, meaning)


_CORE_PREFIXES = frozenset(n.partition(".")[0] for n in (*_FEATURES, *_LIMITS)) | {"type", "atomic"}


def _register(table: dict[str, str], name: str, meaning: str) -> None:
    prefix, dot, rest = name.partition(".")
    if not (prefix and dot and rest) or prefix in _CORE_PREFIXES:
        taken = ", ".join(sorted(_CORE_PREFIXES))
        raise ValueError(f"capability {name!r} needs a prefix of its own, not one of {taken}")
    if table.setdefault(name, meaning) != meaning:
        raise ValueError(f"capability {name!r} is registered already and means: {table[name]}")


def types(*which: DType, spaces: Iterable[str] = ("global", "private")) -> frozenset[tuple[DType, str]]:
    """Claims for dtypes: each of `which` in each of `spaces`."""
    return frozenset((dtype, space) for dtype in which for space in spaces)


def atomics(
    kinds: Iterable[str], which: Iterable[DType], spaces: Iterable[str] = ("global",)
) -> frozenset[tuple[str, DType, str]]:
    """Claims for atomics: each of `kinds` on each dtype of `which` in each of `spaces`."""
    where = tuple(spaces)
    what = tuple(which)
    return frozenset((kind, dtype, space) for kind in kinds for dtype in what for space in where)


@dataclass(frozen=True)
class CapabilitySet:
    """What one device, or the static part of one target, claims.

    Parameters
    ----------
    types : frozenset of (DType, str)
        Dtypes by address space.
    atomics : frozenset of (str, DType, str)
        Kind, dtype and address space; each returns the old value.
    features : frozenset of str
        Names from the registry of features.
    limits : mapping of str to int
        Values of registered limits; their units are the registry's.

    Raises
    ------
    ValueError
        A name is not registered: claims that nobody can test are refused.
    """

    types: frozenset[tuple[DType, str]] = frozenset()
    atomics: frozenset[tuple[str, DType, str]] = frozenset()
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", dict(sorted(self.limits.items())))
        _check_names("feature", self.features, _FEATURES)
        _check_names("limit", self.limits, _LIMITS)
        _check_names("address space", {space for *_, space in (*self.types, *self.atomics)}, SPACES)
        _check_names("atomic kind", {kind for kind, *_ in self.atomics}, ATOMIC_KINDS)

    def __hash__(self) -> int:
        return hash(self.names())

    def names(self) -> tuple[str, ...]:
        """All claims but the limits, as sorted text names."""
        return tuple(
            sorted(
                {_type_name(d, s) for d, s in self.types}
                | {_atomic_name(k, d, s) for k, d, s in self.atomics}
                | self.features
            )
        )

    def identity(self) -> str:
        """Stable text of every claim and limit: a part of the cache's key."""
        return "\n".join((*self.names(), *(f"{name}={value}" for name, value in self.limits.items())))

    def has(self, name: str) -> bool:
        """Whether the claim called `name` is made; `ValueError` when no such claim can be made."""
        return _normalise(name) in self.names()

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that are not claimed, in the given order."""
        claimed = set(self.names())
        return tuple(name for name in names if _normalise(name) not in claimed)

    def require(
        self, name: str, backend: str, *, who_has_it: Iterable[str] | None = None, span: Span | None = None
    ) -> None:
        """Raise :class:`~qd_core.errors.UnsupportedError` for the backend unless `name` is claimed."""
        if not self.has(name):
            raise UnsupportedError(f"{describe(name)} ({name})", backend, who_has_it, span=span)

    def limit(self, name: str, default: int | None = None) -> int | None:
        """Value of a limit, or `default` where the device states none."""
        _check_names("limit", (name,), _LIMITS)
        return self.limits.get(name, default)

    def union(self, other: CapabilitySet) -> CapabilitySet:
        """Claims of both; limits of `other` win."""
        return CapabilitySet(
            self.types | other.types,
            self.atomics | other.atomics,
            self.features | other.features,
            {**self.limits, **other.limits},
        )

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each group, for a table on the terminal."""
        rows: list[tuple[str, str]] = []
        for space in SPACES:
            rows.append((f"types, {space}", " ".join(d.name for d in dtypes.ALL if (d, space) in self.types)))
            for kind in ATOMIC_KINDS:
                names = " ".join(d.name for d in dtypes.ALL if (kind, d, space) in self.atomics)
                rows.append((f"atomic {kind}, {space}", names))
        rows.append(("features", " ".join(sorted(self.features))))
        rows.extend((f"limit {name}", f"{value} ({_LIMITS[name]})") for name, value in self.limits.items())
        return [(label, text) for label, text in rows if text]


def _type_name(dtype: DType, space: str) -> str:
    return f"type.{dtype.name}.{space}"


def _atomic_name(kind: str, dtype: DType, space: str) -> str:
    return f"atomic.{kind}.{dtype.name}.{space}"


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, list(known), n=1)
            raise ValueError(f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _normalise(name: str) -> str:
    """Full name of a claim: the address space is global where none is given."""
    head, *rest = name.split(".")
    if head == "type" and len(rest) in (1, 2):
        dtype, space = (*rest, "global")[:2]
        _check_claim(name, dtype, space)
        return f"type.{dtype}.{space}"
    if head == "atomic" and len(rest) in (2, 3):
        kind, dtype, space = (*rest, "global")[:3]
        _check_names("atomic kind", (kind,), ATOMIC_KINDS)
        _check_claim(name, dtype, space)
        return f"atomic.{kind}.{dtype}.{space}"
    _check_names("capability", (name,), _FEATURES)
    return name


def _check_claim(name: str, dtype: str, space: str) -> None:
    _check_names(f"dtype in {name!r}:", (dtype,), [d.name for d in dtypes.ALL])
    _check_names(f"address space in {name!r}:", (space,), SPACES)


def describe(name: str) -> str:
    """One phrase for the claim called `name`."""
    head, *rest = _normalise(name).split(".")
    if head == "type":
        return f"{rest[0]} in {rest[1]} memory"
    if head == "atomic":
        return f"atomic {rest[0]} of {rest[1]} in {rest[2]} memory"
    return _FEATURES[name].rstrip(".")


EXTENSIONS: dict[str, tuple[str, ...] | None] = {
    "adstack": (),
    "assertion": ("log.records",),
    "bls": ("memory.shared", "block.barrier"),
    "data64": ("type.i64", "type.u64", "type.f64"),
    "extfunc": None,
    "mesh": None,
    "quant": None,
    "quant_basic": None,
    "sparse": None,
}
"""Claims that each extension of the language needs; ``None``: the language does not have it yet.

Reverse mode (``adstack``) needs none: its storage is an array like any other.
"""


def enabled_extensions(capabilities: CapabilitySet) -> frozenset[str]:
    """Extensions of the language that a device with these capabilities runs."""
    return frozenset(
        name for name, needs in EXTENSIONS.items() if needs is not None and not capabilities.missing(needs)
    )
