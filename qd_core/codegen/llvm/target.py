"""What a target of LLVM contributes: data, and one object that forms entry points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qd_core.codegen.llvm.emitter import Emitter
    from qd_core.codegen.llvm.module import ModuleWriter
    from qd_core.ir.nodes import Node
    from qd_core.ir.program import Task

__all__ = ["LlvmTarget", "TaskForm"]


class TaskForm(ABC):
    """How tasks become functions of the target: who calls them, and where an iteration's indices come from.

    Attributes
    ----------
    handlers : mapping
        Writers of operations, by name, that take the place of the package's own.
    opaque : str
        An i64 that a body can name and nobody can predict: what long straight lines are divided by. Empty: none.
    """

    opaque: str = ""

    handlers: Mapping[str, Callable[[Emitter, Node], Any]] = MappingProxyType({})

    @abstractmethod
    def task(self, module: ModuleWriter, number: int, task: Task) -> None:
        """Write the function of one task: the header, the indices, and the body through `Emitter.body`."""

    @abstractmethod
    def finish(self, module: ModuleWriter) -> None:
        """Write what runs the tasks in order, where the target wants that in the module."""

    @abstractmethod
    def allocate(self, emitter: Emitter, nbytes: str) -> str:
        """Return a pointer to ``nbytes`` (an i64 operand) of memory that the iteration owns."""


@dataclass(frozen=True, slots=True, eq=False)
class LlvmTarget:
    """A target of the generator.

    Parameters
    ----------
    triple, data_layout : str
        Text for the module's head; empty strings leave the choice to who compiles the text.
    form : TaskForm
        Entry points.
    vector_bits : int
        Width of a vector register; 0 where an iteration is a thread of its own, so that no value is a vector.
    address_space : int
        Address space of array memory.
    atomic_scope : str
        Text after ``atomicrmw``'s value, such as ``syncscope("device")``.
    attributes : str
        Attributes of every function, as LLVM writes them.
    masked_memory : frozenset of int
        Widths in bits of the elements whose masked loads and stores are instructions of the target.
    """

    triple: str
    data_layout: str
    form: TaskForm
    vector_bits: int = 0
    address_space: int = 0
    atomic_scope: str = ""
    attributes: str = ""
    masked_memory: frozenset[int] = frozenset({32, 64})

    @property
    def lanes(self) -> int:
        """Iterations that one instruction stream executes in lock step: as many as a register has 32-bit elements."""
        return max(self.vector_bits // 32, 1)

    @property
    def pointer(self) -> str:
        """Type of a pointer to array memory."""
        return "ptr" if self.address_space == 0 else f"ptr addrspace({self.address_space})"
