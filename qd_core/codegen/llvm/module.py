"""From a program to the text of an LLVM module."""

from __future__ import annotations

from qd_core.backend.contract import CompileOptions

# The writers of operations register themselves.
from qd_core.codegen.llvm import atomics, control, convert, elementwise, memory, messages, scratch  # noqa: F401  # pyright: ignore
from qd_core.codegen.llvm.cost import choose_lanes
from qd_core.codegen.llvm.divergence import Divergence
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.codegen.llvm.ownership import Ownership
from qd_core.codegen.llvm.survey import Survey
from qd_core.codegen.llvm.target import LlvmTarget
from qd_core.errors import InvalidIRError
from qd_core.ir.nodes import ArrayType, Node, Param, Value
from qd_core.ir.program import Program, Task

__all__ = ["ModuleWriter", "emit_module"]

FAST = "reassoc nsz arcp contract"
"""Fast math: nothing that lets NaN or infinity vanish, and no approximate function."""

NO_OVERLAP = "no_overlap"


class ModuleWriter:
    """Collects the functions, metadata and layout of one module.

    Attributes
    ----------
    offsets : dict of Param to int
        First argument word of each parameter.
    words : int
        Argument words of all parameters.
    functions : list of str
        Finished functions.
    sites : set of int
        Sites whose record function exists.
    flags : str
        Fast-math flags of real arithmetic.
    """

    def __init__(self, program: Program, target: LlvmTarget, options: CompileOptions) -> None:
        self.program, self.target, self.options = program, target, options
        self.offsets: dict[Value, int] = {}
        self.functions: list[str] = []
        self.sites: set[int] = set()
        self.flags = FAST if options.fast_math else ""
        self.attributes = target.attributes
        self._divergence: dict[Task, Divergence] = {}
        self._survey: dict[Task, Survey] = {}
        self._lanes: dict[Task, int] = {}
        self._ownership: dict[Task, Ownership] = {}
        self._metadata = ["!0 = !{}"]
        self.loop_notes: list[str] = []
        self._alias: dict[Value, str] = {}
        self._place_parameters()
        self.disjoint = NO_OVERLAP in options.variant.guards
        if self.disjoint:
            self._separate_arrays()

    def _place_parameters(self) -> None:
        at = 0
        for param in self.program.params:
            self.offsets[param] = at
            at += 1 + 2 * param.type.ndim if isinstance(param.type, ArrayType) else 1
        self.words = at

    def _separate_arrays(self) -> None:
        """Metadata that says: accesses of different array leaves do not overlap."""
        arrays = [p for p in self.program.params if isinstance(p.type, ArrayType)]
        domain, first = 1, 2
        lists = first + len(arrays)
        self._metadata.append(f'!{domain} = distinct !{{!{domain}, !"arrays"}}')
        for k, param in enumerate(arrays):
            self._metadata.append(f"!{first + k} = distinct !{{!{first + k}, !{domain}}}")
            self._metadata.append(f"!{lists + 2 * k} = !{{!{first + k}}}")
            others = ", ".join(f"!{first + j}" for j in range(len(arrays)) if j != k)
            self._metadata.append(f"!{lists + 2 * k + 1} = !{{{others}}}")
            self._alias[param] = f", !alias.scope !{lists + 2 * k}, !noalias !{lists + 2 * k + 1}"

    def metadata(self, text: str) -> None:
        """Add a definition of metadata."""
        self._metadata.append(text)

    def alias(self, param: Value) -> str:
        """Return the metadata of an access of ``param``."""
        return self._alias.get(param, "")

    def log(self, node: Node) -> Param:
        """Return the parameter that is the log; `InvalidIRError` when the program has none."""
        if self.program.log is None:
            raise InvalidIRError(
                f"the program {self.program.name!r} writes messages but has no log parameter", span=node.span
            )
        return self.program.log

    def divergence(self, task: Task) -> Divergence | None:
        """Return what varies between the lanes of a task; None for a task that runs without lanes."""
        if is_serial(task) or (self.options.lanes or self.target.lanes) == 1:
            return None
        if task not in self._divergence:
            self._divergence[task] = Divergence(task.body, task.body.args[-1:])
        return self._divergence[task]

    def lanes(self, task: Task) -> int:
        """Return the lanes of a task: the option, or what suits the target and the body."""
        lanes = self._lanes.get(task)
        if lanes is None:
            lanes = self._lanes[task] = self._choose_lanes(task)
        return lanes

    def _choose_lanes(self, task: Task) -> int:
        found = self.divergence(task)
        if found is None:
            return 1
        if self.options.lanes:
            return self.options.lanes
        ownership = self.ownership(task)
        scattered, gathered = ownership.scattered(found.varying), ownership.gathered(found.varying)
        divergent, totals = bool(found.divergent), len(ownership.totals)
        return choose_lanes(self.survey(task), self.target.lanes, divergent, scattered, gathered, totals)

    def survey(self, task: Task) -> Survey:
        """Return what there is in the body of a task."""
        if task not in self._survey:
            self._survey[task] = Survey(task.body)
        return self._survey[task]

    def ownership(self, task: Task) -> Ownership:
        """Return which atomics of a parallel task need not be atomic."""
        if task not in self._ownership:
            self._ownership[task] = Ownership(self.survey(task), task.body.args, self.disjoint)
        return self._ownership[task]

    def emitter(self, lanes: int) -> Emitter:
        """Return a writer of one function."""
        return Emitter(self, lanes)

    def text(self) -> str:
        """Return the module's text."""
        head: list[str] = []
        if self.target.triple:
            head.append(f'target triple = "{self.target.triple}"')
        if self.target.data_layout:
            head.append(f'target datalayout = "{self.target.data_layout}"')
        return "\n".join([*head, *self.functions, *self._metadata, ""])


def emit_module(program: Program, target: LlvmTarget, options: CompileOptions) -> str:
    """Return LLVM IR for all tasks of a program.

    Parameters
    ----------
    program : Program
        Legalised: every operation is native.
    target : LlvmTarget
        What to generate for.
    options : CompileOptions
        ``fast_math``, ``lanes`` and ``variant`` change the text.

    Raises
    ------
    InvalidIRError
        The program holds an operation without a writer, or writes messages without a log.
    """
    writer = ModuleWriter(program, target, options)
    for number, task in enumerate(program.tasks):
        try:
            target.form.task(writer, number, task)
        except KeyError as missing:
            raise InvalidIRError(
                f"task {task.name!r} holds the operation {missing}, which is not native: legalise the program first"
            ) from missing
    target.form.finish(writer)
    return writer.text()


def is_serial(task: Task) -> bool:
    """Whether a task's iterations run one after the other, on one thread."""
    return not task.extents or bool(task.attrs.get("serialize"))
