"""Elements of struct fields as places."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from qd_core.frontend.attributes import attribute_of
from qd_core.frontend.constructors import convert_to
from qd_core.frontend.context import Lowering
from qd_core.frontend.values import StructValue

if TYPE_CHECKING:
    from qd_core.frontend.places import Place

__all__ = ["StructPlace"]


class StructPlace:
    """An element of a struct field: one place a member."""

    __slots__ = ("members", "type")

    def __init__(self, members: dict[str, Place], type: Any) -> None:
        self.members, self.type = members, type

    def get(self, ctx: Lowering, node: ast.AST) -> StructValue:
        """Load all members; what nothing uses is dropped later."""
        return StructValue({name: place.get(ctx, node) for name, place in self.members.items()}, self.type)

    def set(self, ctx: Lowering, value: Any, node: ast.AST) -> None:
        """Store all members that changed."""
        value = convert_to(ctx, self.type, value, node)
        for name, place in self.members.items():
            place.set(ctx, value.members[name], node)

    def member(self, ctx: Lowering, name: str, node: ast.AST) -> Place:
        """Place of a member; otherwise the attribute of the loaded value."""
        from qd_core.frontend.places import Known

        place = self.members.get(name)
        return place if place is not None else Known(attribute_of(ctx, self.get(ctx, node), name, node))

    def item(self, ctx: Lowering, index: Any, node: ast.AST) -> Place:
        """Refuse: a struct has named members."""
        names = ", ".join(self.members)
        ctx.type_error("an element of a struct field cannot be indexed", node, hint=f"name a member: {names}")
