"""Private copies of arrays that a task only adds to, at elements that its data choose: histograms, particles on a grid.

Where such arrays are small against the number of additions, each thread adds plainly into a copy of its own, and the
copies are added to the array when the task is done. That is decided at each launch, by the extents. Of an array whose
first indices are the same in all iterations (one time step of many), only what lies there is copied.

The kernel allocates ``copies`` of ``stride`` bytes. The first word of a copy tells whether its thread has used it; the
thread clears it then. The arrays follow at 64 bytes, one after the other, each a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qd_core import dtypes as dt
from qd_core.codegen.llvm.emitter import Emitter
from qd_core.codegen.llvm.memory import index64
from qd_core.codegen.llvm.types import LLVM
from qd_core.ir.nodes import Node, Param, Value

__all__ = ["CLEAR_IR", "TYPES", "PrivateCopies", "row_offset"]

TYPES = (dt.i32, dt.u32, dt.i64, dt.u64, dt.f32, dt.f64)
"""Types of elements that may have private copies."""

MAX_NBYTES = 384 << 10
"""Bytes of one copy that its thread's cache surely holds."""

WORTH = 4
"""Elements of all copies for each addition: clearing and adding up an element costs a small part of an atomic."""

_HEAD = 64

CLEAR_IR = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; the copy of this thread, cleared when it is used for the first time; null where the task adds to the arrays themselves
define internal ptr @qd_private_copy(ptr %all, i64 %stride, i64 %copies, ptr %worker) noinline {
entry:
  %none = icmp eq ptr %all, null
  br i1 %none, label %without, label %look
look:
  %index = load i64, ptr %worker
  %inside = icmp ult i64 %index, %copies
  br i1 %inside, label %mine, label %without
mine:
  %offset = mul i64 %index, %stride
  %copy = getelementptr i8, ptr %all, i64 %offset
  %arrays = getelementptr i8, ptr %copy, i64 64
  %flag = load i64, ptr %copy
  %used = icmp ne i64 %flag, 0
  br i1 %used, label %ready, label %clear
clear:
  store i64 1, ptr %copy
  %nbytes = sub i64 %stride, 64
  call void @llvm.memset.p0.i64(ptr align 64 %arrays, i8 0, i64 %nbytes, i1 false)
  br label %ready
ready:
  ret ptr %arrays
without:
  ret ptr null
}
"""


class PrivateCopies:
    """Writes what a kernel does about private copies around one task.

    Parameters
    ----------
    em : Emitter
        Of the kernel's function.
    arrays : sequence of Param
        Arrays that get copies.
    additions : int
        Additions to them in one iteration.
    rows : mapping
        Leading indices of each array that are the same in all iterations, written by ``em`` already.
    """

    def __init__(
        self, em: Emitter, arrays: Sequence[Param], additions: int, rows: Mapping[Param, Sequence[Value]]
    ) -> None:
        self.em, self.arrays, self.additions, self.rows = em, arrays, additions, rows

    def allocate(self, count: str, threads: str) -> tuple[str, str, list[str]]:
        """Return the copies (null where they do not pay), the stride, and the byte offset of each array in a copy."""
        em = self.em
        worth, total, elements, offsets = "true", str(_HEAD), "0", list[str]()
        for param in self.arrays:
            n, contiguous = self._elements(param)
            worth = em.new(f"and i1 {worth}, {contiguous}")
            offsets.append(em.new(f"sub i64 {total}, {_HEAD}"))
            nbytes = em.new(f"mul i64 {n}, {param.type.dtype.nbytes}")
            padded = em.new(f"and i64 {em.new(f'add i64 {nbytes}, 63')}, -64")
            total, elements = em.new(f"add i64 {total}, {padded}"), em.new(f"add i64 {elements}, {n}")
        fits = em.new(f"icmp ule i64 {total}, {MAX_NBYTES}")
        added = em.new(f"mul i64 {count}, {self.additions * WORTH}")
        pays = em.new(f"icmp uge i64 {added}, {em.new(f'mul i64 {elements}, {threads}')}")
        several = em.new(f"icmp ugt i64 {threads}, 1")
        for condition in (fits, pays, several):
            worth = em.new(f"and i1 {worth}, {condition}")
        return self._memory(worth, total, threads), total, offsets

    def _elements(self, param: Param) -> tuple[str, str]:
        """Scalars of an array's row, and whether it exists and they lie in one piece."""
        em, kind, row = self.em, param.type, self.rows[param]
        strides, n, contiguous = em.strides(param), str(kind.element_size), "true"
        for axis, value in enumerate(row):
            # An index outside: the program adds nothing there, and nothing must be read there for it.
            inside = em.new(f"icmp ult i64 {index64(em, value)}, {em.extent(param, axis)}")
            contiguous = em.new(f"and i1 {contiguous}, {inside}")
        for axis in reversed(range(len(row), kind.ndim)):
            same = em.new(f"icmp eq i64 {strides[axis]}, {n}")
            contiguous = em.new(f"and i1 {contiguous}, {same}")
            n = em.new(f"mul i64 {n}, {em.extent(param, axis)}")
        return n, contiguous

    def _memory(self, worth: str, stride: str, copies: str) -> str:
        """Allocate and mark every copy as unused; null where it is not worth it or there is no memory."""
        em = self.em
        take, mark, ready = em.label("take"), em.label("mark"), em.label("copies")
        before = em.block
        em.branch(worth, take, ready)
        em.start(take)
        raw = em.new(f"call ptr @malloc(i64 {em.new(f'mul i64 {stride}, {copies}')})")
        em.branch(em.new(f"icmp eq ptr {raw}, null"), ready, mark)
        em.start(mark)

        def unmark(_: str, copy: str) -> None:
            em.line(f"store i64 0, ptr {copy}, align 8")

        self._each_copy(raw, stride, copies, unmark)
        marked = em.block
        em.jump(ready)
        em.start(ready)
        return em.new(f"phi ptr [ null, %{before} ], [ null, %{take} ], [ {raw}, %{marked} ]")

    def _each_copy(self, all_: str, stride: str, copies: str, write: Callable[[str, str], None]) -> None:
        em = self.em

        def one(index: str) -> None:
            offset = em.new(f"mul i64 {index}, {stride}")
            write(index, em.new(f"getelementptr i8, ptr {all_}, i64 {offset}"))

        _loop(em, copies, 1, one)

    def merge(self, all_: str, stride: str, copies: str, offsets: Sequence[str]) -> None:
        """Add the used copies to the arrays in the order of the threads, and free them."""
        em = self.em
        some, done = em.label("merge"), em.label("merged")
        em.branch(em.new(f"icmp eq ptr {all_}, null"), done, some)
        em.start(some)

        def one(_: str, copy: str) -> None:
            used, skip = em.label("used"), em.label("unused")
            em.branch(em.new(f"icmp ne i64 {em.new(f'load i64, ptr {copy}, align 8')}, 0"), used, skip)
            em.start(used)
            arrays = em.new(f"getelementptr i8, ptr {copy}, i64 {_HEAD}")
            for param, offset in zip(self.arrays, offsets, strict=True):
                self._add(param, em.new(f"getelementptr i8, ptr {arrays}, i64 {offset}"))
            em.jump(skip)
            em.start(skip)

        with em.scope():
            self._each_copy(all_, stride, copies, one)
        em.line(f"call void @free(ptr {all_})")
        em.jump(done)
        em.start(done)

    def _add(self, param: Param, copy: str) -> None:
        em, t = self.em, LLVM[param.type.dtype]
        n, _ = self._elements(param)
        lanes = 32 // param.type.dtype.nbytes
        whole = em.new(f"and i64 {n}, {-lanes}")
        array = em.new(f"getelementptr {t}, ptr {em.address(param)}, i64 {row_offset(em, param, self.rows[param])}")
        _loop(em, whole, lanes, lambda i: self._add_one(param, f"<{lanes} x {t}>", array, copy, i))
        rest = em.new(f"sub i64 {n}, {whole}")
        _loop(em, rest, 1, lambda i: self._add_one(param, t, array, copy, em.new(f"add i64 {whole}, {i}")))

    def _add_one(self, param: Param, t: str, array: str, copy: str, index: str) -> None:
        em, d = self.em, param.type.dtype
        at = em.new(f"getelementptr {LLVM[d]}, ptr {array}, i64 {index}")
        from_ = em.new(f"getelementptr {LLVM[d]}, ptr {copy}, i64 {index}")
        old, more = (em.new(f"load {t}, ptr {p}, align {d.nbytes}") for p in (at, from_))
        new = em.new(f"{'fadd' if d.is_real else 'add'} {t} {old}, {more}")
        em.line(f"store {t} {new}, ptr {at}, align {d.nbytes}")


def row_offset(em: Emitter, param: Param, row: Sequence[Value]) -> str:
    """Return the scalars that lie before the row with these leading indices."""
    offset = "0"
    for value, stride in zip(row, em.strides(param), strict=False):
        offset = em.new(f"add i64 {offset}, {em.new(f'mul i64 {index64(em, value)}, {stride}')}")
    return offset


def _loop(em: Emitter, count: str, step: int, write: Callable[[str], None]) -> None:
    """Write a loop over 0, ``step``, … below ``count``."""
    head, body, done, before = em.label("head"), em.label("body"), em.label("end"), em.block
    em.jump(head)
    em.start(head)
    at = em.new("")
    phi = len(em.lines) - 1
    em.branch(em.new(f"icmp slt i64 {at}, {count}"), body, done)
    em.start(body)
    with em.scope():
        write(at)
    after = em.new(f"add i64 {at}, {step}")
    em.lines[phi] += f"phi i64 [ 0, %{before} ], [ {after}, %{em.block} ]"
    em.jump(head)
    em.start(done)


def private_arrays(atomics: Sequence[Node]) -> bool:
    """Whether atomics of one array are all additions of a type that can have private copies."""
    return all(n.attrs["kind"] == "add" and n.type in TYPES for n in atomics)
