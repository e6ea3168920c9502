"""Make parameters that are the same array one parameter.

Analyses take arrays of different parameters as different memory. When a launch passes one array for two parameters,
unifying them first makes every later pass exact for it, derivatives included.
"""

from __future__ import annotations

from collections.abc import Mapping

from qd_core.ir.build import Builder
from qd_core.ir.nodes import Function, Region, Value
from qd_core.ir.rewrite import Copier

__all__ = ["unify"]


def unify(function: Function, same: Mapping[str, str]) -> Function:
    """Return ``function`` with parameters replaced by others of the same type.

    Parameters
    ----------
    function : Function
        A kernel; it is not changed.
    same : mapping of str to str
        Path of a parameter to the path of the one that stands for it; paths that the function has not are ignored.
    """
    by_path = {p.path: p for p in function.params}
    mapping: dict[Value, Value] = {p: by_path[same.get(p.path, p.path)] for p in function.params}
    body = Region()
    Copier(Builder(body), mapping).nodes(function.body.nodes)
    params = [p for p in function.params if mapping[p] is p]
    return Function(function.name, params, body, function.span, dict(function.attrs))
