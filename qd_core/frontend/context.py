"""State of one lowering, and the tables that say how each kind of syntax is lowered.

Modules of the front end add to the tables with the decorators `expression` and `statement`; `qd_core.frontend.lower`
imports them all.
"""

from __future__ import annotations

import ast
import builtins
import types
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
from qd_core.frontend.evidence import Evidence
from qd_core.frontend.members import Binder, Member, Members
from qd_core.frontend.scope import MISSING, Scope
from qd_core.frontend.signature import (
    EMPTY,
    ArgType,
    ArrayArg,
    FieldsArg,
    KernelInfo,
    MatrixArg,
    ObjectArg,
    ScalarArg,
    StructArg,
    TemplateArg,
)
from qd_core.frontend.values import ArrayRef, MatrixValue, ObjectRef, StructRef, StructValue
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
    private_memory : bool
        Keep large vectors that are indexed at run time in memory; not for kernels whose derivative is taken.
    """

    default_ip: DType = dt.i32
    default_fp: DType = dt.f32
    debug: bool = False
    check_out_of_bound: bool = False
    short_circuit: bool = True
    unrolling_limit: int = 32
    private_memory: bool = False

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
    call. ``early`` allows `return` inside run-time blocks.
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
    early: bool = False


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
    home : Region or None
        Body of the parallel loop around the current statement, where its private memory is reserved.
    loop_config : dict
        Hints of `qd.loop_config` for the next loop.
    """

    def __init__(self, info: KernelInfo, options: LowerOptions, bind: Binder | None = None) -> None:
        self.options = options
        self.evidence = Evidence(info.function)
        self.members = Members(bind if bind is not None else _captured_type, self.evidence)
        self.body = Region()
        self.builder = Builder(self.body)
        self.scope = Scope()
        self.frames = [Frame(info, self.scope, info.closure())]
        self.info = info
        self.params: dict[str, Param] = {}
        self.captured: dict[str, Any] = {}
        self._captures: dict[int, ArrayRef | StructRef] = {}
        self.static_depth = 0
        self.runtime_depth = 0
        self.parallel_depth = 0
        self.home: Region | None = None
        self.loop_config: dict[str, Any] = {}
        self.statement_region = self.body
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
        outer, self.statement_region = self.statement_region, self.builder.region
        rule(self, node)
        self.statement_region = outer

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
        closure, module = frame.closure, self.info.globals
        if name not in closure and name not in module and name not in _BUILTINS:
            self._unknown(node)
        value = closure[name] if name in closure else module[name] if name in module else getattr(builtins, name)
        self.evidence.name(self.info.function, name, value)
        return self.python_object(value, name)

    def _checked(self, node: ast.Name, value: Any) -> Any:
        if isinstance(value, Racy):
            self.error(
                QuadrantsSyntaxError,
                f"{node.id!r} is read after a parallel loop that assigns it",
                node,
                why=f"each iteration of the loop at line {value.span.line} had its own copy, and none of them is "
                "the last",
                hint="accumulate with `+=` only, store in an array, or put qd.loop_config(serialize=True) before "
                "the loop",
            )
        return value

    def _unknown(self, node: ast.Name) -> NoReturn:
        ended = self.scope.ended(node.id)
        why = "it was first assigned inside a block (if, for, while) and is unknown outside of it" if ended else ""
        hint = f"assign {node.id!r} before the block" if ended else "assign it first, or define it at module level"
        if hasattr(builtins, node.id):
            why = "this builtin function is not part of the kernel language"
            hint = "call it in Python scope and pass the result"
        if node.id == "super":
            hint = "name the base class, as in `Base.method(self, x)`"
        self.error(QuadrantsNameError, f"Name {node.id!r} is not defined", node, why=why, hint=hint)

    def python_object(self, value: Any, name: str) -> Any:
        """Return ``value`` itself, or a reference to the array (struct of arrays) it is."""
        if (hasattr(value, "__qd_capture__") or hasattr(value, "__qd_fields__")) and not isinstance(value, type):
            return self.capture(value, name)
        return value

    def capture(self, value: Any, name: str) -> ArrayRef | StructRef:
        """Return a reference to an array outside the kernel, as a parameter."""
        known = self._captures.get(id(value))
        if known is None:
            path = self._outside_path(name)
            self.captured[path] = value
            with self.located():
                known = self._captures[id(value)] = self.arrays_of(path, self.members.outside(path, value))
        return known

    def _outside_path(self, name: str) -> str:
        """Path for an array outside the kernel, different from those of arguments and of what core supplies."""
        taken = {p.name for p in self.frames[0].info.parameters} | _SUPPLIED
        path = name = f"outside.{name}" if name.partition(".")[0] in taken else name
        while path in self.members.read:
            self.counter += 1
            path = f"{name}.{self.counter}"
        return path

    @contextmanager
    def located(self) -> Generator[None]:
        """Give errors of binding the user's line."""
        try:
            yield
        except QuadrantsError as error:
            if error.span is None:
                error.span = self.builder.span
            raise

    def member(self, owner: Any, kind: str, key: Any, value: Any, name: str) -> Any:
        """Return what ``value``, the attribute or item ``key`` of a Python object, stands for."""
        origin = self.members.origin(owner)
        if origin is None or isinstance(value, (types.ModuleType, types.FunctionType, types.MethodType)):
            (self.evidence.attribute if kind == "attr" else self.evidence.item)(owner, key, value)
            return self.python_object(value, name)
        passed = kind == "attr" and not getattr(owner, "__qd_template_primitives__", True)
        annotation = plain_type(value) if passed else EMPTY
        return self.observed(origin.step(kind, key, annotation), value)

    def method(self, owner: Any, name: str, value: Any) -> Any:
        """Return ``value``, the attribute ``name`` of an object that is called; the class is known with the object."""
        origin, own = self.members.origin(owner), getattr(owner, "__dict__", None)
        self.evidence.attribute(owner, name, value)
        if origin is None or own is None:
            return value
        if name in own:
            return self.member(owner, "attr", name, value, name)
        self.members.observe(origin.step("attr", "__dict__").step("has", name), False)
        return value

    def observed(self, member: Member, value: Any) -> Any:
        """Return what ``value``, read on the way ``member``, stands for."""
        with self.located():
            kind = self.members.observe(member, value)
        if isinstance(kind, (ObjectArg, TemplateArg)) and not member.whole:
            self.evidence.member(member.root, member.steps, value)
        return self.argument(member.path, kind, member)

    def items(self, value: Any) -> Any:
        """Return a list or tuple that came with an argument with its items bound; anything else as it is."""
        origin = self.members.origin(value) if isinstance(value, (list, tuple)) else None
        if origin is None:
            return value
        return [self.observed(origin.step("item", k), v) for k, v in enumerate(value)]

    # -- arguments ----------------------------------------------------------------------------------------------------
    def argument(self, path: str, kind: ArgType, member: Member | None = None) -> Any:
        """Value of an argument or member: parameters are made at once, and dropped where nothing uses them."""
        if isinstance(kind, ScalarArg):
            return self.param(path, kind.dtype)
        if isinstance(kind, MatrixArg):
            items = [self.param(f"{path}[{at}]", kind.dtype) for at in _positions(kind.shape)]
            return MatrixValue(kind.shape, items, kind.dtype)
        if isinstance(kind, (ArrayArg, FieldsArg)):
            return self.arrays_of(path, kind)
        if isinstance(kind, StructArg):
            parts = {name: self.argument(f"{path}.{name}", part) for name, part in kind.members}
            return StructValue(parts, kind.origin)
        if member is None:
            self.evidence.argument(path, kind.value)
        if isinstance(kind, ObjectArg):
            member = member if member is not None else self.members.root(path, kind.value)
            return ObjectRef(kind.value, member) if kind.typed else kind.value
        return self.python_object(kind.value, path)

    def arrays_of(self, path: str, kind: ArgType) -> ArrayRef | StructRef:
        """Reference to an array or a struct of arrays."""
        if isinstance(kind, FieldsArg):
            return StructRef({n: self.arrays_of(f"{path}.{n}", k) for n, k in kind.members}, kind.origin, path)
        assert isinstance(kind, ArrayArg)
        return self.array_ref(path, kind)

    # -- parameters ---------------------------------------------------------------------------------------------------
    def param(self, path: str, type: Any, role: Role = Role.DATA) -> Param:
        """Return the parameter ``path``, made on first use."""
        param = self.params.get(path)
        if param is None:
            param = self.params[path] = Param(type, path, role)
        return param

    def array_ref(self, path: str, arg: ArrayArg) -> ArrayRef:
        """Return a reference to the array argument ``path``; its gradient and dual are made on first use."""
        kind = ArrayType(arg.dtype, arg.ndim, arg.element_shape)
        home = arg.shares or path

        def shadow(hop: str, role: Role) -> Callable[[], ArrayRef]:
            return lambda: ArrayRef(self.param(f"{home}.{hop}", kind, role), f"{path}.{hop}", None, arg)

        grad = shadow("grad", Role.ADJOINT) if arg.needs_grad else None
        dual = shadow("dual", Role.DUAL) if arg.needs_dual else None
        return ArrayRef(self.param(home, kind), path, grad, arg, dual)

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
            f'Unsupported node "{name}"',
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


def _captured_type(path: str, annotation: Any, value: Any) -> ArgType:
    """Type of an array outside the kernel where whoever lowers does not bind members."""
    if hasattr(value, "__qd_capture__"):
        return value.__qd_capture__()
    return TemplateArg((type(value), id(value)), value)


def _positions(shape: tuple[int, ...]) -> list[str]:
    """Names of the components of a vector or matrix argument."""
    if len(shape) == 1:
        return [str(i) for i in range(shape[0])]
    return [f"{i},{j}" for i in range(shape[0]) for j in range(shape[1])]


def plain_type(value: Any) -> Any:
    """Annotation that passes a Python number at run time; EMPTY for anything else."""
    return type(value) if type(value) in (int, float, bool) else EMPTY


_SUPPLIED = frozenset(("log", "temp", "temporary", "return", "residual", "outside"))
"""First parts of the paths of arrays that core supplies."""

_BUILTINS = frozenset(
    """abs all any bool dict divmod enumerate float frozenset getattr hasattr int isinstance issubclass len list max min
    pow print range
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
    "Constant": "only numbers, truth values, text and None are literals of kernels",
    "Starred": "unpack by index, or pass the items one by one",
    "Set": "use a list or tuple",
    "SetComp": "use a list comprehension",
    "GeneratorExp": "use a list comprehension",
    "FunctionDef": "define a `@qd.func` outside the kernel",
    "ClassDef": "define classes outside the kernel",
    "Match": "use `if` and `elif`",
    "Yield": "store results in an array",
    "Await": "kernels are not asynchronous",
}
