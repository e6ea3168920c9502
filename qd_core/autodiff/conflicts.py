"""Where adjoint accesses can meet: which gradients need atomics, and which arguments must not overlap."""

from __future__ import annotations

from collections import defaultdict

from qd_core.autodiff.activity import Activity
from qd_core.autodiff.residuals import Demand
from qd_core.autodiff.structure import Affine, Structure, indices, is_temporary
from qd_core.ir.nodes import Node, Param, Value
from qd_core.passes.pin import is_extremum

__all__ = ["Conflicts"]


class Conflicts:
    """Decides per parallel loop and array whether two iterations can touch the same gradient.

    They cannot when all accesses to the array in the loop agree on some axes, and the indices there determine the
    iteration: each parallel index occurs in an axis of its own, as ``k·i + uniform`` with a constant ``k`` that is
    not 0.
    """

    def __init__(self, structure: Structure, activity: Activity, shared: bool) -> None:
        self._structure, self._activity, self._shared = structure, activity, shared
        self._accesses: dict[tuple[Node | None, Value], list[Node]] = defaultdict(list)
        self._known: dict[tuple[Node | None, Value], bool] = {}
        for node in structure.nodes:
            if node.op.name in ("store", "atomic") or (node.op.name == "load" and node in activity.active):
                self._accesses[structure.task(node), node.operands[0]].append(node)

    def exclusive(self, load: Node) -> bool:
        """Whether the gradient of the element can be updated by a plain load, add and store."""
        task = self._structure.task(load)
        if task is None or self._shared:
            return task is None
        key = task, load.operands[0]
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._determines(task, self._accesses[key])
        return known

    def _determines(self, task: Node, accesses: list[Node]) -> bool:
        structure = self._structure
        left = {structure.number[a] for a in task.regions[0].args}
        for axis in range(len(indices(accesses[0]))):
            forms = {structure.affine(indices(a)[axis]) for a in accesses}
            if len(forms) == 1:
                left.discard(self._iteration_index(forms.pop(), left))
        return not left

    def _iteration_index(self, form: Affine, candidates: set[int]) -> int:
        """The one parallel index in an otherwise uniform affine form, or -1."""
        varying = [base for base, _ in form.terms if base not in self._structure.uniform]
        return varying[0] if len(varying) == 1 and varying[0] in candidates else -1

    def must_not_overlap(self, demand: Demand) -> tuple[tuple[str, str], ...]:
        """Pairs of array paths whose memory must be disjoint for the reverse function to be right.

        An array that is read for a derivative, with every other array that the kernel writes, and likewise their
        gradients; gradients that are updated without atomics, with every other gradient. Storage of primal and
        gradient never overlaps.
        """
        wanted: set[Value] = set(demand.needed).union(*demand.slices.values(), self._activity.active)
        read = {
            n.operands[0]
            for n in self._structure.nodes
            if (n.op.name == "load" and n in wanted) or (is_extremum(n) and n.operands[0] in self._activity.shadows)
        }
        shadows = self._activity.shadows
        pairs = {(a, w) for a in read for w in self._structure.written if a is not w}
        pairs |= {(shadows[a], shadows[w]) for a, w in pairs if a in shadows and w in shadows}  # type: ignore[index]
        plain = {array for (task, array), exclusive in self._known.items() if exclusive and task is not None}
        pairs |= {(shadows[a], shadows[o]) for a in plain for o in shadows if o is not a}  # type: ignore[index]
        passed = ((_path(a), _path(b)) for a, b in pairs if not is_temporary(a) and not is_temporary(b))
        return tuple(sorted({(min(a, b), max(a, b)) for a, b in passed}))


def _path(array: Value) -> str:
    assert isinstance(array, Param)
    return array.path
