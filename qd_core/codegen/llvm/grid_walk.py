"""How the threads of a grid walk over the iterations of a task.

==========  ============================================================================================
walk        where
==========  ============================================================================================
linear      thread ``t`` takes iterations ``t``, ``t + threads``, ...; works for every extent
tiles       a block takes pieces of some `TILE_THREADS` neighbouring iterations of the innermost axis; each
            thread has several of them in flight, so that enough loads are under way at once. Only for
            straight-line bodies, and chosen at run time where the innermost axis is long enough. Where
            there are more axes, a block takes a few such pieces one below the other, so that neighbouring
            rows meet in a cache.
==========  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qd_core import dtypes as dt
from qd_core.codegen.llvm.divergence import Divergence
from qd_core.codegen.llvm.emitter import Emitter, Lane
from qd_core.codegen.llvm.grid_atomics import close_reductions, open_reductions
from qd_core.codegen.llvm.grid_scratch import open_pool
from qd_core.codegen.llvm.grid_split import divide_threads, loaded_arrays, splittable
from qd_core.codegen.llvm.grid_state import GridState
from qd_core.codegen.llvm.types import LLVM
from qd_core.ir.nodes import Node, Region
from qd_core.ir.program import DeviceWord, Extent, Fixed, Task
from qd_core.ir.rewrite import walk

__all__ = ["Walk", "lanes_of", "share_of"]

LANES, LANES_OF_MANY_LOADS, MANY_LOADS = 4, 2, 4
"""Iterations in flight a thread; fewer where one loads much already: registers decide how many threads are resident."""

ROWS = 4
TILE_THREADS = 256
WIDE_NBYTES = 16
LINEAR_SHARE = 4
"""Iterations of a thread in the linear walk over a straight-line body: the indices are divided once for all of them."""

_TILE_NODES = 64
"""Largest body that is written for tiles: what several iterations hold at once must fit the registers."""

_NOT_IN_TILES = frozenset({"check", "print", "scratch"})
_INT_DIVISION = frozenset({"floordiv", "mod", "raw_div", "raw_mod"})


def lanes_of(task: Task) -> int:
    """Iterations that a thread has in flight in the walk over tiles; 1 where there is no such walk."""
    body = task.body
    if task.attrs.get("block_dim", TILE_THREADS) != TILE_THREADS or sum(1 for _ in walk(body)) > _TILE_NODES:
        return 1
    if not all(map(_fits_tiles, body.nodes)):
        return 1
    loads = sum(n.op.name in ("load", "atomic") for n in body.nodes)
    return LANES_OF_MANY_LOADS if loads >= MANY_LOADS else LANES


def share_of(task: Task) -> int:
    """Iterations that a thread takes in a launch whose grid covers all of them."""
    lanes = lanes_of(task)
    if lanes > 1:
        return lanes * ROWS if len(task.extents) > 1 else lanes
    return 1 if any(n.regions for n in task.body.nodes) else LINEAR_SHARE


def _fits_tiles(node: Node) -> bool:
    name = node.op.name
    if node.regions or name in _NOT_IN_TILES:
        return False
    # Vectors of integers are divided as reals of 64 bits, which many devices are slow at.
    return name not in _INT_DIVISION or node.type.is_real


class Walk:
    """Writes the loops of one task.

    Parameters
    ----------
    em : Emitter
        Its lanes are those of the walk over tiles.
    state : GridState
        Filled in by `write`.
    task : Task
    first_axis : int
        Position of the task's first extent among all.
    """

    def __init__(self, em: Emitter, state: GridState, task: Task, first_axis: int) -> None:
        self.em, self.state, self.task, self.first_axis = em, state, task, first_axis
        self.body: Region = task.body
        self.lanes = em.lanes
        self.tile = em.lanes * TILE_THREADS
        self.extents: list[str] = []

    def write(self) -> None:
        """Write everything between the entry and the return."""
        if self.state.parallel:
            self._position()
        if not self.task.extents:
            open_pool(self.em, self.body)
            self._iteration()
            return
        self.extents = [self._extent(e, self.first_axis + d) for d, e in enumerate(self.task.extents)]
        for extent in self.extents:
            self.state.count = self._times(self.state.count, extent)
        open_pool(self.em, self.body)
        if self.state.parallel:
            open_reductions(self.em, self.body)
            self._split_loop()
        self._choose()
        if self.state.parallel:
            close_reductions(self.em)

    def _split_loop(self) -> None:
        state = self.state
        loop = splittable(self.body, bool(self.em.flags))
        if loop is not None and not (state.accumulators or state.bins or state.pool):
            divide_threads(self.em, loop)

    def _position(self) -> None:
        em, state, facts = self.em, self.state, self.state.facts
        state.thread, state.block = em.new(facts.thread), em.new(facts.block)
        state.size, state.grid = em.new(facts.block_size), em.new(facts.grid_size)
        block, size, grid, thread = (
            em.new(f"zext i32 {x} to i64") for x in (state.block, state.size, state.grid, state.thread)
        )
        # In 64 bits: a grid that covers all iterations may have more than 2^32 threads.
        state.first = em.new(f"add i64 {em.new(f'mul i64 {block}, {size}')}, {thread}")
        state.threads = em.new(f"mul i64 {grid}, {size}")

    def _extent(self, extent: Extent, axis: int) -> str:
        em = self.em
        if isinstance(extent, Fixed):
            return str(max(extent.count, 0))
        if isinstance(extent, DeviceWord):
            p = em.address(extent.param)
            at = em.new(f"getelementptr i64, {em.target.pointer} {p}, i64 {extent.index}")
            count = em.new(f"load i64, {em.target.pointer} {at}, align 8")
            return em.new(f"call i64 @llvm.smax.i64(i64 {count}, i64 0)")
        at = em.new(f"getelementptr i64, ptr %extents, i64 {axis}")
        return em.new(f"load i64, ptr {at}, align 8, !invariant.load !0")

    def _times(self, a: str, b: str) -> str:
        return b if a == "1" else self.em.new(f"mul i64 {a}, {b}")

    def _choose(self) -> None:
        """Tiles where they pay, else linear."""
        em = self.em
        if self.state.split is not None:
            self._by_alignment(self.state.split)
            return
        if self.lanes == 1:
            self._linear()
            return
        full = em.new(f"icmp eq i32 {self.state.size}, {TILE_THREADS}")
        long = em.new(f"icmp uge i64 {self.extents[-1]}, {self.tile}")
        tiles, linear, done = em.label("tiles"), em.label("linear"), em.label("walked")
        em.branch(em.new(f"and i1 {full}, {long}"), tiles, linear)
        for label, write in ((tiles, self._tiles), (linear, self._linear)):
            em.start(label)
            with em.scope():
                write()
            em.jump(done)
        em.start(done)

    def _by_alignment(self, loop: Node) -> None:
        """Twice, once for arrays whose addresses are multiples of `WIDE_NBYTES`: neighbours are read at once."""
        em, pointer = self.em, self.em.target.pointer
        arrays = [em.address(p) for p in loaded_arrays(loop)]
        low = "0"
        for ref in arrays:
            low = em.new(f"or i64 {low}, {em.new(f'ptrtoint {pointer} {ref} to i64')}")
        rest = em.new(f"and i64 {low}, {WIDE_NBYTES - 1}")
        wide, narrow, done = em.label("wide"), em.label("narrow"), em.label("walked")
        em.branch(em.new(f"icmp eq i64 {rest}, 0"), wide, narrow)
        for label in (wide, narrow):
            em.start(label)
            if label == wide:
                for ref in arrays:
                    em.line(f'call void @llvm.assume(i1 true) [ "align"({pointer} {ref}, i64 {WIDE_NBYTES}) ]')
            with em.scope():
                self._linear()
            em.jump(done)
        em.start(done)

    # -- linear -----------------------------------------------------------------------------------------------------
    def _linear(self) -> None:
        em, state = self.em, self.state
        # More threads than take part: the rest has nothing to do.
        inside = em.new(f"icmp ult i64 {state.first}, {state.threads}")
        start = em.new(f"select i1 {inside}, i64 {state.first}, i64 {state.count}")
        digits = self._split(start, self.extents)
        steps = self._split(state.threads, self.extents)
        loop = _Loop(em, start, state.count)
        for digit, arg in zip(digits, self.body.args, strict=False):
            loop.carry(LLVM[arg.type], self._narrow(digit, arg.type))
        with loop as (at, *indices):
            for arg, ref in zip(self.body.args, indices or [at], strict=True):
                em.env[arg] = Lane(ref if indices else self._index(at, arg.type))
            em.linear = Lane(at)
            self._iteration()
            narrow = [self._narrow(s, arg.type) for s, arg in zip(steps, self.body.args, strict=False)]
            loop.advance(state.threads, self._add(indices, narrow, self.extents))

    def _split(self, linear: str, extents: Sequence[str]) -> list[str]:
        """Digits of a linear number, outermost first; none where there is one axis."""
        em, digits, rest = self.em, list[str](), linear
        if len(self.extents) == 1:
            return []
        for extent in reversed(extents[1:]):
            divisor = em.new(f"call i64 @llvm.umax.i64(i64 {extent}, i64 1)")
            quotient = em.new(f"udiv i64 {rest}, {divisor}")
            digits.append(em.new(f"sub i64 {rest}, {em.new(f'mul i64 {quotient}, {divisor}')}"))
            rest = quotient
        return [rest, *digits[::-1]]

    def _add(self, digits: Sequence[str], steps: Sequence[str], extents: Sequence[str]) -> list[str]:
        """Add with carry; the first digit does not wrap."""
        em, result, carry = self.em, list[str](), ""
        args = self.body.args
        for n in reversed(range(len(digits))):
            t = LLVM[args[n].type]
            total = digits[n] if steps[n] == "0" else em.new(f"add {t} {digits[n]}, {steps[n]}")
            if carry:
                total = em.new(f"add {t} {total}, {em.new(f'zext i1 {carry} to {t}')}")
            if n > 0:
                extent = self._narrow(extents[n], args[n].type)
                carry = em.new(f"icmp uge {t} {total}, {extent}")
                total = em.new(f"select i1 {carry}, {t} {em.new(f'sub {t} {total}, {extent}')}, {t} {total}")
            result.append(total)
        return result[::-1]

    def _narrow(self, ref: str, d: dt.DType) -> str:
        return ref if d.bits == 64 or ref[0] != "%" else self.em.new(f"trunc i64 {ref} to {LLVM[d]}")

    def _index(self, ref: str, d: dt.DType) -> str:
        if d.bits == 64:
            return ref
        low = self.em.new(f"trunc i64 {ref} to {LLVM[d]}")
        self.em.known_as(("i64", low), ref)
        return low

    def _iteration(self) -> None:
        self.em.varying, self.em.divergent = set(), set()
        with self.em.scope():
            self.em.nodes(self.body)
        if self.state.split_end:
            self.em.jump(self.state.split_end)
            self.em.start(self.state.split_end)

    # -- tiles --------------------------------------------------------------------------------------------------------
    def _tiles(self) -> None:
        em, outer = self.em, self.extents[:-1]
        rows = "1"
        for extent in outer:
            rows = self._times(rows, extent)
        chunks = em.new(f"udiv i64 {em.new(f'add i64 {self.extents[-1]}, {self.tile - 1}')}, {self.tile}")
        if outer:
            self._columns(rows, chunks)
            return
        block, grid = (em.new(f"zext i32 {x} to i64") for x in (self.state.block, self.state.grid))
        loop = _Loop(em, block, chunks)
        with loop as (chunk,):
            self._tile(chunk)
            loop.advance(grid, [])

    def _columns(self, rows: str, chunks: str) -> None:
        """Tiles of several axes: a block takes `ROWS` tiles, one below the other."""
        em, outer = self.em, self.extents[:-1]
        block, grid = (em.new(f"zext i32 {x} to i64") for x in (self.state.block, self.state.grid))
        bands = em.new(f"udiv i64 {em.new(f'add i64 {rows}, {ROWS - 1}')}, {ROWS}")
        loop = _Loop(em, block, self._times(bands, chunks))
        with loop as (number,):
            band = em.new(f"udiv i64 {number}, {chunks}")
            chunk = em.new(f"sub i64 {number}, {em.new(f'mul i64 {band}, {chunks}')}")
            row = em.new(f"mul i64 {band}, {ROWS}")
            end = em.new(f"call i64 @llvm.umin.i64(i64 {em.new(f'add i64 {row}, {ROWS}')}, i64 {rows})")
            self._band(chunk, row, end, self._split(row, outer) if len(outer) > 1 else [row])
            loop.advance(grid, [])

    def _band(self, chunk: str, row: str, end: str, digits: Sequence[str]) -> None:
        em, outer = self.em, self.extents[:-1]
        loop = _Loop(em, row, end)
        for digit, arg in zip(digits, self.body.args, strict=False):
            loop.carry(LLVM[arg.type], self._narrow(digit, arg.type))
        with loop as (_, *indices):
            for arg, ref in zip(self.body.args, indices, strict=False):
                em.env[arg] = Lane(ref)
            self._tile(chunk)
            steps = ["0"] * (len(indices) - 1) + ["1"]
            loop.advance("1", self._add(indices, steps, outer))

    def _tile(self, chunk: str) -> None:
        em, inner = self.em, self.extents[-1]
        base = em.new(f"mul i64 {chunk}, {self.tile}")
        mine = em.new(f"add i64 {base}, {em.new(f'zext i32 {self.state.thread} to i64')}")
        end = em.new(f"add i64 {base}, {self.tile}")
        full, rest, done = em.label("full"), em.label("rest"), em.label("tiled")
        em.branch(em.new(f"icmp ule i64 {end}, {inner}"), full, rest)
        for label, write in ((full, self._full_tile), (rest, self._rest)):
            em.start(label)
            with em.scope():
                write(mine)
            em.jump(done)
        em.start(done)

    def _full_tile(self, mine: str) -> None:
        em, arg = self.em, self.body.args[-1]
        found = Divergence(self.body, (arg,))
        em.varying, em.divergent = found.varying, found.divergent
        em.env[arg] = Lane(self._index(mine, arg.type), True, TILE_THREADS, exact=True)
        em.nodes(self.body)

    def _rest(self, mine: str) -> None:
        em, arg = self.em, self.body.args[-1]
        loop = _Loop(em, mine, self.extents[-1])
        with loop as (at,):
            em.env[arg] = Lane(self._index(at, arg.type))
            self._iteration()
            loop.advance(str(TILE_THREADS), [])


class _Loop:
    """A counting loop over i64 that carries further values; ``with`` gives the counter and these."""

    def __init__(self, em: Emitter, start: str, stop: str) -> None:
        self.em, self.start, self.stop = em, start, stop
        self.carried: list[tuple[str, str]] = []
        self.phis: list[int] = []
        self.types = ["i64"]
        self._scope: Callable[..., object] | None = None

    def carry(self, type: str, init: str) -> None:
        """Carry a value."""
        self.carried.append((type, init))

    def __enter__(self) -> list[str]:
        em = self.em
        head, body, self.done = em.label("walk"), em.label("iteration"), em.label("done")
        self.head, self.before = head, em.block
        em.jump(head)
        em.start(head)
        refs: list[str] = []
        for _ in range(1 + len(self.carried)):
            refs.append(em.new(""))
            self.phis.append(len(em.lines) - 1)
        em.branch(em.new(f"icmp ult i64 {refs[0]}, {self.stop}"), body, self.done)
        em.start(body)
        self._inside = em.scope()
        self._inside.__enter__()
        self.counter = refs[0]
        return refs

    def advance(self, step: str, values: Sequence[str]) -> None:
        """Write the end of the body: the counter's step and the next carried values."""
        em = self.em
        nexts = [em.new(f"add i64 {self.counter}, {step}"), *values]
        for at, (type, init), value in zip(self.phis, [("i64", self.start), *self.carried], nexts, strict=True):
            em.lines[at] += f"phi {type} [ {init}, %{self.before} ], [ {value}, %{em.block} ]"
        em.jump(self.head)

    def __exit__(self, *error: object) -> None:
        self._inside.__exit__(*error)  # type: ignore[arg-type]
        self.em.start(self.done)
