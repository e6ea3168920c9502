"""Runs programs through the contract on an open device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from qd_vulkan.instance import instance

from qd_core.backend.contract import BufferRef, BufferUse, CompileOptions, Device, HostSpan, Launch, Module
from qd_core.ir.nodes import Function, Role
from qd_core.ir.program import Program, Variant
from qd_core.passes.offload import offload
from qd_core.runtime.arguments import ArgumentTable, ArrayView
from qd_core.runtime.array import contiguous_strides

__all__ = ["ALONE", "STRICT", "Bound", "bind", "load", "silent", "span"]

STRICT = CompileOptions(fast_math=False)
ALONE = CompileOptions(fast_math=False, variant=Variant(frozenset({"no_overlap"})))
"""Arrays are known not to overlap."""


@contextmanager
def silent() -> Iterator[None]:
    """Fail where the validation layer says anything inside."""
    found = instance()
    messages: list[str] = [] if isinstance(found, str) else found.messages
    messages.clear()
    yield
    said = list(messages)
    messages.clear()
    assert not said, "\n".join(said)


def span(array: np.ndarray[Any, Any]) -> HostSpan:
    return HostSpan(array.ctypes.data, array.nbytes, array)


def load(
    device: Device, compiler: Any, code: Function | Program, options: CompileOptions = STRICT
) -> tuple[Program, Module]:
    """Compile a kernel and load it."""
    program = code if isinstance(code, Program) else offload(code)
    for step in compiler.pipeline():
        program = step(program)
    return program, device.load(compiler.compile(program, options))


class Bound:
    """A loaded kernel with its arrays on the device."""

    def __init__(self, device: Device, program: Program, module: Module, values: Mapping[str, Any]) -> None:
        self.device, self.module, self.values = device, module, dict(values)
        self.table = ArgumentTable.of(program)
        self.refs: dict[str, BufferRef] = {}
        views: list[ArrayView] = []
        for leaf in self.table.arrays:
            array = self.values.get(leaf.path)
            if array is None:
                fill = [0, 4096, 0, 0] + [-1] * 4096 if leaf.role is Role.LOG else np.zeros(leaf.type.fixed_shape)
                array = self.values[leaf.path] = np.array(fill, leaf.type.dtype.numpy)
            ref = BufferRef(device.allocate(array.nbytes), 0, array.nbytes)
            device.default_stream.copy_in(ref, span(array))
            self.refs[leaf.path] = ref
            shape = array.shape[: leaf.type.ndim]
            views.append(ArrayView(ref, shape, contiguous_strides(shape, leaf.type.element_size)))
        words, extents = self.table.pack(device, "address", self.values, views)
        uses = [
            BufferUse(v.ref, leaf.access, leaf.role, leaf.path)
            for v, leaf in zip(views, self.table.arrays, strict=True)
        ]
        self.launch = Launch(memoryview(np.array(words or [0], np.uint64)), extents, uses, program.name)

    def run(self) -> None:
        self.device.default_stream.run(self.module, self.launch)

    def fetch(self, path: str) -> np.ndarray[Any, Any]:
        """The array as it is on the device."""
        out = np.empty_like(self.values[path])
        self.device.default_stream.copy_out(span(out), self.refs[path])
        return out

    def free(self) -> None:
        for ref in self.refs.values():
            self.device.free(ref.buffer)


def bind(
    device: Device, compiler: Any, code: Function | Program, values: Mapping[str, Any], options: CompileOptions = STRICT
) -> Bound:
    """Compile, load and bind a kernel."""
    return Bound(device, *load(device, compiler, code, options), values)


def with_launch(bound: Bound, **changes: Any) -> Launch:
    return replace(bound.launch, **changes)
