"""Compiled variants of a kernel, and what tells whether a call fits one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qd_core.api.binding import Bound, bind_argument
from qd_core.frontend.members import Member, Members
from qd_core.frontend.signature import ArgType, ObjectArg
from qd_core.runtime.launch import Executable

__all__ = ["BoundKernel", "Specialisation", "forget"]


@dataclass(slots=True, eq=False)
class Specialisation:
    """Code for one combination of argument types and of types of the members that it reads.

    Attributes
    ----------
    arguments : tuple of ArgType
        Types of the arguments.
    members : tuple of (Member, ArgType)
        What the kernel reads of objects and outside, with the types it was compiled for.
    same : tuple of (Member, Member)
        Ways that must lead to the same object.
    plans : int
        `Runtime.plans` when a launch plan was tried; -1 before.
    """

    executable: Executable
    arguments: tuple[ArgType, ...]
    members: tuple[tuple[Member, ArgType], ...]
    same: tuple[tuple[Member, Member], ...]
    plans: int = -1

    @staticmethod
    def of(executable: Executable, arguments: tuple[ArgType, ...], members: Members) -> Specialisation:
        """Keep what was read while the code was made, and no object that it was read from."""
        read = tuple((member, forget(kind)) for member, kind in members.read.values())
        return Specialisation(executable, tuple(map(forget, arguments)), read, tuple(members.same))

    def fits(self, bound: Bound, arguments: Mapping[str, Any]) -> Bound | None:
        """Return the call's leaves with those of members when they have the types of this code, else None."""
        if not self.members:
            return bound
        trial = bound.fork()
        try:
            for member, kind in self.members:
                if bind_argument(trial, member.path, member.annotation, member.read(arguments)) != kind:
                    return None
            if any(a.read(arguments) is not b.read(arguments) for a, b in self.same):
                return None
        except (AttributeError, LookupError):
            return None
        return trial


def forget(kind: ArgType) -> ArgType:
    """Return a type without the object that it was made from, so that compiled code keeps no object alive."""
    return replace(kind, value=None) if isinstance(kind, ObjectArg) else kind


class BoundKernel(functools.partial):  # type: ignore[type-arg]
    """A kernel taken from an instance, which is its first argument; calling it does not pass through Python."""

    @property
    def grad(self) -> BoundKernel:
        """The reverse-mode kernel of the instance."""
        return BoundKernel(getattr(self.func, "grad"), *self.args)  # noqa: B009

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

    def __repr__(self) -> str:
        return f"<bound {self.func!r} of {self.args[0]!r}>"
