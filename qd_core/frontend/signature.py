"""What a kernel takes and returns: its Python signature, and the types of actual arguments.

An argument type is hashable and decides how the kernel is specialised.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from qd_core.dtypes import DType
from qd_core.errors import QuadrantsNameError, QuadrantsSyntaxError, Span
from qd_core.frontend.analysis import StatementFacts
from qd_core.frontend.annotations import MatrixType, NdarrayType, StructType, Template, as_dtype, scalar_annotation
from qd_core.frontend.source import FunctionSource, function_source

__all__ = [
    "ArgType",
    "ArrayArg",
    "FieldsArg",
    "KernelInfo",
    "MatrixArg",
    "ObjectArg",
    "Parameter",
    "ScalarArg",
    "StructArg",
    "TemplateArg",
    "called",
    "function_info",
    "kernel_info",
]


class _Empty:
    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Any = _Empty()


# -- argument types ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A scalar, passed as a parameter of its own."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class MatrixArg:
    """A vector (shape ``(n,)``) or matrix (shape ``(n, m)``), passed as one scalar a component."""

    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArrayArg:
    """An array in memory: ``ndim`` storage axes with run-time extents, then the static axes ``element_shape``.

    The rest describes how a field lies in such an array. ``offset`` is subtracted from the indices. ``order[k]`` is the
    index axis that storage axis k belongs to, and ``blocks[k]`` the (step, count) of a part of it: the storage index is
    ``index // step % count``. ``shape`` are the extents of the index axes, known at compile time. Where several fields
    share elements, the element is a flat vector, and the field's own, of shape ``part``, begins at its scalar
    ``first``.
    ``shares`` is the path of an earlier parameter that is the same array. With ``split``, components (shape ``part``)
    are
    the outermost storage axes.
    """

    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    needs_grad: bool = False
    order: tuple[int, ...] | None = None
    offset: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    blocks: tuple[tuple[int, int], ...] | None = None
    first: int | None = None
    part: tuple[int, ...] = ()
    needs_dual: bool = False
    shares: str = ""
    split: bool = False

    @property
    def index_axes(self) -> int:
        """Number of indices that an element has."""
        return self.ndim if self.shape is None else len(self.shape)


@dataclass(frozen=True, slots=True)
class StructArg:
    """A struct or dataclass instance: its members, each with an argument type. Members that the kernel does not read
    are left out.

    ``origin`` is the `StructType` or dataclass, for its methods.
    """

    members: tuple[tuple[str, ArgType], ...]
    origin: Any = None


@dataclass(frozen=True, slots=True)
class TemplateArg:
    """A value that is compiled in. Equal keys share a compiled kernel."""

    value_key: Any
    value: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ObjectArg:
    """An object whose members are bound when the kernel reads them.

    ``key`` tells which objects are read alike: their class, and the length of a container. With ``typed``, annotations
    of the
    class say how members are passed; otherwise arrays are passed and everything else is compiled in.
    """

    key: Any
    value: Any = field(compare=False, repr=False)
    typed: bool = False


@dataclass(frozen=True, slots=True)
class FieldsArg:
    """A struct field: one array a member, which may be a struct itself. ``origin`` is the `StructType`."""

    members: tuple[tuple[str, ArgType], ...]
    origin: Any = None


ArgType = ScalarArg | MatrixArg | ArrayArg | StructArg | TemplateArg | ObjectArg | FieldsArg


# -- signatures -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One parameter of a kernel or function; ``default`` and ``annotation`` are `EMPTY` where there is none."""

    name: str
    annotation: Any
    default: Any = EMPTY
    keyword_only: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class KernelInfo:
    """A Python function as the front end sees it.

    Attributes
    ----------
    function : function
        The Python function.
    source : FunctionSource
        Text and syntax tree.
    parameters : tuple of Parameter
        In order, annotations evaluated.
    returns : object
        Evaluated return annotation; None where there is none.
    facts : StatementFacts
        Facts about its statements.
    """

    function: Any
    source: FunctionSource
    parameters: tuple[Parameter, ...]
    returns: Any
    facts: StatementFacts
    spans: dict[ast.AST, Span] = field(default_factory=dict[ast.AST, Span])

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def span(self) -> Span:
        """Place of the definition."""
        return self.span_of(self.source.tree)

    def span_of(self, node: Any) -> Span:
        """Place of a node of the function's tree."""
        span = self.spans.get(node)
        if span is None:
            span = Span(
                self.source.file,
                node.lineno,
                node.col_offset,
                node.end_lineno,
                node.end_col_offset,
                self.function.__name__,
            )
            self.spans[node] = span
        return span

    def closure(self) -> dict[str, Any]:
        """Values of captured variables at this moment; those not yet bound are left out."""
        values: dict[str, Any] = {}
        for name, cell in zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True):
            try:
                values[name] = cell.cell_contents
            except ValueError:
                continue
        return values

    @property
    def globals(self) -> Mapping[str, Any]:
        """Globals of the function's module."""
        return self.function.__globals__


def function_info(function: Callable[..., Any]) -> KernelInfo:
    """Read the signature and source of a `@qd.func` function; parameters need no annotation.

    Raises
    ------
    QuadrantsSyntaxError
        The source cannot be read, or the signature has ``*args``, ``**kwargs`` or positional-only parameters.
    QuadrantsNameError
        An annotation names something unknown.
    """
    source = function_source(function)
    assert isinstance(function, types.FunctionType)
    known = vars(function).get(_INFO)
    if known is None or known.function is not function:
        known = _read(function, source)
        setattr(function, _INFO, known)
    return known


_INFO = "__qd_info__"
"""Attribute of a function that holds what was read of it, for as long as it lives."""


def kernel_info(function: Callable[..., Any]) -> KernelInfo:
    """Read the signature and source of a kernel, whose parameters must be annotated (but for a method's ``self``).

    Raises
    ------
    QuadrantsSyntaxError
        As for `function_info`, or a parameter has no annotation or one that is not part of the language.
    """
    info = function_info(function)
    tree = info.source.tree.args
    nodes = (*tree.posonlyargs, *tree.args, *tree.kwonlyargs)
    for index, (parameter, node) in enumerate(zip(info.parameters, nodes, strict=True)):
        if parameter.annotation is EMPTY and not (index == 0 and is_method(function)):
            raise QuadrantsSyntaxError(
                f"Kernel parameter {parameter.name!r} must be annotated",
                span=info.span_of(node),
                hint="with a scalar type such as qd.f32, qd.types.ndarray(dtype=qd.f32, ndim=1) or qd.template()",
            )
        if parameter.annotation is not EMPTY and not is_argument_annotation(parameter.annotation):
            raise QuadrantsSyntaxError(
                f"Invalid type annotation of kernel parameter {parameter.name!r}: {parameter.annotation!r}",
                span=info.span_of(node),
                hint="use a scalar type, qd.types.vector/matrix/struct/ndarray, a dataclass or qd.template(), or one "
                "of these `| None`",
            )
    return info


def is_method(function: Callable[..., Any]) -> bool:
    """Whether ``function`` is defined in a class and its first parameter is ``self`` or ``cls``."""
    code = function.__code__
    return code.co_argcount > 0 and code.co_varnames[0] in ("self", "cls") and "." in function.__qualname__


def is_argument_annotation(annotation: Any) -> bool:
    """Whether kernels take arguments of this annotation."""
    if scalar_annotation(annotation) or isinstance(annotation, (MatrixType, StructType, NdarrayType, Template)):
        return True
    if annotation is Template or annotation is NdarrayType:
        return True
    return (
        hasattr(annotation, "__dataclass_fields__")
        or hasattr(annotation, "__qd_annotation__")
        or _is_optional(annotation)
    )


def _is_optional(annotation: Any) -> bool:
    arguments = get_args(annotation)
    return type(None) in arguments and len(arguments) == 2 and all(map(_is_part, arguments))


def _is_part(annotation: Any) -> bool:
    return annotation is type(None) or is_argument_annotation(annotation)


def _read(function: types.FunctionType, source: FunctionSource) -> KernelInfo:
    info = KernelInfo(function, source, (), None, StatementFacts(source.tree.body))
    tree = source.tree.args
    for star, sign in ((tree.vararg, "*"), (tree.kwarg, "**")):
        if star is not None:
            raise QuadrantsSyntaxError(
                f"Variable parameters ({sign}{star.arg}) are not supported",
                span=info.span_of(star),
                hint="write each parameter out",
            )
    annotations = _annotations(info)
    returns = annotations.get("return", None)
    return KernelInfo(
        function, source, tuple(_parameters(function, tree, annotations)), returns, info.facts, info.spans
    )


def _parameters(function: types.FunctionType, tree: ast.arguments, annotations: Mapping[str, Any]) -> list[Parameter]:
    positional = [a.arg for a in (*tree.posonlyargs, *tree.args)]
    defaults = function.__defaults__ or ()
    values = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    parameters = [Parameter(n, annotations.get(n, EMPTY), values.get(n, EMPTY)) for n in positional]
    keyword = function.__kwdefaults__ or {}
    parameters += [
        Parameter(a.arg, annotations.get(a.arg, EMPTY), keyword.get(a.arg, EMPTY), True) for a in tree.kwonlyargs
    ]
    return parameters


def _annotations(info: KernelInfo) -> dict[str, Any]:
    """Annotations as objects: those left as text by ``from __future__ import annotations`` are evaluated."""
    try:
        raw: Mapping[str, Any] = info.function.__annotations__
    except NameError as cause:  # evaluated lazily from Python 3.14 on
        raise QuadrantsNameError(
            f"an annotation of {info.name!r} cannot be evaluated: {cause}", span=info.span
        ) from cause
    if not any(isinstance(a, str) for a in raw.values()):
        return {name: called(a) for name, a in raw.items()}
    scope = {**info.globals, **_defining_locals(info.function.__code__), **info.closure()}
    return {name: called(_evaluate(info, name, a, scope) if isinstance(a, str) else a) for name, a in raw.items()}


def _defining_locals(code: types.CodeType) -> dict[str, Any]:
    """Local variables of the running function that defines ``code``: annotations left as text may name them."""
    frame = inspect.currentframe()
    while frame is not None:
        if code in frame.f_code.co_consts:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


def called(annotation: Any) -> Any:
    """Return what the annotation means: ``qd.Template`` and ``qd.types.ndarray`` may be written without a call."""
    return annotation() if annotation in (Template, NdarrayType) else annotation


def _evaluate(info: KernelInfo, name: str, text: str, scope: dict[str, Any]) -> Any:
    try:
        return eval(text, scope)
    except Exception as cause:
        raise QuadrantsSyntaxError(
            f"Invalid type annotation {text!r} of {name!r}: {type(cause).__name__}: {cause}",
            span=_annotation_span(info, name),
            why="with `from __future__ import annotations`, they are text that is evaluated in the function's scope",
            hint="define the name where the function is decorated, or at module level",
        ) from cause


def _annotation_span(info: KernelInfo, name: str) -> Span:
    tree = info.source.tree
    if name == "return" and tree.returns is not None:
        return info.span_of(tree.returns)
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        if argument.arg == name:
            return info.span_of(argument)
    return info.span


def return_types(annotation: Any) -> Sequence[Any]:
    """Types of the returned values: several for a tuple annotation, one otherwise, none without annotation."""
    if annotation is None or annotation is EMPTY:
        return ()
    if isinstance(annotation, (tuple, list)):
        return tuple(annotation)
    return get_args(annotation) if get_origin(annotation) is tuple else (annotation,)


def annotated_type(annotation: Any, default_ip: DType, default_fp: DType) -> Any:
    """Return the value type that an annotation means: a `DType`, `MatrixType` or `StructType`; None when it is none."""
    dtype = as_dtype(annotation, default_ip, default_fp)
    if dtype is not None:
        return dtype
    return annotation if isinstance(annotation, (MatrixType, StructType)) else None
