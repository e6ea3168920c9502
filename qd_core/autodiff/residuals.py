"""Demand: which primal values reverse mode needs, where they are recomputed and what loops must record.

Every region has one *reverse scope*, the place of its adjoint code, which starts with the primal values it needs,
recomputed from parameters, memory, and the arguments of the region. What a reverse scope needs from inside a nested
`if` or loop comes from a *replay* of that operation, sliced to what is wanted. What the reverse scope of a loop's
body needs from the values carried into each trip is *recorded* by the replay in private memory. Needs propagate from
uses to definitions; one worklist, linear in scopes times depth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from qd_core.autodiff.activity import Activity
from qd_core.autodiff.rules import uses
from qd_core.autodiff.structure import Structure, carried, indices, is_loop, is_temporary, path_of
from qd_core.errors import NotDifferentiableError
from qd_core.ir.nodes import Arg, Node, Param, Region, Result, Value
from qd_core.passes.pin import is_extremum

__all__ = ["Demand"]


class Demand:
    """What reverse mode needs of the primal.

    Attributes
    ----------
    needed : set of Value
        Values wanted in the reverse scope of the region that defines them.
    slices : dict of Node to set of Value
        What a replay of a region operation, standing in a reverse scope, computes inside it.
    recorded : dict of Node to list of Value
        Values of a loop's body that its replay stores trip by trip: arguments, and `saved` values computed there.
    saved : set of Value
        Values that are recorded although they could be computed again.
    counted : set of Node
        Loops whose number of trips is only known by running them.
    filled : set of Value
        Temporary arrays that reverse mode reads. `slices` of the root region is what fills them again, before
        anything else.
    found : dict of Value to NotDifferentiableError
        Arrays that must hold what the launch found, not what it left, and what is to be said where they do not.
    """

    def __init__(
        self,
        structure: Structure,
        activity: Activity,
        saved: frozenset[Value] = frozenset(),
        *,
        rewound: bool = False,
    ) -> None:
        self.structure, self.activity, self.saved, self.rewound = structure, activity, saved, rewound
        self.found: dict[Value, NotDifferentiableError] = {}
        self._loads: dict[Value, list[Node]] = defaultdict(list)
        self.needed: set[Value] = set()
        self.slices: dict[Node | Region, set[Value]] = defaultdict(set)
        self.filled: set[Value] = set()
        self.recorded: dict[Node, list[Value]] = defaultdict(list)
        self.counted: set[Node] = set()
        self._stack: list[tuple[Node | Region | None, Value]] = []
        self._controlled: set[tuple[Node | Region, Node]] = set()
        self._writers = structure.writers()
        self._checked: dict[tuple[object, ...], int] = {}
        self._seed(structure.root)
        self._run()
        self._check_found()

    @classmethod
    def cheapest(cls, structure: Structure, activity: Activity, *, rewound: bool = False) -> Demand:
        """The demand that saves, not computes twice, expensive values that a recording replay computes anyway.

        ``rewound`` lets the reverse launch ask for arrays as the launch found them, where it overwrites them.
        """
        demand = cls(structure, activity, rewound=rewound)
        saved = [
            v for loop in demand.slices if isinstance(loop, Node) and is_loop(loop) for v in demand.worth_saving(loop)
        ]
        return cls(structure, activity, frozenset(saved), rewound=rewound) if saved else demand

    def worth_saving(self, loop: Node) -> list[Value]:
        """Expensive values of a loop body that its replay and its reverse scope would both compute, dearest first."""
        found: list[tuple[int, Value]] = []
        for node in loop.regions[-1].nodes:
            if node.op.name in _CYCLES and node in self.needed and node in self.slices[loop]:
                found.append((_CYCLES[node.op.name], node))
            elif is_loop(node) and not self.recorded.get(node) and node not in self.counted:
                found.extend((_LOOP_CYCLES, r) for r in node.results if r in self.needed and r in self.slices[loop])
        found.sort(key=lambda entry: -entry[0])
        return [v for _, v in found[:_SAVED_PER_LOOP]]

    # -- what adjoint code reads --------------------------------------------------------------------------------
    def _seed(self, region: Region) -> None:
        for node in region.nodes:
            if not self.activity.has_code(node):
                continue
            seed = _SEEDS.get(node.op.name)
            if seed is not None:
                seed(self, node)
            else:
                self._seed_rule(node)
            for inner in node.regions[-1:] if node.op.name == "while" else node.regions:
                self._seed(inner)

    def _need(self, *values: Value) -> None:
        self._stack.extend((None, v) for v in values)

    def _seed_rule(self, node: Node) -> None:
        for i, operand in enumerate(node.operands):
            if operand in self.activity.active:
                operands, result = uses(node.op.name, i)
                self._need(*(node.operands[k] for k in operands))
                if result:
                    self._need(node)

    def seed_access(self, node: Node) -> None:
        """Memory needs indices."""
        if node.operands[0] in self.activity.shadows:
            self._need(*indices(node))

    def seed_atomic(self, node: Node) -> None:
        """An atomic add needs indices when its value is active, a minimum or maximum its value too."""
        if is_extremum(node) and node.operands[0] in self.activity.shadows:
            self._check_settled(node)
            self._need(node.operands[-1], *indices(node))
            self._fill(node.operands[0])
        elif node.operands[-1] in self.activity.active:
            self.seed_access(node)

    def seed_control(self, node: Node) -> None:
        """Bounds."""
        self._need(*node.operands)

    def seed_loop(self, node: Node) -> None:
        """Bounds, or what decides how many trips there are."""
        if node.op.name == "for":
            self._need(*node.operands[:2])
        if node.op.name == "while" or node.attrs["breaks"]:
            self.counted.add(node)
            self._control(node, node)

    def seed_if(self, node: Node) -> None:
        """The condition."""
        self._need(node.operands[0])

    def replays(self, node: Node) -> bool:
        """Whether the reverse scope around a region operation needs results, records or the trip count of it."""
        return node in self.counted or bool(self.recorded.get(node)) or self.wants_results(node)

    def wants_results(self, node: Node) -> bool:
        """Whether the reverse scope around ``node`` computes results of it."""
        return any(r in self.needed and r not in self.saved for r in node.results)

    # -- propagation --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        """Empty the worklist: entries are (replayed operation or None for a reverse scope, value)."""
        while self._stack:
            around, value = self._stack.pop()
            if isinstance(value, Param):
                continue
            if isinstance(around, Node) and self.structure.outside(value, around):
                around = None
            wanted = self.needed if around is None else self.slices[around]
            if value not in wanted:
                wanted.add(value)
                self._visit(around, value)

    def _visit(self, around: Node | Region | None, value: Value) -> None:
        if around is None and value in self.saved:
            loop = self.structure.owner[self.structure.home[value]]
            assert loop is not None
            self.recorded[loop].append(value)
            self._push(loop, value)
            self._control(loop, loop)
        elif isinstance(value, Arg):
            self._visit_arg(around, value)
        elif isinstance(value, Result):
            self._visit_result(around, value)
        else:
            assert isinstance(value, Node)
            self._visit_node(around, value)

    def _push(self, around: Node | Region | None, *values: Value) -> None:
        self._stack.extend((around, v) for v in values)

    def _visit_node(self, around: Node | Region | None, node: Node) -> None:
        if node.op.name == "load":
            self._check_overwritten(node)
            self._fill(node.operands[0])
            self._push(around, *indices(node))
        elif node.op.name in ("atomic", "scratch_load", "scratch"):
            raise NotDifferentiableError(
                "the gradient needs a value that cannot be computed again",
                span=node.span,
                why=f"`{node.op.name}` returns what memory held at that moment of the forward launch",
                hint="store the value in an array in an earlier kernel and read it here",
            )
        else:
            self._push(around, *node.operands)

    def _visit_arg(self, around: Node | Region | None, arg: Arg) -> None:
        loop = self.structure.owner[self.structure.home[arg]]
        if loop is None or not is_loop(loop):
            return
        k = arg.region.args.index(arg) - (loop.op.name == "for")  # type: ignore[union-attr]
        if k < 0:
            return
        if around is None:
            self.recorded[loop].append(arg)
        self._visit_carried(around, loop, k)

    def _visit_result(self, around: Node | Region | None, result: Result) -> None:
        node, k = result.node, result.index
        if is_loop(node):
            self._visit_carried(around, node, k)
            return
        inner = node if around is None else around
        self.slices[inner].add(result)
        self._push(inner, *(r.yields[k] for r in node.regions))
        self._control(inner, node)

    def _visit_carried(self, around: Node | Region | None, loop: Node, k: int) -> None:
        """Carried value ``k`` of a replayed loop: its first and next values, and the loop's control."""
        inner = loop if around is None else around
        c = carried(loop)[k]
        self.slices[inner].update(c.args)
        self._push(inner, c.init, c.next)
        self._control(inner, loop)

    def _control(self, around: Node | Region, node: Node) -> None:
        """What decides how often and which way ``node`` runs in a replay of ``around``."""
        if (around, node) in self._controlled:
            return
        self._controlled.add((around, node))
        if node.op.name == "while":
            self._push(around, node.regions[0].yields[0])
        elif node.op.name == "for":
            self._push(around, *node.operands[:2], *(node.regions[0].yields[-1:] if node.attrs["breaks"] else ()))
        elif node.op.name == "parallel_for":
            self._push(around, *node.operands)
        else:
            self._push(around, node.operands[0])

    # -- memory -------------------------------------------------------------------------------------------------
    def _fill(self, array: Value) -> None:
        """A temporary is not kept between launches: the reverse one starts with all that wrote to it."""
        if not is_temporary(array) or array in self.filled:
            return
        self.filled.add(array)
        root = self.structure.root
        for node in self.structure.nodes:
            if node.op.name in ("store", "atomic") and node.operands[0] is array:
                self.slices[root].add(node)
                self._push(root, *node.operands[1:])
                for around, _ in self.structure.chain[self.structure.home[node]]:
                    self.slices[root].add(around)
                    self._control(root, around)

    def _check_settled(self, extremum: Node) -> None:
        """Its result must be in memory as the launch left it: no other write after it, no read before one like it."""
        structure, array, kind = self.structure, extremum.operands[0], extremum.attrs["kind"]
        accesses = [n for n in structure.nodes if n.op.name in _ACCESSES and n.operands[0] is array]
        same = [n for n in accesses if n.attrs.get("kind") == kind]
        for node in accesses:
            read = node.op.name == "load"
            early = not read or (node in self.activity.active and any(structure.may_follow(node, a) for a in same))
            if node in same or not early or not structure.may_follow(extremum, node):
                continue
            line = f" at line {node.span.line}" if node.span is not None else ""
            raise NotDifferentiableError(
                f"the {kind}imum in `{path_of(array)}` is {'used' if read else 'overwritten'}{line} before it is final",
                span=extremum.span,
                why="reverse mode finds the achieving element by the result that the kernel leaves in memory",
                hint="combine into another array, or split the kernel",
            )

    def _check_overwritten(self, load: Node) -> None:
        """Reverse mode reads memory as the launch left it: refuse an element that is overwritten after this load."""
        writers = self._writers.get(load.operands[0])
        if writers is None:
            return
        self._loads[load.operands[0]].append(load)
        place, position = self.structure.place(load), self.structure.position[load]
        if self._checked.get(place, position + 1) <= position:
            return  # an earlier load of the same element is not overwritten either
        self._checked[place] = position
        write = self.structure.overwriter(load, writers)
        if write is not None:
            name = path_of(load.operands[0])
            line = f" at line {write.span.line}" if write.span is not None else ""
            refusal = NotDifferentiableError(
                f"the gradient needs the value of `{name}` that is read here, but it is overwritten later{line}",
                span=load.span,
                why="reverse mode recomputes from memory as the kernel leaves it",
                hint=f"launch the kernel under a qd.ad.Tape, write to another array, or read from a copy of `{name}`",
            )
            if not self.rewound or is_temporary(load.operands[0]):
                raise refusal
            self.found.setdefault(load.operands[0], refusal)

    def _check_found(self) -> None:
        """What the launch found tells the value of a load only where no write of the launch can come before it."""
        for array, refusal in self.found.items():
            writes = [n for n in self.structure.nodes if n.op.name in ("store", "atomic") and n.operands[0] is array]
            if any(is_extremum(w) or self.structure.may_follow(w, n) for w in writes for n in self._loads[array]):
                raise refusal


_ACCESSES = ("load", "store", "atomic")
_CYCLES = {
    "sin": 20,
    "cos": 20,
    "tan": 40,
    "asin": 30,
    "acos": 30,
    "atan2": 50,
    "tanh": 30,
    "exp": 15,
    "log": 20,
    "pow": 60,
}
"""Rough cost of recomputing, in cycles a vector; a store and a load of private memory cost about 5."""
_LOOP_CYCLES = 1000
_SAVED_PER_LOOP = 4
"""More would spill private memory out of the first-level cache in long loops."""

_SEEDS: Mapping[str, Callable[[Demand, Node], None]] = {
    "load": Demand.seed_access,
    "store": Demand.seed_access,
    "atomic": Demand.seed_atomic,
    "parallel_for": Demand.seed_control,
    "for": Demand.seed_loop,
    "while": Demand.seed_loop,
    "if": Demand.seed_if,
}
