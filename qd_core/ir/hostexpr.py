"""Extents that the host computes: a region of pure scalar operations as a Python function.

The function is generated once a region. Integer arithmetic is exact by Python's own integers with the type's wrap;
everything else goes through the op table's meaning, so that host and device cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from qd_core.dtypes import DType
from qd_core.errors import InvalidIRError
from qd_core.ir.convert import convert
from qd_core.ir.fold import evaluate
from qd_core.ir.nodes import Node, Param, Region, Value

__all__ = ["evaluate_host"]

ScalarOf = Callable[[Param], Any]
ExtentOf = Callable[[Param, int], int]

_ARITHMETIC = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "neg": "-{}",
    "and": "{} & {}",
    "or": "{} | {}",
    "xor": "{} ^ {}",
}
_EXACT = {
    "min": "min({}, {})",
    "max": "max({}, {})",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "eq": "{} == {}",
    "ne": "{} != {}",
}


def evaluate_host(region: Region, scalar_of: ScalarOf, extent_of: ExtentOf) -> int:
    """Compute what a `HostExpr` region yields.

    Parameters
    ----------
    region : Region
        Pure operations on scalar parameters and extents, yielding one value. Not to be changed after the first call:
        the generated function is kept.
    scalar_of : callable
        Gives the Python (or NumPy) value of a scalar parameter; what its type cannot hold is wrapped, rounded or
        truncated.
    extent_of : callable
        Gives the extent of an array parameter's axis.

    Returns
    -------
    int
        The value; negative for an empty range.

    Raises
    ------
    InvalidIRError
        The region holds an operation that the host cannot compute.
    """
    return int(_compiled(region)(scalar_of, extent_of))


@lru_cache(maxsize=4096)
def _compiled(region: Region) -> Callable[[ScalarOf, ExtentOf], Any]:
    return _Writer(region).function()


class _Writer:
    """Writes one Python function: a line a node."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.scope: dict[str, Any] = {}

    def function(self) -> Callable[[ScalarOf, ExtentOf], Any]:
        for node in self.region.nodes[:-1]:
            expression = self.expression(node)
            self.names[node] = name = f"v{len(self.names)}"
            self.lines.append(f"{name} = {expression}")
        if len(self.region.yields) != 1:
            raise InvalidIRError("an extent yields one value")
        self.lines.append(f"return {self.use(self.region.yields[0])}")
        source = "def extent(scalar_of, extent_of):\n" + "".join(f"    {line}\n" for line in self.lines)
        exec(source, self.scope)  # the text is generated from operations of the table and names of this class alone
        return self.scope["extent"]

    def hold(self, value: Any) -> str:
        """Name of a Python object in the function's scope."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def use(self, value: Value) -> str:
        name = self.names.get(value)
        if name is None:
            if not isinstance(value, Param):
                raise InvalidIRError(f"an extent uses a value from elsewhere: {value!r}")
            self.names[value] = name = f"v{len(self.names)}"
            self.lines.append(f"{name} = {self.hold(_reader(value.type))}(scalar_of({self.hold(value)}))")
        return name

    def expression(self, node: Node) -> str:
        name, kind = node.op.name, node.type
        if name == "const":
            return self.hold(node.attrs["value"])
        if name == "extent":
            return f"extent_of({self.hold(node.operands[0])}, {int(node.attrs['axis'])})"
        operands = [self.use(v) for v in node.operands]
        types = [v.type for v in node.operands]
        if name in ("cast", "bitcast"):
            return self.conversion(name, operands[0], types[0], kind)
        if node.op.numpy is None:
            raise InvalidIRError(f"an extent cannot be computed by the host: {name}", span=node.span)
        if all(t.kind in "iu" for t in types) and name in _EXACT:
            return _EXACT[name].format(*operands)
        if all(t.kind in "iu" for t in types) and name in _ARITHMETIC:
            return _wrapped(_ARITHMETIC[name].format(*operands), kind)
        return f"{self.hold(_through_table(node, types))}({', '.join(operands)})"

    def conversion(self, name: str, operand: str, source: DType, to: DType) -> str:
        if name == "cast" and source.is_integral and to.kind in "iu":
            widens = to.min <= source.min and source.max <= to.max
            return f"int({operand})" if widens else _wrapped(f"int({operand})", to)
        return f"{self.hold(_converter(name, source, to))}({operand})"


def _converter(name: str, source: DType, to: DType) -> Callable[[Any], Any]:
    """Function that casts or reinterprets a Python value of ``source``."""
    if name == "cast":
        return lambda value: convert(source.scalar(value), to).item()
    return lambda value: np.asarray(value, source.numpy).view(to.numpy).item()


def _wrapped(expression: str, kind: DType) -> str:
    """Python expression of an integer expression's value in ``kind``."""
    mask = (1 << kind.bits) - 1
    if kind.kind == "u":
        return f"({expression}) & {mask}"
    half = 1 << (kind.bits - 1)
    return f"((({expression}) + {half}) & {mask}) - {half}"


def _reader(kind: DType) -> Callable[[Any], Any]:
    """Function from what a caller passes for a scalar to the value that the packed word holds."""
    from qd_core.ir.build import normalize_constant

    return lambda value: normalize_constant(kind, value)


def _through_table(node: Node, types: list[DType]) -> Callable[..., Any]:
    op, result, scalars = node.op, node.type, [t.scalar for t in types]

    def call(*args: Any) -> Any:
        return evaluate(op, tuple(s(a) for s, a in zip(scalars, args, strict=True)), result).item()

    return call
