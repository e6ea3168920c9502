"""Tensors of other libraries that lie on a device, used in place.

Which device that is, only the active backend knows: it adopts the tensor, or the launch is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.backend.contract import BufferRef, HostSpan
from qd_core.backend.dlpack import CPU_KINDS, Exchange, device_of, exchange
from qd_core.dtypes import DType
from qd_core.errors import ArgumentValueError
from qd_core.runtime.arguments import ArrayView
from qd_core.runtime.array import contiguous_strides
from qd_core.runtime.context import Runtime

if TYPE_CHECKING:
    from qd_core.runtime.interop import SavedContents

__all__ = ["ExchangeSource", "is_device_tensor"]


def is_device_tensor(value: object) -> bool:
    """Whether a value is another library's tensor outside the host's memory."""
    device = device_of(value)
    return device is not None and device[0] not in CPU_KINDS


def is_host_tensor(value: object) -> bool:
    """Whether a value is another library's tensor in the host's memory."""
    if hasattr(value, "__qd_capture__"):
        return False
    device = device_of(value)
    return device is not None and device[0] in CPU_KINDS


class ExchangeSource:
    """A tensor on a device.

    Parameters
    ----------
    tensor : object
        Exports itself through DLPack.
    path : str
        Of the parameter, for messages.
    """

    __slots__ = ("_copy", "dtype", "path", "shape", "tensor", "view_of")

    def __init__(self, tensor: Any, path: str) -> None:
        self.tensor, self.path = tensor, path
        self._copy: np.ndarray[Any, Any] | None = None
        view = exchange(tensor)
        if view is None:
            raise ArgumentValueError(
                f"argument {path!r} is a {type(tensor).__name__} that its library does not export through DLPack"
            )
        if view.dtype is None:
            raise ArgumentValueError(
                f"argument {path!r} has a type that kernels do not know: {getattr(tensor, 'dtype', '?')}"
            )
        if not view.contiguous:
            raise ArgumentValueError(
                f"argument {path!r} is not contiguous: got shape {view.shape} with strides {view.strides}",
                hint="pass tensor.contiguous()",
            )
        self.view_of: Exchange = view
        self.dtype: DType = view.dtype
        self.shape: tuple[int, ...] = view.shape

    @property
    def differentiable(self) -> bool:
        """Whether its library keeps, or can make, a gradient."""
        return bool(getattr(self.tensor, "requires_grad", False))

    def view(self, runtime: Runtime) -> ArrayView | None:
        """Adopted memory; None where the device cannot use it and its library can copy it to the host and back."""
        buffer = runtime.device.adopt(self.view_of)
        if buffer is None:
            if _copier(self.tensor) is not None:
                return None
            where = getattr(self.tensor, "device", f"DLPack {self.view_of.kind}:{self.view_of.device}")
            raise ArgumentValueError(
                f"argument {self.path!r} is a tensor on device {where}, which kernels on {runtime.info.name!r} cannot "
                "use in place",
                hint="open that device with qd.init, or pass a copy on the host and copy back what the kernel wrote",
            )
        return ArrayView(BufferRef(buffer, 0, buffer.nbytes), self.shape, contiguous_strides(self.shape, 1))

    def place(self, runtime: Runtime) -> tuple[str, int, int]:
        """Where the memory lies."""
        return ("device", self.view_of.address, self.view_of.address + self.view_of.nbytes)

    def save(self, runtime: Runtime) -> SavedContents:
        """Copy the contents; calling the result puts them back."""
        from qd_core.runtime.interop import Saved

        view = self.view(runtime)
        assert view is not None
        return Saved(runtime, view.ref)

    def check(self, *, written: bool, path: str) -> None:
        """Nothing more to refuse: libraries do not export what must not be written."""

    def span(self) -> HostSpan:
        """Host copy, where the device cannot use the memory in place."""
        fetch = _copier(self.tensor)
        assert fetch is not None
        self._copy = np.array(fetch[0](), self.dtype.numpy, order="C")
        return HostSpan(self._copy.ctypes.data, self._copy.nbytes, self._copy)

    def finish(self) -> None:
        """Copy back what the kernel wrote, with what it left untouched."""
        fetch = _copier(self.tensor)
        assert fetch is not None
        assert self._copy is not None
        fetch[1](self._copy)

    def gradient(self, *, create: bool) -> ExchangeSource | None:
        """Where its library keeps the gradient."""
        if not self.differentiable:
            return None
        tensor: Any = self.tensor
        if tensor.grad is None:
            if not create:
                return None
            tensor.grad = tensor.detach().clone().zero_()
        return ExchangeSource(tensor.grad, f"{self.path}.grad")

    def dual(self) -> None:
        """No library keeps one where it could be found."""
        return


def _copier(tensor: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How a tensor's library copies it to NumPy and back: as torch does, or as CuPy does; None where it cannot."""
    plain = tensor.detach() if hasattr(tensor, "detach") else tensor
    if hasattr(plain, "cpu") and hasattr(plain, "copy_"):
        import torch

        return lambda: plain.cpu().numpy(), lambda data: plain.copy_(torch.from_numpy(data))
    if hasattr(plain, "get") and hasattr(plain, "set"):
        return plain.get, plain.set
    return None
