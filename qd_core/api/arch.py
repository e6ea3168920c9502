"""Architectures: the names that `qd.init(arch=...)` takes.

`qd.<name>` resolves for core's own backends, every installed plugin, and the names of `backend/known.toml`, so that
scripts can list a
backend that is not installed.
"""

from __future__ import annotations

import platform
from functools import total_ordering

from qd_core.backend.registry import OWN, known_extras, registry

__all__ = ["Arch", "arch_named", "gpu"]

_HOST_ALIASES = ("x64", "x86_64", "arm64")


@total_ordering
class Arch:
    """A backend's name as an object: hashable, comparable, equal to another of the same name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arch) and other.name == self.name

    def __lt__(self, other: Arch) -> bool:
        return self.name < other.name

    def __hash__(self) -> int:
        return hash(("qd_core.Arch", self.name))

    def __repr__(self) -> str:
        return f"Arch.{self.name}"


def host_alias() -> str:
    """Return the traditional name of the host's architecture."""
    machine = platform.machine().lower()
    return "arm64" if machine in ("aarch64", "arm64") else "x64"


def arch_named(name: str) -> Arch | None:
    """Return the architecture called ``name``, or None when nothing installed or known has that name."""
    if name in _HOST_ALIASES:
        return Arch("cpu")
    if name in OWN or name in registry().names() or name in known_extras():
        return Arch(name)
    return None


def gpu() -> list[Arch]:
    """Return every installed backend that core does not bring itself, in the order of their priority."""
    return [Arch(b.name) for b in registry().accelerators()]
