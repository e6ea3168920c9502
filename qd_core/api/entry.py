"""From a call's arguments to a launch plan: which leaf of the compiled code comes from where.

Where arguments are arrays and numbers, the native entry takes them as they are. Where some are compiled in or read
member by member, a small
Python function is made that compares what was compiled in, reads the members, and calls the native entry with the
leaves.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qd_core.api.matrix import Matrix
from qd_core.api.specialize import Specialisation
from qd_core.api.structs import Struct
from qd_core.api.templates import fingerprint
from qd_core.frontend.functions import Func
from qd_core.frontend.members import Member
from qd_core.frontend.signature import (
    ArgType,
    ArrayArg,
    FieldsArg,
    MatrixArg,
    ObjectArg,
    ScalarArg,
    StructArg,
    TemplateArg,
)
from qd_core.passes.draws import RANDOM
from qd_core.runtime.arguments import ArrayView
from qd_core.runtime.context import Runtime
from qd_core.runtime.interop import ArraySource
from qd_core.runtime.native import MISS, NativeLauncher
from qd_core.runtime.native_plan import Origin

__all__ = ["Route", "make_entry", "make_leaves", "route_of"]

HOPS = ("grad", "dual")


_IDENTICAL = (type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType, type(None), Func)


@dataclass(slots=True)
class Route:
    """Leaves of one call.

    Attributes
    ----------
    values : list
        What the native entry gets.
    origins : dict of str to Origin
        Which of them each leaf comes from.
    constants : dict of str to ArrayView
        Leaves that are arrays outside the kernel.
    direct : bool
        Whether ``values`` are the call's arguments.
    """

    values: list[Any]
    origins: dict[str, Origin] = field(default_factory=dict[str, Origin])
    constants: dict[str, ArrayView] = field(default_factory=dict[str, ArrayView])
    direct: bool = True
    lines: list[str] = field(default_factory=list[str])
    expressions: list[str] = field(default_factory=list[str])
    names: dict[str, Any] = field(default_factory=dict[str, Any])


def route_of(
    spec: Specialisation, parameters: Sequence[str], args: Sequence[Any], sources: Mapping[str, ArraySource]
) -> Route | None:
    """Return the route of calls like this one; None where they must stay in Python."""
    route = Route(list(args))
    supplied = {RANDOM, *spec.executable.supplied}
    wanted = {leaf.path for leaf in spec.executable.table.leaves if leaf.path not in supplied}
    plain = all(isinstance(kind, (ScalarArg, ArrayArg)) for kind in spec.arguments)
    if any(_shared(kind) for kind in (*spec.arguments, *(k for m, k in spec.members if m.root))) or spec.same:
        return None  # code that relies on two arguments being one array
    if plain and all(not m.root for m, _ in spec.members):
        for position, name in enumerate(parameters):
            _add_origins(route, name, position, sources)
    elif not _add_flattened(route, spec, parameters, args, wanted, sources):
        return None
    return route if _add_constants(route, spec, wanted, sources) else None


def _shared(kind: ArgType) -> bool:
    if isinstance(kind, FieldsArg):
        return any(_shared(k) for _, k in kind.members)
    return isinstance(kind, ArrayArg) and bool(kind.shares or kind.first is not None)


def _add_origins(route: Route, path: str, position: int, sources: Mapping[str, ArraySource]) -> None:
    route.origins[path] = Origin(position)
    for hop in HOPS:
        if f"{path}.{hop}" in sources:
            route.origins[f"{path}.{hop}"] = Origin(position, hop)


def _add_constants(route: Route, spec: Specialisation, wanted: set[str], sources: Mapping[str, ArraySource]) -> bool:
    """Resolve leaves that no argument gives."""
    for path in wanted - route.origins.keys():
        source = sources.get(path)
        view = source.view(spec.executable.runtime) if source is not None else None
        if view is None or not any(
            path == m.path or path.startswith(f"{m.path}.") for m, _ in spec.members if not m.root
        ):
            return False
        route.constants[path] = view
    return True


# -- flattening -------------------------------------------------------------------------------------------------------
def _add_flattened(
    route: Route,
    spec: Specialisation,
    parameters: Sequence[str],
    args: Sequence[Any],
    wanted: set[str],
    sources: Mapping[str, ArraySource],
) -> bool:
    """Write the statements that compare, and the expressions that read the leaves."""
    route.values, route.direct = [], False
    for position, (name, kind) in enumerate(zip(parameters, spec.arguments, strict=True)):
        if not _add_value(route, name, f"a{position}", kind, args[position], wanted, sources):
            return False
    arguments = dict(zip(parameters, args, strict=True))
    for member, kind in spec.members:
        if member.root:
            variable = f"m{len(route.names)}_{len(route.lines)}"
            reached = _expression(route, member, parameters)
            if isinstance(kind, (ScalarArg, ArrayArg)) and not _uses(wanted, member.path):
                continue
            route.lines.append(f"{variable} = {reached}")
            if not _add_value(route, member.path, variable, kind, member.read(arguments), wanted, sources):
                return False
    return True


def _uses(wanted: set[str], path: str) -> bool:
    return any(p in wanted for p in (path, *(f"{path}.{h}" for h in HOPS)))


def _expression(route: Route, member: Member, parameters: Sequence[str]) -> str:
    text = f"a{parameters.index(member.root)}"
    for kind, key in member.steps:
        if kind == "attr":
            text += f".{key}"
        elif kind == "has":
            text = f"({_name(route, key)} in {text})"
        else:
            text += f"[{_name(route, key)}]"
    return text


def _name(route: Route, value: Any) -> str:
    name = f"c{len(route.names)}"
    route.names[name] = value
    return name


def _add_value(
    route: Route,
    path: str,
    variable: str,
    kind: ArgType,
    value: Any,
    wanted: set[str],
    sources: Mapping[str, ArraySource],
) -> bool:
    if isinstance(kind, (ScalarArg, ArrayArg)):
        if _uses(wanted, path):
            _add_origins(route, path, len(route.values), sources)
            route.values.append(value)
            route.expressions.append(variable)
        return True
    if isinstance(kind, MatrixArg):
        return _add_matrix(route, path, variable, kind, value)
    if isinstance(kind, StructArg):
        return _add_struct(route, path, variable, kind, value, wanted, sources)
    if isinstance(kind, ObjectArg):
        return _add_check(route, _object_check(route, variable, kind))
    if isinstance(kind, TemplateArg):
        return _add_check(route, _template_check(route, variable, kind))
    return False


def _add_matrix(route: Route, path: str, variable: str, kind: MatrixArg, value: Any) -> bool:
    """Components of a matrix or NumPy array; the native entry checks them like other numbers."""
    if not isinstance(value, (Matrix, np.ndarray)):
        return False
    data = f"{variable}._data" if isinstance(value, Matrix) else variable
    route.lines += [
        f"if not ({variable}.__class__ is {_name(route, type(value))} and {data}.shape == {kind.shape}): break",
        f"{variable}_ = {data}{'.ravel()' if len(kind.shape) > 1 else ''}.tolist()",
    ]
    for position, index in enumerate(np.ndindex(*kind.shape)):
        route.origins[f"{path}[{','.join(map(str, index))}]"] = Origin(len(route.values))
        route.values.append(np.asarray(value).ravel()[position].item())
        route.expressions.append(f"{variable}_[{position}]")
    return True


def _add_struct(
    route: Route,
    path: str,
    variable: str,
    kind: StructArg,
    value: Any,
    wanted: set[str],
    sources: Mapping[str, ArraySource],
) -> bool:
    """Members of a struct or dict, one after the other."""
    if type(value) not in (Struct, dict):
        return False
    inside = f"{variable}._members" if type(value) is Struct else variable
    check = f"{variable}.__class__ is {_name(route, type(value))} and len({inside}) == {len(kind.members)}"
    route.lines += [f"if not ({check}): break"]
    for number, (name, part) in enumerate(kind.members):
        member = f"{variable}_{number}"
        route.lines.append(f"{member} = {inside}[{name!r}]")
        if not _add_value(route, f"{path}.{name}", member, part, value[name], wanted, sources):
            return False
    return True


def _add_check(route: Route, condition: str | None) -> bool:
    if condition is None:
        return False
    route.lines.append(f"if not ({condition}): break")
    return True


def _object_check(route: Route, variable: str, kind: ObjectArg) -> str:
    if isinstance(kind.key, tuple):
        size = "bool" if isinstance(kind.key[1], bool) else "len"
        return f"{variable}.__class__ is {_name(route, kind.key[0])} and {size}({variable}) == {kind.key[1]}"
    return f"{variable}.__class__ is {_name(route, kind.key)}"


def _template_check(route: Route, variable: str, kind: TemplateArg) -> str | None:
    """Condition under which a value is the one that was compiled in."""
    value = kind.value
    if isinstance(value, _IDENTICAL):
        return f"{variable} is {_name(route, value)}"
    if type(value) in (int, str, bool, bytes) or (type(value) is float and value == value and value != 0):
        return f"{variable}.__class__ is {_name(route, type(value))} and {variable} == {_name(route, value)}"
    key = fingerprint(value)
    if key is None or key != kind.value_key or isinstance(value, np.ndarray):
        return None  # found anew at each launch in Python
    return f"{_name(route, fingerprint)}({variable}) == {_name(route, key)}"


def make_entry(
    route: Route, count: int, launcher: NativeLauncher, runtime: Runtime, other: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function of ``count`` arguments that launches natively where it can, and calls ``other`` elsewhere.

    Under a tape, which lets no launch pass unseen, it launches by the kernel's site (`runtime.tape_sites`).
    """
    arguments = [f"a{k}" for k in range(count)]
    head = ", ".join([*(f"{a}=MISS" for a in arguments), "*rest", "**named"])
    names = ", ".join([*arguments, ""])
    source = (
        f"def entry({head}):\n"
        "    while not (rest or named):\n"
        "        try:\n"
        f"{_leaf_lines(route, 12)}"
        "        except (AttributeError, LookupError):\n"
        "            break\n"
        "        result = native(*leaves)\n"
        "        if result is MISS and runtime.recorder is not None and not derivative:\n"
        f"            result = runtime.recorder.observe(launcher, leaves, ({names}))\n"
        "        if result is MISS:\n"
        "            break\n"
        "        return result\n"
        f"    return other(*(x for x in ({names}) if x is not MISS), *rest, **named)\n"
    )
    known = {"native": launcher.entry, "launcher": launcher, "derivative": launcher.derivative, "runtime": runtime}
    return _function(source, {**route.names, **known, "MISS": MISS, "other": other})


def make_leaves(route: Route, count: int) -> Callable[[Sequence[Any]], Any]:
    """Return the function from a call's ``count`` arguments to what the native entry gets; `MISS` elsewhere."""
    if route.direct:
        return tuple
    names = ", ".join([*(f"a{k}" for k in range(count)), ""])
    source = (
        "def entry(arguments):\n"
        f"    ({names}) = arguments\n"
        "    while True:\n"
        "        try:\n"
        f"{_leaf_lines(route, 12)}"
        "        except (AttributeError, LookupError):\n"
        "            break\n"
        "        return leaves\n"
        "    return MISS\n"
    )
    return _function(source, {**route.names, "MISS": MISS})


def _leaf_lines(route: Route, indent: int) -> str:
    lines = [*route.lines, f"leaves = ({', '.join([*route.expressions, ''])})"]
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def _function(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    exec(compile(source.replace("(, ", "(").replace("(,)", "()"), "<qd entry>", "exec"), names)
    return names["entry"]
