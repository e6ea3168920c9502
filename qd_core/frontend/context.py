"""State of one lowering, and the tables that say how each kind of syntax is lowered.

Modules of the front end add to the tables with the decorators `expression` and `statement`; `qd_core.frontend.lower`
imports them all.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import (
    QuadrantsCompilationError,
    QuadrantsError,
    QuadrantsNameError,
    QuadrantsSyntaxError,
    QuadrantsTypeError,
    Span,
)
from qd_core.frontend.scope import MISSING, Scope
from qd_core.frontend.signature import KernelInfo
from qd_core.frontend.values import ArrayRef
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Param, Region, Role, Value

__all__ = ["CALLS", "Frame", "LowerOptions", "Lowering", "Racy", "expression", "statement"]

ExpressionRule = Callable[["Lowering", Any], Any]
StatementRule = Callable[["Lowering", Any], None]
EXPRESSIONS: dict[type[ast.AST], ExpressionRule] = {}
STATEMENTS: dict[type[ast.AST], StatementRule] = {}
CALLS: dict[Any, Callable[..., Any]] = {}
"""Lowering of calls: Python callable -> function of (lowering, node, positional arguments, keyword arguments)."""

_E = TypeVar("_E", bound=ExpressionRule)
_S = TypeVar("_S", bound=StatementRule)


def expression(*kinds: type[ast.AST]) -> Callable[[_E], _E]:
    """Register the lowering of expression nodes."""

    def add(rule: _E) -> _E:
        EXPRESSIONS.update(dict.fromkeys(kinds, rule))
        return rule

    return add


def statement(*kinds: type[ast.AST]) -> Callable[[_S], _S]:
    """Register the lowering of statement nodes."""

    def add(rule: _S) -> _S:
        STATEMENTS.update(dict.fromkeys(kinds, rule))
        return rule

    return add


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """Options that decide what IR a kernel becomes.

    Attributes
    ----------
    default_ip, default_fp : DType
        Types of integer and real literals.
    debug : bool
        Keep `assert` and check bounds.
    check_out_of_bound : bool
        Check bounds.
    short_circuit : bool
        Evaluate the second operand of `and`/`or` only when needed.
    unrolling_limit : int
        Iterations of a `qd.static` loop above which a warning is given; 0 for none.
    """

    default_ip: DType = dt.i32
    default_fp: DType = dt.f32
    debug: bool = False
    check_out_of_bound: bool = False
    short_circuit: bool = True
    unrolling_limit: int = 32

    @property
    def bounds(self) -> bool:
        """Whether array accesses are checked."""
        return self.debug or self.check_out_of_bound


class Racy:
    """Stands for an outer variable after a parallel loop that assigned its private copy."""

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span = span


@dataclass(slots=True)
class Frame:
    """One Python function being lowered: the kernel, or an inlined function.

    ``returned`` is the value of its `return`, ``returning`` set once it was reached, ``key`` what identifies an inlined
    call.
    """

    info: KernelInfo
    scope: Scope
    closure: dict[str, Any]
    caller: Span | None = None
    returned: Any = None
    returning: bool = False
    return_node: ast.AST | None = None
    key: Any = None
    runtime_depth: int = 0


class Lowering:
    """Lowers one kernel.

    Attributes
    ----------
    builder : Builder
        Receives the IR.
    frames : list of Frame
        Kernel and inlined functions, outermost first.
    params : dict of str to Param
        Parameters that the kernel uses, by path.
    captured : dict of str to object
        Fields and arrays outside the kernel that it uses, by path.
    static_depth : int
        Above 0 inside `qd.static(...)`.
    runtime_depth : int
        Number of run-time `if`, `for` and `while` around the current statement.
    loop_config : dict
        Hints of `qd.loop_config` for the next loop.
    """

    def __init__(self, info: KernelInfo, options: LowerOptions) -> None:
        self.options = options
        self.body = Region()
        self.builder = Builder(self.body)
        self.scope = Scope()
        self.frames = [Frame(info, self.scope, info.closure())]
        self.info = info
        self.params: dict[str, Param] = {}
        self.captured: dict[str, Any] = {}
        self._captures: dict[int, ArrayRef] = {}
        self.static_depth = 0
        self.runtime_depth = 0
        self.parallel_depth = 0
        self.loop_config: dict[str, Any] = {}
        self.warnings: list[tuple[str, Span]] = []
        self.counter = 0

    # -- dispatch -----------------------------------------------------------------------------------------------------
    def expr(self, node: ast.expr) -> Any:
        """Evaluate an expression."""
        rule = EXPRESSIONS.get(node.__class__)
        if rule is None:
            self.unsupported(node)
        return rule(self, node)

    def stmt(self, node: ast.stmt) -> None:
        """Lower a statement."""
        rule = STATEMENTS.get(node.__class__)
        if rule is None:
            self.unsupported(node)
        self.at(node)
        rule(self, node)

    def at(self, node: ast.AST) -> None:
        """Give new IR nodes the place of ``node``."""
        info = self.info
        self.builder.span = info.spans.get(node) or info.span_of(node)

    # -- names --------------------------------------------------------------------------------------------------------
    def lookup(self, node: ast.Name) -> Any:
        """Return what a name stands for: a variable, a captured or global object, a builtin."""
        name = node.id
        value = self.scope.names.get(name, MISSING)
        if value is not MISSING:
            return self._checked(node, value)
        frame = self.frames[-1]
        if name in frame.closure:
            return self.python_object(frame.closure[name], name)
        module = self.info.globals
        if name in module:
            return self.python_object(module[name], name)
        if name not in _BUILTINS:
            self._unknown(node)
        return getattr(builtins, name)

    def _checked(self, node: ast.Name, value: Any) -> Any:
        if isinstance(value, Racy):
            self.error(
                QuadrantsSyntaxError,
                f"{node.id!r} is read after a parallel loop that assigns it",
                node,
                why=f"iterations of the loop at line {value.span.line} each had a copy of their own, and which one would win is undefined",
                hint="accumulate with `+=` into an array element or a variable that the loop does not read, or use qd.loop_config(serialize=True) before the loop",
            )
        return value

    def _unknown(self, node: ast.Name) -> NoReturn:
        ended = self.scope.ended(node.id)
        why = "it was first assigned inside a block (if, for, while) and is unknown outside of it" if ended else ""
        if hasattr(builtins, node.id):
            why = "this builtin function is not part of the kernel language"
        hint = f"assign {node.id!r} before the block" if ended else "assign it first, or define it at module level"
        self.error(QuadrantsNameError, f"Name {node.id!r} is not defined", node, why=why, hint=hint)

    def python_object(self, value: Any, name: str) -> Any:
        """Return ``value`` itself, or a reference to the array it is."""
        if hasattr(value, "__qd_capture__") and not isinstance(value, type):
            return self.capture(value, name)
        return value

    def capture(self, value: Any, name: str) -> ArrayRef:
        """Return a reference to an array outside the kernel, as a parameter."""
        known = self._captures.get(id(value))
        if known is None:
            path = name
            while path in self.captured:
                self.counter += 1
                path = f"{name}.{self.counter}"
            self.captured[path] = value
            known = self._captures[id(value)] = self.array_ref(path, value.__qd_capture__())
        return known

    # -- parameters ---------------------------------------------------------------------------------------------------
    def param(self, path: str, type: Any, role: Role = Role.DATA) -> Param:
        """Return the parameter ``path``, made on first use."""
        param = self.params.get(path)
        if param is None:
            param = self.params[path] = Param(type, path, role)
        return param

    def array_ref(self, path: str, arg: Any) -> ArrayRef:
        """Return a reference to the array argument ``path`` of type ``arg`` (`ArrayArg`); its gradient is made on first
        use.
        """
        kind = ArrayType(arg.dtype, arg.ndim, arg.element_shape)

        def grad() -> ArrayRef:
            name = path + ".grad"
            return ArrayRef(self.param(name, kind, Role.ADJOINT), name, None, arg.order, arg.offset)

        return ArrayRef(self.param(path, kind), path, grad if arg.needs_grad else None, arg.order, arg.offset)

    def temporary(self, dtype: DType, size: int) -> Param:
        """Return a new temporary array of ``size`` scalars that core supplies."""
        self.counter += 1
        return self.param(f"temp.{self.counter}", ArrayType(dtype, 1, (), (size,)), Role.TEMP)

    # -- errors -------------------------------------------------------------------------------------------------------
    def error(
        self,
        kind: type[QuadrantsError],
        message: str,
        node: ast.AST | None = None,
        *,
        why: str = "",
        hint: str = "",
        cause: BaseException | None = None,
    ) -> NoReturn:
        """Raise ``kind`` at ``node`` (or the current place), with the call sites of inlined functions."""
        span = self.info.span_of(node) if node is not None and hasattr(node, "lineno") else self.builder.span
        callers = tuple(f.caller for f in reversed(self.frames) if f.caller is not None)
        raise kind(message, span=span, why=why, hint=hint, callers=callers) from cause

    def type_error(self, message: str, node: ast.AST | None = None, *, why: str = "", hint: str = "") -> NoReturn:
        """Raise a `QuadrantsTypeError` at ``node``."""
        self.error(QuadrantsTypeError, message, node, why=why, hint=hint)

    def syntax_error(self, message: str, node: ast.AST | None = None, *, why: str = "", hint: str = "") -> NoReturn:
        """Raise a `QuadrantsSyntaxError` at ``node``."""
        self.error(QuadrantsSyntaxError, message, node, why=why, hint=hint)

    def unsupported(self, node: ast.AST) -> NoReturn:
        """Refuse syntax that is not part of the language."""
        name = type(node).__name__
        self.syntax_error(
            f"Unsupported node {name!r}",
            node,
            why="this Python construct is not part of the kernel language",
            hint=_REMEDIES.get(name, ""),
        )

    def compile_time(self, f: Callable[[], Any], node: ast.AST, what: str) -> Any:
        """Run Python code at compile time; its exceptions are chained to one at the user's line."""
        try:
            return f()
        except QuadrantsError:
            raise
        except Exception as cause:
            self.error(
                QuadrantsCompilationError,
                f"{what} raised {type(cause).__name__}: {cause}",
                node,
                why="it is evaluated while the kernel is compiled",
                cause=cause,
            )

    # -- blocks -------------------------------------------------------------------------------------------------------
    @contextmanager
    def runtime_block(self) -> Generator[None]:
        """Inside a run-time `if`, `for` or `while`: loops are serial, `return` is refused."""
        self.runtime_depth += 1
        try:
            yield
        finally:
            self.runtime_depth -= 1

    def finish_region(self, region: Region, values: Sequence[Value]) -> None:
        """Append the terminator of a region that was built before its yields were known."""
        builder = self.builder
        outer, builder.region = builder.region, region
        builder.yield_(*values)
        builder.region = outer


_BUILTINS = frozenset(
    """abs all any bool dict divmod enumerate float frozenset getattr hasattr int isinstance issubclass len list max min pow print range
    reversed round set sorted str sum tuple type zip""".split()
)
"""Builtin functions that kernels can name; those without a meaning in kernels are called while compiling."""

_REMEDIES = {
    "Try": "check conditions with `if`",
    "Raise": "use `assert`, which reports in debug mode",
    "With": "only the library's own context managers can be used in kernels",
    "Lambda": "write a `@qd.func`",
    "Import": "import at module level",
    "ImportFrom": "import at module level",
    "Delete": "variables end with their block",
    "Global": "pass a field or an array and write an element of it",
    "Nonlocal": "pass a field or an array and write an element of it",
    "Set": "use a list or tuple",
    "SetComp": "use a list comprehension",
    "DictComp": "use a list comprehension",
    "GeneratorExp": "use a list comprehension",
    "FunctionDef": "define a `@qd.func` outside the kernel",
    "ClassDef": "define classes outside the kernel",
    "NamedExpr": "assign on a line of its own",
    "Match": "use `if` and `elif`",
    "Yield": "store results in an array",
    "Await": "kernels are not asynchronous",
}
