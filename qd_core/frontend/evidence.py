"""What a lowering looked up outside the kernel's text, so that a later process can tell whether it would see the same.

Each look-up is a *fact*: where (an earlier fact), how (by name in a function's scope, by attribute, by item), and the
portrait of what was there. A value without a portrait gets a *sketch*, its class, and whoever goes on from it adds
further facts. Where the front end lets other code look into a value without telling (an operator of a class, a Python
function that is called), no such promise can be made: the evidence is refused.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Mapping, Sequence
from typing import Any

from qd_core.frontend.functions import BoundFunc, Func
from qd_core.frontend.portrait import class_portrait, is_own, portrait
from qd_core.frontend.values import ArrayRef, MatrixValue, ObjectRef, StructRef, StructValue
from qd_core.ir.nodes import Value

__all__ = ["Evidence", "Fact", "confirmed"]

Fact = tuple[int, str, Any, str]
"""Number of the fact it starts from (-1: none), kind of step, its key, and the portrait of what was found."""

_OURS = (Value, ArrayRef, MatrixValue, ObjectRef, StructRef, StructValue)
_HOOKS = frozenset(
    """__getitem__ __len__ __iter__ __bool__ __index__ __float__ __int__ __array__ __add__ __radd__ __sub__ __rsub__
    __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __mod__ __pow__ __neg__ __and__ __or__ __xor__ __lshift__
    __rshift__ __matmul__""".split()
)
"""Methods of a class by which its objects are looked into without a look-up of theirs."""
_PURE_PACKAGES = ("math", "cmath", "operator")
_PURE = frozenset(
    "abs all any bool divmod enumerate len max min pow range reversed round sorted str sum tuple zip".split()
)


class Evidence:
    """Facts of one lowering.

    Attributes
    ----------
    facts : list of Fact
        In the order they were found.
    refusal : str
        Why the facts do not decide the result; empty while they do.
    """

    def __init__(self, kernel: Any) -> None:
        self.facts: list[Fact] = []
        self.refusal = ""
        self._known: dict[int, tuple[Any, int]] = {}
        self._steps: dict[tuple[int, str, Any], int] = {}
        self._add(-1, "kernel", "", "", kernel)

    def refuse(self, reason: str) -> None:
        """Say that the facts do not decide what the kernel becomes."""
        self.refusal = self.refusal or reason

    def number(self, value: Any) -> int | None:
        """Number of the fact that first led to the object ``value``."""
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    # -- what the front end tells --------------------------------------------------------------------------------
    def argument(self, name: str, value: Any) -> None:
        """An argument, whose type is told elsewhere, is about to be looked into."""
        if not isinstance(value, _OURS):
            self._see(-1, "argument", name, value)

    def name(self, function: Any, name: str, value: Any) -> None:
        """``name`` in the scope of ``function`` stands for ``value``."""
        at = self.number(function)
        if at is None:
            self.refuse(f"{function.__qualname__} was not reached by names and attributes")
        else:
            self._see(at, "name", name, value)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name`` is ``value``."""
        self._step(owner, "attr", name, value)

    def item(self, owner: Any, key: Any, value: Any) -> None:
        """``owner[key]`` is ``value``."""
        made_here = isinstance(owner, (list, tuple, dict)) and self.number(owner) is None
        if not made_here and portrait(owner) is None:
            self._step(owner, "item", key, value)

    def member(self, root: str, steps: Sequence[tuple[str, Any]], value: Any) -> None:
        """An object, bound by its class, was read from the argument ``root``; its members will be looked up in it."""
        at = self._steps.get((-1, "argument", root))
        for kind, key in steps[:-1]:
            if at is not None:
                at = (
                    self._steps[at, kind, key] if (at, kind, key) in self._steps else self._add(at, kind, key, "", None)
                )
        if at is None:
            self.refuse(f"a member of {root!r} was not reached by attributes and items")
        else:
            self._see(at, *steps[-1], value)

    def whole(self, value: Any) -> None:
        """``value`` decides something by all that it holds."""
        if isinstance(value, (*_OURS, types.ModuleType)) or portrait(value) is not None:
            return
        if not (isinstance(value, (list, tuple, dict)) and self.number(value) is not None):
            self.refuse(f"the code depends on a {type(value).__name__} in a way that cannot be told")

    def called(self, function: Any) -> None:
        """A Python function is called while compiling."""
        owner = getattr(function, "__self__", None)
        if isinstance(function, type) and is_own(function) and function not in (set, frozenset):
            return
        if isinstance(function, types.BuiltinFunctionType) and not isinstance(owner, types.ModuleType | None):
            self.whole(owner)
        elif not _is_pure(function):
            self.refuse(
                f"the Python function {getattr(function, '__qualname__', function)!r} is called while compiling"
            )

    # -- facts -----------------------------------------------------------------------------------------------------
    def _step(self, owner: Any, kind: str, key: Any, value: Any) -> None:
        at = self.number(owner)
        if at is not None:
            self._see(at, kind, key, value)
        elif portrait(owner) is None or (portrait(value) is None and not isinstance(value, types.BuiltinFunctionType)):
            self.refuse(f"a {type(owner).__name__} was not reached by names and attributes")

    def _see(self, at: int, kind: str, key: Any, value: Any) -> None:
        step = self._steps.get((at, kind, key))
        if step is not None:
            self._known.setdefault(id(value), (value, step))
            return
        known = self.number(value)
        if known is not None and not isinstance(value, (type, types.ModuleType, Func)):
            self._add(at, kind, key, f"same {known}", value)
            return
        text = portrait(value)
        if text is None:
            text = sketch(value)
        if text is None:
            self.refuse(f"a {type(value).__name__} has members that cannot be told")
            return
        number = self._add(at, kind, key, text, value)
        if not _is_number(value):
            self._inside(number, value)

    def _add(self, at: int, kind: str, key: Any, text: str, value: Any) -> int:
        self.facts.append((at, kind, key, text))
        number = self._steps[at, kind, key] = len(self.facts) - 1
        if not _is_number(value):
            self._known.setdefault(id(value), (value, number))
        return number

    def _inside(self, at: int, value: Any) -> None:
        """Functions that the front end reaches without a look-up, and items of containers that have no portrait."""
        if isinstance(value, Func):
            self._add(at, "attr", "function", "", value.function)
        elif isinstance(value, BoundFunc):
            self._see(at, "attr", "func", value.func)
            self._see(at, "attr", "instance", value.instance)
        elif hasattr(value, "methods") and hasattr(value, "members"):
            for name, method in value.methods.items():
                self._see(at, "method", name, method)
        elif isinstance(value, (list, tuple, dict)) and portrait(value) is None:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._see(at, "item", key, item)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes, complex))


def _is_pure(function: Any) -> bool:
    package = getattr(function, "__module__", "")
    return package in _PURE_PACKAGES or (package == "builtins" and function.__name__ in _PURE)


def sketch(value: Any) -> str | None:
    """Text for a value whose members are told one by one; None where it can be looked into by other ways."""
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return class_portrait(value)
    if isinstance(value, BoundFunc):
        return "bound"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, dict):
        keys = [portrait(k) for k in value]
        return None if None in keys else f"dict of {keys}"
    kind = type(value)
    if hasattr(value, "__qd_capture__") or hasattr(value, "__qd_fields__"):
        return f"array {kind.__name__}"  # its type is among the members
    if is_own(kind) or not all(_HOOKS.isdisjoint(vars(base)) for base in kind.__mro__):
        return None
    return f"object of {class_portrait(kind)}"


# -- later ------------------------------------------------------------------------------------------------------------
def confirmed(facts: Sequence[Sequence[Any]], kernel: Any, arguments: Mapping[str, Any]) -> list[Any] | None:
    """Return what every fact leads to now, or None when one of them does not hold any more."""
    values: list[Any] = []
    for at, kind, key, text in facts:
        try:
            value = _follow(values, at, kind, key, kernel, arguments)
        except Exception:  # whatever an attribute of the user's raises, the front end will raise again
            return None
        if text and not _holds(text, value, values):
            return None
        values.append(value)
    return values


def _follow(values: list[Any], at: int, kind: str, key: Any, kernel: Any, arguments: Mapping[str, Any]) -> Any:
    if kind == "kernel":
        return kernel
    if kind == "argument":
        return arguments[key]
    owner = values[at]
    if kind == "name":
        return in_scope(owner, key)
    if kind == "attr":
        return getattr(owner, key)
    return owner.methods[key] if kind == "method" else owner[key]


def in_scope(function: Any, name: str) -> Any:
    """Return what ``name`` stands for in ``function``; `LookupError` or `ValueError` where nothing."""
    names = function.__code__.co_freevars
    if name in names:
        return function.__closure__[names.index(name)].cell_contents
    module = function.__globals__
    return module[name] if name in module else vars(builtins)[name]


def _holds(text: str, value: Any, values: Sequence[Any]) -> bool:
    if text.startswith("same "):
        return values[int(text[5:])] is value
    return (portrait(value) or sketch(value)) == text
