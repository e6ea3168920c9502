"""Making fields: `qd.field`, `qd.Vector.field`, `qd.Matrix.field`, struct fields; `qd.root`."""

from __future__ import annotations

from enum import Enum
from typing import Any

from qd_core.errors import ArgumentValueError, QuadrantsRuntimeTypeError
from qd_core.frontend.annotations import PYTHON_SCOPE
from qd_core.runtime.context import current
from qd_core.runtime.field import Field, place_with_shape
from qd_core.runtime.struct import StructField, member_field
from qd_core.runtime.tree import FieldsBuilder, SNode, default_tree

__all__ = ["FieldsBuilder", "Layout", "field", "root"]


class Layout(Enum):
    """Whether the members or components of an element lie side by side (AOS), or each has an array of its own (SOA)."""

    AOS = 1
    SOA = 2


def _derivatives(leaves: list[Field], needs_grad: bool, needs_dual: bool, struct: bool) -> None:
    """Have gradients and duals; members of structs that have no derivative are left out."""
    for hop, wanted in (("grad", needs_grad), ("dual", needs_dual)):
        for leaf in leaves if wanted else ():
            if leaf.dtype.is_real:
                leaf.want(hop)
            elif not struct:
                raise QuadrantsRuntimeTypeError(
                    f"{leaf.dtype} is not supported for field with `needs_grad=True` or `needs_dual=True`.",
                    why="integers have no derivative",
                    hint=f"leave needs_{hop} out, or use a real type",
                )


def field(
    dtype: Any,
    shape: Any = None,
    order: str | None = None,
    name: str = "",
    offset: Any = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Layout = Layout.AOS,
) -> Any:
    """Return a zero-filled field.

    Parameters
    ----------
    dtype : DType, MatrixType, StructType, int or float
        Element type; ``int`` and ``float`` mean the default types.
    shape : int or tuple of int, optional
        Extents, ``()`` for one element; without it the field must be placed in a tree before it is used.
    order : str, optional
        Axes from the slowest to the fastest in memory: ``"ji"`` is column-major.
    name : str
        For messages.
    offset : int or tuple of int, optional
        Index of the first element along each axis; may be negative.
    needs_grad, needs_dual : bool
        Allocate ``.grad``, ``.dual``.
    layout : Layout
        Of structs: whether members lie side by side.

    Examples
    --------
    >>> x = qd.field(qd.f32, shape=(4, 8), order="ji", offset=(-2, 0))  # doctest: +SKIP
    """
    current()
    made = member_field(dtype, name, split=layout is Layout.SOA)
    leaves = made.leaves() if isinstance(made, StructField) else [made]
    _derivatives(leaves, needs_grad, needs_dual, isinstance(made, StructField))
    if shape is None:
        if offset is not None or order is not None:
            raise ArgumentValueError(
                "offset and order of a field need its shape",
                hint="or give them where it is placed: place(x, offset=...)",
            )
        return made
    groups = [leaves] if layout is Layout.AOS else [[leaf] for leaf in leaves]
    for group in groups:
        place_with_shape(group, shape, order, offset)
    return made


PYTHON_SCOPE.update({"struct_field": field, "matrix_field": field})


class _Root:
    """``qd.root``: the root node of the active device's tree."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(default_tree(current()).root, name)

    def __repr__(self) -> str:
        return "qd.root"


root: SNode = _Root()  # type: ignore[assignment]
