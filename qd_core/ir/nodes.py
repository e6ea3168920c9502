"""SSA nodes: scalars, array parameters, and structured regions.

A node with one result is its own value. Region operations with several results expose them as :class:`Result`. Values
are
compared by identity. Nothing here decides legality: that is `ir.verify`, and construction goes through
`ir.build.Builder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from qd_core.dtypes import DType

if TYPE_CHECKING:
    from qd_core.errors import Span
    from qd_core.ir.ops import OpDef

__all__ = [
    "Access",
    "Arg",
    "ArrayType",
    "Function",
    "Node",
    "Param",
    "Region",
    "Result",
    "Role",
    "ScratchType",
    "Value",
    "indices_of",
]


class Role(Enum):
    """What a parameter is for. It labels messages and dumps; no transform, emitter or launcher branches on it."""

    DATA = "data"
    ADJOINT = "adjoint"
    DUAL = "dual"
    RESIDUAL = "residual"
    TEMP = "temp"
    RESULT = "result"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array in device memory.

    Parameters
    ----------
    dtype : DType
        Element scalar type.
    ndim : int
        Axes with a run-time extent.
    element_shape : tuple of int
        Static trailing axes: ``(3,)`` for an array of 3-vectors.
    fixed_shape : tuple of int or None
        Static extents of the run-time axes where they are known at compile time (results, temporaries).
    """

    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    fixed_shape: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        """Number of indices of a load: run-time axes and element axes."""
        return self.ndim + len(self.element_shape)

    @property
    def element_size(self) -> int:
        """Scalars in one element."""
        size = 1
        for n in self.element_shape:
            size *= n
        return size

    def __repr__(self) -> str:
        shape = "?" * self.ndim if self.fixed_shape is None else "x".join(map(str, self.fixed_shape)) or "1"
        element = "".join(f"x{n}" for n in self.element_shape)
        return f"array<{shape}{element}:{self.dtype.name}>"


@dataclass(frozen=True, slots=True)
class ScratchType:
    """Private memory of one iteration: a one-dimensional array of ``dtype`` whose length is a run-time value."""

    dtype: DType

    def __repr__(self) -> str:
        return f"scratch<{self.dtype.name}>"


Type = DType | ArrayType | ScratchType


class Value:
    """Anything an operation can use: a node, a region argument, a parameter, or one of several results."""

    __slots__ = ("type",)
    type: Any  # DType almost always: left open so that hot code need not narrow.


class Node(Value):
    """One operation. With exactly one result it is the value of that result; ``type`` is None without results."""

    __slots__ = ("attrs", "op", "operands", "regions", "results", "span")

    def __init__(
        self,
        op: OpDef,
        type: Any,
        operands: tuple[Value, ...],
        attrs: dict[str, Any],
        span: Span | None,
        regions: tuple[Region, ...] = (),
    ) -> None:
        self.op, self.type, self.operands, self.attrs, self.span, self.regions = (
            op,
            type,
            operands,
            attrs,
            span,
            regions,
        )
        self.results: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.op.name}:{self.type}>"


def indices_of(access: Node) -> tuple[Value, ...]:
    """Indices of a load, store or atomic: one an axis of the array's full rank."""
    return access.operands[1 : 1 + access.operands[0].type.rank]


class Result(Value):
    """One result of a region operation (also when it has a single one)."""

    __slots__ = ("index", "node")

    def __init__(self, type: Any, node: Node, index: int) -> None:
        self.type, self.node, self.index = type, node, index


class Arg(Value):
    """An argument of a region: an induction variable or a carried value."""

    __slots__ = ("name", "region")

    def __init__(self, type: Any, name: str = "") -> None:
        self.type, self.name = type, name
        self.region: Region | None = None


class Param(Value):
    """A parameter of a function: a scalar or an array leaf of the kernel's signature.

    ``path`` is what the user calls it (``"state.pos"``, ``"x.grad"``), ``role`` what it is for.
    """

    __slots__ = ("path", "role")

    def __init__(self, type: Any, path: str, role: Role = Role.DATA) -> None:
        self.type, self.path, self.role = type, path, role

    def __repr__(self) -> str:
        return f"%{self.path}:{self.type}"


class Region:
    """A list of nodes with arguments; its last node is a ``yield``."""

    __slots__ = ("args", "nodes")

    def __init__(self, args: tuple[Arg, ...] = ()) -> None:
        self.args = args
        for a in args:
            a.region = self
        self.nodes: list[Node] = []

    @property
    def terminator(self) -> Node:
        """The ``yield`` that ends the region."""
        return self.nodes[-1]

    @property
    def yields(self) -> tuple[Value, ...]:
        """Operands of the terminator."""
        return self.nodes[-1].operands


class Access(Enum):
    """How a kernel uses an array leaf."""

    NONE = 0
    READ = 1
    WRITE = 2
    READ_WRITE = 3


@dataclass(slots=True)
class Function:
    """A kernel (or, before inlining, a function) in IR form.

    The caller passes ``params`` in order. Parameters with role RESULT, TEMP, RESIDUAL or LOG are supplied by core.
    """

    name: str
    params: list[Param]
    body: Region
    span: Span | None = None
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
