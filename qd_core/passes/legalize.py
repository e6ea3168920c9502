"""Expand the operations that a target lacks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from qd_core.ir.build import Builder
from qd_core.ir.nodes import Node, Region
from qd_core.ir.program import Program, Task
from qd_core.ir.rewrite import Copier, eliminate_dead, walk

__all__ = ["Native", "legalize", "legalize_region"]

Native = Collection[str | tuple[str, str]]


def legalize(program: Program, native: Native = ()) -> Program:
    """Return ``program`` with every operation that is not native expanded by `qd_core.elementary`.

    Parameters
    ----------
    program : Program
        Left as it is; returned when there is nothing to expand.
    native : collection of str or (str, str)
        Operations that the target has although the table does not demand it: names (``"exp"``), or names with the
        dtype's name of the first operand (``("exp", "f32")``).

    Returns
    -------
    Program
        Expanded nodes carry the span of the operation they stand for. Extents are left alone.
    """
    tasks = tuple(_legalize_task(t, native) for t in program.tasks)
    return (
        program
        if all(new is old for new, old in zip(tasks, program.tasks, strict=True))
        else replace(program, tasks=tasks)
    )


def _legalize_task(task: Task, native: Native) -> Task:
    body = legalize_region(task.body, native)
    return task if body is task.body else replace(task, body=body)


def legalize_region(region: Region, native: Native = ()) -> Region:
    """Return a copy of ``region`` without operations that the target lacks; the region itself when it has none."""
    if not any(_is_missing(n, native) for n in walk(region)):
        return region
    from qd_core.elementary import (
        expand,
    )  # most kernels do without the library, and its import takes as long as lowering them

    def rule(copier: Copier, node: Node) -> bool:
        if not _is_missing(node, native):
            return False
        copier.builder.exact = node.attrs.get("exact")
        copier.mapping[node] = expand(copier.builder, node.op.name, copier.values(node.operands))
        copier.builder.exact = None
        return True

    copy = Copier(Builder(Region()), rule=rule).region(region, loop=True)
    eliminate_dead(copy)
    return copy


def _is_missing(node: Node, native: Native) -> bool:
    name = node.op.name
    return not (node.op.native or name in native or (name, node.operands[0].type.name) in native)
