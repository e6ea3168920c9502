"""What a program needs of a device, and the refusal where the device does not claim it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qd_core import dtypes as dt
from qd_core.backend.capabilities import CapabilitySet
from qd_core.errors import Span
from qd_core.ir.nodes import Node
from qd_core.ir.program import DeviceWord, Program
from qd_core.ir.rewrite import walk

__all__ = ["check_supported", "owners", "requirements"]

_MEMORY = frozenset({"load", "store", "atomic"})


def requirements(program: Program) -> dict[str, Span | None]:
    """Return the capabilities that ``program`` needs, each with the first place that needs it.

    Truth values count where memory holds them: every device computes comparisons.
    """
    needs: dict[str, Span | None] = {}
    seen: set[Any] = set()
    for task in program.tasks:
        if any(isinstance(e, DeviceWord) for e in task.extents):
            needs.setdefault("launch.device_extent", None)
        for node in walk(task.body):
            for name in _of_node(node, seen):
                needs.setdefault(name, node.span)
    if program.sites:
        needs.setdefault("log.records", None)
    return needs


def _of_node(node: Node, seen: set[Any]) -> Iterator[str]:
    """Names that ``node`` needs; a type that was ``seen`` is not named again."""
    name = node.op.name
    if name in _MEMORY:
        kind: dt.DType = node.operands[0].type.dtype
        if (kind, name) not in seen:
            seen.add((kind, name))
            yield f"type.{kind.name}"
        if name == "atomic":
            yield f"atomic.{node.attrs['kind']}.{kind.name}"
    elif name == "scratch":
        yield "memory.private"
        yield f"type.{node.attrs['to'].name}.private"
    for value in node.results or (node,):
        if isinstance(value.type, dt.DType) and value.type not in seen and value.type is not dt.u1:
            seen.add(value.type)
            yield f"type.{value.type.name}"


def check_supported(program: Program, capabilities: CapabilitySet, backend: str) -> None:
    """Refuse a program that needs what the device does not claim.

    Raises
    ------
    UnsupportedError
        Names capability, backend, who has it, and the user's line.
    """
    needs = requirements(program)
    for name in capabilities.missing(needs):
        capabilities.require(name, backend, who_has_it=owners(name), span=needs[name])


def owners(name: str) -> tuple[str, ...]:
    """Return the installed and available backends whose first device claims ``name``."""
    from qd_core.backend.registry import registry

    found: list[str] = []
    for backend in registry().names():
        if registry().probe(backend).available:
            infos = registry().load(backend).devices()
            if infos and infos[0].target.capabilities.has(name):
                found.append(backend)
    return tuple(found)
