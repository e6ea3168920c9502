"""The error tree: classes users catch, codes, and the excerpt with the caret."""

from __future__ import annotations

import inspect
import linecache
import pickle
import traceback

import pytest

from qd_core import errors
from qd_core.errors import Span, format_span

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.QuadrantsError)]


@pytest.fixture
def source():
    """Register lines as a file that only `linecache` knows; give its name."""
    name = "<errors-test>"

    def register(text: str) -> str:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        return name

    yield register
    linecache.cache.pop(name, None)


def make(cls: type[errors.QuadrantsError], **details) -> errors.QuadrantsError:
    if issubclass(cls, errors.UnsupportedError):
        return cls("type.f64", "toy", **details)
    if issubclass(cls, errors.BackendLoadError):
        return cls("went wrong", backend="toy", **details)
    return cls("went wrong", **details)


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("QuadrantsSyntaxError", (errors.QuadrantsCompilationError, SyntaxError)),
        ("QuadrantsNameError", (errors.QuadrantsCompilationError, NameError)),
        ("QuadrantsTypeError", (errors.QuadrantsCompilationError, TypeError)),
        ("QuadrantsIndexError", (errors.QuadrantsCompilationError, IndexError)),
        ("QuadrantsRuntimeError", (RuntimeError,)),
        ("QuadrantsAssertionError", (errors.QuadrantsRuntimeError, AssertionError)),
        ("QuadrantsRuntimeTypeError", (errors.QuadrantsRuntimeError, TypeError)),
        ("ArgumentValueError", (errors.QuadrantsRuntimeError, ValueError)),
        ("NotDifferentiableError", (errors.QuadrantsCompilationError,)),
        ("ContractVersionError", (errors.BackendLoadError,)),
        ("OptionError", (KeyError,)),
    ],
)
def test_users_catch_the_builtin_or_ours(name, bases):
    cls = getattr(errors, name)
    for base in bases:
        with pytest.raises(base, match="went wrong"):
            raise make(cls)


def test_every_class_has_its_own_code():
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(code[:2] == "QD" and len(code) == 5 and code[2:].isdigit() for code in codes)


def test_every_class_is_exported():
    assert {cls.__name__ for cls in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_an_error_survives_a_process_boundary(cls):
    error = make(cls, hint="do this")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_text_has_what_where_why_and_what_to_do(source):
    name = source("def f():\n    y = gäb(x)\n")
    span = Span(name, 2, 8, 2, 15, "f")
    error = errors.QuadrantsNameError("name 'gäb' is unknown", span=span, why="no such name", hint="define it")
    assert str(error).splitlines() == [
        "name 'gäb' is unknown [QD102]",
        "  --> <errors-test>:2:9, in f",
        "    2 |     y = gäb(x)",
        "      |         ^^^^^^",
        "  why: no such name",
        "  help: define it",
    ]


def test_callers_are_shown_innermost_first(source):
    name = source("inner\nouter\n")
    error = errors.QuadrantsTypeError("m", span=Span(name, 1), callers=[Span(name, 2), Span(name, 1)])
    places = [line for line in str(error).splitlines() if "-->" in line or "called" in line]
    assert places == [
        "  --> <errors-test>:1:1",
        "  called from",
        "  --> <errors-test>:2:1",
        "  called from",
        "  --> <errors-test>:1:1",
    ]


@pytest.mark.parametrize(
    ("line", "span", "marks"),
    [
        ("abc", (1, 0, 1, 3), "^^^"),
        ("abc", (1, 1), " ^"),
        ("abc", (1, 1, 3, 1), " ^^"),  # goes on in later lines: marked to the end of the first
        ("abc", (1, 3, 1, 3), "   ^"),  # empty
        ("abc", (1, 99, 1, 120), "   ^"),  # beyond the line, as after an edit of the file
        ("\tab", (1, 1, 1, 2), "\t^"),
        ("漢a", (1, 3, 1, 4), "  ^"),
        ("é = e", (1, 0, 1, 2), "^"),
    ],
)
def test_caret(source, line, span, marks):
    name = source(line + "\n")
    assert format_span(Span(name, *span)).splitlines()[-1] == "      | " + marks


def test_without_source_the_place_is_named():
    assert format_span(Span("<nowhere>", 7, 2, function="k")) == "  --> <nowhere>:7:3, in k"


def test_a_traceback_prints_the_whole_text_of_a_syntax_error(source):
    name = source("with a: pass\n")
    error = errors.QuadrantsSyntaxError("no `with` here", span=Span(name, 1, 0, 1, 4), hint="unroll it")
    printed = "".join(traceback.format_exception_only(error))
    assert printed.strip().endswith(str(error))


def test_unsupported_says_who_has_it():
    assert "help" not in str(errors.UnsupportedError("type.f64", "toy"))
    assert "none that is installed" in str(errors.UnsupportedError("type.f64", "toy", []))
    error = errors.UnsupportedError("type.f64", "toy", ["a", "b"], hint="cast")
    assert str(error).splitlines()[-1] == "  help: cast; backends that have it: a, b"
    assert (error.capability, error.backend, error.who_has_it) == ("type.f64", "toy", ("a", "b"))


def test_a_span_is_a_value():
    span = Span("f.py", 1, 2)
    assert span == Span("f.py", 1, 2)
    assert len({span, Span("f.py", 1, 2)}) == 1
    with pytest.raises(AttributeError):
        span.line = 3
