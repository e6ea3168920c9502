"""Restore a blurred, noisy photograph by descending the gradient of its objective.

    python examples/restore_photo.py [--steps 120] [--size 384] [--out out/restore_photo]

The picture is the portrait photograph that the matplotlib package ships. It is blurred by a Gaussian, noise is added,
and the result is restored by
minimising

    1/2 |blur(u) - f|^2 + weight * sum sqrt(|grad u|^2 + smooth^2)

with accelerated gradient descent. Blur and objective are kernels; their gradients come from `.grad()`. Before the
descent the gradient is compared
with an adjoint written by hand in NumPy, in f64.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import cbook
from matplotlib import pyplot as plt
from PIL import Image
from tqdm import tqdm

import qd_core as qd

Image3 = qd.types.ndarray(dtype=qd.f32, ndim=3)
Weights = qd.types.ndarray(dtype=qd.f32, ndim=1)
Scalar = qd.types.ndarray(dtype=qd.f32, ndim=1)


@qd.kernel
def blur_rows(u: Image3, w: Weights, out: Image3):
    for c, i, j in qd.ndrange(u.shape[0], u.shape[1], u.shape[2]):
        total = 0.0
        half = w.shape[0] // 2
        for k in range(w.shape[0]):
            total += w[k] * u[c, i, min(max(j + k - half, 0), u.shape[2] - 1)]
        out[c, i, j] = total


@qd.kernel
def blur_columns(u: Image3, w: Weights, out: Image3):
    for c, i, j in qd.ndrange(u.shape[0], u.shape[1], u.shape[2]):
        total = 0.0
        half = w.shape[0] // 2
        for k in range(w.shape[0]):
            total += w[k] * u[c, min(max(i + k - half, 0), u.shape[1] - 1), j]
        out[c, i, j] = total


@qd.kernel
def objective(u: Image3, blurred: Image3, f: Image3, weight: qd.f32, smooth: qd.f32, loss: Scalar):
    for c, i, j in qd.ndrange(u.shape[0], u.shape[1], u.shape[2]):
        residual = blurred[c, i, j] - f[c, i, j]
        dy = u[c, min(i + 1, u.shape[1] - 1), j] - u[c, i, j]
        dx = u[c, i, min(j + 1, u.shape[2] - 1)] - u[c, i, j]
        loss[0] += 0.5 * residual * residual + weight * qd.sqrt(dx * dx + dy * dy + smooth * smooth)


class Problem:
    """The objective with its gradient on the device."""

    def __init__(self, observed: np.ndarray, w: np.ndarray, weight: float, smooth: float) -> None:
        self.weight, self.smooth = weight, smooth
        self.u, self.rows, self.blurred = (qd.ndarray(qd.f32, observed.shape, needs_grad=True) for _ in range(3))
        self.f, self.w = qd.ndarray(qd.f32, observed.shape), qd.ndarray(qd.f32, w.shape)
        self.loss = qd.ndarray(qd.f32, 1, needs_grad=True)
        self.f.from_numpy(observed)
        self.w.from_numpy(w)

    def value_and_gradient(self, image: np.ndarray) -> tuple[float, np.ndarray]:
        """Objective and gradient at ``image``, (3, h, w) float32."""
        self.u.from_numpy(image)
        self.loss.fill(0.0)
        for array in (self.u, self.rows, self.blurred):
            array.grad.fill(0.0)
        self.loss.grad.fill(1.0)
        blur_rows(self.u, self.w, self.rows)
        blur_columns(self.rows, self.w, self.blurred)
        objective(self.u, self.blurred, self.f, self.weight, self.smooth, self.loss)
        objective.grad(self.u, self.blurred, self.f, self.weight, self.smooth, self.loss)
        blur_columns.grad(self.rows, self.w, self.blurred)
        blur_rows.grad(self.u, self.w, self.rows)
        return float(self.loss[0]), self.u.grad.to_numpy()


def convolve(u: np.ndarray, w: np.ndarray, axis: int, *, adjoint: bool = False) -> np.ndarray:
    """Clamped convolution along ``axis``, or its adjoint, in f64."""
    n, half = u.shape[axis], len(w) // 2
    u = np.moveaxis(u, axis, -1)
    out = np.zeros_like(u)
    for k, weight in enumerate(w):
        source = np.clip(np.arange(n) + k - half, 0, n - 1)
        if adjoint:
            np.add.at(out, (..., source), weight * u)
        else:
            out += weight * u[..., source]
    return np.moveaxis(out, -1, axis)


def numpy_gradient(u: np.ndarray, f: np.ndarray, w: np.ndarray, weight: float, smooth: float) -> np.ndarray:
    """Hand-written adjoint of the objective in f64."""
    u, f, w = (a.astype(np.float64) for a in (u, f, w))
    residual = convolve(convolve(u, w, 2), w, 1) - f
    gradient = convolve(convolve(residual, w, 1, adjoint=True), w, 2, adjoint=True)
    dy, dx = np.zeros_like(u), np.zeros_like(u)
    dy[:, :-1], dx[:, :, :-1] = np.diff(u, axis=1), np.diff(u, axis=2)
    norm = np.sqrt(dx * dx + dy * dy + smooth * smooth)
    py, px = weight * dy / norm, weight * dx / norm
    gradient -= py + px
    gradient[:, 1:] += py[:, :-1]
    gradient[:, :, 1:] += px[:, :, :-1]
    return gradient


def photograph(size: int) -> np.ndarray:
    """The portrait of matplotlib's sample data as (3, h, w) float32 in [0, 1], its longer side ``size`` pixels."""
    with cbook.get_sample_data("grace_hopper.jpg") as stream:
        image = Image.open(stream).convert("RGB")
    image.thumbnail((size, size), Image.Resampling.LANCZOS)
    return np.ascontiguousarray(np.moveaxis(np.asarray(image, np.float32) / 255, -1, 0))


def gaussian(sigma: float) -> np.ndarray:
    """Normalised weights over three standard deviations."""
    x = np.arange(-int(3 * sigma), int(3 * sigma) + 1)
    w = np.exp(-0.5 * (x / sigma) ** 2)
    return (w / w.sum()).astype(np.float32)


def save(path: Path, image: np.ndarray) -> None:
    """Write a (3, h, w) picture as PNG."""
    Image.fromarray((np.moveaxis(image.clip(0, 1), 0, -1) * 255 + 0.5).astype(np.uint8)).save(path)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB."""
    return float(-10 * np.log10(np.mean((a - b) ** 2)))


def descend(problem: Problem, start: np.ndarray, steps: int, rate: float) -> tuple[np.ndarray, list[float]]:
    """Nesterov's accelerated descent."""
    x = y = start.copy()
    losses: list[float] = []
    momentum = 1.0
    bar = tqdm(range(steps), desc="restoring", unit="step")
    for step in bar:
        loss, gradient = problem.value_and_gradient(y)
        losses.append(loss)
        x_next = y - rate * gradient
        momentum_next = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        y = (x_next + (momentum - 1) / momentum_next * (x_next - x)).astype(np.float32)
        x, momentum = x_next.astype(np.float32), momentum_next
        bar.set_postfix(loss=f"{loss:.2f}")
        tqdm.write(f"step {step:4d}  loss {loss:.4f}")
    return x, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--size", type=int, default=384, help="longer side in pixels")
    parser.add_argument("--out", type=Path, default=Path("out/restore_photo"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    qd.init(arch=qd.cpu)
    truth, w = photograph(args.size), gaussian(1.5)
    noise = np.random.default_rng(0).normal(0, 0.02, truth.shape)
    observed = (convolve(convolve(truth.astype(np.float64), w, 2), w, 1) + noise).astype(np.float32)
    weight, smooth = 0.002, 0.01
    problem = Problem(observed, w, weight, smooth)

    _, gradient = problem.value_and_gradient(observed)
    expected = numpy_gradient(observed, observed, w, weight, smooth)
    difference = float(np.linalg.norm(gradient - expected) / np.linalg.norm(expected))
    print(f"gradient: relative difference from the hand-written adjoint {difference:.2e}")
    if difference > 1e-5:
        raise SystemExit("the gradient is wrong")

    restored, losses = descend(problem, observed, args.steps, rate=1.0 / (1 + 8 * weight / smooth))
    for name, image in (("truth", truth), ("before", observed), ("after", restored)):
        save(args.out / f"{name}.png", image)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(losses)
    axes.set(xlabel="step", ylabel="objective", title="Restoring a photograph")
    figure.savefig(args.out / "loss.png", dpi=120)
    print(
        f"PSNR {psnr(observed, truth):.2f} dB before, {psnr(restored, truth):.2f} dB after; pictures are in {args.out}"
    )


if __name__ == "__main__":
    main()
