"""Kinds of array arguments: the first axis of the launcher matrix.

A kind says how its arrays are made, by which form of a kernel they are taken, and what can be had with them: a place
for a tangent, views that share memory, a size of zero. The matrix is what these answers allow; nothing is left out by
hand.
"""
# pyright: basic, reportGeneralTypeIssues=false, reportInvalidTypeForm=false, reportOptionalMemberAccess=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import qd_core as qd
from qd_core.backend.dlpack import exchange
from qd_core.runtime.context import current

__all__ = ["ACCELERATED", "KINDS", "Kind", "contents", "gradient", "values"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How arrays of one kind are made and passed.

    Attributes
    ----------
    make : callable
        From host data, and whether with a gradient, to an argument.
    form : str
        Which form of a kernel takes it: ``"array"``, ``"template"``, or the member of a dataclass that is annotated so:
        ``"array member"``, ``"template member"``.
    tangent : bool
        There is a place for tangents.
    views : bool
        Slices of one share its memory.
    empty : bool
        It can have no element at all.
    """

    make: Callable[[Array, bool], Any]
    form: str = "array"
    tangent: bool = False
    views: bool = False
    empty: bool = True

    def arguments(self, *data: Array, grad: bool = False, tangent: bool = False) -> list[Any]:
        """Make an argument of each of ``data``; tangents, like gradients, start at values other than zero."""
        made = [self.make(d, grad) for d in data]
        if tangent:
            for argument, d in zip(made, data, strict=True):
                argument.make_dual()
                argument.dual.from_numpy(gradient(d) + 1)
        return made


def gradient(data: Array) -> Array:
    """Return the start value of a gradient: not zero, so that overwriting shows."""
    return (np.arange(data.size) % 5 - 1.5).astype(np.float32).reshape(data.shape)


def values(count: int, seed: int) -> Array:
    """Return reproducible data in [-2, 2)."""
    return np.random.default_rng(seed).uniform(-2, 2, count).astype(np.float32)


def contents(argument: Any) -> Array:
    """Return an argument's data."""
    if isinstance(argument, np.ndarray):
        return argument
    return argument.to_numpy() if hasattr(argument, "to_numpy") else argument.detach().cpu().numpy()


def _ours(array: Any, data: Array, grad: bool) -> Any:
    array.from_numpy(data)
    if grad:
        array.grad.from_numpy(gradient(data))
    return array


def as_ndarray(data: Array, grad: bool) -> Any:
    """Return an array of the device."""
    return _ours(qd.ndarray(qd.f32, data.shape, needs_grad=grad), data, grad)


def as_field(data: Array, grad: bool) -> Any:
    """Return a field."""
    return _ours(qd.field(qd.f32, data.shape, needs_grad=grad), data, grad)


def as_numpy(data: Array, grad: bool) -> Any:
    """Return a NumPy array, paired with its gradient where it has one."""
    return qd.with_grad(data.copy(), gradient(data)) if grad else data.copy()


def as_offset(data: Array, grad: bool) -> Any:
    """Return a NumPy array at an odd place in memory."""
    place = np.zeros(data.size + 1, data.dtype)[1:]
    place[:] = data
    return qd.with_grad(place, gradient(data)) if grad else place


def as_torch(data: Array, grad: bool, device: Any = "cpu") -> Any:
    """Return a torch tensor."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor(data, device=device)
    if grad:
        tensor.requires_grad_()
        tensor.grad = torch.tensor(gradient(data), device=device)
    return tensor


def as_accelerated(data: Array, grad: bool) -> Any:
    """Return a torch tensor in the device's own memory."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.accelerator.is_available():
        pytest.skip("torch has no accelerator here")
    tensor = as_torch(data, grad, torch.accelerator.current_accelerator())
    view = exchange(tensor.detach())
    if view is None or current().device.adopt(view) is None:
        pytest.skip("torch's accelerator is another device")
    return tensor


KINDS: dict[str, Kind] = {
    "ndarray": Kind(as_ndarray, tangent=True),
    "field": Kind(as_field, "template", tangent=True, empty=False),
    "numpy": Kind(as_numpy, views=True),
    "offset": Kind(as_offset, views=True),
    "torch": Kind(as_torch, views=True),
    "member": Kind(as_ndarray, "array member", tangent=True),
    "member-field": Kind(as_field, "template member", tangent=True, empty=False),
    "member-numpy": Kind(as_numpy, "array member", views=True),
}
"""All kinds that need no hardware, by the name that tests show."""

ACCELERATED = Kind(as_accelerated, views=True)
"""Tensors that another library keeps in the device's memory."""

if find_spec("torch") is None:
    del KINDS["torch"]
