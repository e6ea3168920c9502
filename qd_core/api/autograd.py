"""Kernels as operations of torch: `qd.ad.autograd_function`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qd_core.errors import ArgumentValueError, NotDifferentiableError, QuadrantsRuntimeTypeError
from qd_core.runtime.context import current

if TYPE_CHECKING:
    from qd_core.api.kernel import Kernel

__all__ = ["AutogradFunction", "autograd_function"]

Output = str | Callable[..., Any]


def autograd_function(kernel: Kernel, outputs: Mapping[str, Output]) -> AutogradFunction:
    """Make a kernel a differentiable function of torch tensors.

    Parameters
    ----------
    kernel : Kernel
        A kernel without return value.
    outputs : mapping of str to (str or callable)
        For each parameter that the kernel writes, in the order in which the function returns them: the parameter whose
        argument has its shape and dtype, or a callable that gets the function's arguments and returns the tensor to
        write to (zeros, say). Named tensors start as zeros.

    Returns
    -------
    AutogradFunction
        Takes the kernel's other parameters and returns the output, or a tuple of outputs. Its forward launch allocates
        no gradients; its derivative is `kernel.grad`.

    Raises
    ------
    ArgumentValueError
        ``outputs`` is empty or names no parameter. When called: the kernel writes an argument that is not an output.

    Examples
    --------
    >>> square = qd.ad.autograd_function(square_kernel, outputs={"y": "x"})  # doctest: +SKIP
    >>> square(x).sum().backward()  # doctest: +SKIP
    """
    return AutogradFunction(kernel, outputs)


class AutogradFunction:
    """A kernel as a function of tensors; see `autograd_function`."""

    def __init__(self, kernel: Kernel, outputs: Mapping[str, Output]) -> None:
        self.kernel, self.outputs = kernel, dict(outputs)
        self.names = [p.name for p in kernel.info.parameters]
        self.inputs = [n for n in self.names if n not in self.outputs]
        mentioned = [*self.outputs, *(o for o in self.outputs.values() if isinstance(o, str))]
        unknown = [n for n in mentioned if n not in self.names]
        if unknown or not self.outputs:
            what = f"{unknown[0]!r} is no parameter of {kernel.__name__!r}" if unknown else "no outputs are given"
            raise ArgumentValueError(what, hint=f"parameters: {', '.join(self.names)}")
        self.__name__ = kernel.__name__
        self.__doc__ = kernel.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the kernel's parameters that are no outputs, by position or name."""
        given = dict(zip(self.inputs, args, strict=False), **kwargs)
        defaults = {p.name: p.default for p in self.kernel.info.parameters if p.name in self.inputs}
        unknown, missing = given.keys() - defaults.keys(), [n for n in self.inputs if n not in given]
        if unknown or len(args) > len(self.inputs):
            raise QuadrantsRuntimeTypeError(
                f"{self.__name__!r} takes {', '.join(self.inputs)}; got {sorted(unknown) or len(args)}"
            )
        results = self._function.apply(*(given[n] if n not in missing else defaults[n] for n in self.inputs))
        return results[0] if len(self.outputs) == 1 else results

    @cached_property
    def _function(self) -> Any:
        """The `torch.autograd.Function`; torch is loaded here."""
        import torch

        owner = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *values: Any) -> tuple[Any, ...]:
                return owner.forward(ctx, values)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
                return owner.backward(ctx, gradients)

        Function.__name__ = self.__name__
        return Function

    def forward(self, ctx: Any, values: Sequence[Any]) -> tuple[Any, ...]:
        """Launch the kernel on detached, contiguous tensors."""
        import torch

        ctx.set_materialize_grads(False)
        plain = [v.detach().contiguous() if isinstance(v, torch.Tensor) else v for v in values]
        inputs = dict(zip(self.inputs, plain, strict=True))
        results = {name: self._output(name, inputs) for name in self.outputs}
        arguments = {**inputs, **results}
        self._check_writes(arguments)
        with not_recorded():
            self.kernel(*(arguments[n] for n in self.names))
        ctx.others = [None if isinstance(v, torch.Tensor) else v for v in plain]
        ctx.save_for_backward(*(v for v in plain if isinstance(v, torch.Tensor)), *results.values())
        return tuple(results.values())

    def _output(self, name: str, inputs: Mapping[str, Any]) -> Any:
        import torch

        rule = self.outputs[name]
        made = torch.zeros_like(inputs[rule]) if isinstance(rule, str) else rule(*inputs.values())
        if not isinstance(made, torch.Tensor) or made.requires_grad or not made.is_contiguous():
            message = f"output {name!r} of {self.__name__!r} must be a contiguous tensor that requires no gradient"
            raise QuadrantsRuntimeTypeError(f"{message}, got {made!r}")
        return made

    def _check_writes(self, arguments: Mapping[str, Any]) -> None:
        """A function must not change its arguments: torch could not know."""
        written = self.kernel.written_paths([arguments[n] for n in self.names])
        wrong = sorted(p for p in written if p not in self.outputs)
        if wrong:
            raise ArgumentValueError(
                f"{self.__name__!r} writes {wrong[0]!r}, which is not among its outputs {sorted(self.outputs)}",
                hint=f'add "{wrong[0]}" to outputs, for instance as a callable that returns a copy',
            )

    def backward(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Launch the reverse kernel; gradients of the results are copied, for it consumes them."""
        import torch

        if torch.is_grad_enabled():
            raise NotDifferentiableError(
                f"a second derivative of {self.__name__!r} is asked for (create_graph=True)",
                span=self.kernel.info.span,
                why="derivatives of gradients are not formed",
            )
        saved = list(ctx.saved_tensors)
        results = dict(zip(self.outputs, saved[len(saved) - len(self.outputs) :], strict=True))
        tensors = iter(saved)
        values = [next(tensors) if other is None else other for other in ctx.others]
        leaves = [
            _leaf(v, torch.zeros_like(v)) if need else v for v, need in zip(values, ctx.needs_input_grad, strict=True)
        ]
        arguments = dict(zip(self.inputs, leaves, strict=True))
        for (name, result), gradient in zip(results.items(), gradients, strict=True):
            arguments[name] = _leaf(result, gradient) if result.is_floating_point() else result
        if any(g is not None for g in gradients):
            with not_recorded():
                self.kernel.grad(*(arguments[n] for n in self.names))
        return tuple(v.grad if need else None for v, need in zip(leaves, ctx.needs_input_grad, strict=True))


def _leaf(data: Any, gradient: Any) -> Any:
    """A leaf that shares ``data``, with a gradient of its own: a contiguous copy of ``gradient`` (None: zeros)."""
    import torch

    leaf = data.detach().requires_grad_()
    leaf.grad = torch.zeros_like(leaf)
    if gradient is not None:
        leaf.grad.copy_(gradient)
    return leaf


@contextmanager
def not_recorded() -> Generator[None, None, None]:
    """Hide launches from an active tape."""
    runtime = current()
    recorder, runtime.recorder = runtime.recorder, None
    try:
        yield
    finally:
        runtime.recorder = recorder
