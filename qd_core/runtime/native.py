"""Launches without Python on their path: the plans that the native launch entry follows.

A `NativeLauncher` belongs to one kernel. Its `entry` is a builtin function that first tries the installed plans, one
for each combination of argument types that was launched before, and calls the Python slow path when none fits. So the
slow path is the definition of what a launch does; a plan only repeats, quicker, what it did, and fills the same words.

To make a kernel object callable through it, give each kernel a class of its own that has the builtin as `__call__`
(`callable_class`): a builtin is not a descriptor, so the call does not pass through a bound method.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from qd_core.dtypes import DType
from qd_core.runtime import native_tables as tables
from qd_core.runtime.native_ir import IMPORTS, SYMBOLS, launch_ir
from qd_core.runtime.native_layout import (
    ALIGNED,
    C_CONTIGUOUS,
    WRITEABLE,
    LayoutError,
    disabled_reason,
    make_memory,
    probe_layout,
    slot_offset,
)
from qd_core.runtime.native_spec import (
    MISS,
    NEVER,
    Argument,
    Axis,
    FixedArray,
    Formula,
    HeaderArgument,
    LaunchCounter,
    LaunchPlan,
    NumpyArgument,
    ResultWord,
    ScalarArgument,
    Variant,
    WordExtent,
    miss,
    pick,
)

__all__ = [
    "MISS",
    "NEVER",
    "Argument",
    "Axis",
    "FixedArray",
    "Formula",
    "HeaderArgument",
    "InstalledPlan",
    "LaunchCounter",
    "LaunchPlan",
    "NativeLauncher",
    "NumpyArgument",
    "ResultWord",
    "Runtime",
    "ScalarArgument",
    "Variant",
    "WordExtent",
    "callable_class",
    "load_runtime",
    "miss",
    "supports_result",
    "supports_scalar",
    "unavailable_reason",
]

MAX_PLANS = 8
"""Plans of one kernel; later combinations of types take the slow path."""

_METH_FASTCALL_KEYWORDS = 0x0080 | 0x0002


class NativeLauncher:
    """The native entry of one kernel.

    Parameters
    ----------
    slow
        Launches with any arguments; called with exactly what `entry` got whenever no plan fits.
    derivative
        An attribute: whether the kernel is a reverse one, which a tape need not see.
    arrays_of
        An attribute: from the arguments to those that are arrays.
    direct
        An attribute: the entry that a suspension does not concern, for who caused it; `MISS` where no plan fits.
    runtime
        The loaded machine code; None takes the tested one of this process.

    Raises
    ------
    RuntimeError
        Native launches are off here; `unavailable_reason()` says why.
    """

    def __init__(self, slow: Callable[..., Any], *, runtime: Runtime | None = None) -> None:
        runtime = load_runtime() if runtime is None else runtime
        self._head = make_memory(len(tables.HEAD))
        self._slow = slow
        self._runtime = runtime  # the builtin points into it
        self._acquire = runtime.acquire
        self._plans: list[InstalledPlan] = []
        self.derivative = False
        self.arrays_of: Callable[[Sequence[Any]], Any] = pick(())
        self._suspended = False
        self._direct_head = make_memory(len(tables.HEAD))
        self.entry: Callable[..., Any] = self._make_entry(self._head, slow)
        self.direct: Callable[..., Any] = self._make_entry(self._direct_head, miss)

    def _make_entry(self, head: Any, slow: Callable[..., Any]) -> Callable[..., Any]:
        _write(head, tables.HEAD, "slow", id(slow))
        _write(head, tables.HEAD, "call_name", id(_CALL))
        # The builtin owns its head, and this object what the head points to: it must live as long as the builtin.
        head.launcher = self
        return self._runtime.function(head)

    @property
    def full(self) -> bool:
        """Whether no further plan can be installed."""
        return len(self._plans) >= MAX_PLANS

    @property
    def launches(self) -> int:
        """Launches that took a plan."""
        return sum(plan.read("launches") for plan in self._plans)

    @property
    def status(self) -> int:
        """What the kernel's function returned, while `after` runs; 0 if that was no error."""
        status = next((plan.read("status") for plan in self._plans if plan.read("busy")), 0)
        return ctypes.c_int64(status).value

    def install(self, plan: LaunchPlan) -> InstalledPlan | None:
        """Add a plan, to be tried after those installed before; None when `full`.

        Raises
        ------
        ValueError
            The plan contradicts itself.
        """
        _check(plan)
        memory = InstalledPlan(plan, self._acquire)
        with _changing:
            if self.full:
                return None
            if self._plans:
                self._plans[-1].write("next", memory.address)
            self._plans.append(memory)
            self._write_first()
        return memory

    def suspend(self) -> None:
        """Send every launch to the slow path until `resume`."""
        with _changing:
            self._suspended = True
            self._write_first()

    def resume(self) -> None:
        """Use the installed plans again."""
        with _changing:
            self._suspended = False
            self._write_first()

    def _write_first(self) -> None:
        first = self._plans[0].address if self._plans else 0
        _write(self._direct_head, tables.HEAD, "plan", first)
        _write(self._head, tables.HEAD, "plan", 0 if self._suspended else first)

    def clear(self) -> None:
        """Forget all plans, for instance because the device was closed; memory stays until the kernel goes."""
        with _changing:
            _retired.extend(plan for plan in self._plans if plan.read("busy"))
            forgotten, self._plans = self._plans, []
            self._write_first()
        forgotten.clear()  # not under the lock: what goes with a plan may be anything


class InstalledPlan:
    """A plan as the machine code reads it, with everything that its addresses point to."""

    address: int
    launcher: NativeLauncher
    leaves: Callable[[Sequence[Any]], Any]
    """From a call's arguments to what the entry gets; `MISS` where members are not what was compiled in."""

    def __init__(self, plan: LaunchPlan, acquire: Callable[[int], int]) -> None:
        self.plan = plan
        self._owners: list[object] = []
        self._acquire = acquire
        self._memory = make_memory(len(tables.PLAN))
        self.address = ctypes.addressof(self._memory)
        self.write("arguments", plan.arguments)
        self._table("leaf_count", "leaves", [self._leaf(leaf) for leaf in plan.leaves])
        self._table("word_count", "words", [list(plan.words)])
        self._table("axis_count", "axes", self._axes(plan.tasks))
        self._table("written_count", "written", [[n for n, leaf in enumerate(plan.leaves) if _is_written(leaf)]])
        self._table("variant_count", "variants", [_variant(v) for v in plan.variants])
        self._table("log_count", "log", [list(plan.log)])
        self.write("word_count", len(plan.words))
        self.write("log_count", len(plan.log))
        self.write("written_count", self._guarded_writes(plan))
        self.write("extents_function", plan.extents_function)
        self.write("release", struct.unpack("<Q", struct.pack("<d", plan.release))[0])
        self.write("stream", plan.stream)
        if plan.counter is not None:
            self.write("counter", plan.counter.address)
            self.write("counted", plan.counter.word)
            self.write("counter_step", plan.counter.step)
        self._result(plan)

    def read(self, name: str) -> int:
        """Return the word `name` of the plan (`native_tables.PLAN`)."""
        return self._memory[tables.PLAN.index(name)]

    def write(self, name: str, value: int) -> None:
        """Set the word `name` of the plan."""
        _write(self._memory, tables.PLAN, name, value)

    @property
    def launches(self) -> int:
        """Launches that took this plan."""
        return self.read("launches")

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """Keep native launches away from the plan's fixed buffers (results, temporaries); waits for one in progress.

        The slow path needs this where it uses the same buffers, because a native launch may have released the GIL.
        """
        while not self._acquire(self.address):
            time.sleep(20e-6)
        try:
            yield
        finally:
            self.write("busy", 0)

    def _table(self, count: str, pointer: str, rows: Sequence[Sequence[int]]) -> None:
        values = [value for row in rows for value in row]
        self.write(count, len(rows))
        self.write(pointer, self._keep(values))

    def _keep(self, values: Sequence[int]) -> int:
        memory = make_memory(max(len(values), 1))
        for n, value in enumerate(values):
            memory[n] = value & (2**64 - 1)
        self._owners.append(memory)
        return ctypes.addressof(memory)

    def _guarded_writes(self, plan: LaunchPlan) -> int:
        guarded = any(v.guards for v in plan.variants)
        return sum(map(_is_written, plan.leaves)) if guarded else 0

    def _leaf(self, leaf: Argument) -> list[int]:
        if isinstance(leaf, ScalarArgument):
            values = _scalar_leaf(leaf)
        elif isinstance(leaf, HeaderArgument):
            values = _header_leaf(leaf)
        elif isinstance(leaf, FixedArray):
            values = {"kind": tables.FIXED_ARRAY, "key": leaf.address, "high": leaf.address + leaf.nbytes}
        else:
            values = _numpy_leaf(leaf) | {"element_shape": self._keep(leaf.element_shape)}
        return _row(tables.LEAF, values | {"argument": leaf.position, "word": leaf.word})

    def _axes(self, tasks: Sequence[Sequence[Axis]]) -> list[list[int]]:
        rows: list[list[int]] = []
        for task in tasks:
            rows.extend(_row(tables.AXIS, self._axis(axis) | {"first": int(n == 0)}) for n, axis in enumerate(task))
        return rows

    def _axis(self, axis: Axis) -> dict[str, int]:
        if isinstance(axis, int):
            return {"kind": tables.AXIS_FIXED, "value": axis}
        if isinstance(axis, Formula):
            steps = [value for name, number in axis.steps for value in (tables.FORMULA_STEPS.index(name), number)]
            return {"kind": tables.AXIS_FORMULA, "value": self._keep([len(axis.steps), *steps])}
        kind = tables.AXIS_WORD_I32 if axis.signed32 else tables.AXIS_WORD
        return {"kind": kind, "value": axis.word, "offset": axis.offset}

    def _result(self, plan: LaunchPlan) -> None:
        self.write("after", id(plan.after) if plan.after is not None else id(_no_report))
        if plan.finish is not None:
            self.write("result_kind", tables.RESULT_CALL)
            self.write("finish", id(plan.finish))
        elif plan.result is not None:
            self.write("result_kind", _RESULT_KINDS[plan.result.dtype.name])
            self.write("result", plan.result.address)


def _no_report() -> None:
    raise RuntimeError("a kernel reported a status, and its launch plan has nothing to handle it")


_CALL = "__call__"
_retired: list[InstalledPlan] = []
_changing = threading.RLock()
"""Held while the list of a kernel's plans and what the machine code sees of it differ."""
_RESULT_KINDS = {
    "i64": tables.RESULT_I64,
    "u64": tables.RESULT_U64,
    "i32": tables.RESULT_I32,
    "u32": tables.RESULT_U32,
    "f64": tables.RESULT_F64,
    "f32": tables.RESULT_F32,
    "u1": tables.RESULT_BOOL,
}
_ACCEPTS: dict[type, int] = {int: tables.ACCEPT_INT, float: tables.ACCEPT_FLOAT, bool: tables.ACCEPT_BOOL}
_HOPS = {"": 0, "grad": tables.HEADER_GRAD, "dual": tables.HEADER_DUAL}


def supports_result(dtype: DType) -> bool:
    """Return whether a scalar result of `dtype` can be decoded without a `finish` function."""
    return dtype.name in _RESULT_KINDS


def supports_scalar(dtype: DType) -> bool:
    """Return whether scalars of `dtype` can be packed natively (16-bit reals cannot)."""
    return dtype.name != "f16"


def _check(plan: LaunchPlan) -> None:
    if not plan.variants or (plan.variants[-1].guards and not plan.partial):
        raise ValueError("the last variant of a launch plan must be right for every input")
    if len(plan.words) > tables.MAX_WORDS:
        raise ValueError(f"a launch plan has at most {tables.MAX_WORDS} words, got {len(plan.words)}")
    for leaf in plan.leaves:
        size = 1 if isinstance(leaf, ScalarArgument) else 1 + 2 * leaf.ndim
        if not (0 <= leaf.position < plan.arguments and 0 <= leaf.word <= len(plan.words) - size):
            raise ValueError(f"{leaf} is out of range")
        if isinstance(leaf, HeaderArgument) and leaf.key == 0:
            raise ValueError("class key 0 means a freed array")
        if isinstance(leaf, ScalarArgument) and not supports_scalar(leaf.dtype):
            raise ValueError(f"scalars of {leaf.dtype} are not packed natively")
    for axis in (axis for axes in plan.tasks for axis in axes):
        if any(not 0 <= word < len(plan.words) for word in _words_of(axis)):
            raise ValueError(f"{axis} reads a word out of range")
        if isinstance(axis, Formula) and axis.depth() > tables.FORMULA_DEPTH:
            raise ValueError(f"a formula needs a stack of more than {tables.FORMULA_DEPTH}")


def _words_of(axis: Axis) -> list[int]:
    if isinstance(axis, Formula):
        return [number for name, number in axis.steps if name == "word"]
    return [axis.word] if isinstance(axis, WordExtent) else []


def _is_written(leaf: Argument) -> bool:
    return not isinstance(leaf, ScalarArgument) and leaf.written


def _scalar_leaf(leaf: ScalarArgument) -> dict[str, int]:
    accepts = sum(_ACCEPTS[kind] for kind in set(leaf.accepts))
    if leaf.dtype.is_real:
        return {"kind": tables.REAL, "type": accepts, "mask": leaf.dtype.bits}
    low, high = int(leaf.dtype.min), min(int(leaf.dtype.max), 2**63 - 1)
    mask = (1 << max(leaf.dtype.bits, 8)) - 1
    return {"kind": tables.INTEGER, "type": accepts, "low": low, "high": high, "mask": mask}


def _header_leaf(leaf: HeaderArgument) -> dict[str, int]:
    return {
        "kind": tables.HEADER_ARRAY,
        "type": id(leaf.cls),
        "key": leaf.key,
        "ndim": leaf.ndim,
        "hop": _HOPS[leaf.hop],
        "slot": _slot_offset(leaf.cls, leaf.slot),
    }


def _numpy_leaf(leaf: NumpyArgument) -> dict[str, int]:
    return {
        "kind": tables.NUMPY_ARRAY,
        "type": id(np.ndarray),
        "key": id(leaf.dtype.numpy),
        "ndim": leaf.ndim,
        "flags": C_CONTIGUOUS | ALIGNED | (WRITEABLE if leaf.written else 0),
        "element_axes": len(leaf.element_shape),
        "element_size": int(np.prod(leaf.element_shape, dtype=np.int64)),
        "itemsize": leaf.dtype.nbytes,
    }


def _variant(variant: Variant) -> list[int]:
    unknown = variant.guards - {"no_overlap"}
    if unknown:
        raise ValueError(f"native launches know no guard {sorted(unknown)}")
    guards = tables.GUARD_NO_OVERLAP if variant.guards else 0
    return _row(tables.VARIANT, {"guards": guards, "function": variant.function, "context": variant.context})


def _row(table: tuple[str, ...], values: dict[str, int]) -> list[int]:
    return [values.get(name, 0) for name in table]


def _write(memory: ctypes.Array[ctypes.c_uint64], table: tuple[str, ...], name: str, value: int) -> None:
    memory[table.index(name)] = value & (2**64 - 1)


@functools.cache
def _slot_offset(cls: type, slot: str) -> int:
    return slot_offset(cls, slot)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Runtime:
    """The loaded machine code, once a process."""

    def __init__(self) -> None:
        from qd_core.codegen.jit import process_jit

        jit = process_jit()
        code = jit.compile_kept(launch_ir(probe_layout()), vectorize=False, opt_level=1)
        symbols = jit.load(code, SYMBOLS, {name: _c_address(name) for name in IMPORTS})
        self.capture = symbols["qd_capture"]
        self.acquire: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(symbols["qd_acquire"])
        self._method = _MethodDef(b"launch", symbols["qd_launch"], _METH_FASTCALL_KEYWORDS, None)
        self._new = ctypes.pythonapi.PyCFunction_NewEx
        self._new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self._new.restype = ctypes.py_object

    def function(self, head: object) -> Callable[..., Any]:
        """Return a builtin function whose `self` is `head`."""
        return self._new(ctypes.addressof(self._method), head, None)


def _c_address(name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))


_loading = threading.RLock()


def _loaded() -> Runtime | str:
    with _loading:  # threads that come first at the same time must not each make one
        return _load()


@functools.cache
def _load() -> Runtime | str:
    reason = disabled_reason()
    if reason is not None:
        return reason
    try:
        runtime = Runtime()
        from qd_core.runtime.native_check import self_test

        self_test(runtime)
    except (LayoutError, RuntimeError, AttributeError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return runtime


def load_runtime() -> Runtime:
    """Return the tested machine code; `RuntimeError` says why there is none."""
    loaded = _loaded()
    if isinstance(loaded, str):
        raise RuntimeError(f"native launches are off: {loaded}")
    return loaded


def unavailable_reason() -> str | None:
    """Return why launches take the Python path, or None when they are native. The first call tests this interpreter."""
    loaded = _loaded()
    return loaded if isinstance(loaded, str) else None


def callable_class(base: type, entry: Callable[..., Any]) -> type:
    """Return a subclass of `base` whose instances call `entry` with exactly the arguments of the call."""
    return type(
        base.__name__,
        (base,),
        {"__slots__": (), "__call__": entry, "__doc__": base.__doc__, "__module__": base.__module__},
    )
