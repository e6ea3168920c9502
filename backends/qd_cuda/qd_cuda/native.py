"""The native entry: a C function, compiled on the host once a process, that launches any kernel from tables.

``int32 qd_grid_launch(context*, words*, extents*, stream*)``. The context is an array of words, `CONTEXT`, followed by
`TASK` words for each task.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING

from qd_core.backend.contract import NativeEntry
from qd_core.codegen.jit import process_jit
from qd_cuda.module import BLOCKS, FEW_BLOCKS, FEW_ITERATIONS, MANY_BLOCKS, MOST_BLOCKS

if TYPE_CHECKING:
    from qd_cuda.device import CudaDevice
    from qd_cuda.module import CudaModule

__all__ = ["load_entry", "native_entry"]

CONTEXT = ("launch", "current", "push", "pop", "context", "stream", "extra", "processors", "tasks", "last")
TASK = ("function", "axes", "block", "serial", "limit0", "limit1", "limit2", "limit_own", "share", "parts")
SYMBOL = "qd_grid_launch"

_IR = """
define internal i64 @at(ptr %p, i64 %n) alwaysinline {
  %q = getelementptr i64, ptr %p, i64 %n
  %v = load i64, ptr %q
  ret i64 %v
}

define i32 @qd_grid_launch(ptr %c, ptr %words, ptr %extents, ptr %ignored) {
entry:
  %params = alloca [3 x ptr]
  %now = alloca ptr
  %p1 = getelementptr ptr, ptr %params, i64 1
  %p2 = getelementptr ptr, ptr %params, i64 2
  %extra.i = call i64 @at(ptr %c, i64 6)
  %extra = inttoptr i64 %extra.i to ptr
  store ptr %words, ptr %params
  store ptr %extents, ptr %p1
  store ptr %extra, ptr %p2
  store ptr null, ptr %now
  %launch.i = call i64 @at(ptr %c, i64 0)
  %launch = inttoptr i64 %launch.i to ptr
  %current.i = call i64 @at(ptr %c, i64 1)
  %current = inttoptr i64 %current.i to ptr
  %mine.i = call i64 @at(ptr %c, i64 4)
  %mine = inttoptr i64 %mine.i to ptr
  %stream.i = call i64 @at(ptr %c, i64 5)
  %stream = inttoptr i64 %stream.i to ptr
  %processors = call i64 @at(ptr %c, i64 7)
  %count = call i64 @at(ptr %c, i64 8)
  %last.i = call i64 @at(ptr %c, i64 9)
  %last = inttoptr i64 %last.i to ptr
  %self = ptrtoint ptr %c to i64
  store i64 %self, ptr %last
  %asked = call i32 %current(ptr %now)
  %bad = icmp ne i32 %asked, 0
  br i1 %bad, label %fail, label %look
fail:
  ret i32 %asked
look:
  %was = load ptr, ptr %now
  %same = icmp eq ptr %was, %mine
  br i1 %same, label %run, label %enter
enter:
  %push.i = call i64 @at(ptr %c, i64 2)
  %push = inttoptr i64 %push.i to ptr
  %pushed = call i32 %push(ptr %mine)
  %refused = icmp ne i32 %pushed, 0
  br i1 %refused, label %fail2, label %run
fail2:
  ret i32 %pushed
run:
  br label %tasks
tasks:
  %n = phi i64 [ 0, %run ], [ %n1, %next ]
  %ext = phi ptr [ %extents, %run ], [ %ext1, %next ]
  %status = phi i32 [ 0, %run ], [ %result, %next ]
  %more = icmp ult i64 %n, %count
  %good = icmp eq i32 %status, 0
  %go = and i1 %more, %good
  br i1 %go, label %task, label %leave
task:
  %offset = mul i64 %n, 10
  %first = add i64 %offset, 10
  %row = getelementptr i64, ptr %c, i64 %first
  %function.i = call i64 @at(ptr %row, i64 0)
  %function = inttoptr i64 %function.i to ptr
  %axes = call i64 @at(ptr %row, i64 1)
  %own = call i64 @at(ptr %row, i64 2)
  %serial = call i64 @at(ptr %row, i64 3)
  %ext1 = getelementptr i64, ptr %ext, i64 %axes
  br label %axis
axis:
  %a = phi i64 [ 0, %task ], [ %a1, %multiply ]
  %alone = phi i64 [ 1, %task ], [ %product, %multiply ]
  %unknown = phi i1 [ false, %task ], [ %unknown1, %multiply ]
  %axis.more = icmp ult i64 %a, %axes
  br i1 %axis.more, label %multiply, label %choose
multiply:
  %extent = call i64 @at(ptr %ext, i64 %a)
  %negative = icmp slt i64 %extent, 0
  %unknown1 = or i1 %unknown, %negative
  %product = mul i64 %alone, %extent
  %a1 = add i64 %a, 1
  br label %axis
choose:
  %one = icmp ne i64 %serial, 0
  br i1 %one, label %start, label %parallel
parallel:
  %few.n = mul i64 %processors, {few}
  %few = icmp sle i64 %alone, %few.n
  %parts.all = call i64 @at(ptr %row, i64 9)
  %parts = select i1 %few, i64 %parts.all, i64 1
  %total = mul i64 %alone, %parts
  %m0 = mul i64 %processors, {size0}
  %m1 = mul i64 %processors, {size1}
  %fits0.n = icmp sle i64 %total, %m0
  %fits1.n = icmp sle i64 %total, %m1
  %known = xor i1 %unknown, true
  %fits0 = and i1 %fits0.n, %known
  %fits1 = and i1 %fits1.n, %known
  %limit0 = call i64 @at(ptr %row, i64 4)
  %limit1 = call i64 @at(ptr %row, i64 5)
  %limit2 = call i64 @at(ptr %row, i64 6)
  %limit_own = call i64 @at(ptr %row, i64 7)
  %b1 = select i1 %fits1, i64 {block1}, i64 {block2}
  %b0 = select i1 %fits0, i64 {block0}, i64 %b1
  %l1 = select i1 %fits1, i64 %limit1, i64 %limit2
  %l0 = select i1 %fits0, i64 %limit0, i64 %l1
  %chosen = icmp ne i64 %own, 0
  %b = select i1 %chosen, i64 %own, i64 %b0
  %l = select i1 %chosen, i64 %limit_own, i64 %l0
  %share = call i64 @at(ptr %row, i64 8)
  %whole.block = icmp eq i64 %b, {block2}
  %shared = icmp ne i64 %share, 0
  %many.blocks = mul i64 %processors, {many}
  %many = mul i64 %many.blocks, %share
  %enough = icmp sge i64 %total, %many
  %whole = and i1 %whole.block, %shared
  %several = and i1 %whole, %enough
  %each = select i1 %several, i64 %share, i64 1
  %per = mul i64 %b, %each
  %up = add i64 %total, %per
  %up1 = sub i64 %up, 1
  %blocks.all = udiv i64 %up1, %per
  %cap = select i1 %shared, i64 {most}, i64 %l
  %blocks.min = call i64 @llvm.umin.i64(i64 %blocks.all, i64 %cap)
  %blocks.n = select i1 %unknown, i64 %l, i64 %blocks.min
  %nothing = icmp eq i64 %blocks.n, 0
  br i1 %nothing, label %next, label %start
start:
  %grid = phi i64 [ 1, %choose ], [ %blocks.n, %parallel ]
  %block = phi i64 [ 1, %choose ], [ %b, %parallel ]
  %grid32 = trunc i64 %grid to i32
  %block32 = trunc i64 %block to i32
  %started = call i32 %launch(ptr %function, i32 %grid32, i32 1, i32 1, i32 %block32,
    i32 1, i32 1, i32 0, ptr %stream, ptr %params, ptr null)
  br label %next
next:
  %result = phi i32 [ 0, %parallel ], [ %started, %start ]
  %n1 = add i64 %n, 1
  br label %tasks
leave:
  br i1 %same, label %done, label %restore
restore:
  %pop.i = call i64 @at(ptr %c, i64 3)
  %pop = inttoptr i64 %pop.i to ptr
  %popped = call i32 %pop(ptr %now)
  br label %done
done:
  ret i32 %status
}
"""


@functools.cache
def load_entry() -> int:
    """Return the address of the compiled function."""
    sizes = {f"size{n}": b * FEW_BLOCKS for n, b in enumerate(BLOCKS)}
    blocks = {f"block{n}": b for n, b in enumerate(BLOCKS)}
    text = _IR
    for name, value in {
        **sizes,
        **blocks,
        "most": MOST_BLOCKS,
        "many": MANY_BLOCKS * BLOCKS[-1],
        "few": FEW_ITERATIONS,
    }.items():
        text = text.replace("{" + name + "}", str(value))
    jit = process_jit()
    code = jit.compile_kept(text, vectorize=False, opt_level=2)
    return jit.load(code, (SYMBOL,))[SYMBOL]


def native_entry(device: CudaDevice, module: CudaModule) -> NativeEntry:
    """Fill a module's table."""
    addresses = device.cuda.addresses
    stream = device.queue
    head = {
        "launch": addresses["LaunchKernel"], "current": addresses["CtxGetCurrent"], "push": addresses["CtxPushCurrent"],
        "pop": addresses["CtxPopCurrent"], "context": device.context, "stream": stream.handle,
        "extra": ctypes.addressof(stream.scratch.words), "processors": device.processors, "tasks": len(module.tasks),
        "last": ctypes.addressof(device.last_native),
    }  # fmt: skip
    words = [head[name] for name in CONTEXT]
    for task in module.tasks:
        limits = [task.limits.get(b, 0) for b in (*BLOCKS, task.shape.block)]
        words += [
            task.handle,
            len(task.shape.axes),
            task.shape.block,
            int(task.shape.serial),
            *limits,
            task.shape.share,
            task.shape.parts,
        ]
    if module.scratch:
        with device.guard("private memory"):
            stream.scratch.ready()
    table = (ctypes.c_uint64 * len(words))(*words)
    assert device.entry is not None
    _name(device, module, ctypes.addressof(table))
    return NativeEntry(device.entry, ctypes.addressof(table), (module, table))


def _name(device: CudaDevice, module: CudaModule, table: int) -> None:
    """Let messages name a kernel by its table, as long as the module lives."""
    known = weakref.ref(module)
    device.natives[table] = lambda: m.name if (m := known()) is not None else ""
    weakref.finalize(module, device.natives.pop, table, None).atexit = False
