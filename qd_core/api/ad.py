"""Automatic differentiation: `qd.ad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from qd_core.api.autograd import autograd_function
from qd_core.api.gradcheck import GradCheck, gradcheck
from qd_core.errors import ArgumentValueError, LaunchError, QuadrantsRuntimeTypeError
from qd_core.runtime.array import Ndarray
from qd_core.runtime.context import Runtime, current
from qd_core.runtime.interop import with_grad
from qd_core.runtime.tape import ERROR, SAVE, Recorder
from qd_core.runtime.tape_check import TapeCheck
from qd_core.runtime.tensor import Tensor

__all__ = [
    "FwdMode",
    "GradCheck",
    "Tape",
    "autograd_function",
    "clear_all_gradients",
    "grad_for",
    "grad_replaced",
    "gradcheck",
    "no_grad",
    "residual_nbytes",
    "with_grad",
]


class Tape:
    """Records the kernels launched in its ``with`` block and runs their derivatives, last first, when it ends.

    Parameters
    ----------
    loss : array of one element
        What is differentiated: a field, an ndarray with ``needs_grad``, or a torch tensor with ``requires_grad``. It
        is set to 0 at entry, and its
        gradient to 1 at the end.
    clear_gradients : bool
        Set the gradients of all fields to 0 at entry. Gradients of ndarrays and tensors accumulate across tapes; see
        `clear_all_gradients`.
    validation : bool
        The same as ``overwrite="error"``.
    overwrite : str
        What happens when a kernel overwrites values that the derivative of an earlier one needs: ``"save"`` keeps a
        copy, ``"error"`` raises
        `NotDifferentiableError` naming both kernels.
    grad_check : sequence of arrays
        Fields or ndarrays of f64 whose gradients are compared with central differences when the block ends: all
        recorded kernels run again from moved points. `GradientCheckError` when they differ.

    Examples
    --------
    >>> with qd.ad.Tape(loss):  # doctest: +SKIP
    ...     step(x, loss)
    """

    def __init__(
        self,
        loss: Any,
        clear_gradients: bool = True,
        validation: bool = False,
        overwrite: str = SAVE,
        grad_check: Sequence[Any] = (),
    ) -> None:
        if overwrite not in (SAVE, ERROR):
            raise ArgumentValueError(f'overwrite must be "save" or "error", got {overwrite!r}')
        self._loss = _Loss(loss)
        self._clear = clear_gradients
        self._overwrite = ERROR if validation else overwrite
        self._grad_check = list(grad_check or ())
        self._entered = False
        self._runtime: Runtime | None = None
        self._quiet: Any = None

    def __enter__(self) -> Tape:
        runtime = current()
        if self._entered:
            raise LaunchError("a Tape can be entered once", hint="make a new one")
        if runtime.recorder is not None:
            raise LaunchError("a Tape is already recording", hint="end it first: tapes do not nest")
        self._entered, self._runtime = True, runtime
        if self._clear:
            clear_field_gradients(runtime)
        self._loss.fill(0)
        check = TapeCheck(runtime, self._grad_check, self._loss.value) if self._grad_check else None
        self.recorder = runtime.recorder = Recorder(runtime, self._overwrite)
        self.recorder.check = check
        self._quiet = runtime.interpreted_launches()
        self._quiet.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        runtime = self._runtime
        assert runtime is not None
        try:
            if kind is None:
                self.grad()
                with _not_recording(runtime):
                    self.recorder.compare()
        finally:
            runtime.recorder = None
            self.recorder.close()
            self._quiet.__exit__(None, None, None)

    def grad(self) -> None:
        """Run the recorded derivatives; done at the end of the block."""
        with _not_recording(current()):
            self._loss.fill_gradient(1)
        self.recorder.backward()

    def insert(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        """Record that ``function.grad(*args)`` is to be run: what `grad_replaced` does."""
        grad = function.grad  # type: ignore[attr-defined]
        self.recorder.step(lambda: grad(*args))


class _Loss:
    """The loss of a tape, in whatever holds it."""

    def __init__(self, loss: Any) -> None:
        loss = self.loss = loss._unwrap() if isinstance(loss, Tensor) else loss
        if isinstance(loss, Ndarray) or hasattr(loss, "snode"):
            if int(np.prod(loss.shape, dtype=np.int64)) != 1:
                raise LaunchError(f"the loss of a Tape must have one element, got shape {loss.shape}")
            if loss.grad is None:
                raise LaunchError("the loss of a Tape needs a gradient", hint="create it with needs_grad=True")
        elif not (hasattr(loss, "requires_grad") and hasattr(loss, "numel")):
            raise QuadrantsRuntimeTypeError(
                f"the loss of a Tape must be a field, an ndarray or a torch tensor, got {type(loss).__name__}"
            )
        elif loss.numel() != 1 or not loss.requires_grad:
            raise LaunchError("the loss of a Tape must be a tensor of one element with requires_grad")

    def fill(self, value: float) -> None:
        """Set the loss."""
        if hasattr(self.loss, "numel"):
            self.loss.detach().fill_(value)
        else:
            self.loss.fill(value)

    def value(self) -> float:
        """The loss as it is."""
        holder = self.loss.detach() if hasattr(self.loss, "numel") else self.loss.to_numpy()
        return float(holder.reshape(-1)[0])

    def fill_gradient(self, value: float) -> None:
        """Set its gradient."""
        if not hasattr(self.loss, "numel"):
            self.loss.grad.fill(value)
            return
        if self.loss.grad is None:
            import torch

            self.loss.grad = torch.zeros_like(self.loss)
        self.loss.grad.fill_(value)


def clear_field_gradients(runtime: Runtime) -> None:
    """Set the gradients of all fields of ``runtime`` to 0."""
    for array in list(runtime.arrays):
        if getattr(array, "is_field", False) and array.grad is not None:
            array.grad.fill(0)


def residual_nbytes() -> int | None:
    """Most memory, in bytes, that the device has set aside for what reverse-mode kernels record; None: not known.

    It serves the iterations that run at the same time, not all of them. ``qd.init(ad_residual_bytes=)`` bounds what
    one iteration records in one loop (or √n trips, where that is more). On the CPU it belongs to the process.
    """
    return current().device.private_nbytes()


def clear_all_gradients(ndarrays: Iterable[Any] = ()) -> None:
    """Set the gradients of all fields, and of the given arrays, to 0."""
    clear_field_gradients(current())
    for array in ndarrays:
        if array.grad is not None:
            array.grad.fill(0)


class FwdMode:
    """Launches in its ``with`` block also compute duals: the derivative along ``seed`` of what they write.

    Parameters
    ----------
    loss : array or sequence of arrays
        Results whose ``dual`` is wanted; their duals are allocated if need be and set to 0.
    param : array or sequence of arrays
        Inputs with respect to which the directional derivative is taken.
    seed : sequence of float, or of such sequences, optional
        Direction, one number an element of ``param``; ``[1.0]`` where it has one element.
    clear_gradients : bool
        Set the duals of ``loss`` to 0 at entry.

    Raises
    ------
    ArgumentValueError
        ``seed`` does not fit ``param``.
    """

    def __init__(self, loss: Any, param: Any, seed: Any = None, clear_gradients: bool = True) -> None:
        self.losses = list(loss) if isinstance(loss, (list, tuple)) else [loss]
        several = isinstance(param, (list, tuple))
        self.params = list(param) if several else [param]
        self.seeds = list(seed) if several and seed is not None else [seed] * len(self.params)
        self._clear = clear_gradients
        if len(self.seeds) != len(self.params):
            raise ArgumentValueError(f"{len(self.params)} parameters need as many seeds, got {len(self.seeds)}")

    def __enter__(self) -> FwdMode:
        self._runtime = runtime = current()
        if runtime.recorder is not None:
            raise LaunchError("forward mode cannot be entered under a Tape")
        for array in (*self.losses, *self.params):
            array.make_dual()
        if self._clear:
            for array in self.losses:
                array.dual.fill(0)
        for array, seed in zip(self.params, self.seeds, strict=True):
            array.dual.from_numpy(_seed(array, seed))
        runtime.tangents += 1
        self._quiet = runtime.interpreted_launches()
        self._quiet.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._runtime.tangents -= 1
        self._quiet.__exit__(None, None, None)
        for array in self.params:
            array.dual.fill(0)


def _seed(array: Any, seed: Any) -> np.ndarray[Any, Any]:
    shape = tuple(array.shape) + tuple(getattr(array, "element_shape", ()))
    size = int(np.prod(shape, dtype=np.int64))
    if seed is None:
        if size != 1:
            raise ArgumentValueError(
                f"a parameter of {size} elements needs a seed", hint="pass seed=[...], one number an element"
            )
        return np.ones(shape)
    flat = np.asarray(seed, float).ravel()
    if flat.size != size:
        raise ArgumentValueError(f"the seed has {flat.size} numbers, the parameter {size} elements")
    return flat.reshape(shape)


def grad_replaced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a Python function whose derivative is given by `grad_for` instead of the kernels that it launches."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        runtime = current()
        recorder = runtime.recorder
        if recorder is None:
            return function(*args, **kwargs)
        with _not_recording(runtime):
            result = function(*args, **kwargs)
        if wrapper.grad is not None:  # type: ignore[attr-defined]
            recorder.step(lambda: wrapper.grad(*args, **kwargs))  # type: ignore[attr-defined]
        return result

    wrapper.grad = None  # type: ignore[attr-defined]
    return wrapper


def grad_for(primal: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the function that propagates gradients for ``primal``, which must be `grad_replaced`."""
    if not hasattr(primal, "grad"):
        raise LaunchError(f"{primal.__name__!r} must be decorated with qd.ad.grad_replaced first")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> None:
            with _not_recording(current()):
                function(*args, **kwargs)

        primal.grad = backward  # type: ignore[attr-defined]
        return function

    return decorate


def no_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a Python function whose kernels a Tape does not record."""
    return grad_replaced(function)


@contextmanager
def _not_recording(runtime: Runtime) -> Generator[None, None, None]:
    recorder, runtime.recorder = runtime.recorder, None
    try:
        yield
    finally:
        runtime.recorder = recorder
