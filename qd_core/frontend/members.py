"""What a kernel reads of objects: members of `self`, of templates and dataclasses, and arrays outside the kernel.

While a kernel is lowered, each read is bound like an argument and remembered with the way to it. A launch reads the
same members again: equal
types mean the same compiled kernel, so a member that changed is seen. Nothing that the kernel does not read takes part.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from qd_core.errors import QuadrantsNameError
from qd_core.frontend.evidence import Evidence
from qd_core.frontend.functions import BoundFunc
from qd_core.frontend.signature import EMPTY, ArgType, ObjectArg

__all__ = ["Binder", "Member", "Members", "evaluated", "member_annotations"]

Binder = Callable[[str, Any, Any], ArgType]
"""Gives the argument type of (path, annotation or EMPTY, value)."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """The way to a value: from the argument ``root``, or from the object ``fixed`` where that is ``""``, by attributes
    and items.

    ``whole`` asks for everything inside it, because Python code that cannot be looked into was given it; ``identity``
    for
    which object it is.
    """

    root: str
    name: str
    steps: tuple[tuple[str, Any], ...] = ()
    annotation: Any = EMPTY
    fixed: Any = None
    whole: bool = False
    identity: bool = False

    @property
    def path(self) -> str:
        """Text such as ``self.x`` or ``self.xs[3]``."""
        return self.name

    def step(self, kind: str, key: Any, annotation: Any = EMPTY) -> Member:
        """The way to the attribute (``kind`` is ``"attr"``) or item (``"item"``) ``key`` of this, or whether it has
        that (``"has"``).
        """
        name = (
            f"{self.name}.{key}"
            if kind == "attr"
            else f"{self.name}[{key!r}]"
            if kind == "item"
            else f"{key} in {self.name}"
        )
        return Member(self.root, name, (*self.steps, (kind, key)), annotation, self.fixed)

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value now; `AttributeError` or `LookupError` when it is gone."""
        value: Any = arguments[self.root] if self.root else self.fixed
        for kind, key in self.steps:
            value = getattr(value, key) if kind == "attr" else value[key] if kind == "item" else key in value
        return Whole(value, self.identity) if self.whole else value


class Members:
    """The reads of one lowering.

    Attributes
    ----------
    read : dict of str
        By path, the way to a value and the type that it was bound with.
    same : list of (Member, Member)
        Ways that led to the same object.
    evidence : Evidence
        What was looked up without being bound.
    """

    def __init__(self, bind: Binder, evidence: Evidence) -> None:
        self._bind, self.evidence = bind, evidence
        self._origins: dict[int, tuple[Any, Member]] = {}
        self.read: dict[str, tuple[Member, ArgType]] = {}
        self.same: list[tuple[Member, Member]] = []

    def root(self, name: str, value: Any) -> Member:
        """Start at an argument."""
        member = Member(name, name)
        self._remember(member, value)
        return member

    def origin(self, value: Any) -> Member | None:
        """Return the way to an object whose members are bound when they are read."""
        known = self._origins.get(id(value))
        return known[1] if known is not None else None

    def observe(self, member: Member, value: Any) -> ArgType:
        """Bind ``value``, found at ``member``, and remember it."""
        known = self.read.get(member.path)
        if known is not None:
            return known[1]
        kind = self._bind(member.path, member.annotation, value)
        self.read[member.path] = member, kind
        if isinstance(kind, ObjectArg):
            self._remember(member, value)
        return kind

    def outside(self, path: str, value: Any) -> ArgType:
        """Bind an array outside the kernel."""
        return self.observe(Member("", path, fixed=value), value)

    def whole(self, value: Any) -> None:
        """Remember all of an object, which goes to Python code that cannot be looked into."""
        member = self.origin(value)
        self.evidence.whole(value)
        if member is not None:
            self.observe(replace(member, name=f"{member.name}.*", whole=True, annotation=EMPTY), Whole(value))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.whole(item)
        elif isinstance(value, dict):
            for item in value.values():
                self.whole(item)

    def identity(self, value: Any) -> None:
        """Remember that it matters which object this is."""
        member = self.origin(value)
        self.evidence.whole(value)
        if member is not None:
            mark = replace(member, name=f"{member.name}.is", whole=True, identity=True, annotation=EMPTY)
            self.observe(mark, Whole(value, identity=True))

    def _remember(self, member: Member, value: Any) -> None:
        known = self._origins.setdefault(id(value), (value, member))[1]
        if known is not member:
            self.same.append((known, member))
        if isinstance(value, BoundFunc):
            self.observe(member.step("attr", "func"), value.func)
            self.observe(member.step("attr", "instance"), value.instance)


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """An object with everything inside it, or just which one it is, as a value to bind."""

    value: Any
    identity: bool = False


def evaluated(cls: type) -> dict[str, Any]:
    """Annotations of a class that are text, evaluated where the class is defined.

    Raises
    ------
    QuadrantsNameError
        One names something unknown there.
    """
    hints: dict[str, Any] = {}
    try:
        for base in reversed(cls.__mro__):  # not `typing.get_type_hints`, which takes only types in Python 3.10
            hints.update(inspect.get_annotations(base, eval_str=True))
    except Exception as cause:
        raise QuadrantsNameError(
            f"an annotation of {cls.__qualname__} cannot be evaluated: {cause}",
            why="with `from __future__ import annotations`, annotations are text that is evaluated in the module",
            hint="define the names it uses at module level",
        ) from cause
    return hints


@cache
def member_annotations(cls: type) -> dict[str, Any]:
    """Annotations of a dataclass, evaluated, by member name."""
    names = [f.name for f in dataclasses.fields(cls)]
    raw = {f.name: f.type for f in dataclasses.fields(cls)}
    if any(isinstance(a, str) for a in raw.values()):
        raw = evaluated(cls)
    return {name: raw[name] for name in names}
