"""What a driver does that its features do not tell, found by small kernels.

The answers become features of the target. They are kept on disk for the driver's version; a driver that cannot even run
the kernels has none.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import (
    Access,
    BufferRef,
    BufferUse,
    CompileOptions,
    DeviceInfo,
    HostSpan,
    Launch,
    Role,
    Target,
)  # fmt: skip
from qd_core.errors import QuadrantsError
from qd_core.ir.build import Builder
from qd_core.ir.nodes import ArrayType, Param, Region, Value
from qd_core.ir.program import Program, Task
from qd_vulkan.loader import VulkanError
from qd_vulkan.pipeline_cache import cache_path, write_whole

if TYPE_CHECKING:
    from qd_vulkan.instance import Instance, Physical

__all__ = ["quirks"]

_VERSION = 1
_LONG = 70_000

Body = Callable[[Builder, Param], Value]


def _count(b: Builder, y: Param) -> Value:
    """Trips of a long loop."""
    with b.inside([(dt.i32, "k"), (dt.i32, "n")], loop=True) as body:
        b.yield_(b.emit("add", body.args[1], b.emit("and", body.args[0], b.const(dt.i32, 1))))
    stop = b.cast(b.load(y, [b.const(dt.i32, 0)]), dt.i32)
    (odd,) = b.for_(b.const(dt.i32, 0), stop, [b.const(dt.i32, 0)], body)
    return b.cast(odd, dt.f32)


def _zero_sign(b: Builder, y: Param) -> Value:
    """Reciprocal of a product that is minus zero."""
    b.exact = "strict"
    product = b.emit("mul", b.load(y, [b.const(dt.i32, 0)]), b.load(y, [b.const(dt.i32, 1)]))
    return b.emit("div", b.const(dt.f32, 1), product)


_PROBES: dict[str, tuple[Body, tuple[float, float], float]] = {
    "loop_limit": (_count, (float(_LONG), 0.0), _LONG / 2),
    "plain_products": (_zero_sign, (-0.0, 1.0), float("-inf")),
}
"""Feature, kernel body, its input, and what it gives where the feature is not needed."""


@lru_cache(maxsize=16)
def quirks(instance: Instance, physical: Physical, target: Target) -> tuple[str, ...]:
    """Return the features that a driver needs besides those of `target`."""
    path = cache_path(physical, f"probe{_VERSION}", "json")
    try:
        return tuple(json.loads(path.read_text()))
    except (OSError, ValueError):
        pass
    found = _ask(instance, physical, target)
    write_whole(path, json.dumps(found).encode())
    return found


def _ask(instance: Instance, physical: Physical, target: Target) -> tuple[str, ...]:
    from qd_vulkan.compiler import VulkanCompiler
    from qd_vulkan.device import VulkanDevice

    device = VulkanDevice(instance, physical, DeviceInfo(0, physical.name, target), {"offline_cache": False})
    try:
        compiler = VulkanCompiler(target)
        return tuple(name for name in _PROBES if _answer(device, compiler, name) != _PROBES[name][2])
    except (QuadrantsError, VulkanError):
        return ()
    finally:
        device.close()


def _answer(device: Any, compiler: Any, name: str) -> float:
    body, given, _ = _PROBES[name]
    y = Param(ArrayType(dt.f32, 1), "y")
    region = Region()
    b = Builder(region)
    result = body(b, y)
    b.store(y, [b.const(dt.i32, 0)], result)
    b.yield_()
    program = Program("probe", (y,), (Task(name, (), region),), (), frozenset({0}), frozenset({0}))
    module = device.load(compiler.compile(program, CompileOptions(fast_math=False)))
    data = np.array(given, np.float32)
    ref, span = BufferRef(device.allocate(data.nbytes), 0, data.nbytes), HostSpan(data.ctypes.data, data.nbytes, data)
    stream = device.default_stream
    stream.copy_in(ref, span)
    words = memoryview(array("Q", [int(device.address(ref)), 2, 1]))
    stream.run(module, Launch(words, (), [BufferUse(ref, Access.READ_WRITE, Role.DATA, "y")], "probe"))
    stream.copy_out(span, ref)
    return float(data[0])
