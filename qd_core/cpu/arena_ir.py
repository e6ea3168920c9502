"""The arena of a worker: memory for residuals of reverse mode, as LLVM IR, and the byte layout of a worker's structure.

The arena is a bump allocator over a chain of blocks that share one virtual offset, `arena_used`: block k serves offsets
from its start to its end, and starts where block k-1 ends. So one saved word marks a state, and storing it back resets
across blocks; the next allocation notices (`arena_used < arena_start`) and drops what lies above.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

WORKER = {
    "worker_index": 0,  # below the number of threads; no two workers of one launch share it
    "arena_base": 8,  # address of virtual offset 0, valid for offsets from arena_start to arena_capacity
    "arena_used": 16,  # virtual offset of the first free byte, a multiple of 32
    "arena_capacity": 24,  # virtual offset at which the current block ends
    "arena_start": 32,  # virtual offset at which the current block starts
    "arena_grow": 40,  # ptr grow(worker*, i64 nbytes): the slow path, nbytes a multiple of 32
    "arena_block": 48,  # newest block of the chain
    "arena_spare": 56,  # a block that was dropped and is kept for the next growth
    "arena_peak": 64,  # largest arena_capacity so far: the next first block gets that size
    "pool": 72,
    "seen": 80,  # epoch of the last job joined
}
WORKER_NBYTES = 128

_BLOCK = {"previous": 0, "allocation": 8, "start": 16, "end": 24}
_BLOCK_HEADER = 64
_MINIMAL_BLOCK = 1 << 16

_ALLOC_IR = """
; 32-byte aligned memory that lives until w.arena_used is set back; inlined, 6 instructions when the block has room
define internal ptr @qd_arena_alloc(ptr %w, i64 %nbytes) alwaysinline {
entry:
  %rounded = add i64 %nbytes, 31
  %size = and i64 %rounded, -32
  %used_at = getelementptr i8, ptr %w, i64 <w.arena_used>
  %used = load i64, ptr %used_at
  %start_at = getelementptr i8, ptr %w, i64 <w.arena_start>
  %start = load i64, ptr %start_at
  %capacity_at = getelementptr i8, ptr %w, i64 <w.arena_capacity>
  %capacity = load i64, ptr %capacity_at
  %end = add i64 %used, %size
  %fits = icmp ule i64 %end, %capacity
  %current = icmp uge i64 %used, %start
  %fast = and i1 %fits, %current
  br i1 %fast, label %bump, label %full
bump:
  store i64 %end, ptr %used_at
  %base_at = getelementptr i8, ptr %w, i64 <w.arena_base>
  %base = load ptr, ptr %base_at
  %p = getelementptr i8, ptr %base, i64 %used
  ret ptr %p
full:
  %grow_at = getelementptr i8, ptr %w, i64 <w.arena_grow>
  %grow = load ptr, ptr %grow_at
  %q = call ptr %grow(ptr %w, i64 %size)
  ret ptr %q
}
"""

_GROW_IR = """
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @perror(ptr)
declare void @abort() noreturn
declare i64 @llvm.umax.i64(i64, i64)
@no_memory = private constant [35 x i8] c"qd_core: memory for residuals gone\\00"

define internal void @qd_block_free(ptr %block) {
entry:
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %some
some:
  %raw_at = getelementptr i8, ptr %block, i64 <b.allocation>
  %raw = load ptr, ptr %raw_at
  call void @free(ptr %raw)
  br label %done
done:
  ret void
}

define internal ptr @qd_block_new(i64 %size) {
entry:
  %padded = add i64 %size, 128
  %raw = call ptr @malloc(i64 %padded)
  %none = icmp eq ptr %raw, null
  br i1 %none, label %out, label %ok
out:
  call void @perror(ptr @no_memory)
  call void @abort()
  unreachable
ok:
  %address = ptrtoint ptr %raw to i64
  %up = add i64 %address, 63
  %aligned = and i64 %up, -64
  %block = inttoptr i64 %aligned to ptr
  %raw_at = getelementptr i8, ptr %block, i64 <b.allocation>
  store ptr %raw, ptr %raw_at
  %end_at = getelementptr i8, ptr %block, i64 <b.end>
  store i64 %size, ptr %end_at
  ret ptr %block
}

; keep the larger of the two: the spare that there is, or this block (a spare's start is 0 and its end its size)
define internal void @qd_block_drop(ptr %w, ptr %block) {
entry:
  %start_at = getelementptr i8, ptr %block, i64 <b.start>
  %start = load i64, ptr %start_at
  %end_at = getelementptr i8, ptr %block, i64 <b.end>
  %end = load i64, ptr %end_at
  %size = sub i64 %end, %start
  store i64 %size, ptr %end_at
  %spare_at = getelementptr i8, ptr %w, i64 <w.arena_spare>
  %spare = load ptr, ptr %spare_at
  %none = icmp eq ptr %spare, null
  br i1 %none, label %keep, label %compare
compare:
  %spare_size_at = getelementptr i8, ptr %spare, i64 <b.end>
  %spare_size = load i64, ptr %spare_size_at
  %larger = icmp ugt i64 %size, %spare_size
  br i1 %larger, label %keep, label %discard
keep:
  store ptr %block, ptr %spare_at
  call void @qd_block_free(ptr %spare)
  ret void
discard:
  call void @qd_block_free(ptr %block)
  ret void
}

; a block of at least `size` bytes, the spare where it is large enough for all that was ever needed above `start`
define internal ptr @qd_block_get(ptr %w, i64 %start, i64 %size) {
entry:
  %peak_at = getelementptr i8, ptr %w, i64 <w.arena_peak>
  %peak = load i64, ptr %peak_at
  %above = sub i64 %peak, %start
  %known = icmp ugt i64 %peak, %start
  %remembered = select i1 %known, i64 %above, i64 0
  %least = call i64 @llvm.umax.i64(i64 %size, i64 %remembered)
  %spare_at = getelementptr i8, ptr %w, i64 <w.arena_spare>
  %spare = load ptr, ptr %spare_at
  store ptr null, ptr %spare_at
  %none = icmp eq ptr %spare, null
  br i1 %none, label %fresh, label %check
check:
  %spare_size_at = getelementptr i8, ptr %spare, i64 <b.end>
  %spare_size = load i64, ptr %spare_size_at
  %enough = icmp uge i64 %spare_size, %least
  br i1 %enough, label %reuse, label %fresh
reuse:
  ret ptr %spare
fresh:
  call void @qd_block_free(ptr %spare)
  %doubled = call i64 @llvm.umax.i64(i64 %least, i64 %start)
  %wanted = call i64 @llvm.umax.i64(i64 %doubled, i64 <minimal_block>)
  %block = call ptr @qd_block_new(i64 %wanted)
  ret ptr %block
}

define ptr @qd_arena_grow(ptr %w, i64 %size) noinline {
entry:
  %used_at = getelementptr i8, ptr %w, i64 <w.arena_used>
  %used = load i64, ptr %used_at
  %block_at = getelementptr i8, ptr %w, i64 <w.arena_block>
  br label %walk
walk:
  %top = load ptr, ptr %block_at
  %empty = icmp eq ptr %top, null
  br i1 %empty, label %append, label %look
look:
  %top_start_at = getelementptr i8, ptr %top, i64 <b.start>
  %top_start = load i64, ptr %top_start_at
  %unused = icmp uge i64 %top_start, %used
  br i1 %unused, label %drop, label %use
drop:
  %previous_at = getelementptr i8, ptr %top, i64 <b.previous>
  %previous = load ptr, ptr %previous_at
  store ptr %previous, ptr %block_at
  call void @qd_block_drop(ptr %w, ptr %top)
  br label %walk
use:
  %top_end_at = getelementptr i8, ptr %top, i64 <b.end>
  %top_end = load i64, ptr %top_end_at
  %end = add i64 %used, %size
  %fits = icmp ule i64 %end, %top_end
  br i1 %fits, label %install, label %append
append:
  %start = phi i64 [ 0, %walk ], [ %top_end, %use ]
  %new = call ptr @qd_block_get(ptr %w, i64 %start, i64 %size)
  %new_previous_at = getelementptr i8, ptr %new, i64 <b.previous>
  store ptr %top, ptr %new_previous_at
  %new_start_at = getelementptr i8, ptr %new, i64 <b.start>
  store i64 %start, ptr %new_start_at
  %new_end_at = getelementptr i8, ptr %new, i64 <b.end>
  %new_size = load i64, ptr %new_end_at
  %new_end = add i64 %start, %new_size
  store i64 %new_end, ptr %new_end_at
  store ptr %new, ptr %block_at
  %peak_at = getelementptr i8, ptr %w, i64 <w.arena_peak>
  %peak = load i64, ptr %peak_at
  %new_peak = call i64 @llvm.umax.i64(i64 %peak, i64 %new_end)
  store i64 %new_peak, ptr %peak_at
  br label %install
install:
  %block = phi ptr [ %top, %use ], [ %new, %append ]
  %from = phi i64 [ %used, %use ], [ %start, %append ]
  %s_at = getelementptr i8, ptr %block, i64 <b.start>
  %s = load i64, ptr %s_at
  %e_at = getelementptr i8, ptr %block, i64 <b.end>
  %e = load i64, ptr %e_at
  %data = getelementptr i8, ptr %block, i64 <block_header>
  %back = sub i64 0, %s
  %base = getelementptr i8, ptr %data, i64 %back
  %base_at = getelementptr i8, ptr %w, i64 <w.arena_base>
  store ptr %base, ptr %base_at
  %start_at = getelementptr i8, ptr %w, i64 <w.arena_start>
  store i64 %s, ptr %start_at
  %capacity_at = getelementptr i8, ptr %w, i64 <w.arena_capacity>
  store i64 %e, ptr %capacity_at
  %to = add i64 %from, %size
  store i64 %to, ptr %used_at
  %p = getelementptr i8, ptr %base, i64 %from
  ret ptr %p
}

define internal void @qd_arena_free(ptr %w) {
entry:
  %block_at = getelementptr i8, ptr %w, i64 <w.arena_block>
  br label %walk
walk:
  %block = load ptr, ptr %block_at
  %done = icmp eq ptr %block, null
  br i1 %done, label %last, label %one
one:
  %previous_at = getelementptr i8, ptr %block, i64 <b.previous>
  %previous = load ptr, ptr %previous_at
  store ptr %previous, ptr %block_at
  call void @qd_block_free(ptr %block)
  br label %walk
last:
  %spare_at = getelementptr i8, ptr %w, i64 <w.arena_spare>
  %spare = load ptr, ptr %spare_at
  call void @qd_block_free(ptr %spare)
  ret void
}
"""


def fill(text: str, layouts: Mapping[str, Mapping[str, int]], values: Mapping[str, object]) -> str:
    """Replace `<prefix.field>` by that layout's byte offset and `<name>` by that value."""
    names: dict[str, object] = dict(values)
    for prefix, layout in layouts.items():
        names |= {f"{prefix}.{field}": offset for field, offset in layout.items()}
    return re.sub(r"<([a-z_.]+)>", lambda match: str(names[match[1]]), text)


def arena_alloc_ir() -> str:
    """Return IR that defines `internal ptr @qd_arena_alloc(ptr worker, i64 nbytes)`, to be pasted into a module.

    The function is inlined by any pipeline that runs passes. Saving `worker.arena_used` marks the arena, storing it
    back frees everything allocated since.
    """
    return fill(_ALLOC_IR, {"w": WORKER}, {})


ARENA_IR = fill(_GROW_IR, {"b": _BLOCK, "w": WORKER}, {"block_header": _BLOCK_HEADER, "minimal_block": _MINIMAL_BLOCK})
"""The slow path, part of the pool's module."""
