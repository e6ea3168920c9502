"""A net of masses and springs learns how to be thrown so that its centre hits a target.

    python examples/throw_spring.py [--steps 450] [--iterations 30] [--out out/throw_spring]

A square net of masses falls under gravity, is slowed down by the air and bounces on the ground. All masses start with
one velocity, in free flight; which one brings the centre to the target at the final time? Gradient descent finds out:
the gradient of the squared distance goes backwards through the time steps, which overwrite positions and velocities in
place. It is compared with central differences first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import qd_core as qd

Points = qd.types.ndarray(dtype=qd.f64, ndim=2)
Vector = qd.types.ndarray(dtype=qd.f64, ndim=1)
Pairs = qd.types.ndarray(dtype=qd.i32, ndim=2)

STIFFNESS, DAMPING, AIR = 400.0, 1.0, 0.15
GRAVITY = 9.81
GROUND, BOUNCE = 5000.0, 8.0
TARGET = np.array([3.0, 1.2])
DT = 2e-3


@qd.kernel
def throw(velocity: Vector, v: Points):
    for i in range(v.shape[0]):
        for c in qd.static(range(2)):
            v[i, c] = velocity[c]


@qd.kernel
def forces(x: Points, v: Points, springs: Pairs, rest: Vector, f: Points):
    for i in range(x.shape[0]):
        depth = max(-x[i, 1], 0.0)
        f[i, 0] = -AIR * v[i, 0]
        f[i, 1] = -GRAVITY - AIR * v[i, 1] + GROUND * depth - qd.select(depth > 0.0, BOUNCE * v[i, 1], 0.0)
    for s in range(springs.shape[0]):
        a, b = springs[s, 0], springs[s, 1]
        d = qd.Vector([x[b, 0] - x[a, 0], x[b, 1] - x[a, 1]])
        u = qd.Vector([v[b, 0] - v[a, 0], v[b, 1] - v[a, 1]])
        length = d.norm()
        direction = d / length
        pull = STIFFNESS * (length - rest[s]) + DAMPING * u.dot(direction)
        for c in qd.static(range(2)):
            f[a, c] += pull * direction[c]
            f[b, c] -= pull * direction[c]


@qd.kernel
def move(x: Points, v: Points, f: Points, dt: qd.f64):
    for i, c in x:
        v[i, c] += dt * f[i, c]
        x[i, c] += dt * v[i, c]


@qd.kernel
def miss(x: Points, target: Vector, centre: Vector, loss: Vector):
    for i, c in x:
        centre[c] += x[i, c] / x.shape[0]
    for c in range(2):
        loss[0] += (centre[c] - target[c]) ** 2


class Net:
    """A square net and the kernels that throw it."""

    def __init__(self, side: int, steps: int) -> None:
        self.steps = steps
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).reshape(-1, 2)
        self.start = 0.15 * grid + np.array([0.0, 0.8])
        offsets = np.abs(grid[:, None] - grid[None, :]).max(-1)
        self.pairs = np.argwhere(np.triu(offsets == 1)).astype(np.int32)
        lengths = np.linalg.norm(self.start[self.pairs[:, 0]] - self.start[self.pairs[:, 1]], axis=1)
        self.x, self.v, self.f = (qd.ndarray(qd.f64, self.start.shape, needs_grad=True) for _ in range(3))
        self.velocity, self.centre = (qd.ndarray(qd.f64, 2, needs_grad=True) for _ in range(2))
        self.loss = qd.ndarray(qd.f64, 1, needs_grad=True)
        self.springs, self.rest = qd.ndarray(qd.i32, self.pairs.shape), qd.ndarray(qd.f64, len(lengths))
        self.target = qd.ndarray(qd.f64, 2)
        self.springs.from_numpy(self.pairs)
        self.rest.from_numpy(lengths)
        self.target.from_numpy(TARGET)

    def fly(self) -> None:
        """Throw the net and compute how far it misses."""
        throw(self.velocity, self.v)
        for _ in range(self.steps):
            forces(self.x, self.v, self.springs, self.rest, self.f)
            move(self.x, self.v, self.f, DT)
        miss(self.x, self.target, self.centre, self.loss)

    def prepare(self, velocity: np.ndarray) -> None:
        """Everything as it is before a throw."""
        self.velocity.from_numpy(velocity)
        self.x.from_numpy(self.start)
        self.centre.fill(0.0)
        self.loss.fill(0.0)

    def __call__(self, velocity: np.ndarray) -> tuple[float, np.ndarray]:
        """Squared distance of the centre from the target, and its gradient."""
        self.prepare(velocity)
        qd.ad.clear_all_gradients([self.x, self.v, self.f, self.velocity, self.centre])
        with qd.ad.Tape(self.loss):
            self.fly()
        return self.loss[0], self.velocity.grad.to_numpy()

    def frames(self, velocity: np.ndarray, count: int) -> list[np.ndarray]:
        """Positions at ``count`` moments of a throw."""
        self.prepare(velocity)
        throw(self.velocity, self.v)
        wanted = set(np.linspace(0, self.steps - 1, count).astype(int))
        found: list[np.ndarray] = []
        for step in range(self.steps):
            forces(self.x, self.v, self.springs, self.rest, self.f)
            move(self.x, self.v, self.f, DT)
            if step in wanted:
                found.append(self.x.to_numpy())
        return found


def gradient_error(net: Net, velocity: np.ndarray) -> float:
    """Largest difference from central differences, relative to the largest derivative."""
    _, gradient = net(velocity)
    slopes = [(net(velocity + h)[0] - net(velocity - h)[0]) / 2e-6 for h in 1e-6 * np.eye(2)]
    return float(np.max(np.abs(gradient - slopes)) / np.max(np.abs(gradient)))


def learn(net: Net, velocity: np.ndarray, iterations: int) -> tuple[np.ndarray, list[float]]:
    """Gradient descent with a step that grows while throws get better, and shrinks after a worse one."""
    loss, gradient = net(velocity)
    losses, rate = [loss], 0.4 / (net.steps * DT) ** 2
    for _ in tqdm(range(iterations), desc="learning", unit="throw"):
        trial = velocity - rate * gradient
        loss, slope = net(trial)
        better = loss < losses[-1]
        if better:
            velocity, gradient = trial, slope
        rate *= 1.2 if better else 0.4
        losses.append(min(loss, losses[-1]))
    return velocity, losses


def plot(path: Path, net: Net, before: np.ndarray, after: np.ndarray, losses: list[float]) -> None:
    """The first and the learned throw, and the distance over the iterations."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", width_ratios=(2, 1))
    for velocity, color, label in ((before, "0.7", "first throw"), (after, "C0", "learned")):
        for k, x in enumerate(net.frames(velocity, 7)):
            left.plot(*x[net.pairs].T, color=color, lw=0.6, alpha=0.4 + 0.08 * k)
            left.plot(*x.mean(0), "o", color=color, markersize=4, label=label if k == 0 else None)
    left.plot(*TARGET, "r*", markersize=14, label="target")
    left.axhline(0, color="k", lw=1)
    left.set(xlabel="x [m]", ylabel="y [m]", aspect="equal", title="Seven moments of each throw")
    left.legend()
    right.semilogy(np.sqrt(losses))
    right.set(xlabel="iteration", ylabel="distance [m]", title="Learning the velocity")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--side", type=int, default=4, help="masses along a side of the net")
    parser.add_argument("--out", type=Path, default=Path("out/throw_spring"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    qd.init(arch=qd.cpu)
    net = Net(args.side, args.steps)
    first = velocity = np.array([1.5, 4.0])
    error = gradient_error(net, velocity)
    print(f"gradient: relative difference from central differences {error:.1e}")
    if error > 1e-5:
        raise SystemExit("the gradient is wrong")

    velocity, losses = learn(net, velocity, args.iterations)
    distance = float(np.sqrt(losses[-1]))
    vx, vy = velocity
    print(f"velocity ({vx:.3f}, {vy:.3f}) m/s: the centre misses the target by {1e3 * distance:.2f} mm")
    plot(args.out / "throw.png", net, first, velocity, losses)
    if distance > 0.02:
        raise SystemExit("the target was not hit")


if __name__ == "__main__":
    main()
