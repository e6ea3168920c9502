"""Kernels as operations of torch, and torch tensors under tapes and launches."""

from __future__ import annotations

import numpy as np
import pytest

import qd_core as qd
from qd_core.errors import ArgumentValueError, NotDifferentiableError, QuadrantsRuntimeTypeError

torch = pytest.importorskip("torch", reason="torch is not installed")

A = qd.types.ndarray(ndim=1)
A2 = qd.types.ndarray(ndim=2)
N = 5


@qd.kernel
def relax(x: A, w: A, steps: qd.i32, y: A):
    for i in range(x.shape[0]):
        a = x[i]
        for _ in range(steps):
            a = a * w[i] + qd.sin(a)
        y[i] = a


@qd.kernel
def product(a: A2, b: A2, y: A2, trace: A):
    for i, j in y:
        for k in range(a.shape[1]):
            y[i, j] += a[i, k] * b[k, j]
    for i in range(a.shape[0]):
        trace[0] += a[i, 0] * a[i, 0]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).uniform(0.3, 1.2, shape)
    return torch.from_numpy(values).requires_grad_()


def relaxed():
    return qd.ad.autograd_function(relax, outputs={"y": "x"})


def multiplied():
    outputs = {"y": lambda a, b: a.new_zeros(a.shape[0], b.shape[1]), "trace": lambda a, b: a.new_zeros(1)}
    return qd.ad.autograd_function(product, outputs=outputs)


def test_gradcheck_of_torch(device):
    f = relaxed()
    assert torch.autograd.gradcheck(lambda x, w: f(x, w, 3), (numbers(N), numbers(N, seed=1)))


def test_gradcheck_of_torch_with_two_outputs(device):
    assert torch.autograd.gradcheck(multiplied(), (numbers(3, 4), numbers(4, 2, seed=1)))


def test_arguments_by_name(device):
    x, w = numbers(N), numbers(N, seed=1)
    f = relaxed()
    torch.testing.assert_close(f(x, steps=2, w=w), f(x, w, 2))
    with pytest.raises(QuadrantsRuntimeTypeError, match="takes x, w, steps"):
        f(x, w, 2, 5)
    with pytest.raises(QuadrantsRuntimeTypeError, match="speed"):
        f(x, w, speed=2)


def test_expanded_gradients(device):
    x, w = numbers(N), numbers(N, seed=1)
    relaxed()(x, w, 1).sum().backward()
    torch.testing.assert_close(x.grad, (w + torch.cos(x)).detach())
    torch.testing.assert_close(w.grad, x.detach())


def test_tensors_that_are_not_contiguous(device):
    a, b = numbers(4, 3), numbers(4, 2, seed=1)
    y, _ = multiplied()(a.t(), b)
    torch.testing.assert_close(y, a.t() @ b)
    y.t().contiguous().mul(torch.arange(6.0).reshape(2, 3)).sum().backward()
    weight = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t()
    torch.testing.assert_close(a.grad, (weight @ b.detach().t()).t())
    torch.testing.assert_close(b.grad, a.detach() @ weight)


def test_absent_gradients(device):
    a, b = numbers(3, 4), numbers(4, 2, seed=1).detach()
    _, trace = multiplied()(a, b)
    trace.sum().backward()
    expected = torch.zeros_like(a)
    expected[:, 0] = 2 * a.detach()[:, 0]
    torch.testing.assert_close(a.grad, expected)
    assert b.grad is None


def test_the_gradient_that_arrives_is_not_changed(device):
    x, w = numbers(N), numbers(N, seed=1)
    y = relaxed()(x, w, 2)
    weight = torch.ones_like(y)
    first = torch.autograd.grad(y, x, weight, retain_graph=True)[0]
    second = torch.autograd.grad(y, x, weight)[0]
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(weight, torch.ones_like(y))


def test_a_chain_with_operations_of_torch(device):
    x, w = numbers(N), numbers(N, seed=1)
    f = relaxed()
    assert torch.autograd.gradcheck(lambda x, w: torch.tanh(f(x * 2, w.exp(), 2)) @ f(w, x, 1), (x, w))


def test_a_forward_launch_allocates_no_gradient(device):
    x, w, y = numbers(N), numbers(N, seed=1), torch.zeros(N, dtype=torch.float64, requires_grad=True)
    relax(x, w, 2, y)
    relaxed()(x, w, 2)
    assert x.grad is None
    assert w.grad is None
    assert y.grad is None


def test_gradients_appear_with_the_reverse_launch(device):
    x, w, y = numbers(N), numbers(N, seed=1), torch.zeros(N, dtype=torch.float64, requires_grad=True)
    y.grad = torch.ones_like(y)
    relax(x, w, 1, y)
    relax.grad(x, w, 1, y)
    torch.testing.assert_close(x.grad, (w + torch.cos(x)).detach())


def test_single_precision_and_integer_inputs(device):
    x = torch.linspace(0.2, 1.0, N, requires_grad=True)
    y = relaxed()(x, torch.ones(N), 1)
    assert y.dtype is torch.float32
    y.sum().backward()
    torch.testing.assert_close(x.grad, (1 + torch.cos(x)).detach())


@qd.kernel
def in_place(x: A, y: A):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
        x[i] = 0.0


def test_a_kernel_that_changes_its_arguments_is_refused(device):
    f = qd.ad.autograd_function(in_place, outputs={"y": "x"})
    with pytest.raises(ArgumentValueError, match="writes 'x'"):
        f(numbers(N))
    with pytest.raises(ArgumentValueError, match="no parameter"):
        qd.ad.autograd_function(in_place, outputs={"z": "x"})
    with pytest.raises(ArgumentValueError, match="no outputs"):
        qd.ad.autograd_function(in_place, outputs={})


def test_a_second_derivative_is_refused(device):
    x, w = numbers(N), numbers(N, seed=1)
    with pytest.raises(NotDifferentiableError, match="second derivative of 'relax'"):
        torch.autograd.grad(relaxed()(x, w, 1).sum(), x, create_graph=True)


def test_launches_inside_are_not_recorded_by_a_tape(device):
    x, w = numbers(N), numbers(N, seed=1)
    loss = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    with qd.ad.Tape(loss):
        relaxed()(x, w, 1)
    assert x.grad is None


@qd.kernel
def square_in_place(x: A):
    for i in range(x.shape[0]):
        x[i] = x[i] * x[i]


def test_copies_as_outputs_and_their_derivative(device):
    f = qd.ad.autograd_function(square_in_place, outputs={"x": lambda: torch.ones(N)})
    torch.testing.assert_close(f(), torch.ones(N))
    x = numbers(N)
    with pytest.raises(NotDifferentiableError, match="overwritten"):
        square_in_place.grad(x)
