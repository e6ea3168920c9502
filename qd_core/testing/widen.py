"""The same code in another precision: how tests learn the error that the reference itself makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Function, Node, Param, Region
from qd_core.ir.rewrite import Copier

__all__ = ["NARROW", "WIDE", "BitPatternError", "retyped"]

WIDE: Mapping[DType, DType] = {dt.f16: dt.f64, dt.f32: dt.f64}
"""Every real in f64."""

NARROW: Mapping[DType, DType] = {dt.f16: dt.f32, dt.f64: dt.f32}
"""Every real in f32."""


class BitPatternError(Exception):
    """The code looks at the bits of a real: it has no meaning in another precision."""


def retyped(function: Function, types: Mapping[DType, DType]) -> Function:
    """Return a copy of ``function`` with other real types; parameters keep their paths.

    Raises
    ------
    BitPatternError
        The code reinterprets bits of a type that changes.
    """
    result = Function(function.name, [], Region(), function.span, dict(function.attrs))
    copier = _Retyper(Builder(result.body), types)
    for param in function.params:
        new = Param(copier.type(param.type), param.path, param.role)
        result.params.append(new)
        copier.mapping[param] = new
    copier.nodes(function.body.nodes[:-1])
    copier.builder.yield_(*copier.values(function.body.yields))
    return result


class _Retyper(Copier):
    """A copier that changes real types."""

    __slots__ = ("types",)

    def __init__(self, builder: Builder, types: Mapping[DType, DType]) -> None:
        super().__init__(builder, rule=_retype)
        self.types = types

    def type(self, old: Any) -> Any:
        """Return what stands for a type."""
        if isinstance(old, ArrayType):
            return replace(old, dtype=self.type(old.dtype))
        return self.types.get(old, old)

    def region(self, region: Region, *, loop: bool) -> Region:
        """Copy a region with arguments of the new types."""
        with self.builder.inside([(self.type(a.type), a.name) for a in region.args], loop=loop) as new:
            self.mapping.update(zip(region.args, new.args, strict=True))
            self.builder.yield_(*self.body(region))
        return new


def _retype(copier: Copier, node: Node) -> bool:
    assert isinstance(copier, _Retyper)
    builder, name = copier.builder, node.op.name
    if name == "const":
        copier.mapping[node] = builder.const(copier.type(node.type), node.attrs["value"])
    elif name == "cast":
        copier.mapping[node] = builder.cast(copier.value(node.operands[0]), copier.type(node.type))
    elif name == "bitcast" and {node.type, node.operands[0].type} & copier.types.keys():
        raise BitPatternError(node.op.name)
    elif name == "atomic":
        array, *rest = copier.values(node.operands)
        copier.mapping[node] = builder.atomic(node.attrs["kind"], array, (), *rest)
    elif name == "scratch":
        copier.mapping[node] = builder.scratch(copier.type(node.attrs["to"]), copier.value(node.operands[0]))
    elif name == "scratch_load":
        copier.mapping[node] = builder.scratch_load(*copier.values(node.operands))
    else:
        return False
    return True
