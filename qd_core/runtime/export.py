"""Giving contents to other libraries: by a copy, or in place where the host can address the device's memory.

What is given in place is kept alive by what was given: neither the end of our array nor `qd.reset()` frees memory that
somebody looks at.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core.errors import ArgumentValueError

if TYPE_CHECKING:
    from qd_core.backend.contract import BufferRef
    from qd_core.dtypes import DType
    from qd_core.runtime.context import Runtime

__all__ = ["Exportable", "share"]


class _Shared:
    """Owner of memory that was given away: the base of every NumPy array over it."""

    def __init__(self, array: Any, runtime: Runtime, ref: BufferRef, shape: tuple[int, ...], dtype: DType) -> None:
        span = runtime.device.host_view(ref)
        assert span is not None
        self._array, self._runtime, self._buffer, self._span = array, runtime, ref.buffer, span
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": dtype.numpy.str, "data": (span.address, False)
        }  # fmt: skip
        runtime.shared.add(self)

    def holds(self, buffer: object) -> bool:
        """Whether the memory is this buffer's."""
        return buffer is self._buffer

    def __del__(self) -> None:
        runtime = getattr(self, "_runtime", None)
        if runtime is not None and runtime.closed and not sys.is_finalizing():
            runtime.shared.discard(self)
            runtime.release_shared(self._buffer)


def share(array: Any, runtime: Runtime, ref: BufferRef, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return ``ref`` as a NumPy array of ``shape`` that keeps ``array`` and its memory; None where the host cannot."""
    if ref.nbytes == 0:
        return np.empty(shape, dtype.numpy)
    if runtime.device.host_view(ref) is None:
        return None
    runtime.device.default_stream.synchronize()
    return np.asarray(_Shared(array, runtime, ref, shape, dtype))


class Exportable:
    """An array whose contents other libraries can have."""

    __slots__ = ()

    def _copied(self) -> np.ndarray[Any, Any]:
        """Contents as a new array of shape ``shape + element_shape``."""
        raise NotImplementedError

    def _in_place(self) -> np.ndarray[Any, Any] | None:
        """The memory itself in that shape, or None where the host cannot address it, or not as one array."""
        raise NotImplementedError

    def to_numpy(self, dtype: Any = None, copy: bool | None = True) -> np.ndarray[Any, Any]:
        """Return the contents as a NumPy array of shape ``shape + element_shape``.

        Parameters
        ----------
        dtype : numpy dtype, optional
            Convert to it; needs a copy where it differs.
        copy : bool or None
            True: a copy. False: the memory itself, which later kernels change (`qd.sync` waits for them); it outlives
            this array and `qd.reset()`. None: the memory itself where that is possible.

        Raises
        ------
        ArgumentValueError
            ``copy=False``, and the memory is not the host's or needs another order or type.
        """
        shared = None if copy else self._in_place()
        if shared is not None and (dtype is None or shared.dtype == np.dtype(dtype)):
            return shared
        if copy is False:
            raise ArgumentValueError(
                f"{self!r} cannot be seen by the host without a copy",
                why="its memory is the device's alone, or lies in another order or type than was asked for",
                hint="use copy=None to take a copy then",
            )
        data = self._copied()
        return data if dtype is None else data.astype(dtype, copy=False)

    def to_torch(self, device: Any = None, copy: bool | None = True) -> Any:
        """Return the contents as a torch tensor; ``copy`` as in `to_numpy`, for tensors on the host.

        Raises
        ------
        ArgumentValueError
            ``copy=False``, and a copy is needed.
        """
        import torch

        tensor = torch.from_numpy(self.to_numpy(copy=copy))
        if device is None or torch.device(device) == tensor.device:
            return tensor
        if copy is False:
            raise ArgumentValueError(f"{self!r} does not lie on device {device}", hint="use copy=None to copy it there")
        return tensor.to(device)

    def from_torch(self, tensor: Any) -> None:
        """Overwrite with a torch tensor of shape ``shape + element_shape``, from any device."""
        self.from_numpy(tensor.detach().cpu().contiguous().numpy())

    def from_numpy(self, array: Any) -> None:
        """Overwrite with ``array``, of shape ``shape + element_shape``."""
        raise NotImplementedError

    def to_dlpack(self, versioned: bool = False) -> Any:
        """Return the memory as a DLPack capsule, ``"dltensor_versioned"`` where ``versioned``; never a copy.

        Raises
        ------
        BufferError
            The host cannot address the memory.
        """
        return self.__dlpack__(max_version=(1, 0) if versioned else None)

    def __dlpack__(self, **options: Any) -> Any:
        # A call without the standard's keywords is what NumPy's first version of the protocol had.
        given = {name: value for name, value in options.items() if value is not None and name != "stream"}
        return self._exported().__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._exported().__dlpack_device__()
        return int(kind), int(number)

    def _exported(self) -> np.ndarray[Any, Any]:
        shared = self._in_place()
        if shared is None:
            raise BufferError(f"{self!r} lies where the host cannot address it in place: use to_numpy() or to_torch()")
        return shared

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.to_numpy(dtype, copy=False if copy is False else True)
