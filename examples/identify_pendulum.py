"""Identify a damped pendulum from measured angles: a Tape gives the gradient, SciPy's L-BFGS-B does the rest.

    python examples/identify_pendulum.py [--steps 400] [--out out/identify_pendulum]

The motion of a pendulum with unknown length, damping and initial state is simulated with a symplectic Euler scheme, one
kernel launch a step, and its angle is measured with noise. The parameters that explain the measurement best are found
by minimising the mean square difference. The gradient goes backwards through all steps; it is compared with central
differences first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from scipy.optimize import minimize

import qd_core as qd

Vector = qd.types.ndarray(dtype=qd.f64, ndim=1)
GRAVITY = 9.81
NAMES = ("length [m]", "damping [1/s]", "initial angle [rad]", "initial rate [rad/s]")
TRUTH = np.array([1.3, 0.25, 0.9, -0.4])
GUESS = np.array([0.8, 0.05, 0.5, 0.0])


@qd.kernel
def start(parameters: Vector, angle: Vector, rate: Vector):
    for i in range(1):
        angle[0] = parameters[2]
        rate[0] = parameters[3]


@qd.kernel
def advance(parameters: Vector, angle: Vector, rate: Vector, step: qd.i32, dt: qd.f64):
    for i in range(1):
        acceleration = -GRAVITY / parameters[0] * qd.sin(angle[step]) - parameters[1] * rate[step]
        rate[step + 1] = rate[step] + dt * acceleration
        angle[step + 1] = angle[step] + dt * rate[step + 1]


@qd.kernel
def misfit(angle: Vector, measured: Vector, loss: Vector):
    for i in range(measured.shape[0]):
        loss[0] += (angle[i] - measured[i]) ** 2 / measured.shape[0]


class Identification:
    """The mean square difference of a simulation from a measurement, with its gradient."""

    def __init__(self, measured: np.ndarray, dt: float) -> None:
        self.steps, self.dt = len(measured) - 1, dt
        self.parameters = qd.ndarray(qd.f64, 4, needs_grad=True)
        self.angle, self.rate = (qd.ndarray(qd.f64, len(measured), needs_grad=True) for _ in range(2))
        self.measured = qd.ndarray(qd.f64, len(measured))
        self.loss = qd.ndarray(qd.f64, 1, needs_grad=True)
        self.measured.from_numpy(measured)
        self.calls = 0

    def simulate(self) -> None:
        """Angles and rates at all times."""
        start(self.parameters, self.angle, self.rate)
        for step in range(self.steps):
            advance(self.parameters, self.angle, self.rate, step, self.dt)

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient, as `scipy.optimize.minimize` wants them."""
        self.calls += 1
        self.parameters.from_numpy(parameters)
        qd.ad.clear_all_gradients([self.parameters, self.angle, self.rate])
        with qd.ad.Tape(self.loss):
            self.simulate()
            misfit(self.angle, self.measured, self.loss)
        return self.loss[0], self.parameters.grad.to_numpy()


def measure(steps: int, dt: float, noise: float) -> np.ndarray:
    """Noisy angles of the true pendulum."""
    truth = Identification(np.zeros(steps + 1), dt)
    truth.parameters.from_numpy(TRUTH)
    truth.simulate()
    return truth.angle.to_numpy() + np.random.default_rng(1).normal(0, noise, steps + 1)


def gradient_error(problem: Identification) -> float:
    """Largest difference from central differences, relative to the largest derivative."""
    _, gradient = problem(GUESS)
    slopes = [(problem(GUESS + h)[0] - problem(GUESS - h)[0]) / 2e-6 for h in 1e-6 * np.eye(len(GUESS))]
    return float(np.max(np.abs(gradient - slopes)) / np.max(np.abs(gradient)))


def plot(path: Path, times: np.ndarray, measured: np.ndarray, guess: np.ndarray, found: np.ndarray) -> None:
    """Measurement, first guess and identified motion."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(times, measured, ".", markersize=3, color="0.6", label="measured")
    axes.plot(times, guess, "--", label="first guess")
    axes.plot(times, found, label="identified")
    axes.set(xlabel="time [s]", ylabel="angle [rad]", title="A pendulum identified from its motion")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--noise", type=float, default=0.02, help="standard deviation of the measurement [rad]")
    parser.add_argument("--out", type=Path, default=Path("out/identify_pendulum"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    qd.init(arch=qd.cpu)
    dt = 0.02
    measured = measure(args.steps, dt, args.noise)
    problem = Identification(measured, dt)
    error = gradient_error(problem)
    print(f"gradient: relative difference from central differences {error:.1e}")
    if error > 1e-6:
        raise SystemExit("the gradient is wrong")
    problem.simulate()
    guess = problem.angle.to_numpy()

    problem.calls = 0
    bounds = [(0.2, 5.0), (0.0, 2.0), (-3.0, 3.0), (-5.0, 5.0)]
    result = minimize(problem, GUESS, jac=True, method="L-BFGS-B", bounds=bounds)
    problem(result.x)
    for name, value, true in zip(NAMES, result.x, TRUTH, strict=True):
        print(f"{name:>22}: {value:8.4f}  (true {true:.4f})")
    print(
        f"{problem.calls} gradients; root mean square difference {np.sqrt(result.fun):.4f} rad, noise {args.noise} rad"
    )
    plot(args.out / "fit.png", dt * np.arange(args.steps + 1), measured, guess, problem.angle.to_numpy())
    if np.sqrt(result.fun) > 1.2 * args.noise:
        raise SystemExit("the pendulum was not identified")


if __name__ == "__main__":
    main()
