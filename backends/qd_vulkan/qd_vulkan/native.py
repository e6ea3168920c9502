"""The native entry: a C function, compiled on the host once a process, that records any kernel's launch from tables.

``int32 qd_record(context*, words*, extents*, stream*)``. The context is an array of 64-bit words, `KERNEL`, followed by
`TASK` words for each task; it points to the stream's, `STREAM`. Where the function cannot record by itself (no open
command buffer, a full one, no room for arguments, Python is recording), it calls back into
Python, which records the launch and leaves an open command buffer.

It knows no buffers, so it records a barrier before every launch. The interpreter's lock is held while it runs.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import NativeEntry
from qd_core.codegen.jit import process_jit
from qd_core.codegen.spirv.layout import POOL_WORDS
from qd_vulkan import binding as vk

if TYPE_CHECKING:
    from qd_vulkan.module import VulkanModule
    from qd_vulkan.stream import VulkanStream

__all__ = ["KERNEL", "STREAM", "TASK", "StreamTable", "native_entry"]

STREAM = (
    "commands", "count", "busy", "launches", "head", "end", "mapped", "address", "barrier", "push", "bind", "dispatch",
    "layout", "between", "record",
)  # fmt: skip
KERNEL = ("stream", "inline", "words", "extents", "pool", "pool0", "pool1", "pool2", "pool3", "tasks", "launched")
TASK = ("pipeline", "axes", "form", "group")
FORMS = {"serial": 0, "sequence": 0, "grid": 1, "resident": 2}
SYMBOL = "qd_record"

_IR = """
define internal i64 @at(ptr %p, i64 %n) alwaysinline {
  %q = getelementptr i64, ptr %p, i64 %n
  %v = load i64, ptr %q
  ret i64 %v
}

define internal ptr @pt(ptr %p, i64 %n) alwaysinline {
  %v = call i64 @at(ptr %p, i64 %n)
  %q = inttoptr i64 %v to ptr
  ret ptr %q
}

define internal void @copy(ptr %to, ptr %from, i64 %count) {
entry:
  br label %test
test:
  %n = phi i64 [ 0, %entry ], [ %n1, %one ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %one, label %done
one:
  %f = getelementptr i64, ptr %from, i64 %n
  %t = getelementptr i64, ptr %to, i64 %n
  %v = load i64, ptr %f
  store i64 %v, ptr %t
  %n1 = add i64 %n, 1
  br label %test
done:
  ret void
}

; Iterations of a task: -1 where only the device knows.
define internal i64 @total(ptr %task, ptr %extents) {
entry:
  %axes = call i64 @at(ptr %task, i64 {axes})
  br label %test
test:
  %n = phi i64 [ 0, %entry ], [ %n1, %one ]
  %total = phi i64 [ 1, %entry ], [ %bounded, %one ]
  %unknown = phi i1 [ false, %entry ], [ %unknown1, %one ]
  %more = icmp ult i64 %n, %axes
  br i1 %more, label %one, label %done
one:
  %extent = call i64 @at(ptr %extents, i64 %n)
  %negative = icmp slt i64 %extent, 0
  %unknown1 = or i1 %unknown, %negative
  %product = call {i64, i1} @llvm.umul.with.overflow.i64(i64 %total, i64 %extent)
  %value = extractvalue {i64, i1} %product, 0
  %over = extractvalue {i64, i1} %product, 1
  %bounded = select i1 %over, i64 9223372036854775807, i64 %value
  %n1 = add i64 %n, 1
  br label %test
done:
  %result = select i1 %unknown, i64 -1, i64 %total
  ret i64 %result
}

define internal void @between(ptr %s, ptr %commands) {
  %barrier = call ptr @pt(ptr %s, i64 {barrier})
  %memory = call ptr @pt(ptr %s, i64 {between})
  call void %barrier(ptr %commands, i32 6144, i32 6144, i32 0, i32 1, ptr %memory, i32 0, ptr null, i32 0, ptr null)
  ret void
}

define i32 @qd_record(ptr %c, ptr %words, ptr %extents, ptr %ignored) {
entry:
  %s = call ptr @pt(ptr %c, i64 {stream})
  %commands = call ptr @pt(ptr %s, i64 {commands})
  %closed = icmp eq ptr %commands, null
  %count = call i64 @at(ptr %s, i64 {count})
  %full = icmp uge i64 %count, {batch}
  %busy.n = call i64 @at(ptr %s, i64 {busy})
  %busy = icmp ne i64 %busy.n, 0
  %no1 = or i1 %closed, %full
  %no2 = or i1 %no1, %busy
  %nwords = call i64 @at(ptr %c, i64 {words})
  %nextents = call i64 @at(ptr %c, i64 {extents})
  %npool = call i64 @at(ptr %c, i64 {pool})
  %sum = add i64 %nwords, %nextents
  %size = add i64 %sum, %npool
  %bytes = mul i64 %size, 8
  %tasks = call i64 @at(ptr %c, i64 {tasks})
  %inline.n = call i64 @at(ptr %c, i64 {inline})
  %inline = icmp ne i64 %inline.n, 0
  %up = add i64 %bytes, 63
  %step = and i64 %up, -64
  %head = call i64 @at(ptr %s, i64 {head})
  %next = add i64 %head, %step
  %end = call i64 @at(ptr %s, i64 {end})
  %narrow = icmp ugt i64 %next, %end
  %by.address = xor i1 %inline, true
  %no.room = and i1 %narrow, %by.address
  %no3 = or i1 %no2, %no.room
  br i1 %no3, label %back, label %go
back:
  %record = call ptr @pt(ptr %s, i64 {record})
  %status = call i32 %record(ptr %c, ptr %words, ptr %extents)
  ret i32 %status

go:
  %row0 = getelementptr i64, ptr %c, i64 {kernel}
  %local = alloca i64, i64 16
  %mapped = call i64 @at(ptr %s, i64 {mapped})
  %slot.i = add i64 %mapped, %head
  %slot = inttoptr i64 %slot.i to ptr
  %block = select i1 %inline, ptr %local, ptr %slot
  call void @copy(ptr %block, ptr %words, i64 %nwords)
  %block1 = getelementptr i64, ptr %block, i64 %nwords
  call void @copy(ptr %block1, ptr %extents, i64 %nextents)
  %block2 = getelementptr i64, ptr %block, i64 %sum
  %pool = getelementptr i64, ptr %c, i64 {pool0}
  call void @copy(ptr %block2, ptr %pool, i64 %npool)
  br i1 %inline, label %push, label %address
address:
  %base = call i64 @at(ptr %s, i64 {address})
  %where = add i64 %base, %head
  store i64 %where, ptr %local
  %head.p = getelementptr i64, ptr %s, i64 {head}
  store i64 %next, ptr %head.p
  br label %push
push:
  %n.bytes = select i1 %inline, i64 %bytes, i64 8
  %n32 = trunc i64 %n.bytes to i32
  %layout = call i64 @at(ptr %s, i64 {layout})
  %push.f = call ptr @pt(ptr %s, i64 {push})
  %none = icmp eq i32 %n32, 0
  br i1 %none, label %pushed, label %push.call
push.call:
  call void %push.f(ptr %commands, i64 %layout, i32 32, i32 0, i32 %n32, ptr %local)
  br label %pushed
pushed:
  %count1 = add i64 %count, 1
  %count.p = getelementptr i64, ptr %s, i64 {count}
  store i64 %count1, ptr %count.p
  %launches = call i64 @at(ptr %s, i64 {launches})
  %launches1 = add i64 %launches, 1
  %launches.p = getelementptr i64, ptr %s, i64 {launches}
  store i64 %launches1, ptr %launches.p
  %launched.p = getelementptr i64, ptr %c, i64 {launched}
  store i64 1, ptr %launched.p
  %bind = call ptr @pt(ptr %s, i64 {bind})
  %dispatch = call ptr @pt(ptr %s, i64 {dispatch})
  br label %task.test
task.test:
  %n = phi i64 [ 0, %pushed ], [ %n1, %task.next ]
  %row = phi ptr [ %row0, %pushed ], [ %row1, %task.next ]
  %ext = phi ptr [ %extents, %pushed ], [ %ext1, %task.next ]
  %more = icmp ult i64 %n, %tasks
  br i1 %more, label %task.one, label %done
task.one:
  %total = call i64 @total(ptr %row, ptr %ext)
  %axes = call i64 @at(ptr %row, i64 {axes})
  %ext1 = getelementptr i64, ptr %ext, i64 %axes
  %row1 = getelementptr i64, ptr %row, i64 {task}
  %form = call i64 @at(ptr %row, i64 {form})
  %group = call i64 @at(ptr %row, i64 {group})
  %unknown = icmp slt i64 %total, 0
  %above = add i64 %total, %group
  %above1 = sub i64 %above, 1
  %groups.n = udiv i64 %above1, %group
  %resident = icmp eq i64 %form, 2
  %limit = select i1 %resident, i64 {resident}, i64 {grid}
  %capped = call i64 @llvm.umin.i64(i64 %groups.n, i64 %limit)
  %fixed = select i1 %resident, i64 {resident}, i64 0
  %groups.u = select i1 %unknown, i64 %fixed, i64 %capped
  %single = icmp eq i64 %form, 0
  %some = icmp ne i64 %groups.u, 0
  %one.n = zext i1 %some to i64
  %groups = select i1 %single, i64 %one.n, i64 %groups.u
  %skip = icmp eq i64 %groups, 0
  br i1 %skip, label %task.next, label %task.go
task.go:
  %x = trunc i64 %groups to i32
  call void @between(ptr %s, ptr %commands)
  %pipeline = call i64 @at(ptr %row, i64 {pipeline})
  call void %bind(ptr %commands, i32 1, i64 %pipeline)
  call void %dispatch(ptr %commands, i32 %x, i32 1, i32 1)
  br label %task.next
task.next:
  %n1 = add i64 %n, 1
  br label %task.test
done:
  ret i32 0
}
"""

Record = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class StreamTable:
    """The stream's words, shared by all kernels.

    Parameters
    ----------
    stream : VulkanStream
        Whose command buffers are recorded.
    """

    def __init__(self, stream: VulkanStream) -> None:
        device = stream.vulkan
        self.words = (ctypes.c_uint64 * len(STREAM))()
        self.kernels: weakref.WeakValueDictionary[int, VulkanModule] = weakref.WeakValueDictionary()
        self._record = Record(stream.record_from_native)
        raw, ring = device.f.raw, device.arguments.memory
        known = {
            "barrier": _address(raw["CmdPipelineBarrier"]), "push": _address(raw["CmdPushConstants"]),
            "bind": _address(raw["CmdBindPipeline"]), "dispatch": _address(raw["CmdDispatch"]), "layout": device.layout,
            "between": ctypes.addressof(stream.commands.between), "record": _address(self._record),
            "mapped": ring.mapped, "address": ring.address,
        }  # fmt: skip
        for name, value in known.items():
            self[name] = value

    def open(self, commands: int, count: int, head: int, end: int) -> None:
        """Let native launches record in a command buffer, and put arguments from ``head`` to ``end`` of the ring."""
        self["commands"], self["count"], self["head"], self["end"] = commands, count, head, end

    def close(self) -> None:
        """The command buffer is submitted: the next native launch calls back."""
        self["commands"] = self["head"] = self["end"] = 0

    def take_launches(self) -> int:
        """Return the number of native launches since the last call."""
        count, self["launches"] = self["launches"], 0
        return count

    def launched(self) -> list[str]:
        """Return the names of kernels launched natively since the last call."""
        names: list[str] = []
        for module in list(self.kernels.values()):
            if module.take_launched():
                names.append(module.name)
        return names

    def __getitem__(self, name: str) -> int:
        return self.words[STREAM.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self.words[STREAM.index(name)] = value


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def load_entry(batch: int, grid: int, resident: int) -> int:
    """Return the address of the compiled function."""
    names = {name: n for table in (STREAM, KERNEL, TASK) for n, name in enumerate(table)}
    names |= {"kernel": len(KERNEL), "task": len(TASK), "batch": batch, "grid": grid, "resident": resident}
    text = _IR
    for name, value in names.items():
        text = text.replace("{" + name + "}", str(value))
    jit = process_jit()
    return jit.load(jit.compile_kept(text, vectorize=False, opt_level=2), (SYMBOL,))[SYMBOL]


def native_entry(
    module: VulkanModule, batch: int, grid: int, resident: int
) -> tuple[NativeEntry, ctypes.Array[ctypes.c_uint64]]:
    """Fill a module's table; return the entry and the table."""
    code, stream = module.code, module.device.queue
    pool = [0] * POOL_WORDS
    if code.pooled:
        words = module.device.pool.words(code)
        pool = [int.from_bytes(words[8 * n : 8 * n + 8], "little") for n in range(POOL_WORDS)]
    head = {
        "stream": ctypes.addressof(stream.native_table().words), "inline": int(code.inline), "words": code.words,
        "extents": code.extents, "pool": POOL_WORDS * code.pooled, **{f"pool{n}": word for n, word in enumerate(pool)},
        "tasks": len(code.tasks), "launched": 0,
    }  # fmt: skip
    words = [head[name] for name in KERNEL]
    for pipeline, entry, task in zip(module.pipelines, module.artifact.tasks, code.tasks, strict=True):
        words += [pipeline, entry.axes, FORMS[task.form], task.group]
    table = (ctypes.c_uint64 * len(words))(*words)
    assert stream.table is not None
    stream.table.kernels[ctypes.addressof(table)] = module
    return NativeEntry(load_entry(batch, grid, resident), ctypes.addressof(table), (module, table), brief=True), table


assert vk.PIPELINE_STAGE_COMPUTE | vk.PIPELINE_STAGE_TRANSFER == 6144
assert vk.STAGE_COMPUTE == 32
