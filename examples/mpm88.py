"""Two-dimensional MLS-MPM: 8192 particles of jelly on a 128 x 128 grid, written as PNG frames.

    python examples/mpm88.py [--frames 60] [--out out/mpm88]

The moving least squares material point method (Hu et al. 2018) with a weakly compressible equation of state.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

import qd_core as qd

N_PARTICLES, N_GRID = 8192, 128
DX = 1 / N_GRID
DT = 2e-4
DENSITY = 1.0
VOLUME = (DX * 0.5) ** 2
MASS = VOLUME * DENSITY
STIFFNESS = 400.0
GRAVITY = 9.8
BORDER = 3

vec2 = qd.types.vector(2, qd.f32)
mat2 = qd.types.matrix(2, 2, qd.f32)
Vectors = qd.types.ndarray(dtype=vec2, ndim=1)
Matrices = qd.types.ndarray(dtype=mat2, ndim=1)
Scalars = qd.types.ndarray(dtype=qd.f32, ndim=1)
GridVectors = qd.types.ndarray(dtype=vec2, ndim=2)
GridScalars = qd.types.ndarray(dtype=qd.f32, ndim=2)


@qd.func
def weights(fx):
    """Quadratic B-spline weights of the three nodes nearest to a particle."""
    return [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]


@qd.kernel
def substep(x: Vectors, v: Vectors, C: Matrices, J: Scalars, grid_v: GridVectors, grid_m: GridScalars):
    for i, j in qd.ndrange(N_GRID, N_GRID):
        grid_v[i, j] = [0.0, 0.0]
        grid_m[i, j] = 0.0
    for p in range(x.shape[0]):
        base = qd.cast(x[p] * N_GRID - 0.5, qd.i32)
        fx = x[p] * N_GRID - qd.cast(base, qd.f32)
        w = weights(fx)
        stress = -DT * 4 * STIFFNESS * VOLUME * (J[p] - 1) * N_GRID * N_GRID
        affine = qd.Matrix([[stress, 0.0], [0.0, stress]]) + MASS * C[p]
        for i, j in qd.static(qd.ndrange(3, 3)):
            offset = qd.Vector([i, j])
            dpos = (qd.cast(offset, qd.f32) - fx) * DX
            weight = w[i].x * w[j].y
            grid_v[base + offset] += weight * (MASS * v[p] + affine @ dpos)
            grid_m[base + offset] += weight * MASS
    for i, j in qd.ndrange(N_GRID, N_GRID):
        velocity = grid_v[i, j]
        if grid_m[i, j] > 0:
            velocity /= grid_m[i, j]
        velocity.y -= DT * GRAVITY
        if (i < BORDER and velocity.x < 0) or (i > N_GRID - BORDER and velocity.x > 0):
            velocity.x = 0
        if (j < BORDER and velocity.y < 0) or (j > N_GRID - BORDER and velocity.y > 0):
            velocity.y = 0
        grid_v[i, j] = velocity
    for p in range(x.shape[0]):
        base = qd.cast(x[p] * N_GRID - 0.5, qd.i32)
        fx = x[p] * N_GRID - qd.cast(base, qd.f32)
        w = weights(fx)
        new_v = qd.Vector([0.0, 0.0])
        new_C = qd.Matrix([[0.0, 0.0], [0.0, 0.0]])
        for i, j in qd.static(qd.ndrange(3, 3)):
            offset = qd.Vector([i, j])
            dpos = (qd.cast(offset, qd.f32) - fx) * DX
            weight = w[i].x * w[j].y
            node = grid_v[base + offset]
            new_v += weight * node
            new_C += 4 * weight * node.outer_product(dpos) * N_GRID * N_GRID
        v[p] = new_v
        x[p] += DT * new_v
        J[p] *= 1 + DT * new_C.trace()
        C[p] = new_C


def picture(positions: np.ndarray, size: int = 512) -> Image.Image:
    """Particles as bright dots; (n, 2) float32 positions in the unit square."""
    canvas = np.full((size, size, 3), (17, 47, 65), np.uint8)
    pixels = (positions * size).astype(int).clip(1, size - 2)
    for dx in (0, 1):
        for dy in (0, 1):
            canvas[size - 1 - pixels[:, 1] - dy, pixels[:, 0] + dx] = (6, 133, 200)
    return Image.fromarray(canvas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--substeps", type=int, default=50, help="steps of 2e-4 s a frame")
    parser.add_argument("--out", type=Path, default=Path("out/mpm88"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    qd.init(arch=qd.cpu)
    rng = np.random.default_rng(0)
    x, v = qd.Vector.ndarray(2, qd.f32, N_PARTICLES), qd.Vector.ndarray(2, qd.f32, N_PARTICLES)
    C, J = qd.Matrix.ndarray(2, 2, qd.f32, N_PARTICLES), qd.ndarray(qd.f32, N_PARTICLES)
    grid_v, grid_m = qd.Vector.ndarray(2, qd.f32, (N_GRID, N_GRID)), qd.ndarray(qd.f32, (N_GRID, N_GRID))
    x.from_numpy((rng.random((N_PARTICLES, 2)) * 0.4 + 0.2).astype(np.float32))
    v.fill([0.0, -1.0])
    J.fill(1.0)

    for frame in tqdm(range(args.frames), desc="mpm88", unit="frame"):
        for _ in range(args.substeps):
            substep(x, v, C, J, grid_v, grid_m)
        picture(x.to_numpy()).save(args.out / f"{frame:04d}.png")
    positions = x.to_numpy()
    if not np.isfinite(positions).all() or positions.min() < 0 or positions.max() > 1:
        raise SystemExit("the simulation left the unit square")
    print(f"{args.frames} frames are in {args.out}")


if __name__ == "__main__":
    main()
