"""Variables of a kernel while it is lowered: lexical blocks over SSA values.

A name stands for its current value. Blocks (bodies of `if`, loops) log what they change, so that leaving one costs what
it changed and tells
which outer variables the region around it must yield.
"""

from __future__ import annotations

from typing import Any

__all__ = ["MISSING", "Scope"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class _Block:
    __slots__ = ("declared", "old", "readonly")

    def __init__(self) -> None:
        self.old: dict[str, Any] = {}
        self.declared: set[str] = set()
        self.readonly: dict[str, str | None] = {}


class Scope:
    """Names visible in one function.

    Attributes
    ----------
    names : dict of str
        Current value of every visible name.
    readonly : dict of str to str
        Names that must not be assigned, and what they are.
    """

    __slots__ = ("_blocks", "_gone", "names", "readonly")

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.readonly: dict[str, str] = {}
        self._blocks: list[_Block] = [_Block()]
        self._gone: set[str] = set()

    def get(self, name: str) -> Any:
        """Return the value of ``name``, or `MISSING`."""
        return self.names.get(name, MISSING)

    def declare(self, name: str, value: Any, readonly: str | None = None) -> None:
        """Make a new variable of the current block; an outer one of that name is hidden until the block ends."""
        block = self._blocks[-1]
        block.declared.add(name)
        block.old.setdefault(name, self.names.get(name, MISSING))
        if readonly is not None or name in self.readonly:
            block.readonly.setdefault(name, self.readonly.get(name))
            self._protect(name, readonly)
        self.names[name] = value

    def update(self, name: str, value: Any) -> None:
        """Change the value of a variable that exists."""
        block = self._blocks[-1]
        block.old.setdefault(name, self.names[name])
        self.names[name] = value

    def push(self) -> None:
        """Enter a block."""
        self._blocks.append(_Block())

    def pop(self) -> dict[str, Any]:
        """Leave a block, restore what was before it, and return the new values of outer variables that it changed."""
        block = self._blocks.pop()
        changed: dict[str, Any] = {}
        for name, old in block.old.items():
            if old is MISSING:
                del self.names[name]
                self._gone.add(name)
                continue
            if name not in block.declared and self.names[name] is not old:
                changed[name] = self.names[name]
            self.names[name] = old
        for name, reason in block.readonly.items():
            self._protect(name, reason)
        return changed

    def ended(self, name: str) -> bool:
        """Whether ``name`` was a variable of a block that has ended."""
        return name in self._gone

    def _protect(self, name: str, reason: str | None) -> None:
        if reason is None:
            self.readonly.pop(name, None)
        else:
            self.readonly[name] = reason
