"""One substep of two-dimensional MLS-MPM: n particles, a 128 x 128 grid, float32 (Hu et al. 2018)."""

import functools

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language

N_GRID = 128
DX = 1 / N_GRID
DT = 1e-4
VOLUME = (DX / 2) ** 2
MASS = VOLUME
STIFFNESS = 400.0
GRAVITY = 9.8
BORDER = 3


def particles(n):
    rng = np.random.default_rng(6)
    x = rng.uniform(0.2, 0.6, (n, 2)).astype(np.float32)
    v = rng.normal(0, 0.1, (n, 2)).astype(np.float32) - np.array([0, 1], np.float32)
    return x, v


def of_language(name, n):
    ti = language(name)
    vec2, mat2 = ti.types.vector(2, ti.f32), ti.types.matrix(2, 2, ti.f32)
    Vectors, Matrices = ti.types.ndarray(dtype=vec2, ndim=1), ti.types.ndarray(dtype=mat2, ndim=1)
    Scalars = ti.types.ndarray(dtype=ti.f32, ndim=1)
    GridV, GridM = ti.types.ndarray(dtype=vec2, ndim=2), ti.types.ndarray(dtype=ti.f32, ndim=2)

    @ti.kernel
    def substep(x: Vectors, v: Vectors, C: Matrices, J: Scalars, gv: GridV, gm: GridM):
        for i, j in ti.ndrange(N_GRID, N_GRID):
            gv[i, j] = [0.0, 0.0]
            gm[i, j] = 0.0
        for p in range(x.shape[0]):
            base = ti.cast(x[p] * N_GRID - 0.5, ti.i32)
            fx = x[p] * N_GRID - ti.cast(base, ti.f32)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            stress = -DT * 4 * STIFFNESS * VOLUME * (J[p] - 1.0) * N_GRID * N_GRID
            affine = ti.Matrix([[stress, 0.0], [0.0, stress]]) + MASS * C[p]
            for i, j in ti.static(ti.ndrange(3, 3)):
                offset = ti.Vector([i, j])
                weight = w[i][0] * w[j][1]
                gv[base + offset] += weight * (MASS * v[p] + affine @ ((ti.cast(offset, ti.f32) - fx) * DX))
                gm[base + offset] += weight * MASS
        for i, j in ti.ndrange(N_GRID, N_GRID):
            u = gv[i, j]
            if gm[i, j] > 0.0:
                u = u / gm[i, j]
            u[1] -= DT * GRAVITY
            if (i < BORDER and u[0] < 0.0) or (i > N_GRID - BORDER and u[0] > 0.0):
                u[0] = 0.0
            if (j < BORDER and u[1] < 0.0) or (j > N_GRID - BORDER and u[1] > 0.0):
                u[1] = 0.0
            gv[i, j] = u
        for p in range(x.shape[0]):
            base = ti.cast(x[p] * N_GRID - 0.5, ti.i32)
            fx = x[p] * N_GRID - ti.cast(base, ti.f32)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = ti.Vector([0.0, 0.0])
            new_C = ti.Matrix([[0.0, 0.0], [0.0, 0.0]])
            for i, j in ti.static(ti.ndrange(3, 3)):
                offset = ti.Vector([i, j])
                weight = w[i][0] * w[j][1]
                node = gv[base + offset]
                new_v += weight * node
                new_C += 4.0 * weight * N_GRID * node.outer_product(ti.cast(offset, ti.f32) - fx)
            v[p] = new_v
            x[p] += DT * new_v
            J[p] *= 1.0 + DT * new_C.trace()
            C[p] = new_C

    x, v, C, J = ti.ndarray(vec2, n), ti.ndarray(vec2, n), ti.ndarray(mat2, n), ti.ndarray(ti.f32, n)
    gv, gm = ti.ndarray(vec2, (N_GRID, N_GRID)), ti.ndarray(ti.f32, (N_GRID, N_GRID))
    for array, values in zip((x, v), particles(n), strict=True):
        array.from_numpy(values)
    C.from_numpy(np.zeros((n, 2, 2), np.float32))
    J.fill(1.0)
    return Step(lambda: substep(x, v, C, J, gv, gm), lambda: np.hstack([x.to_numpy(), v.to_numpy()]), ti.sync)


def numba(n):
    """Each thread scatters into a grid of its own, as Numba has no atomic addition of reals on the CPU."""
    import numba as nb

    f = np.float32
    cells, dx, dt, mass = f(N_GRID), f(DX), f(DT), f(MASS)
    pressure = f(-DT * 4 * STIFFNESS * VOLUME * N_GRID * N_GRID)

    @nb.njit(inline="always")
    def weights(u):
        return f(0.5) * (f(1.5) - u) ** 2, f(0.75) - (u - f(1)) ** 2, f(0.5) * (u - f(0.5)) ** 2

    @nb.njit(parallel=True, fastmath=True)
    def substep(x, v, C, J, grids):
        parts, per = grids.shape[0], (x.shape[0] + grids.shape[0] - 1) // grids.shape[0]
        for t in nb.prange(parts):
            grid = grids[t]
            grid[:] = f(0)
            for p in range(t * per, min((t + 1) * per, x.shape[0])):
                bx, by = int(x[p, 0] * cells - f(0.5)), int(x[p, 1] * cells - f(0.5))
                fx, fy = x[p, 0] * cells - f(bx), x[p, 1] * cells - f(by)
                wx, wy = weights(fx), weights(fy)
                s = pressure * (J[p] - f(1))
                a, b, c, d = s + mass * C[p, 0], mass * C[p, 1], mass * C[p, 2], s + mass * C[p, 3]
                for i in range(3):
                    for j in range(3):
                        ox, oy, w = (f(i) - fx) * dx, (f(j) - fy) * dx, wx[i] * wy[j]
                        grid[bx + i, by + j, 0] += w * (mass * v[p, 0] + a * ox + b * oy)
                        grid[bx + i, by + j, 1] += w * (mass * v[p, 1] + c * ox + d * oy)
                        grid[bx + i, by + j, 2] += w * mass
        for i in nb.prange(N_GRID):
            for j in range(N_GRID):
                m = px = py = f(0)
                for t in range(parts):
                    px, py, m = px + grids[t, i, j, 0], py + grids[t, i, j, 1], m + grids[t, i, j, 2]
                if m > 0:
                    px, py = px / m, py / m
                py -= dt * f(GRAVITY)
                if (i < BORDER and px < 0) or (i > N_GRID - BORDER and px > 0):
                    px = f(0)
                if (j < BORDER and py < 0) or (j > N_GRID - BORDER and py > 0):
                    py = f(0)
                grids[0, i, j, 0], grids[0, i, j, 1] = px, py
        for p in nb.prange(x.shape[0]):
            bx, by = int(x[p, 0] * cells - f(0.5)), int(x[p, 1] * cells - f(0.5))
            fx, fy = x[p, 0] * cells - f(bx), x[p, 1] * cells - f(by)
            wx, wy = weights(fx), weights(fy)
            vx = vy = a = b = c = d = f(0)
            for i in range(3):
                for j in range(3):
                    w, ux, uy = wx[i] * wy[j], grids[0, bx + i, by + j, 0], grids[0, bx + i, by + j, 1]
                    k = f(4) * w * cells
                    vx, vy = vx + w * ux, vy + w * uy
                    a, b = a + k * ux * (f(i) - fx), b + k * ux * (f(j) - fy)
                    c, d = c + k * uy * (f(i) - fx), d + k * uy * (f(j) - fy)
            v[p, 0], v[p, 1] = vx, vy
            x[p, 0] += dt * vx
            x[p, 1] += dt * vy
            J[p] *= f(1) + dt * (a + d)
            C[p, 0], C[p, 1], C[p, 2], C[p, 3] = a, b, c, d

    x, v = particles(n)
    C, J = np.zeros((n, 4), f), np.ones(n, f)
    grids = np.zeros((nb.get_num_threads(), N_GRID, N_GRID, 3), f)
    return Step(lambda: substep(x, v, C, J, grids), lambda: np.hstack([x, v]))


MPM88 = {name: functools.partial(of_language, name) for name in LANGUAGE}
MPM88 |= {"numba": numba}
