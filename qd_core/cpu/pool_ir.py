"""The worker pool's machine code as LLVM IR, and the byte layout of the structures that it shares with Python.

The rendezvous is one 64-bit word, the *gate*: `epoch << 16 | open << 15 | joined`. The caller publishes a job by
storing the next epoch with the open bit; a worker joins by a compare-and-swap that adds one, so it can never join a job
that has been closed; the caller closes the gate once no chunk is left, and waits only for the workers that joined.

Each thread has a part of the iterations of its own, the same in every launch of one size, and claims chunks of the
parts of others only when its own is done: data stay in the cache next to the thread (measured on two processors: 0.23
instead of 0.58 ms for 24 MB of saxpy).
"""

from __future__ import annotations

import platform
import time

from qd_core.cpu.arena_ir import ARENA_IR, WORKER, WORKER_NBYTES, fill

CACHE_LINE = 128
"""Bytes between words that different threads write; two lines of 64, because neighbours are prefetched together."""

CONTEXT = {"run": 0, "pool": 8}
"""Byte offsets in the context that generated code gets: address of `qd_pool_run`, address of the pool's structure."""
CONTEXT_NBYTES = 128
"""Its size; what follows the two words is zero and free for the device's own use."""

POOL = {
    "gate": 0,
    "slots": 2 * CACHE_LINE + 40,  # a slot for each thread: `SLOT`
    "threads": 2 * CACHE_LINE + 48,  # slots of this job
    "task": 2 * CACHE_LINE,
    "words": 2 * CACHE_LINE + 8,
    "extents": 2 * CACHE_LINE + 16,
    "chunk": 2 * CACHE_LINE + 32,
    "busy": 3 * CACHE_LINE,
    "active": 3 * CACHE_LINE + 8,  # threads that may work, the caller included
    "started": 3 * CACHE_LINE + 16,  # worker threads that exist
    "sleepers": 3 * CACHE_LINE + 24,
    "stop": 3 * CACHE_LINE + 32,
    "spins": 3 * CACHE_LINE + 40,  # looks at the gate before a worker parks
    "wake_chunks": 3 * CACHE_LINE + 48,  # work of as many min_chunks wakes the sleepers at once
    "chunks_per_thread": 3 * CACHE_LINE + 56,
    "start": 3 * CACHE_LINE + 64,  # i32 start(pool*, worker*): create a thread; 0 is success
    "wake": 3 * CACHE_LINE + 72,  # void wake(pool*)
    "attributes": 3 * CACHE_LINE + 80,  # pthread_attr_t*
    "signals": 3 * CACHE_LINE + 88,  # sigset_t* of what workers block
    "block_signals": 3 * CACHE_LINE + 96,  # SIG_BLOCK of this system
    "workers": 3 * CACHE_LINE + 104,
    "wake_ticks": 3 * CACHE_LINE + 112,  # a launch that has taken as long, by `qd_now`, wakes the sleepers after all
    "mutex": 4 * CACHE_LINE,
    "condition": 5 * CACHE_LINE,
}
POOL_NBYTES = 6 * CACHE_LINE

SLOT = {"next": 0, "end": 8}
"""A thread's own part of the iterations: the first that nobody has claimed, and where the part ends."""
SLOT_NBYTES = CACHE_LINE

_PAUSE = {
    "x86": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "arm": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "other": ("", "fence seq_cst"),
}

_X86_CLOCK = """
declare i64 @llvm.readcyclecounter()

; ticks of a steady clock, never 0 where there is one; how many a second, the pool measures
define i64 @qd_now() {
entry:
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
"""

_POSIX_CLOCK = """
declare i32 @clock_gettime(i32, ptr)

define i64 @qd_now() {
entry:
  %at = alloca { i64, i64 }
  %rc = call i32 @clock_gettime(i32 <clock>, ptr %at)
  %s = load i64, ptr %at
  %ns_at = getelementptr i8, ptr %at, i64 8
  %ns = load i64, ptr %ns_at
  %whole = mul i64 %s, 1000000000
  %t = add i64 %whole, %ns
  ret i64 %t
}
"""

_NO_CLOCK = """
define i64 @qd_now() {
entry:
  ret i64 0
}
"""

_RUN_IR = """
declare i32 @sched_yield()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; claim and run chunks; the caller, who passes when its launch began, wakes the others once it has taken a while
define internal void @qd_chunks(ptr %pool, ptr %w, i64 %since) {
entry:
  %task_at = getelementptr i8, ptr %pool, i64 <p.task>
  %task = load ptr, ptr %task_at
  %words_at = getelementptr i8, ptr %pool, i64 <p.words>
  %words = load ptr, ptr %words_at
  %extents_at = getelementptr i8, ptr %pool, i64 <p.extents>
  %extents = load ptr, ptr %extents_at
  %chunk_at = getelementptr i8, ptr %pool, i64 <p.chunk>
  %chunk = load i64, ptr %chunk_at
  %slots_at = getelementptr i8, ptr %pool, i64 <p.slots>
  %slots = load ptr, ptr %slots_at
  %threads_at = getelementptr i8, ptr %pool, i64 <p.threads>
  %threads = load i64, ptr %threads_at
  %index_at = getelementptr i8, ptr %w, i64 <w.worker_index>
  %index = load i64, ptr %index_at
  %used_at = getelementptr i8, ptr %w, i64 <w.arena_used>
  %patience_at = getelementptr i8, ptr %pool, i64 <p.wake_ticks>
  %patience = load i64, ptr %patience_at
  br label %visit
visit:
  %turn = phi i64 [ 0, %entry ], [ %turn1, %leave ]
  %since_now = phi i64 [ %since, %entry ], [ %from, %leave ]
  %shifted = add i64 %index, %turn
  %number = urem i64 %shifted, %threads
  %offset = mul i64 %number, <slot_nbytes>
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %next_at = getelementptr i8, ptr %slot, i64 <s.next>
  %stop_at = getelementptr i8, ptr %slot, i64 <s.end>
  %stop = load i64, ptr %stop_at
  br label %check
check:
  %from = phi i64 [ %since_now, %visit ], [ %from, %ran ], [ %from, %look ], [ 0, %wake ]
  %seen = load atomic i64, ptr %next_at monotonic, align 8
  %some = icmp slt i64 %seen, %stop
  br i1 %some, label %claim, label %leave
claim:
  %begin = atomicrmw add ptr %next_at, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %stop
  br i1 %left, label %work, label %leave
leave:
  %turn1 = add i64 %turn, 1
  %more = icmp slt i64 %turn1, %threads
  br i1 %more, label %visit, label %done
work:
  %full = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %stop)
  call void %task(ptr %words, ptr %extents, i64 %begin, i64 %end, ptr %w)
  store i64 0, ptr %used_at
  br label %ran
ran:
  %watching = icmp ne i64 %from, 0
  br i1 %watching, label %look, label %check
look:
  %now = call i64 @qd_now()
  %took = sub i64 %now, %from
  %long = icmp ugt i64 %took, %patience
  br i1 %long, label %wake, label %check
wake:
  call void @qd_wake_all(ptr %pool)
  br label %check
done:
  ret void
}

; another launch owns the workers (nested, or another Python thread): run here, with an arena that ends with the launch
define internal void @qd_run_detached(ptr %pool, ptr %task, ptr %words, ptr %extents, i64 %count) noinline {
entry:
  %w = alloca [<worker_nbytes> x i8], align 64
  call void @llvm.memset.p0.i64(ptr %w, i8 0, i64 <worker_nbytes>, i1 false)
  %grow_at = getelementptr i8, ptr %w, i64 <w.arena_grow>
  store ptr @qd_arena_grow, ptr %grow_at
  %pool_at = getelementptr i8, ptr %w, i64 <w.pool>
  store ptr %pool, ptr %pool_at
  call void %task(ptr %words, ptr %extents, i64 0, i64 %count, ptr %w)
  call void @qd_arena_free(ptr %w)
  ret void
}

; create the threads that are missing; the count is lowered to what the system grants
define internal void @qd_start_missing(ptr %pool, i64 %active) noinline {
entry:
  %started_at = getelementptr i8, ptr %pool, i64 <p.started>
  %workers_at = getelementptr i8, ptr %pool, i64 <p.workers>
  %workers = load ptr, ptr %workers_at
  %start_at = getelementptr i8, ptr %pool, i64 <p.start>
  %start = load ptr, ptr %start_at
  br label %next
next:
  %started = load i64, ptr %started_at
  %index = add i64 %started, 1
  %missing = icmp slt i64 %index, %active
  br i1 %missing, label %create, label %done
create:
  %offset = mul i64 %index, <worker_nbytes>
  %w = getelementptr i8, ptr %workers, i64 %offset
  %rc = call i32 %start(ptr %pool, ptr %w)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %count, label %refused
count:
  store i64 %index, ptr %started_at
  br label %next
refused:
  %active_at = getelementptr i8, ptr %pool, i64 <p.active>
  store atomic i64 %index, ptr %active_at monotonic, align 8
  br label %done
done:
  ret void
}

; create the threads that are missing and wake those that sleep
define internal void @qd_wake_all(ptr %pool) noinline {
entry:
  %active_at = getelementptr i8, ptr %pool, i64 <p.active>
  %active = load atomic i64, ptr %active_at monotonic, align 8
  call void @qd_start_missing(ptr %pool, i64 %active)
  %sleepers_at = getelementptr i8, ptr %pool, i64 <p.sleepers>
  %sleepers = load atomic i64, ptr %sleepers_at seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %call, label %done
call:
  %wake_at = getelementptr i8, ptr %pool, i64 <p.wake>
  %wake = load ptr, ptr %wake_at
  call void %wake(ptr %pool)
  br label %done
done:
  ret void
}

define internal void @qd_share(ptr %pool, ptr %w, ptr %task, ptr %words, ptr %extents, i64 %count, i64 %min_chunk,
                               i64 %active, i1 %large) {
entry:
  %per_at = getelementptr i8, ptr %pool, i64 <p.chunks_per_thread>
  %per = load i64, ptr %per_at
  %parts = mul i64 %per, %active
  %parts_less = sub i64 %parts, 1
  %sum = add i64 %count, %parts_less
  %even = udiv i64 %sum, %parts
  %pieces_less = sub i64 %min_chunk, 1
  %even_up = add i64 %even, %pieces_less
  %pieces = udiv i64 %even_up, %min_chunk
  %chunk = mul i64 %pieces, %min_chunk
  %task_at = getelementptr i8, ptr %pool, i64 <p.task>
  store ptr %task, ptr %task_at
  %words_at = getelementptr i8, ptr %pool, i64 <p.words>
  store ptr %words, ptr %words_at
  %extents_at = getelementptr i8, ptr %pool, i64 <p.extents>
  store ptr %extents, ptr %extents_at
  %chunk_at = getelementptr i8, ptr %pool, i64 <p.chunk>
  store i64 %chunk, ptr %chunk_at
  %threads_at = getelementptr i8, ptr %pool, i64 <p.threads>
  store i64 %active, ptr %threads_at
  %slots_at = getelementptr i8, ptr %pool, i64 <p.slots>
  %slots = load ptr, ptr %slots_at
  %chunk_less = sub i64 %chunk, 1
  %count_up = add i64 %count, %chunk_less
  %chunks = udiv i64 %count_up, %chunk
  %active_less = sub i64 %active, 1
  %chunks_up = add i64 %chunks, %active_less
  %own = udiv i64 %chunks_up, %active
  %part = mul i64 %own, %chunk
  br label %divide
divide:
  %i = phi i64 [ 0, %entry ], [ %i1, %divide ]
  %from = phi i64 [ 0, %entry ], [ %to, %divide ]
  %to_full = add i64 %from, %part
  %to = call i64 @llvm.smin.i64(i64 %to_full, i64 %count)
  %slot_offset = mul i64 %i, <slot_nbytes>
  %slot = getelementptr i8, ptr %slots, i64 %slot_offset
  %next_at = getelementptr i8, ptr %slot, i64 <s.next>
  store atomic i64 %from, ptr %next_at monotonic, align 8
  %end_at = getelementptr i8, ptr %slot, i64 <s.end>
  store i64 %to, ptr %end_at
  %i1 = add i64 %i, 1
  %again = icmp slt i64 %i1, %active
  br i1 %again, label %divide, label %publish
publish:
  %gate_at = getelementptr i8, ptr %pool, i64 <p.gate>
  %old = load atomic i64, ptr %gate_at monotonic, align 8
  %epoch = lshr i64 %old, 16
  %epoch1 = add i64 %epoch, 1
  %shifted = shl i64 %epoch1, 16
  %open = or i64 %shifted, 32768
  store atomic i64 %open, ptr %gate_at seq_cst, align 8
  br i1 %large, label %call, label %watch
call:
  call void @qd_wake_all(ptr %pool)
  br label %work
watch:
  %begun = call i64 @qd_now()
  br label %work
work:
  %since = phi i64 [ 0, %call ], [ %begun, %watch ]
  call void @qd_chunks(ptr %pool, ptr %w, i64 %since)
  %closed = atomicrmw and ptr %gate_at, i64 -32769 acq_rel
  br label %wait
wait:
  %tries = phi i64 [ 0, %work ], [ %more, %spin ], [ %more, %yield ]
  %now = load atomic i64, ptr %gate_at acquire, align 8
  %joined = and i64 %now, 32767
  %alone = icmp eq i64 %joined, 0
  br i1 %alone, label %done, label %busy
busy:
  %more = add i64 %tries, 1
  %long = icmp ugt i64 %more, 4096
  br i1 %long, label %yield, label %spin
spin:
  <pause>
  br label %wait
yield:
  %ignored = call i32 @sched_yield()
  br label %wait
done:
  ret void
}

define void @qd_pool_run(ptr %ctx, ptr %task, ptr %words, ptr %extents, i64 %count, i64 %min_chunk_given) {
entry:
  %nothing = icmp slt i64 %count, 1
  br i1 %nothing, label %done, label %some
some:
  %pool_at = getelementptr i8, ptr %ctx, i64 <c.pool>
  %pool = load ptr, ptr %pool_at
  %busy_at = getelementptr i8, ptr %pool, i64 <p.busy>
  %swap = cmpxchg ptr %busy_at, i64 0, i64 1 acquire monotonic
  %owner = extractvalue { i64, i1 } %swap, 1
  br i1 %owner, label %own, label %detached
detached:
  call void @qd_run_detached(ptr %pool, ptr %task, ptr %words, ptr %extents, i64 %count)
  ret void
own:
  %workers_at = getelementptr i8, ptr %pool, i64 <p.workers>
  %w = load ptr, ptr %workers_at
  %guess = icmp slt i64 %min_chunk_given, 0
  %negated = sub i64 0, %min_chunk_given
  %magnitude = call i64 @llvm.smax.i64(i64 %min_chunk_given, i64 %negated)
  %min_chunk = call i64 @llvm.smax.i64(i64 %magnitude, i64 1)
  %active_at = getelementptr i8, ptr %pool, i64 <p.active>
  %wanted = load atomic i64, ptr %active_at monotonic, align 8
  %several = icmp sgt i64 %wanted, 1
  %divisible = icmp sgt i64 %count, %min_chunk
  %parallel = and i1 %several, %divisible
  br i1 %parallel, label %weigh, label %inline
weigh:
  %chunks = udiv i64 %count, %min_chunk
  %wake_at = getelementptr i8, ptr %pool, i64 <p.wake_chunks>
  %wake_chunks = load i64, ptr %wake_at
  %many = icmp uge i64 %chunks, %wake_chunks
  %sure = xor i1 %guess, true
  %large = and i1 %many, %sure
  call void @qd_share(ptr %pool, ptr %w, ptr %task, ptr %words, ptr %extents, i64 %count, i64 %min_chunk,
                      i64 %wanted, i1 %large)
  br label %release
inline:
  call void %task(ptr %words, ptr %extents, i64 0, i64 %count, ptr %w)
  %used_at = getelementptr i8, ptr %w, i64 <w.arena_used>
  store i64 0, ptr %used_at
  br label %release
release:
  store atomic i64 0, ptr %busy_at release, align 8
  br label %done
done:
  ret void
}

; serve jobs until none has come for a while; 1: the pool stops, 0: park
define i32 @qd_worker_serve(ptr %w) {
entry:
  %pool_at = getelementptr i8, ptr %w, i64 <w.pool>
  %pool = load ptr, ptr %pool_at
  %index_at = getelementptr i8, ptr %w, i64 <w.worker_index>
  %index = load i64, ptr %index_at
  %seen_at = getelementptr i8, ptr %w, i64 <w.seen>
  %gate_at = getelementptr i8, ptr %pool, i64 <p.gate>
  %active_at = getelementptr i8, ptr %pool, i64 <p.active>
  %stop_at = getelementptr i8, ptr %pool, i64 <p.stop>
  %spins_at = getelementptr i8, ptr %pool, i64 <p.spins>
  br label %fresh
fresh:
  %spins = load atomic i64, ptr %spins_at monotonic, align 8
  br label %poll
poll:
  %left = phi i64 [ %spins, %fresh ], [ %left, %join ], [ %less, %wait ]
  %gate = load atomic i64, ptr %gate_at acquire, align 8
  %epoch = lshr i64 %gate, 16
  %open_bit = and i64 %gate, 32768
  %open = icmp ne i64 %open_bit, 0
  %seen = load i64, ptr %seen_at
  %new = icmp ne i64 %epoch, %seen
  %active = load atomic i64, ptr %active_at monotonic, align 8
  %allowed = icmp slt i64 %index, %active
  %open_new = and i1 %open, %new
  %joinable = and i1 %open_new, %allowed
  br i1 %joinable, label %join, label %idle
join:
  %plus = add i64 %gate, 1
  %swap = cmpxchg ptr %gate_at, i64 %gate, i64 %plus acq_rel monotonic
  %joined = extractvalue { i64, i1 } %swap, 1
  br i1 %joined, label %work, label %poll
work:
  store i64 %epoch, ptr %seen_at
  call void @qd_chunks(ptr %pool, ptr %w, i64 0)
  %was = atomicrmw sub ptr %gate_at, i64 1 release
  br label %fresh
idle:
  %stop = load atomic i64, ptr %stop_at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %quit, label %wait
wait:
  <pause>
  %less = sub i64 %left, 1
  %over = icmp slt i64 %less, 1
  br i1 %over, label %park, label %poll
park:
  ret i32 0
quit:
  ret i32 1
}

; for calibration: what one look at the gate costs
define void @qd_spin(ptr %pool, i64 %count) {
entry:
  %gate_at = getelementptr i8, ptr %pool, i64 <p.gate>
  br label %loop
loop:
  %left = phi i64 [ %count, %entry ], [ %less, %loop ]
  %gate = load atomic i64, ptr %gate_at acquire, align 8
  <pause>
  %less = sub i64 %left, 1
  %more = icmp sgt i64 %less, 0
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

_PTHREAD_IR = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @qd_park(ptr %pool, ptr %w) {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 <p.mutex>
  %condition = getelementptr i8, ptr %pool, i64 <p.condition>
  %sleepers_at = getelementptr i8, ptr %pool, i64 <p.sleepers>
  %gate_at = getelementptr i8, ptr %pool, i64 <p.gate>
  %stop_at = getelementptr i8, ptr %pool, i64 <p.stop>
  %seen_at = getelementptr i8, ptr %w, i64 <w.seen>
  %rc0 = call i32 @pthread_mutex_lock(ptr %mutex)
  %before = atomicrmw add ptr %sleepers_at, i64 1 seq_cst
  ; the caller stores the gate, then reads the sleepers; here the other way round: one of the two sees the other
  %gate = load atomic i64, ptr %gate_at seq_cst, align 8
  %epoch = lshr i64 %gate, 16
  %open_bit = and i64 %gate, 32768
  %open = icmp ne i64 %open_bit, 0
  %seen = load i64, ptr %seen_at
  %new = icmp ne i64 %epoch, %seen
  %job = and i1 %open, %new
  %stop = load atomic i64, ptr %stop_at seq_cst, align 8
  %stopped = icmp ne i64 %stop, 0
  %stay_up = or i1 %job, %stopped
  br i1 %stay_up, label %leave, label %sleep
sleep:
  %rc1 = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %leave
leave:
  %after = atomicrmw sub ptr %sleepers_at, i64 1 seq_cst
  %rc2 = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

define ptr @qd_worker_main(ptr %w) {
entry:
  %pool_at = getelementptr i8, ptr %w, i64 <w.pool>
  %pool = load ptr, ptr %pool_at
  %signals_at = getelementptr i8, ptr %pool, i64 <p.signals>
  %signals = load ptr, ptr %signals_at
  %how_at = getelementptr i8, ptr %pool, i64 <p.block_signals>
  %how = load i32, ptr %how_at
  %rc = call i32 @pthread_sigmask(i32 %how, ptr %signals, ptr null)
  br label %serve
serve:
  %stop = call i32 @qd_worker_serve(ptr %w)
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %quit, label %park
park:
  call void @qd_park(ptr %pool, ptr %w)
  br label %serve
quit:
  ret ptr null
}

define i32 @qd_thread_start(ptr %pool, ptr %w) {
entry:
  %thread = alloca i64
  %attributes_at = getelementptr i8, ptr %pool, i64 <p.attributes>
  %attributes = load ptr, ptr %attributes_at
  %rc = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr @qd_worker_main, ptr %w)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %detach, label %done
detach:
  %id = load i64, ptr %thread
  %rc1 = call i32 @pthread_detach(i64 %id)
  br label %done
done:
  ret i32 %rc
}

define void @qd_wake(ptr %pool) {
entry:
  %mutex = getelementptr i8, ptr %pool, i64 <p.mutex>
  %condition = getelementptr i8, ptr %pool, i64 <p.condition>
  %rc0 = call i32 @pthread_mutex_lock(ptr %mutex)
  %rc1 = call i32 @pthread_cond_broadcast(ptr %condition)
  %rc2 = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
"""

SYMBOLS = ("qd_pool_run", "qd_arena_grow", "qd_worker_serve", "qd_spin", "qd_now")
PTHREAD_SYMBOLS = ("qd_thread_start", "qd_wake")


def _machine() -> str:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64", "i686"):
        return "x86"
    return "arm" if machine in ("aarch64", "arm64") else "other"


def _pause() -> tuple[str, str]:
    return _PAUSE[_machine()]


def pool_ir(*, pthread: bool) -> str:
    """Return the pool's module; `pthread` adds thread creation, parking and waking by POSIX calls."""
    declaration, pause = _pause()
    clock = _X86_CLOCK if _machine() == "x86" else _POSIX_CLOCK if pthread else _NO_CLOCK
    text = declaration + clock + ARENA_IR + _RUN_IR + (_PTHREAD_IR if pthread else "")
    layouts = {"c": CONTEXT, "w": WORKER, "p": POOL, "s": SLOT}
    return fill(
        text,
        layouts,
        {
            "worker_nbytes": WORKER_NBYTES,
            "slot_nbytes": SLOT_NBYTES,
            "pause": pause,
            "clock": getattr(time, "CLOCK_MONOTONIC", 1),
        },
    )
