"""Functions that kernels call: `@qd.func`, `@qd.pyfunc`, and their methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from qd_core.errors import QuadrantsSyntaxError
from qd_core.frontend.signature import KernelInfo, function_info

__all__ = ["BoundFunc", "Func", "func", "pyfunc", "real_func"]


class Func:
    """A Python function that kernels can call; it is inlined.

    Parameters
    ----------
    function : function
        The Python function.
    python_scope : bool
        Whether it can also be called outside kernels (`qd.pyfunc`).
    early : bool
        Whether it may return inside run-time `if`, `for` and `while` (`qd.real_func`); its loops are serial.
    """

    def __init__(self, function: Callable[..., Any], python_scope: bool = False, early: bool = False) -> None:
        self.function = function
        self.early = early
        self.python_scope = python_scope
        functools.update_wrapper(self, function)
        if _has_text_annotations(function):
            function_info(function)  # now, while the local variables that annotations name can be seen

    @property
    def info(self) -> KernelInfo:
        """Signature and source, read on first use."""
        return function_info(self.function)

    @property
    def name(self) -> str:
        """Qualified name, for messages."""
        return self.function.__qualname__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundFunc(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in Python scope; only a `pyfunc` can be."""
        if not self.python_scope:
            raise QuadrantsSyntaxError(
                f"@qd.func {self.name!r} cannot be called outside of kernels",
                hint="use @qd.pyfunc for a function of both scopes",
            )
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<qd.func {self.name}>"


def _has_text_annotations(function: Callable[..., Any]) -> bool:
    try:
        return any(isinstance(a, str) for a in function.__annotations__.values())
    except (
        AttributeError,
        NameError,
    ):  # no function (reported when it is called), or names that Python 3.14 evaluates later
        return False


class BoundFunc:
    """A `Func` taken from an object: its first argument is the object."""

    __slots__ = ("func", "instance")

    def __init__(self, func: Func, instance: Any) -> None:
        self.func, self.instance = func, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in Python scope."""
        return self.func(self.instance, *args, **kwargs)


def func(
    function: Callable[..., Any] | None = None, *, is_real_function: bool = False, requires_top_level: bool = False
) -> Any:
    """Make a Python function callable from kernels.

    It is inlined: arguments are passed by value (arrays by reference), the single `return` is its last statement.

    Parameters
    ----------
    is_real_function : bool
        As `real_func`.
    requires_top_level : bool
        Accepted for compatibility.

    Raises
    ------
    QuadrantsSyntaxError
        When a kernel that calls it is compiled: the source cannot be read, or it is outside the kernel language.
    """
    if function is None:
        return lambda f: func(f, is_real_function=is_real_function, requires_top_level=requires_top_level)  # pyright: ignore[reportUnknownLambdaType]
    return Func(function, early=is_real_function)


def real_func(function: Callable[..., Any]) -> Func:
    """Make a Python function callable from kernels that may return from inside `if`, `for` and `while`.

    What it returns must be annotated; a path without `return` gives zero. Its loops are serial wherever it is called.
    """
    return Func(function, early=True)


def pyfunc(function: Callable[..., Any]) -> Func:
    """Make a Python function callable from kernels and from Python."""
    return Func(function, python_scope=True)
