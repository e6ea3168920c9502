"""Facts about statements that lowering needs before it reaches them: what a loop assigns, where `break` and `continue`
lead.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

__all__ = ["StatementFacts", "root_name"]

_BLOCKS = ("body", "orelse")


def root_name(node: ast.expr) -> str | None:
    """Variable at the root of an assignment target: ``v`` of ``v[0].x``; None when it is no name."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class StatementFacts:
    """Facts about the statements of one function, found in one traversal.

    Attributes
    ----------
    stores : dict of node to set of str
        For every loop: names assigned in it (syntactically; a call may assign more).
    jumps : set of node
        Statements that contain a `break` or `continue` of the loop around them.
    breaks : set of node
        Loops with a `break` of their own.
    returns : set of node
        Statements that contain a `return`.
    uses : dict of node to object
        For loops that were asked about: how names are used (see `qd_core.frontend.reductions`).
    indexed : set of str
        Variables that are indexed by something that may only be known at run time.
    """

    __slots__ = ("breaks", "indexed", "jumps", "returns", "stores", "uses")

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self.stores: dict[ast.AST, set[str]] = {}
        self.jumps: set[ast.AST] = set()
        self.breaks: set[ast.AST] = set()
        self.returns: set[ast.AST] = set()
        self.uses: dict[ast.AST, Any] = {}
        self.indexed = _indexed(body)
        self._block(body, set(), None)

    def _block(self, body: Sequence[ast.stmt], stores: set[str], loop: ast.AST | None) -> tuple[bool, bool]:
        """Visit statements; return whether one of them jumps, and whether one returns."""
        jumps = returns = False
        for statement in body:
            jump, ret = self._statement(statement, stores, loop)
            if jump:
                self.jumps.add(statement)
            if ret:
                self.returns.add(statement)
            jumps |= jump
            returns |= ret
        return jumps, returns

    def _statement(self, node: ast.stmt, stores: set[str], loop: ast.AST | None) -> tuple[bool, bool]:
        if isinstance(node, (ast.For, ast.While)):
            return self._loop(node, stores)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _targets(target, stores)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            _targets(node.target, stores)
        elif isinstance(node, ast.If):
            then = self._block(node.body, stores, loop)
            other = self._block(node.orelse, stores, loop)
            return then[0] or other[0], then[1] or other[1]
        elif isinstance(node, ast.Break):
            if loop is not None:
                self.breaks.add(loop)
            return True, False
        return isinstance(node, ast.Continue), isinstance(node, ast.Return)

    def _loop(self, node: ast.For | ast.While, stores: set[str]) -> tuple[bool, bool]:
        inner: set[str] = set()
        _, returns = self._block(node.body, inner, node)
        self._block(node.orelse, inner, None)
        self.stores[node] = inner
        stores |= inner
        return False, returns


def _indexed(body: Sequence[ast.stmt]) -> set[str]:
    """Roots of subscripts whose index names anything but variables of `qd.static` loops."""
    nodes = [n for statement in body for n in ast.walk(statement)]
    static: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            called = node.iter.func
            if (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) == "static":
                _targets(node.target, static)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Subscript) and (name := root_name(node)) is not None:
            if any(isinstance(n, ast.Name) and n.id not in static for n in ast.walk(node.slice)):
                found.add(name)
    return found


def _targets(node: ast.expr, stores: set[str]) -> None:
    if isinstance(node, (ast.Tuple, ast.List)):
        for element in node.elts:
            _targets(element, stores)
    elif (name := root_name(node)) is not None:
        stores.add(name)
