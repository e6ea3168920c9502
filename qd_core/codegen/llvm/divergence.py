"""Which values differ between the lanes of a vector of iterations.

A value is *uniform* when all active lanes hold the same, else *varying*. Elementwise operations follow their operands,
so the emitter decides those itself; what needs foresight are the arguments of loops, which depend on what the loop's
end yields, and scratch memory, which depends on later stores. One fixpoint over the whole body finds these: a pass
costs one set test an operation, and a second or third pass is needed only where a loop makes a value varying that began
uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core.ir.nodes import Arg, Node, Region, Value

__all__ = ["Divergence"]


class Divergence:
    """Result of the analysis.

    Attributes
    ----------
    varying : set of Value
        Values that may differ between active lanes.
    divergent : set of Node
        Loops whose lanes may leave at different iterations.
    """

    __slots__ = ("_special", "divergent", "varying")

    def __init__(self, body: Region, seeds: Sequence[Arg]) -> None:
        self.varying: set[Value] = set(seeds)
        self.divergent: set[Node] = set()
        self._special: dict[str, Callable[[Node, bool], None]] = {
            "atomic": self._atomic,
            "scratch": self._scratch,
            "scratch_store": self._scratch_store,
            "if": self._if,
            "for": self._for,
            "while": self._while,
        }
        before = -1
        while before != len(self.varying) + len(self.divergent):
            before = len(self.varying) + len(self.divergent)
            self._region(body, False)

    def _region(self, region: Region, under_mask: bool) -> None:
        varying = self.varying
        for node in region.nodes:
            special = self._special.get(node.op.name)
            if special is not None:
                special(node, under_mask)
            elif not varying.isdisjoint(node.operands):
                varying.add(node)

    def _atomic(self, node: Node, under_mask: bool) -> None:
        self.varying.add(node)

    def _scratch(self, node: Node, under_mask: bool) -> None:
        """A length that varies is replaced by its maximum: the memory itself stays uniform until a store says
        otherwise.
        """

    def _scratch_store(self, node: Node, under_mask: bool) -> None:
        scratch, index, value = node.operands
        # Lanes that a mask excludes keep what they had, which is then no longer what the others have.
        if under_mask or index in self.varying or value in self.varying:
            self.varying.add(scratch)

    def _if(self, node: Node, under_mask: bool) -> None:
        varying = self.varying
        diverges = node.operands[0] in varying
        for region in node.regions:
            self._region(region, under_mask or diverges)
        for i, result in enumerate(node.results):
            if diverges or any(r.yields[i] in varying for r in node.regions):
                varying.add(result)

    def _for(self, node: Node, under_mask: bool) -> None:
        varying, body = self.varying, node.regions[0]
        start, stop = node.operands[:2]
        yields = body.yields
        if start in varying or stop in varying or (node.attrs["breaks"] and yields[-1] in varying):
            self.divergent.add(node)
        # Lanes count in step: the index is uniform as long as they begin at the same value.
        if (stop if node.attrs["reverse"] else start) in varying:
            varying.add(body.args[0])
        self._carried(node, node.operands[2:], body.args[1:], yields)
        self._region(body, under_mask or node in self.divergent)
        self._carried(node, node.operands[2:], body.args[1:], yields)

    def _while(self, node: Node, under_mask: bool) -> None:
        condition, body = node.regions
        for region in (condition, body):
            self._carried(node, node.operands, region.args, body.yields)
            self._region(region, under_mask or node in self.divergent)
        if condition.yields[0] in self.varying:
            self.divergent.add(node)
        self._carried(node, node.operands, body.args, body.yields)
        self._carried(node, node.operands, condition.args, body.yields)

    def _carried(self, node: Node, inits: Sequence[Value], args: Sequence[Arg], yields: Sequence[Value]) -> None:
        varying, diverges = self.varying, node in self.divergent
        for init, arg, new, result in zip(inits, args, yields, node.results, strict=False):
            if init in varying or new in varying:
                varying.add(arg)
            # A lane that has left keeps its value: after the loop lanes differ although inside it the active ones did
            # not.
            if diverges or arg in varying:
                varying.add(result)
