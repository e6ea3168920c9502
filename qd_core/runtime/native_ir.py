"""The native launch entry as LLVM IR: one function, driven by tables, that serves every kernel.

`qd_launch` has CPython's METH_FASTCALL | METH_KEYWORDS signature. Its `self` holds a list of *plans*; a plan says what
each argument must be and which words it fills. The first plan that fits packs the words, evaluates guards and extents
and calls the kernel. When none fits, or anything at all is unusual, the Python slow path gets the same arguments.

Nothing is compiled per kernel, so a kernel's first
launch does not pay for its native entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from qd_core.runtime import native_tables
from qd_core.runtime.native_extent_ir import EXTENTS_IR
from qd_core.runtime.native_pack_ir import ARRAYS_IR, PACK_IR, SCALARS_IR
from qd_core.runtime.native_tables import AXIS, HEAD, LEAF, PLAN, VARIANT

IMPORTS = (
    "PyLong_AsLongLongAndOverflow",
    "PyLong_FromLongLong",
    "PyLong_FromUnsignedLongLong",
    "PyFloat_AsDouble",
    "PyFloat_FromDouble",
    "PyBool_FromLong",
    "PyObject_VectorcallMethod",
    "PyObject_CallNoArgs",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyLong_Type",
    "PyFloat_Type",
    "PyBool_Type",
    "_Py_TrueStruct",
    "_Py_NoneStruct",
    "Py_IncRef",
)
SYMBOLS = ("qd_launch", "qd_acquire", "qd_capture")

_DECLARATIONS = """
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyFloat_FromDouble(double)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
@PyLong_Type = external global i8
@PyFloat_Type = external global i8
@PyBool_Type = external global i8
@_Py_TrueStruct = external global i8
@_Py_NoneStruct = external global i8
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare double @llvm.fabs.f64(double)
"""

_RUN = """
define internal i1 @qd_logged(ptr %plan) {
entry:
  %count = load i64, ptr ${plan.log_count}
  %log = load ptr, ptr ${plan.log}
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %n1, %body ]
  %all = phi i64 [ 0, %entry ], [ %all1, %body ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %done
body:
  %at = getelementptr ptr, ptr %log, i64 %n
  %address = load ptr, ptr %at
  %word = load i64, ptr %address
  %all1 = or i64 %all, %word
  %n1 = add i64 %n, 1
  br label %loop
done:
  %any = icmp ne i64 %all, 0
  ret i1 %any
}

define internal ptr @qd_result(ptr %plan) {
entry:
  %kind = load i64, ptr ${plan.result_kind}
  %result = load ptr, ptr ${plan.result}
  switch i64 %kind, label %call [ i64 ${RESULT_NONE}, label %none
    i64 ${RESULT_I64}, label %i64
    i64 ${RESULT_U64}, label %u64
    i64 ${RESULT_I32}, label %i32
    i64 ${RESULT_U32}, label %u32
    i64 ${RESULT_F64}, label %f64
    i64 ${RESULT_F32}, label %f32
    i64 ${RESULT_BOOL}, label %bool ]
none:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
i64:
  %v_i64 = load i64, ptr %result
  %o_i64 = call ptr @PyLong_FromLongLong(i64 %v_i64)
  ret ptr %o_i64
u64:
  %v_u64 = load i64, ptr %result
  %o_u64 = call ptr @PyLong_FromUnsignedLongLong(i64 %v_u64)
  ret ptr %o_u64
i32:
  %v_i32 = load i32, ptr %result
  %x_i32 = sext i32 %v_i32 to i64
  %o_i32 = call ptr @PyLong_FromLongLong(i64 %x_i32)
  ret ptr %o_i32
u32:
  %v_u32 = load i32, ptr %result
  %x_u32 = zext i32 %v_u32 to i64
  %o_u32 = call ptr @PyLong_FromLongLong(i64 %x_u32)
  ret ptr %o_u32
f64:
  %v_f64 = load double, ptr %result
  %o_f64 = call ptr @PyFloat_FromDouble(double %v_f64)
  ret ptr %o_f64
f32:
  %v_f32 = load float, ptr %result
  %x_f32 = fpext float %v_f32 to double
  %o_f32 = call ptr @PyFloat_FromDouble(double %x_f32)
  ret ptr %o_f32
bool:
  %v_bool = load i8, ptr %result
  %x_bool = zext i8 %v_bool to i64
  %o_bool = call ptr @PyBool_FromLong(i64 %x_bool)
  ret ptr %o_bool
call:
  %finish = load ptr, ptr ${plan.finish}
  %o_call = call ptr @PyObject_CallNoArgs(ptr %finish)
  ret ptr %o_call
}

define internal void @qd_call(ptr %plan, ptr %variant, ptr %words, ptr %extents, double %work) {
entry:
  %function = load ptr, ptr ${variant.function}
  %context = load ptr, ptr ${variant.context}
  %stream = load ptr, ptr ${plan.stream}
  %release = load double, ptr ${plan.release}
  %long = fcmp oge double %work, %release
  br i1 %long, label %free, label %held
held:
  %status_held = call i32 %function(ptr %context, ptr %words, ptr %extents, ptr %stream)
  br label %done
free:
  %thread = call ptr @PyEval_SaveThread()
  %status_free = call i32 %function(ptr %context, ptr %words, ptr %extents, ptr %stream)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %done
done:
  %status32 = phi i32 [ %status_held, %held ], [ %status_free, %free ]
  %status = sext i32 %status32 to i64
  store i64 %status, ptr ${plan.status}
  ret void
}

; 1 and a Python result (null with an exception set) when the plan fits, 0 when it does not
define internal i1 @qd_try(ptr %plan, ptr %args, ptr %result) {
entry:
  %word_count = load i64, ptr ${plan.word_count}
  %words = alloca i64, i64 %word_count, align 16
  %axis_count = load i64, ptr ${plan.axis_count}
  %extents = alloca i64, i64 %axis_count, align 16
  %leaf_count = load i64, ptr ${plan.leaf_count}
  %rounded = add i64 %leaf_count, 3
  %padded = and i64 %rounded, -4
  %span_count = mul i64 %padded, 2
  %spans = alloca i64, i64 %span_count, align 16
  %ends = getelementptr i64, ptr %spans, i64 %padded
  %template = load ptr, ptr ${plan.words}
  %word_nbytes = mul i64 %word_count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %template, i64 %word_nbytes, i1 false)
  %span_nbytes = mul i64 %span_count, 8
  call void @llvm.memset.p0.i64(ptr %spans, i8 0, i64 %span_nbytes, i1 false)
  %packed = call i1 @qd_pack(ptr %plan, ptr %args, ptr %words, ptr %spans, ptr %ends)
  br i1 %packed, label %guard, label %no
guard:
  %written_count = load i64, ptr ${plan.written_count}
  %watched = icmp ne i64 %written_count, 0
  br i1 %watched, label %overlap, label %choose
overlap:
  %disjoint = call i1 @qd_disjoint(ptr %plan, ptr %spans, ptr %ends, i64 %padded)
  %fact = zext i1 %disjoint to i64
  br label %choose
choose:
  %facts = phi i64 [ 1, %guard ], [ %fact, %overlap ]
  %variant = call ptr @qd_variant(ptr %plan, i64 %facts)
  %none = icmp eq ptr %variant, null
  br i1 %none, label %no, label %run
run:
  %counter = load ptr, ptr ${plan.counter}
  %uncounted = icmp eq ptr %counter, null
  br i1 %uncounted, label %launch, label %count
count:
  %step = load i64, ptr ${plan.counter_step}
  %next = load i64, ptr %counter
  %stepped = add i64 %next, %step
  store i64 %stepped, ptr %counter
  %number = sub i64 %stepped, 1
  %counted = load i64, ptr ${plan.counted}
  %counted_at = getelementptr i64, ptr %words, i64 %counted
  store i64 %number, ptr %counted_at
  br label %launch
launch:
  %work = call double @qd_extents(ptr %plan, ptr %words, ptr %extents)
  store i64 1, ptr ${plan.busy}
  call void @qd_call(ptr %plan, ptr %variant, ptr %words, ptr %extents, double %work)
  %launches = load i64, ptr ${plan.launches}
  %launches1 = add i64 %launches, 1
  store i64 %launches1, ptr ${plan.launches}
  %status = load i64, ptr ${plan.status}
  %failed = icmp ne i64 %status, 0
  %logged = call i1 @qd_logged(ptr %plan)
  %unusual = or i1 %failed, %logged
  br i1 %unusual, label %report, label %decode
report:
  %after = load ptr, ptr ${plan.after}
  %reported = call ptr @PyObject_CallNoArgs(ptr %after)
  br label %yes
decode:
  %decoded = call ptr @qd_result(ptr %plan)
  br label %yes
yes:
  %object = phi ptr [ %reported, %report ], [ %decoded, %decode ]
  store i64 0, ptr ${plan.busy}
  store ptr %object, ptr %result
  ret i1 true
no:
  ret i1 false
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; slow(*args, **keywords): the values of keywords follow the positional ones in args
define internal ptr @qd_slow(ptr %head, ptr %args, i64 %count, ptr %names) noinline {
entry:
  %callable = load ptr, ptr ${head.slow}
  %name = load ptr, ptr ${head.call_name}
  %none = icmp eq ptr %names, null
  br i1 %none, label %copy, label %named
named:
  %named_count = load i64, ptr ${names.size}
  br label %copy
copy:
  %extra = phi i64 [ 0, %entry ], [ %named_count, %named ]
  %total = add i64 %count, %extra
  %slots = add i64 %total, 1
  %vector = alloca ptr, i64 %slots, align 16
  store ptr %callable, ptr %vector
  %rest = getelementptr ptr, ptr %vector, i64 1
  %nbytes = mul i64 %total, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %args, i64 %nbytes, i1 false)
  %positional = add i64 %count, 1
  %object = call ptr @PyObject_VectorcallMethod(ptr %name, ptr %vector, i64 %positional, ptr %names)
  ret ptr %object
}

define ptr @qd_launch(ptr %self, ptr %args, i64 %count, ptr %names) {
entry:
  %result = alloca ptr
  %head = load ptr, ptr ${self.data}
  %first = load ptr, ptr ${head.plan}
  %positional = icmp eq ptr %names, null
  br i1 %positional, label %loop, label %slow
loop:
  %plan = phi ptr [ %first, %entry ], [ %following, %next ]
  %end = icmp eq ptr %plan, null
  br i1 %end, label %slow, label %look
look:
  %wanted = load i64, ptr ${plan.arguments}
  %same_count = icmp eq i64 %wanted, %count
  %busy = load i64, ptr ${plan.busy}
  %idle = icmp eq i64 %busy, 0
  %usable = and i1 %same_count, %idle
  br i1 %usable, label %try, label %next
try:
  %fits = call i1 @qd_try(ptr %plan, ptr %args, ptr %result)
  br i1 %fits, label %done, label %next
next:
  %following = load ptr, ptr ${plan.next}
  br label %loop
done:
  %object = load ptr, ptr %result
  ret ptr %object
slow:
  %slowly = call ptr @qd_slow(ptr %head, ptr %args, i64 %count, ptr %names)
  ret ptr %slowly
}

; take a plan's fixed buffers; called with the GIL held, like everything that looks at `busy`
define i32 @qd_acquire(ptr %plan) {
entry:
  %busy = load i64, ptr ${plan.busy}
  %idle = icmp eq i64 %busy, 0
  br i1 %idle, label %take, label %refuse
take:
  store i64 1, ptr ${plan.busy}
  ret i32 1
refuse:
  ret i32 0
}

; a kernel that keeps what it was given: context = {word count, words, extent count, extents, status, calls}
define i32 @qd_capture(ptr %context, ptr %words, ptr %extents, ptr %stream) {
entry:
  %n = load i64, ptr %context
  %to_at = getelementptr i64, ptr %context, i64 1
  %to = load ptr, ptr %to_at
  %nbytes = mul i64 %n, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %words, i64 %nbytes, i1 false)
  %m_at = getelementptr i64, ptr %context, i64 2
  %m = load i64, ptr %m_at
  %extents_to_at = getelementptr i64, ptr %context, i64 3
  %extents_to = load ptr, ptr %extents_to_at
  %extent_nbytes = mul i64 %m, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %extents_to, ptr %extents, i64 %extent_nbytes, i1 false)
  %status_at = getelementptr i64, ptr %context, i64 4
  %status = load i64, ptr %status_at
  %status32 = trunc i64 %status to i32
  %calls_at = getelementptr i64, ptr %context, i64 5
  %calls = load i64, ptr %calls_at
  %calls1 = add i64 %calls, 1
  store i64 %calls1, ptr %calls_at
  ret i32 %status32
}
"""

_CONSTANTS = (
    "ACCEPT_INT ACCEPT_FLOAT ACCEPT_BOOL INTEGER REAL HEADER_ARRAY NUMPY_ARRAY FIXED_ARRAY AXIS_FIXED AXIS_WORD_I32 "
    "AXIS_FORMULA FORMULA_DEPTH "
    "HEADER_ADDRESS HEADER_NBYTES HEADER_SHAPE RESULT_NONE RESULT_I64 RESULT_U64 RESULT_I32 RESULT_U32 RESULT_F64 "
    "RESULT_F32 RESULT_BOOL"
).split()


class _Fields(Template):
    idpattern = r"[A-Za-z_][A-Za-z0-9_.]*"


def launch_ir(object_offsets: Mapping[str, int]) -> str:
    """Return the module; `object_offsets` are byte offsets in Python objects as the probes found them.

    Keys: `object.type`, `self.data` (ctypes arrays), `names.size` (tuples), and of NumPy arrays `object.data`,
    `object.nd`, `object.dims`, `object.dtype`, `object.flags`.
    """
    text = _DECLARATIONS + SCALARS_IR + ARRAYS_IR + PACK_IR + EXTENTS_IR + _RUN
    return _expand(text, _offsets(object_offsets))


def _offsets(object_offsets: Mapping[str, int]) -> dict[str, int]:
    tables = {"head": HEAD, "plan": PLAN, "leaf": LEAF, "axis": AXIS, "variant": VARIANT}
    offsets = {f"{table}.{name}": 8 * n for table, names in tables.items() for n, name in enumerate(names)}
    return offsets | dict(object_offsets) | {"holder.data": object_offsets["object.data"]}


def _expand(text: str, offsets: Mapping[str, int]) -> str:
    """Replace `load T, ptr ${base.field}` and `store ..., ptr ${base.field}` by address and access; then constants."""
    constants = {name: str(getattr(native_tables, name)) for name in _CONSTANTS}
    constants |= {
        "leaf_nbytes": str(8 * len(LEAF)),
        "axis_nbytes": str(8 * len(AXIS)),
        "variant_nbytes": str(8 * len(VARIANT)),
    }
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        at = line.find("ptr ${")
        name = line[at + 6 : -1] if at >= 0 and line.endswith("}") else ""
        if name in offsets:
            base = name.partition(".")[0]
            lines.append(f"  %at{number} = getelementptr i8, ptr %{base}, i64 {offsets[name]}")
            line = f"{line[:at]}ptr %at{number}"
        lines.append(line)
    return _Fields("\n".join(lines)).substitute(constants)
