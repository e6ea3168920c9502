"""Arrays that a kernel can take: ours, NumPy's and torch's, behind one interface.

A *source* either is resident on the device (`view`) or lives in host memory (`span`), from where the launcher stages
it in and, where the kernel wrote
it, back. Nothing here knows what a source is for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds

from qd_core import dtypes as dt
from qd_core.backend.contract import BufferRef, HostSpan
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError, QuadrantsRuntimeTypeError
from qd_core.runtime.arguments import ArrayView
from qd_core.runtime.array import Ndarray, contiguous_strides
from qd_core.runtime.context import Runtime
from qd_core.runtime.exchange import ExchangeSource, is_device_tensor, is_host_tensor

__all__ = ["ArraySource", "HostSource", "NdarraySource", "WithGrad", "array_source", "is_array", "with_grad"]


Place = tuple[str, int, int]
"""Address space (``"host"`` or ``"device"``), first byte, past the last byte."""


class ArraySource(Protocol):
    """An array argument."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def differentiable(self) -> bool:
        """Whether there is, or the framework can make, a place for its gradient."""
        ...

    def view(self, runtime: Runtime) -> ArrayView | None:
        """Memory on the device of ``runtime`` and its layout; None when it must be staged."""
        ...

    def place(self, runtime: Runtime) -> Place:
        """Where the memory lies, to find out whether two arrays share it."""
        ...

    def save(self, runtime: Runtime) -> SavedContents:
        """Copy the contents; calling the result puts them back."""
        ...

    def check(self, *, written: bool, path: str) -> None:
        """Refuse what a kernel cannot use, naming the parameter ``path``."""
        ...

    def span(self) -> HostSpan:
        """Host memory in C order to stage from, and back to where the kernel wrote."""
        ...

    def finish(self) -> None:
        """After the staged-back copy."""
        ...

    def gradient(self, *, create: bool) -> ArraySource | None:
        """Where the gradient lives, or None; ``create`` allocates zeros where the framework has such a place."""
        ...

    def dual(self) -> ArraySource | None:
        """Where the tangent lives, or None."""
        ...


class NdarraySource:
    """One of our arrays."""

    __slots__ = ("array", "dtype", "shape")

    def __init__(self, array: Ndarray) -> None:
        self.array, self.dtype = array, array.dtype
        self.shape = array.shape + array.element_shape

    @property
    def differentiable(self) -> bool:
        return self.array.grad is not None

    def view(self, runtime: Runtime) -> ArrayView | None:
        return self.array.view_on(runtime)

    def place(self, runtime: Runtime) -> Place:
        ref = self.array.view_on(runtime).ref
        known = self.array.__dict__.get("_place")
        if known is None:
            shared = runtime.device.host_view(ref)
            start = shared.address if shared is not None else int(runtime.device.address(ref))
            space = "host" if shared is not None else "device"
            known = self.array.__dict__["_place"] = (space, start, start + ref.nbytes)
        return known

    def save(self, runtime: Runtime) -> SavedContents:
        return Saved(runtime, self.array.view_on(runtime).ref)

    def check(self, *, written: bool, path: str) -> None:
        self.array._check()

    def span(self) -> HostSpan:
        raise AssertionError("an array of ours is always resident")

    def finish(self) -> None:
        pass

    def gradient(self, *, create: bool) -> ArraySource | None:
        return NdarraySource(self.array.grad) if self.array.grad is not None else None

    def dual(self) -> ArraySource | None:
        """Where the tangent lives, or None."""
        return NdarraySource(self.array.dual) if self.array.dual is not None else None


class HostSource:
    """A NumPy array, or another framework's host tensor seen as one.

    Fortran-ordered arrays are copied to C order and back; other strides are refused.
    """

    __slots__ = ("_copy", "array", "dtype", "grad", "owner", "shape")

    def __init__(
        self, array: np.ndarray[Any, Any], grad: np.ndarray[Any, Any] | None = None, owner: object = None
    ) -> None:
        dtype = dt.from_numpy(array.dtype)
        if dtype is None or not array.dtype.isnative:
            raise ArgumentValueError(
                f"arrays of {array.dtype} are not supported", hint="convert it to a native integer or real type"
            )
        self.array, self.dtype, self.shape, self.grad, self.owner = array, dtype, array.shape, grad, owner
        self._copy: np.ndarray[Any, Any] | None = None

    @property
    def differentiable(self) -> bool:
        return self.grad is not None or (_is_torch(self.owner) and bool(getattr(self.owner, "requires_grad", False)))

    def view(self, runtime: Runtime) -> ArrayView | None:
        if not (self.array.flags.c_contiguous and self.array.flags.aligned) or not self.array.nbytes:
            return None
        buffer = runtime.device.adopt(self.array)
        if buffer is None:
            return None
        return ArrayView(BufferRef(buffer, 0, self.array.nbytes), self.shape, contiguous_strides(self.shape, 1))

    def place(self, runtime: Runtime) -> Place:
        return ("host", *byte_bounds(self.array))

    def save(self, runtime: Runtime) -> SavedContents:
        return SavedHost(self.array)

    def check(self, *, written: bool, path: str) -> None:
        """Refuse what the kernel cannot use, naming the parameter."""
        flags = self.array.flags
        if written and not flags.writeable:
            raise ArgumentValueError(
                f"argument {path!r} is a read-only array, but the kernel writes it", hint="pass a writable copy"
            )
        if not (flags.c_contiguous or flags.f_contiguous):
            raise ArgumentValueError(
                f"argument {path!r} is not contiguous: wanted C or Fortran order, "
                f"got shape {self.shape} with strides {self.array.strides}",
                hint="pass numpy.ascontiguousarray(x), and copy back what the kernel wrote",
            )

    def span(self) -> HostSpan:
        source = self.array
        if not (source.flags.c_contiguous and source.flags.aligned):
            source = self._copy = np.ascontiguousarray(self.array).copy()
        return HostSpan(source.ctypes.data, source.nbytes, source)

    def finish(self) -> None:
        if self._copy is not None:
            np.copyto(self.array, self._copy)

    def gradient(self, *, create: bool) -> ArraySource | None:
        if self.grad is not None:
            return HostSource(self.grad)
        return _torch_gradient(self.owner, create=create) if _is_torch(self.owner) else None

    def dual(self) -> ArraySource | None:
        return None


class Saved:
    """A copy of device memory on the device; calling it puts the contents back. `drop` frees it, or its own end."""

    def __init__(self, runtime: Runtime, ref: BufferRef) -> None:
        self._runtime, self._ref = runtime, ref
        self._copy: BufferRef | None = BufferRef(runtime.device.allocate(ref.nbytes), 0, ref.nbytes)
        runtime.device.default_stream.copy(self._copy, ref)

    def __call__(self) -> None:
        assert self._copy is not None
        self._runtime.device.default_stream.copy(self._ref, self._copy)

    def drop(self) -> None:
        """Free the copy."""
        copy, self._copy = self._copy, None
        if copy is not None and not self._runtime.closed:
            self._runtime.device.free(copy.buffer, after=self._runtime.device.default_stream)

    def __del__(self) -> None:
        if getattr(self, "_copy", None) is not None:
            self.drop()


class SavedHost:
    """A copy of a host array; calling it puts the contents back."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array, self._contents = array, array.copy()

    def __call__(self) -> None:
        np.copyto(self._array, self._contents)

    def drop(self) -> None:
        """Forget the copy."""
        self._contents = self._array


class SavedContents(Protocol):
    """Contents of an array at some moment."""

    def __call__(self) -> None:
        """Put them back; any number of times."""
        ...

    def drop(self) -> None:
        """Free the copy."""
        ...


@dataclass(frozen=True, slots=True)
class WithGrad:
    """A host array with its gradient array, as made by `with_grad`."""

    data: Any
    grad: Any


def with_grad(data: Any, grad: Any) -> WithGrad:
    """Pair a NumPy array with the array in which `kernel.grad` accumulates its gradient.

    Parameters
    ----------
    data : numpy.ndarray
        Real array passed to the kernel.
    grad : numpy.ndarray
        Array of the same shape and dtype.

    Examples
    --------
    >>> import numpy as np
    >>> x, gx = np.ones(3, np.float32), np.zeros(3, np.float32)
    >>> pair = with_grad(x, gx)
    """
    if not (isinstance(data, np.ndarray) and isinstance(grad, np.ndarray)):
        raise QuadrantsRuntimeTypeError("with_grad takes two NumPy arrays")
    if data.shape != grad.shape or data.dtype != grad.dtype:
        raise ArgumentValueError(
            f"the gradient must match its array: {data.dtype}{data.shape} against {grad.dtype}{grad.shape}"
        )
    return WithGrad(data, grad)


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Whether ``value`` can be passed for an array parameter."""
    known = isinstance(value, (Ndarray, np.ndarray, WithGrad)) or _is_torch(value)
    return known or is_device_tensor(value) or is_host_tensor(value)


def array_source(value: Any, path: str) -> ArraySource:
    """Return ``value`` as a source; typed errors name the parameter ``path``."""
    if isinstance(value, Ndarray):
        return NdarraySource(value)
    if isinstance(value, np.ndarray):
        return HostSource(value)
    if isinstance(value, WithGrad):
        return HostSource(value.data, value.grad)
    if is_device_tensor(value):
        return ExchangeSource(value, path)
    if _is_torch(value):
        return HostSource(_torch_array(value, path), owner=value)
    if is_host_tensor(value):
        return HostSource(_foreign_array(value, path), owner=value)
    raise QuadrantsRuntimeTypeError(
        f"argument {path!r} must be an array, got {type(value).__name__}",
        hint="pass a qd.ndarray, a NumPy array or a torch tensor",
    )


def _torch_array(tensor: Any, path: str) -> np.ndarray[Any, Any]:
    """NumPy view of a torch tensor on the host, sharing memory."""
    try:
        return tensor.detach().numpy()
    except (RuntimeError, TypeError) as error:
        raise ArgumentValueError(
            f"argument {path!r} is a torch tensor of {tensor.dtype} and layout {tensor.layout}, which kernels do not "
            "know",
            hint="convert it, for instance by .float() or .to_dense()",
        ) from error


def _foreign_array(tensor: Any, path: str) -> np.ndarray[Any, Any]:
    """NumPy view of another library's tensor on the host; read-only where that library says so."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = getattr(tensor, "dtype", "?")
        raise ArgumentValueError(
            f"argument {path!r} is a {type(tensor).__name__} of {kind} that is not exported through DLPack"
        ) from error


def _torch_gradient(tensor: Any, *, create: bool) -> ArraySource | None:
    if not tensor.requires_grad:
        return None
    if tensor.grad is None:
        if not create:
            return None
        import torch

        tensor.grad = torch.zeros_like(tensor)
    return HostSource(_torch_array(tensor.grad, "grad"), owner=tensor.grad)
