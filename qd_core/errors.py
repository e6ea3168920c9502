"""The one tree of errors, and how an error shows the user's line.

Every error says what happened, where (file, line, excerpt, caret), why, and what to do. Its class has a stable code
such as ``QD101``. Errors that concern a kernel's source carry a :class:`Span`.

========== ======================================================
codes      raised while
========== ======================================================
QD1xx      a kernel is compiled
QD2xx      a kernel is launched or an object of the library is used
QD3xx      a backend is found, loaded or opened
========== ======================================================
"""

from __future__ import annotations

import linecache
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = [
    "ArgumentValueError",
    "BackendLoadError",
    "BackendUnavailableError",
    "ClosedError",
    "ContractVersionError",
    "DeviceFault",
    "DuplicateBackendError",
    "GradientCheckError",
    "InvalidIRError",
    "LaunchError",
    "NotDifferentiableError",
    "OptionError",
    "QuadrantsAssertionError",
    "QuadrantsCompilationError",
    "QuadrantsError",
    "QuadrantsIndexError",
    "QuadrantsNameError",
    "QuadrantsRuntimeError",
    "QuadrantsRuntimeTypeError",
    "QuadrantsSyntaxError",
    "QuadrantsTypeError",
    "Span",
    "UnknownBackendError",
    "UnsupportedError",
    "format_span",
]


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the user's source.

    Parameters
    ----------
    file : str
        Path as `inspect.getsourcefile` gives it, or a name in angle brackets; `linecache` must know it for an excerpt.
    line : int
        First line, counted from 1.
    column : int
        First column, counted from 0 in UTF-8 bytes of the line in the *file*: as `ast` counts, plus the indentation
        removed before parsing.
    end_line, end_column : int or None
        Just past the last character; ``None`` where unknown.
    function : str
        Name of the kernel or function that the line belongs to; empty where unknown.
    """

    file: str
    line: int
    column: int = 0
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


def format_span(span: Span) -> str:
    """Location, source excerpt and caret of a span.

    Parameters
    ----------
    span : Span
        The place to show.

    Returns
    -------
    str
        Lines without a trailing newline; only the location where the source cannot be read.
    """
    where = f"  --> {span}" + (f", in {span.function}" if span.function else "")
    source = linecache.getline(span.file, span.line).rstrip()
    if not source:
        return where
    gutter = f"{span.line:>5} | "
    margin = " " * (len(gutter) - 2) + "| "
    return f"{where}\n{gutter}{source}\n{margin}{_underline(source, span)}"


def _underline(source: str, span: Span) -> str:
    """Blanks and carets that stand under the span's part of `source`, its first line."""
    raw = source.encode()
    start = min(span.column, len(raw))
    stop = span.end_column if span.end_line in (None, span.line) and span.end_column is not None else len(raw)
    if span.end_column is None:
        stop = start + 1
    before = raw[:start].decode(errors="replace")
    marked = raw[start : min(stop, len(raw))].decode(errors="replace")
    blanks = "".join("\t" if c == "\t" else " " * _cells(c) for c in before)
    return blanks + "^" * max(1, sum(map(_cells, marked)))


def _cells(character: str) -> int:
    """Terminal cells that a character takes: wide East Asian ones take two, combining ones none."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _rebuild(cls: type[QuadrantsError], args: tuple[Any, ...], state: Mapping[str, Any]) -> QuadrantsError:
    """Unpickle an error without running its constructor, whose arguments are not those of `BaseException`."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class QuadrantsError(Exception):
    """Root of every error that the library raises on purpose.

    Parameters
    ----------
    message : str
        What happened, in one sentence.
    span : Span, optional
        The user's line.
    why : str, optional
        The rule or the reason behind it.
    hint : str, optional
        What to do about it.
    callers : sequence of Span, optional
        Call sites that led to an inlined function, innermost first.

    Attributes
    ----------
    code : str
        Stable code of the class, such as ``"QD101"``.
    """

    code: ClassVar[str] = "QD000"

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        why: str = "",
        hint: str = "",
        callers: Sequence[Span] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.why = why
        self.hint = hint
        self.callers = tuple(callers)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        yield f"{self.message} [{self.code}]"
        if self.span is not None:
            yield format_span(self.span)
        for caller in self.callers:
            yield "  called from\n" + format_span(caller)
        if self.why:
            yield f"  why: {self.why}"
        if self.hint:
            yield f"  help: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


# --- while a kernel is compiled ---------------------------------------------------------------------------------------


class QuadrantsCompilationError(QuadrantsError):
    """A kernel cannot be compiled."""

    code = "QD100"


class QuadrantsSyntaxError(QuadrantsCompilationError, SyntaxError):
    """The kernel uses Python that is not part of the kernel language."""

    code = "QD101"

    @property
    def msg(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  (a traceback prints `msg`, not `str`)
        """The whole text, which tracebacks print in place of ``str(error)``."""
        return str(self)


class QuadrantsNameError(QuadrantsCompilationError, NameError):
    """A name is unknown where the kernel uses it."""

    code = "QD102"


class QuadrantsTypeError(QuadrantsCompilationError, TypeError):
    """Operands or annotations have types that the operation does not take."""

    code = "QD103"


class QuadrantsIndexError(QuadrantsCompilationError, IndexError):
    """A constant index lies outside, or the number of indices differs from the number of axes."""

    code = "QD104"


class NotDifferentiableError(QuadrantsCompilationError):
    """A derivative was asked for that does not exist or cannot be formed exactly."""

    code = "QD110"


class UnsupportedError(QuadrantsError, NotImplementedError):
    """A backend lacks what the kernel needs.

    Parameters
    ----------
    capability : str
        Name from the registry of capabilities, such as ``"f64 atomic_add in global memory"`` or ``"subgroup.shuffle"``.
    backend : str
        The backend that lacks it.
    who_has_it : iterable of str, optional
        Installed backends that claim it; ``None`` where nobody asked them.
    span, why, hint, callers
        As for :class:`QuadrantsError`.
    """

    code = "QD120"

    def __init__(
        self,
        capability: str,
        backend: str,
        who_has_it: Iterable[str] | None = None,
        *,
        span: Span | None = None,
        why: str = "",
        hint: str = "",
        callers: Sequence[Span] = (),
    ) -> None:
        self.capability = capability
        self.backend = backend
        self.who_has_it = tuple(who_has_it or ())
        owners = "" if who_has_it is None else ", ".join(self.who_has_it) or "none that is installed"
        have = f"backends that have it: {owners}" if owners else ""
        text = f"{capability} is not supported by the backend {backend!r}"
        super().__init__(text, span=span, why=why, hint="; ".join(filter(None, (hint, have))), callers=callers)


class InvalidIRError(QuadrantsError):
    """Intermediate code breaks a rule of the op table or its text cannot be read.

    Raised by the verifier and the parser. Seen by a user it is a defect of the compiler or of a backend's pass.
    """

    code = "QD190"


# --- while a kernel is launched ---------------------------------------------------------------------------------------


class QuadrantsRuntimeError(QuadrantsError, RuntimeError):
    """Something failed after compilation."""

    code = "QD200"


class QuadrantsAssertionError(QuadrantsRuntimeError, AssertionError):
    """A check inside a kernel failed: an ``assert``, a bound, or a division by zero."""

    code = "QD201"


class QuadrantsRuntimeTypeError(QuadrantsRuntimeError, TypeError):
    """An argument of a launch has a type that its parameter does not take."""

    code = "QD202"


class ArgumentValueError(QuadrantsRuntimeError, ValueError):
    """An argument of a launch has the right type and a wrong dtype, rank, shape, stride, device or writability."""

    code = "QD203"


class OptionError(QuadrantsError, KeyError):
    """An option of ``qd.init`` or of a compilation is unknown or has a value that it cannot take."""

    code = "QD204"


class GradientCheckError(QuadrantsAssertionError):
    """Derivatives that should agree do not (`qd.ad.gradcheck`)."""

    code = "QD205"


class LaunchError(QuadrantsRuntimeError):
    """The device refused a launch, a transfer or an allocation."""

    code = "QD210"


class DeviceFault(QuadrantsRuntimeError):
    """The device failed while kernels ran; the message names those launched since the last good synchronisation."""

    code = "QD211"


class ClosedError(QuadrantsRuntimeError):
    """An array, kernel handle or device is used after ``qd.reset()`` or ``close()`` ended it."""

    code = "QD220"


# --- while a backend is found, loaded or opened -----------------------------------------------------------------------


class BackendLoadError(QuadrantsRuntimeError):
    """A backend's distribution is installed and cannot be loaded; the cause is chained.

    Parameters
    ----------
    message : str
        What happened, with the distribution and its version.
    backend : str
        The name that was asked for.
    why, hint
        As for :class:`QuadrantsError`.
    """

    code = "QD300"

    def __init__(self, message: str, *, backend: str, why: str = "", hint: str = "") -> None:
        super().__init__(message, why=why, hint=hint)
        self.backend = backend


class ContractVersionError(BackendLoadError):
    """A backend was built for another major version of the contract."""

    code = "QD301"


class UnknownBackendError(BackendLoadError, LookupError):
    """No installed or known backend has this name."""

    code = "QD302"


class DuplicateBackendError(BackendLoadError):
    """Two distributions claim the same backend name."""

    code = "QD303"


class BackendUnavailableError(BackendLoadError):
    """A backend is known and not installed, or installed and without a usable device."""

    code = "QD304"
