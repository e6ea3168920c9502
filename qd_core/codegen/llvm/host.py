"""Entry points for processors that share memory with their caller: ranges of iterations, and one function that runs all
tasks.

A task is ``void task_k(i64 *words, i64 *extents, i64 begin, i64 end, worker*)`` over a range of its linear iterations.
The linear range is walked row by row of the innermost axis, which is spread over lanes: one division a row. ``int32
qd_kernel(context*, i64 *words, i64 *extents, stream*)`` runs the tasks in order; a task that is worth sharing goes
through ``run`` of the context.

Behind the extents of all axes, ``extents`` has the words of `LAUNCH` for the task that runs. Totals are combined block
by block, a block being a fixed number of iterations whatever the number of threads, and the blocks in their order: a
reduction gives the same value in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qd_core import dtypes as dt
from qd_core.codegen.llvm.cost import is_open
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.module import ModuleWriter, is_serial
from qd_core.codegen.llvm.ownership import Ownership, Totals, define
from qd_core.codegen.llvm.privates import CLEAR_IR, PrivateCopies, row_offset
from qd_core.codegen.llvm.survey import Survey
from qd_core.codegen.llvm.target import TaskForm
from qd_core.codegen.llvm.types import KERNEL, LLVM
from qd_core.ir.program import DeviceWord, Extent, Fixed, Program, Task

__all__ = ["KERNEL", "HostForm", "min_chunk"]

TWO_BODIES = 64
"""Nodes up to which a body without loops is written twice, without and with a mask for the rest of a row. Others run
under a mask always: it costs
them little, and halves the time to compile."""

_CHOICES = 64
"""Atomics up to which each is written twice, plainly for a thread that is alone: LLVM looks at every use of a condition
for each branch on it, which is quadratic."""

CHUNK_CYCLES = 6000.0
"""Cycles of work that are worth handing to another thread: about 2 µs."""


MAX_BLOCKS = 256
"""Blocks of iterations that totals are combined over."""

LAUNCH = ("alone", "block", "partials", "copies", "stride", "threads", "offsets")
"""Words for the running task: it runs on one thread; iterations of a block, and where to put each block's totals;
private copies (null: none), bytes of one, their number, and from there on the byte offset of each array in a copy.
"""


@dataclass(frozen=True, eq=False)
class HostForm(TaskForm):
    """Range-based tasks.

    Parameters
    ----------
    context : mapping
        Byte offsets in the context: ``"run"`` holds the address of ``run(context, task, words, extents, count,
        min_chunk)``; a negative ``min_chunk`` says that its size is a guess.
    threads : tuple of int
        Where the number of threads is: byte offset in the context of a pointer (null before there are threads), and
        byte offset behind it.
    worker : mapping
        Byte offsets in the worker: ``"arena_used"`` marks its private memory.
    allocator : str
        Text that defines ``ptr @qd_arena_alloc(ptr worker, i64 nbytes)``.
    """

    context: Mapping[str, int]
    threads: tuple[int, int]
    worker: Mapping[str, int]
    allocator: str

    opaque = "%end"

    # -- tasks ----------------------------------------------------------------------------------------------------
    def task(self, module: ModuleWriter, number: int, task: Task) -> None:
        """Write one task."""
        em = module.emitter(module.lanes(task))
        survey = module.survey(task)
        em.prepare(survey, module.divergence(task) if em.lanes > 1 else None)
        few = 0 < len(survey.atomics) <= _CHOICES
        em.alone = "true" if is_serial(task) else self._alone(em, module) if few else "false"
        if not is_serial(task):
            self._parallel(module, em, number, task)
        elif task.extents:
            _Rows(self, em, task, _first_axis(module.program, number)).write("%begin", "%end")
        else:
            em.jump("serial")
            em.start("serial")
            self.iteration(em, task)
        em.line("ret void")
        parameters = "ptr noalias readonly %words, ptr noalias readonly %extents, i64 %begin, i64 %end, ptr %worker"
        head = f"define void @task_{number}({parameters})"
        # Not inlined: the caller writes the extents, which the task may take for constant memory.
        head = f"{head} noinline {module.attributes} {{"
        module.functions.append("\n".join([head, "entry:", *em.entry, *em.lines, "}"]))

    def _alone(self, em: Emitter, module: ModuleWriter) -> str:
        word = _launch_word(em, module, "alone")
        em.entry.append(f"  %alone = icmp ne i64 {word}, 0")
        return "%alone"

    def _parallel(self, module: ModuleWriter, em: Emitter, number: int, task: Task) -> None:
        found = module.ownership(task)
        em.owned = found.owned
        if found.privates:
            self._use_copies(module, em, found)
        rows = _Rows(self, em, task, _first_axis(module.program, number))
        if found.totals:
            self._blocks(module, em, Totals(em, found), rows)
        else:
            rows.write("%begin", "%end")

    def _blocks(self, module: ModuleWriter, em: Emitter, totals: Totals, rows: _Rows) -> None:
        """Write the loop over the blocks of this chunk; chunks begin at multiples of a block."""
        block, partials = _launch_word(em, module, "block"), _launch_word(em, module, "partials", "ptr")
        head, body, done = em.label("blocks"), em.label("block"), em.label("blocks_end")
        em.jump(head)
        em.start(head)
        at = em.new("")
        phi = len(em.lines) - 1
        em.branch(em.new(f"icmp slt i64 {at}, %end"), body, done)
        em.start(body)
        with em.scope():
            after = em.new(f"add i64 {at}, {block}")
            totals.clear()
            rows.write(at, em.new(f"call i64 @llvm.smin.i64(i64 {after}, i64 %end)"))
            totals.put(partials, em.new(f"udiv i64 {at}, {block}"))
        em.lines[phi] += f"phi i64 [ %begin, %entry ], [ {after}, %{em.block} ]"
        em.jump(head)
        em.start(done)

    def _use_copies(self, module: ModuleWriter, em: Emitter, found: Ownership) -> None:
        """Let additions go to this thread's copies, plainly, where there are some."""
        words = [
            _launch_word(em, module, name, t) for name, t in (("copies", "ptr"), ("stride", "i64"), ("threads", "i64"))
        ]
        copies, stride, threads = words
        call = f"call ptr @qd_private_copy(ptr {copies}, i64 {stride}, i64 {threads}, ptr %worker)"
        em.entry += [f"  %copy = {call}", "  %shared = icmp eq ptr %copy, null", "  %own = xor i1 %shared, true"]
        if em.alone != "false":
            em.entry.append(f"  %plain = or i1 {em.alone}, %own")
            em.alone = "%plain"
        for k, param in enumerate(found.privates):
            offset = _launch_word(em, module, "offsets", index=k)
            em.entry.append(f"  %copy{k} = getelementptr i8, ptr %copy, i64 {offset}")
            for value in found.rows[param]:
                define(em, value)
            # A copy of a row stands where the whole array would begin.
            before = em.new(f"sub i64 0, {row_offset(em, param, found.rows[param])}")
            whole = em.new(f"getelementptr {LLVM[param.type.dtype]}, ptr %copy{k}, i64 {before}")
            em.redirect(param, em.new(f"select i1 %shared, ptr {em.address(param)}, ptr {whole}"))

    def iteration(self, em: Emitter, task: Task) -> None:
        """Write one run of the body, with private memory given back at its end."""
        with em.scope():
            mark = ""
            if "scratch" in em.module.survey(task).ops:
                at = em.new(f"getelementptr i8, ptr %worker, i64 {self.worker['arena_used']}")
                mark = em.new(f"load i64, ptr {at}, align 8")
                em.nodes(task.body)
                em.line(f"store i64 {mark}, ptr {at}, align 8")
            else:
                em.nodes(task.body)

    def allocate(self, emitter: Emitter, nbytes: str) -> str:
        """Take memory of the worker's arena."""
        return emitter.new(f"call ptr @qd_arena_alloc(ptr %worker, i64 {nbytes})")

    # -- the kernel -------------------------------------------------------------------------------------------------
    def finish(self, module: ModuleWriter) -> None:
        """Write the function that runs all tasks."""
        if any("scratch" in module.survey(t).ops for t in module.program.tasks):
            module.functions.append(self.allocator)
        if any(module.ownership(t).privates for t in module.program.tasks if not is_serial(t)):
            module.functions.append(CLEAR_IR)
        _Kernel(self, module).write()


def _axes(program: Program) -> int:
    return sum(len(t.extents) for t in program.tasks)


def _first_axis(program: Program, number: int) -> int:
    return sum(len(t.extents) for t in program.tasks[:number])


def _launch_word(em: Emitter, module: ModuleWriter, name: str, type: str = "i64", index: int = 0) -> str:
    """Read a word of `LAUNCH` in a task's entry block."""
    ref = f"%launch.{name}{index}"
    em.entry.append(f"  {ref}.at = getelementptr i64, ptr %extents, i64 {_launch_at(module, name) + index}")
    em.entry.append(f"  {ref} = load {type}, ptr {ref}.at, align 8, !invariant.load !0")
    return ref


def _launch_at(module: ModuleWriter, name: str) -> int:
    return _axes(module.program) + LAUNCH.index(name)


def min_chunk(task: Task, body: Survey, lanes: int) -> int:
    """Iterations that are worth handing to another thread, a multiple of the lanes.

    Where inner loops may be long, fewer than the estimate says: a small chunk costs tens of nanoseconds, an idle thread
    everything.
    """
    cycles = max(body.cycles / lanes, 0.25) * (_LONG if is_open(task.body) else 1)
    return max(-(-int(CHUNK_CYCLES / cycles) // lanes), 1) * lanes


_LONG = 8
"""How much longer than assumed a loop of unknown length is taken to be when chunks are cut."""

_ONE_CHUNK = (1 << 62) - 1
"""A chunk that holds everything: the pool runs it on the caller."""


class _Rows:
    """Writes the walk over the linear range of a parallel task."""

    def __init__(self, form: HostForm, em: Emitter, task: Task, first_axis: int) -> None:
        self.form, self.em, self.task = form, em, task
        self.body = em.module.survey(task)
        self.extents = [self._extent(e, first_axis + d) for d, e in enumerate(task.extents)]
        inner = task.extents[-1]
        # Chunks begin at multiples of the lanes, so rows of whole vectors are never cut inside one.
        self.whole = isinstance(inner, Fixed) and inner.count % em.lanes == 0

    def _extent(self, extent: Extent, axis: int) -> str:
        if isinstance(extent, Fixed):
            return str(max(extent.count, 0))
        em = self.em
        em.entry.append(f"  %n{axis}.at = getelementptr i64, ptr %extents, i64 {axis}")
        em.entry.append(f"  %n{axis} = load i64, ptr %n{axis}.at, align 8, !invariant.load !0")
        return f"%n{axis}"

    def write(self, begin: str, end: str) -> None:
        """Write the loop over the rows of a range, or the single row of a task with one axis."""
        em = self.em
        if len(self.extents) == 1:
            row = em.label("row")
            em.jump(row)
            em.start(row)
            self._row([], begin, end, "0")
            return
        head, body, done, before = em.label("rows"), em.label("row"), em.label("end"), em.block
        em.jump(head)
        em.start(head)
        at = em.new("")
        phi = len(em.lines) - 1
        em.branch(em.new(f"icmp slt i64 {at}, {end}"), body, done)
        em.start(body)
        with em.scope():
            outer, first, linear = self._split(at)
            left = em.new(f"sub i64 {end}, {at}")
            room = em.new(f"sub i64 {self.extents[-1]}, {first}")
            length = em.new(f"call i64 @llvm.smin.i64(i64 {left}, i64 {room})")
            self._row(outer, first, em.new(f"add i64 {first}, {length}"), linear)
        after = em.new(f"add i64 {at}, {length}")
        em.lines[phi] += f"phi i64 [ {begin}, %{before} ], [ {after}, %{em.block} ]"
        em.jump(head)
        em.start(done)

    def _split(self, at: str) -> tuple[list[str], str, str]:
        """Outer indices, first inner index, and the linear number of the row's element 0."""
        em, indices, rest = self.em, [], at
        for extent in reversed(self.extents[1:]):
            quotient = em.new(f"udiv i64 {rest}, {extent}")
            base = em.new(f"mul i64 {quotient}, {extent}")
            indices.append(em.new(f"sub i64 {rest}, {base}"))
            rest = quotient
        indices.append(rest)
        first, *outer = indices
        return outer[::-1], first, em.new(f"sub i64 {at}, {first}")

    def _row(self, outer: Sequence[str], first: str, last: str, row: str) -> None:
        em, lanes = self.em, self.em.lanes
        for arg, ref in zip(self.task.body.args[:-1], outer, strict=True):
            em.env[arg] = Lane(self._index(ref, arg.type))
        if lanes == 1 or self.whole:
            self._loop(first, last, row, masked=False)
        elif self.body.loops or self.body.nodes > TWO_BODIES:
            self._loop(first, last, row, masked=True)
        else:
            self._loop_and_rest(first, last, row)

    def _loop_and_rest(self, first: str, last: str, row: str) -> None:
        em, lanes = self.em, self.em.lanes
        length = em.new(f"sub i64 {last}, {first}")
        whole = em.new(f"and i64 {length}, {-lanes}")
        middle = em.new(f"add i64 {first}, {whole}")
        self._loop(first, middle, row, masked=False)
        rest, done = em.label("rest"), em.label("row_end")
        em.branch(em.new(f"icmp slt i64 {middle}, {last}"), rest, done)
        em.start(rest)
        with em.scope():
            self._vector(middle, last, row, masked=True)
        em.jump(done)
        em.start(done)

    def _loop(self, first: str, last: str, row: str, *, masked: bool) -> None:
        em = self.em
        head, body, done = em.label("lanes"), em.label("iteration"), em.label("row_done")
        before = em.block
        em.jump(head)
        em.start(head)
        at = em.new("")
        phi = len(em.lines) - 1
        em.branch(em.new(f"icmp slt i64 {at}, {last}"), body, done)
        em.start(body)
        with em.scope():
            self._vector(at, last, row, masked=masked)
        after = em.new(f"add nsw i64 {at}, {em.lanes}")
        em.lines[phi] += f"phi i64 [ {first}, %{before} ], [ {after}, %{em.block} ]"
        em.jump(head)
        em.start(done)

    def _vector(self, at: str, last: str, row: str, *, masked: bool) -> None:
        """Write the body for the iterations from ``at`` on, as many as there are lanes, those below ``last`` active."""
        em = self.em
        arg = self.task.body.args[-1]
        step = 1 if em.lanes > 1 else None
        em.env[arg] = Lane(self._index(at, arg.type), step is not None, step, exact=True)
        em.linear = Lane(em.new(f"add i64 {row}, {at}") if row != "0" else at)
        with em.masked(self._rest_mask(at, last) if masked else None):
            self.form.iteration(em, self.task)

    def _rest_mask(self, at: str, last: str) -> str:
        em = self.em
        left = em.new(f"sub i64 {last}, {at}")
        few = em.new(f"call i64 @llvm.smin.i64(i64 {left}, i64 {em.lanes})")
        count = em.splat(em.new(f"trunc i64 {few} to i32"), dt.i32)
        return em.new(f"icmp slt {em.vector[dt.i32]} {em.steps(dt.i32, 1)}, {count}")

    def _index(self, ref: str, d: dt.DType) -> str:
        if d.bits == 64:
            return ref
        low = self.em.new(f"trunc i64 {ref} to {LLVM[d]}")
        self.em.known_as(("i64", low), ref)
        return low


class _Kernel:
    """Writes the function that runs all tasks in order."""

    def __init__(self, form: HostForm, module: ModuleWriter) -> None:
        self.form, self.module = form, module
        self.em = module.emitter(1)

    def write(self) -> None:
        """Write it."""
        em, program = self.em, self.module.program
        em.jump("tasks")
        em.start("tasks")
        for number, task in enumerate(program.tasks):
            self._task(number, task)
        em.line("ret i32 0")
        head = f"define i32 @{KERNEL}(ptr %context, ptr %words, ptr %extents, ptr %stream) {self.module.attributes} {{"
        found = [self.module.ownership(t) for t in program.tasks if not is_serial(t)]
        words = _axes(program) + len(LAUNCH) + max((len(f.privates) for f in found), default=0)
        totals = max((len(f.totals) for f in found), default=0)
        entry = ["entry:", f"  %n = alloca [{words} x i64], align 8"]
        entry += [f"  %partials = alloca [{totals * MAX_BLOCKS} x i64], align 64"] if totals else []
        entry += em.entry
        self.module.functions.append("\n".join([head, *entry, *em.lines, "}"]))

    def _task(self, number: int, task: Task) -> None:
        em = self.em
        count = "1"
        for d, extent in enumerate(task.extents):
            axis = _first_axis(self.module.program, number) + d
            n = self._extent(extent, axis)
            at = em.new(f"getelementptr i64, ptr %n, i64 {axis}")
            em.line(f"store i64 {n}, ptr {at}, align 8")
            count = n if count == "1" else em.new(f"mul i64 {count}, {n}")
        if not is_serial(task):
            self._parallel(number, task, count)
        elif "scratch" in self.module.survey(task).ops:
            self._share(number, count, _ONE_CHUNK)
        else:
            self._call(number, count)

    def _parallel(self, number: int, task: Task, count: str) -> None:
        """Run on the caller alone, or share: the last word of the extents tells the task which."""
        em, found = self.em, self.module.ownership(task)
        chunk = min_chunk(task, self.module.survey(task), self.module.lanes(task))
        block = self._block(count, chunk) if found.totals else str(chunk)
        several, alone, done = em.label("several"), em.label("alone"), em.label("task_done")
        large, known = em.label("large"), em.label("known")
        em.branch(em.new(f"icmp sgt i64 {count}, {chunk}"), large, alone)
        em.start(large)
        first, second = self.form.threads
        pool = em.new(f"load ptr, ptr {em.new(f'getelementptr i8, ptr %context, i64 {first}')}, align 8")
        em.branch(em.new(f"icmp eq ptr {pool}, null"), several, known)  # null: whoever shares first makes the threads
        em.start(known)
        at = em.new(f"getelementptr i8, ptr {pool}, i64 {second}")
        threads = em.new(f"load atomic i64, ptr {at} monotonic, align 8")
        em.branch(em.new(f"icmp sgt i64 {threads}, 1"), several, alone)
        em.start(several)
        sharing = em.new(f"phi i64 [ 0, %{large} ], [ {threads}, %{known} ]")
        self._note("alone", 0)
        # Negative: the size is a guess, and the pool shall look at the clock before it wakes anybody.
        piece = em.new(f"sub i64 0, {block}") if is_open(task.body) else block
        if found.privates:
            self._share_with_copies(number, found, count, piece, sharing)
        else:
            self._share(number, count, piece)
        em.jump(done)
        em.start(alone)
        self._note("alone", 1)
        if found.privates:
            self._note("copies", "null", "ptr")
        if "scratch" in self.module.survey(task).ops:
            self._share(number, count, _ONE_CHUNK)
        else:
            self._call(number, count)
        em.jump(done)
        em.start(done)
        if found.totals:
            self._combine(found, count, block)

    def _note(self, name: str, value: object, type: str = "i64", index: int = 0) -> None:
        at = self.em.new(f"getelementptr i64, ptr %n, i64 {_launch_at(self.module, name) + index}")
        self.em.line(f"store {type} {value}, ptr {at}, align 8")

    def _block(self, count: str, chunk: int) -> str:
        """Iterations of a block: a multiple of the chunk that makes at most `MAX_BLOCKS` blocks."""
        em = self.em
        share = em.new(f"udiv i64 {em.new(f'add i64 {count}, {MAX_BLOCKS - 1}')}, {MAX_BLOCKS}")
        pieces = em.new(f"udiv i64 {em.new(f'add i64 {share}, {chunk - 1}')}, {chunk}")
        least = em.new(f"call i64 @llvm.smax.i64(i64 {pieces}, i64 1)")
        block = em.new(f"mul i64 {least}, {chunk}")
        self._note("block", block)
        self._note("partials", "%partials", "ptr")
        return block

    def _combine(self, found: Ownership, count: str, block: str) -> None:
        """Combine the blocks in order and update the elements; nothing where there was no iteration."""
        em = self.em
        some, done = em.label("combine"), em.label("combined")
        more = em.new(f"add i64 {count}, {block}")
        blocks = em.new(f"udiv i64 {em.new(f'sub i64 {more}, 1')}, {block}")
        em.branch(em.new(f"icmp sgt i64 {blocks}, 0"), some, done)
        em.start(some)
        with em.scope():
            Totals(em, found).update("%partials", blocks)
        em.jump(done)
        em.start(done)

    def _share_with_copies(self, number: int, found: Ownership, count: str, chunk: str, threads: str) -> None:
        """Share, each thread adding into copies of its own where that pays; 0 threads: nobody knows yet."""
        additions = sum(map(len, found.privates.values()))
        for row in found.rows.values():
            for value in row:
                define(self.em, value)
        copies = PrivateCopies(self.em, list(found.privates), additions, found.rows)
        memory, stride, offsets = copies.allocate(count, threads)
        self._note("copies", memory, "ptr")
        self._note("stride", stride)
        self._note("threads", threads)
        for k, offset in enumerate(offsets):
            self._note("offsets", offset, index=k)
        self._share(number, count, chunk)
        copies.merge(memory, stride, threads, offsets)

    def _extent(self, extent: Extent, axis: int) -> str:
        em = self.em
        if isinstance(extent, Fixed):
            return str(max(extent.count, 0))
        if isinstance(extent, DeviceWord):
            at = em.new(f"getelementptr i64, ptr {em.address(extent.param)}, i64 {extent.index}")
        else:
            at = em.new(f"getelementptr i64, ptr %extents, i64 {axis}")
        return em.new(f"call i64 @llvm.smax.i64(i64 {em.new(f'load i64, ptr {at}, align 8')}, i64 0)")

    def _share(self, number: int, count: str, chunk: object) -> None:
        em = self.em
        at = em.new(f"getelementptr i8, ptr %context, i64 {self.form.context['run']}")
        run = em.new(f"load ptr, ptr {at}, align 8")
        em.line(f"call void {run}(ptr %context, ptr @task_{number}, ptr %words, ptr %n, i64 {count}, i64 {chunk})")

    def _call(self, number: int, count: str) -> None:
        self.em.line(f"call void @task_{number}(ptr %words, ptr %n, i64 0, i64 {count}, ptr null)")
