"""Evaluates expansions of `qd_core.elementary` over NumPy arrays, and measures errors in units in the last place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qd_core.dtypes import DType
from qd_core.elementary import expand
from qd_core.ir.build import Builder
from qd_core.ir.fold import evaluate
from qd_core.ir.nodes import Node, Param, Region, Value
from qd_core.ir.rewrite import eliminate_dead, walk


def build(
    emit: Callable[[Builder, list[Value]], Sequence[Value]], types: Sequence[DType]
) -> tuple[Region, list[Param]]:
    """Return a region that yields what ``emit(builder, params)`` returns, without dead nodes."""
    region = Region()
    b, params = Builder(region), [Param(t, f"x{i}") for i, t in enumerate(types)]
    b.yield_(*emit(b, list(params)))
    eliminate_dead(region)
    return region, params


def expansion(name: str, types: Sequence[DType]) -> tuple[Region, list[Param]]:
    """Region that yields the expansion of operation ``name``."""
    return build(lambda b, p: [expand(b, name, p)], types)


def count_nodes(region: Region) -> int:
    """Operations in a region, constants and yields left out."""
    return sum(n.op.name not in ("const", "yield") for n in walk(region))


def run(region: Region, params: Sequence[Value], arrays: Sequence[Any]) -> list[Any]:
    """Evaluate a region elementwise: every branch and every pass of a loop for all elements, then select."""
    env: dict[Value, Any] = dict(zip(params, arrays, strict=True))
    return _body(region, env, np.asarray(arrays[0]).shape)


def _body(region: Region, env: dict[Value, Any], shape: tuple[int, ...]) -> list[Any]:
    for node in region.nodes[:-1]:
        _node(node, env, shape)
    return [env[v] for v in region.yields]


def _node(node: Node, env: dict[Value, Any], shape: tuple[int, ...]) -> None:
    name = node.op.name
    args = tuple(env[v] for v in node.operands)
    if name == "const":
        env[node] = np.full(shape, node.attrs["value"], node.type.numpy)
    elif name == "cast":
        with np.errstate(all="ignore"):
            env[node] = args[0].astype(node.type.numpy)
    elif name == "bitcast":
        env[node] = args[0].view(node.type.numpy)
    elif name == "if":
        then, otherwise = (_body(r, env, shape) for r in node.regions)
        env.update(
            zip(node.results, (np.where(args[0], t, o) for t, o in zip(then, otherwise, strict=True)), strict=True)
        )
    elif name == "while":
        env.update(zip(node.results, _while(node, list(args), env, shape), strict=True))
    else:
        env[node] = evaluate(node.op, args, node.type)


def _while(node: Node, carried: list[Any], env: dict[Value, Any], shape: tuple[int, ...]) -> list[Any]:
    condition, body = node.regions
    while True:
        env.update(zip(condition.args, carried, strict=True))
        (go,) = _body(condition, env, shape)
        if not np.any(go):
            return carried
        env.update(zip(body.args, carried, strict=True))
        carried = [np.where(go, new, old) for new, old in zip(_body(body, env, shape), carried, strict=True)]


def evaluate_function(name: str, *arrays: Any) -> Any:
    """Value of the expansion of ``name`` at arrays of one type."""
    from qd_core import dtypes as dt

    types = [dt.from_numpy(a.dtype) for a in arrays]
    region, params = expansion(name, types)  # type: ignore[arg-type]
    return run(region, params, arrays)[0]


def ulp_error(got: Any, exact: Any) -> Any:
    """|got - exact| in units in the last place of ``got.dtype`` at ``exact``, an array of more precision.

    0 where both are the same special value, infinity where they are different ones.
    """
    info = np.finfo(got.dtype)
    wide = np.asarray(exact)
    magnitude = np.maximum(np.abs(wide), wide.dtype.type(info.smallest_normal))
    with np.errstate(all="ignore"):
        spacing = np.exp2(np.floor(np.log2(magnitude)) - info.nmant).astype(wide.dtype)
        error = np.abs(got.astype(wide.dtype) - wide) / spacing
        rounded = wide.astype(got.dtype)
        same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | (np.isnan(got) & np.isnan(rounded))
        special = ~np.isfinite(rounded) | (wide == 0) | ~np.isfinite(got)
    return np.where(special, np.where(same, 0.0, np.inf), error).astype(np.float64)
