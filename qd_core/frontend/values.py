"""What an expression of the kernel language evaluates to while it is lowered.

* An SSA value (`qd_core.ir.nodes.Value`): a scalar known at run time.
* A :class:`MatrixValue`: a vector or matrix, as a tuple of SSA scalars of one type. It is immutable: assignment copies
for free.
* A :class:`StructValue`: named members.
* A :class:`ArrayRef`: an array in memory, which is a parameter of the function.
* A tuple or list of these: a compile-time container.
* Anything else is a compile-time Python object: numbers, types, modules, functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qd_core.dtypes import DType
from qd_core.frontend.annotations import MatrixType
from qd_core.ir.build import constant_of
from qd_core.ir.nodes import Param, Value

if TYPE_CHECKING:
    from qd_core.frontend.members import Member
    from qd_core.frontend.signature import ArrayArg

__all__ = [
    "ArrayRef",
    "Capturable",
    "Grouped",
    "MatrixValue",
    "NdRange",
    "ObjectRef",
    "PrivateMatrix",
    "RangeValue",
    "StructRef",
    "StructValue",
    "describe",
    "flatten",
    "is_constant_matrix",
    "is_number",
    "is_runtime",
    "rebuild",
    "static_int",
]


class MatrixValue:
    """A vector or matrix of scalars.

    Attributes
    ----------
    shape : tuple of int
        ``(n,)`` or ``(n, m)``.
    items : tuple of Value
        Components in row-major order, all of ``dtype``.
    """

    __slots__ = ("dtype", "items", "shape")

    def __init__(self, shape: tuple[int, ...], items: Sequence[Value], dtype: DType | None = None) -> None:
        self.shape, self.items = shape, tuple(items)
        self.dtype: DType = dtype if dtype is not None else self.items[0].type

    def map(self, f: Callable[[Value], Value]) -> MatrixValue:
        """Apply ``f`` to each component."""
        return MatrixValue(self.shape, tuple(map(f, self.items)))

    def row(self, i: int) -> MatrixValue:
        """Row ``i`` of a matrix as a vector."""
        m = self.shape[1]
        return MatrixValue((m,), self.items[i * m : (i + 1) * m], self.dtype)

    def column(self, j: int) -> MatrixValue:
        """Column ``j`` of a matrix as a vector."""
        return MatrixValue((self.shape[0],), self.items[j :: self.shape[1]], self.dtype)

    def __repr__(self) -> str:
        return describe(self)


class PrivateMatrix:
    """A variable in private memory: a vector or matrix of ``shape``, row-major, in the scratch memory ``memory``."""

    __slots__ = ("dtype", "memory", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: DType, memory: Value) -> None:
        self.shape, self.dtype, self.memory = shape, dtype, memory
        self.size = math.prod(shape)


class StructValue:
    """Named members, each a scalar, matrix or struct. Immutable: a store makes a new one."""

    __slots__ = ("members", "type")

    def __init__(self, members: dict[str, Any], type: Any = None) -> None:
        self.members, self.type = members, type

    def replace(self, name: str, value: Any) -> StructValue:
        """Copy with one member changed."""
        return StructValue({**self.members, name: value}, self.type)


class ArrayRef:
    """An array parameter, or its gradient.

    Attributes
    ----------
    param : Param
        The parameter; its type has dtype, storage axes and element shape.
    name : str
        What the user calls it.
    layout : ArrayArg or None
        How indices become storage indices; None where they are the same.
    grad, dual : callable or None
        Return the reference to the array of gradients or tangents; None where there is none.
    """

    __slots__ = ("dual", "grad", "layout", "name", "param")

    def __init__(
        self,
        param: Param,
        name: str,
        grad: Callable[[], ArrayRef] | None = None,
        layout: ArrayArg | None = None,
        dual: Callable[[], ArrayRef] | None = None,
    ) -> None:
        self.param, self.name, self.grad, self.layout, self.dual = param, name, grad, layout, dual

    @property
    def order(self) -> tuple[int, ...] | None:
        """Index axis of each storage axis; None for the identity."""
        return self.layout.order if self.layout is not None else None

    @property
    def offset(self) -> tuple[int, ...] | None:
        """Subtracted from the indices."""
        return self.layout.offset if self.layout is not None else None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Extents of the index axes where they are known at compile time."""
        return self.layout.shape if self.layout is not None else None

    @property
    def ndim(self) -> int:
        """Number of indices of an element."""
        return self.layout.index_axes if self.layout is not None else self.param.type.ndim

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Shape of an element."""
        shared = self.layout is not None and (self.layout.first is not None or self.layout.split)
        return self.layout.part if shared else self.param.type.element_shape  # type: ignore[union-attr]

    @property
    def dtype(self) -> DType:
        """Scalar type of the elements."""
        return self.param.type.dtype


class StructRef:
    """A struct field: arrays by member name, which all have the same index axes."""

    __slots__ = ("members", "name", "type")

    def __init__(self, members: dict[str, ArrayRef | StructRef], type: Any, name: str) -> None:
        self.members, self.type, self.name = members, type, name

    @property
    def first(self) -> ArrayRef:
        """The array of the first member, which has the axes of all."""
        member = next(iter(self.members.values()))
        return member.first if isinstance(member, StructRef) else member


class ObjectRef:
    """An argument of a dataclass: its members are parameters, made when they are read."""

    __slots__ = ("member", "value")

    def __init__(self, value: Any, member: Member) -> None:
        self.value, self.member = value, member


class Capturable(Protocol):
    """A Python object outside the kernel that is an array in memory: a field, or an ndarray held by an object.

    The kernel gets a parameter for it; whoever launches the kernel passes the object itself.
    """

    def __qd_capture__(self) -> Any:
        """Return the `qd_core.frontend.signature.ArrayArg` that describes it."""
        ...


class RangeValue:
    """``range(start, stop)`` with bounds that may be known at run time only."""

    __slots__ = ("start", "stop")

    def __init__(self, start: Any, stop: Any) -> None:
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        start, stop = static_int(self.start), static_int(self.stop)
        if start is None or stop is None:
            raise TypeError("the bounds of this range are known at run time only")
        return iter(range(start, stop))


class NdRange:
    """``qd.ndrange``: the box of one (start, stop) pair an axis; iterates in row-major order when the bounds are known.

    Parameters
    ----------
    bounds : sequence
        An axis each: a stop, or a (start, stop) pair.
    axes : sequence of int, optional
        Order in which the axes are nested, outermost first.
    """

    __slots__ = ("axes", "bounds")

    def __init__(self, bounds: Sequence[Any], axes: Sequence[int] | None = None) -> None:
        self.bounds: list[tuple[Any, Any]] = []
        for b in bounds:
            if isinstance(b, (tuple, list)):
                start, stop = b
                self.bounds.append((start, stop))
            else:
                self.bounds.append((0, b))
        self.axes = tuple(axes) if axes is not None else None
        if self.axes is not None and sorted(self.axes) != list(range(len(self.bounds))):
            raise ValueError(f"axes={self.axes!r} is no permutation of {len(self.bounds)} axes")

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        known = [(static_int(a), static_int(b)) for a, b in self.bounds]
        if any(a is None or b is None for a, b in known):
            raise TypeError("the bounds of this ndrange are known at run time only")
        order = self.axes or tuple(range(len(known)))
        return _box([range(*known[k]) for k in order], order)  # type: ignore[arg-type]


def _box(ranges: Sequence[range], order: Sequence[int]) -> Iterator[tuple[int, ...]]:
    from itertools import product

    place = [order.index(k) for k in range(len(order))]
    for point in product(*ranges):
        yield tuple(point[p] for p in place)


class Grouped:
    """``qd.grouped(x)``: iterate with one index vector in place of an index an axis."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of

    def __iter__(self) -> Iterator[Any]:
        return iter(self.of)


def is_number(x: Any) -> bool:
    """Whether ``x`` is a compile-time number (Python or NumPy, `bool` included)."""
    return isinstance(x, (int, float)) or (
        hasattr(x, "dtype") and getattr(x, "shape", None) == () and hasattr(x, "item")
    )


def is_constant_matrix(x: Any) -> bool:
    """Whether ``x`` is a vector or matrix of Python scope."""
    return hasattr(x, "__qd_matrix__") and not isinstance(x, type)


def is_runtime(x: Any) -> bool:
    """Whether ``x`` is, or contains, a value that is known at run time only."""
    if isinstance(x, (Value, MatrixValue, StructValue, PrivateMatrix)):
        return True
    return isinstance(x, (tuple, list)) and any(map(is_runtime, x))


def static_int(x: Any) -> int | None:
    """Return the value of an integer that is known at compile time, else None."""
    if isinstance(x, Value):
        value = constant_of(x)
        return int(value) if value is not None and x.type.is_integral else None
    if isinstance(x, (int, bool)):
        return int(x)
    return int(x) if is_number(x) and not isinstance(x, float) and x.dtype.kind in "iub" else None


def flatten(x: Any, out: list[Value]) -> None:
    """Append the SSA scalars inside ``x`` to ``out`` in a fixed order."""
    if isinstance(x, Value):
        out.append(x)
    elif isinstance(x, MatrixValue):
        out.extend(x.items)
    elif isinstance(x, StructValue):
        for member in x.members.values():
            flatten(member, out)
    elif isinstance(x, (tuple, list)):
        for element in x:
            flatten(element, out)


def rebuild(like: Any, scalars: Iterator[Value]) -> Any:
    """Return a value shaped as ``like`` from scalars in the order of `flatten`."""
    if isinstance(like, Value):
        return next(scalars)
    if isinstance(like, MatrixValue):
        return MatrixValue(like.shape, tuple(next(scalars) for _ in like.items), like.dtype)
    if isinstance(like, StructValue):
        return StructValue({k: rebuild(v, scalars) for k, v in like.members.items()}, like.type)
    if isinstance(like, (tuple, list)):
        return type(like)(rebuild(e, scalars) for e in like)
    return like


def describe(x: Any) -> str:
    """Short name of what ``x`` is, for messages."""
    if isinstance(x, Value):
        return x.type.name if isinstance(x.type, DType) else repr(x.type)
    if isinstance(x, (MatrixValue, PrivateMatrix)):
        return repr(MatrixType(x.shape, x.dtype))
    if isinstance(x, StructValue):
        return f"struct({', '.join(x.members)})"
    if isinstance(x, ArrayRef):
        return f"array {x.name!r} of {x.ndim} axes"
    if isinstance(x, StructRef):
        return f"struct field {x.name!r} of {x.first.ndim} axes"
    if isinstance(x, ObjectRef):
        return f"{x.member.path!r} ({type(x.value).__name__})"
    if isinstance(x, (tuple, list)):
        return f"{type(x).__name__} of {len(x)}"
    return f"{type(x).__name__} {x!r}" if is_number(x) or isinstance(x, str) else type(x).__name__
