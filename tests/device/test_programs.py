"""Whole programs as users write them, against NumPy, exact answers or conserved quantities, on every device."""

# ruff: noqa: C901, E741, PT018, RUF059  (the programs are written as their users write them)
from __future__ import annotations

import math

import numpy as np
import pytest

import qd_core as qd


def test_game_of_life(device):
    n = 32
    alive = qd.field(int, shape=(n, n))
    count = qd.field(int, shape=(n, n))

    @qd.func
    def get_alive(i, j):
        return alive[i, j] if 0 <= i < n and 0 <= j < n else 0

    @qd.func
    def get_count(i, j):
        return (
            get_alive(i - 1, j)
            + get_alive(i + 1, j)
            + get_alive(i, j - 1)
            + get_alive(i, j + 1)
            + get_alive(i - 1, j - 1)
            + get_alive(i + 1, j - 1)
            + get_alive(i - 1, j + 1)
            + get_alive(i + 1, j + 1)
        )

    B, S = (0, 0, 0, 1, 0, 0, 0, 0, 0), (0, 0, 1, 1, 0, 0, 0, 0, 0)

    @qd.func
    def calc_rule(a, c):
        if a == 0:
            for t in qd.static(range(9)):
                if c == t:
                    a = B[t]
        elif a == 1:
            for t in qd.static(range(9)):
                if c == t:
                    a = S[t]
        return a

    @qd.kernel
    def run():
        for i, j in alive:
            count[i, j] = get_count(i, j)
        for i, j in alive:
            alive[i, j] = calc_rule(alive[i, j], count[i, j])

    @qd.kernel
    def init():
        for i, j in alive:
            if qd.random() > 0.8:
                alive[i, j] = 1
            else:
                alive[i, j] = 0

    init()
    a = alive.to_numpy()
    assert 0 < a.mean() < 0.4
    for _ in range(3):
        run()
        p = np.pad(a, 1)
        c = sum(p[1 + di : 1 + di + n, 1 + dj : 1 + dj + n] for di in (-1, 0, 1) for dj in (-1, 0, 1) if di or dj)
        a = ((c == 3) | ((a == 1) & (c == 2))).astype(np.int32)
        np.testing.assert_array_equal(alive.to_numpy(), a)


def test_eight_queens(device):
    res = qd.field(qd.i32, shape=())

    @qd.kernel
    def solve(n: int):
        full = (1 << n) - 1
        for first in range(n):
            # iterative backtracking with local arrays
            cols = qd.Vector([0] * 9)
            d1 = qd.Vector([0] * 9)
            d2 = qd.Vector([0] * 9)
            avail = qd.Vector([0] * 9)
            bit = 1 << first
            cols[1] = bit
            d1[1] = bit << 1
            d2[1] = bit >> 1
            depth = 1
            avail[1] = full & ~(cols[1] | d1[1] | d2[1])
            cnt = 0
            while depth > 0:
                if avail[depth] == 0:
                    depth -= 1
                else:
                    b = avail[depth] & -avail[depth]
                    avail[depth] = avail[depth] ^ b
                    if depth == n - 1:
                        cnt += 1
                    else:
                        cols[depth + 1] = cols[depth] | b
                        d1[depth + 1] = (d1[depth] | b) << 1
                        d2[depth + 1] = (d2[depth] | b) >> 1
                        depth += 1
                        avail[depth] = full & ~(cols[depth] | d1[depth] | d2[depth])
            res[None] += cnt

    solve(8)
    assert res[None] == 92, res[None]


def test_smoothed_particles(device):
    N = 64
    h = 0.1
    cell = 0.1
    gx = 12
    pos = qd.Vector.field(3, qd.f32, N)
    rho = qd.field(qd.f32, N)
    num = qd.field(qd.i32, (gx, gx, gx))
    tab = qd.field(qd.i32, (gx, gx, gx, 16))
    nn = qd.field(qd.i32, N)
    nb = qd.field(qd.i32, (N, 64))

    @qd.func
    def poly6(s, h_):
        r = 0.0
        if 0 < s and s < h_:
            x = (h_ * h_ - s * s) / (h_ * h_ * h_)
            r = 315.0 / 64.0 / math.pi * x * x * x
        return r

    @qd.func
    def cell_of(p):
        return int(p / cell)

    @qd.func
    def inside(c):
        return 0 <= c[0] and c[0] < gx and 0 <= c[1] and c[1] < gx and 0 <= c[2] < gx

    @qd.kernel
    def neighbours():
        for I in qd.grouped(num):
            num[I] = 0
        for i in pos:
            c = cell_of(pos[i])
            o = qd.atomic_add(num[c], 1)
            if o < 16:
                tab[c, o] = i
        for i in pos:
            c = cell_of(pos[i])
            k = 0
            for off in qd.static(qd.grouped(qd.ndrange((-1, 2), (-1, 2), (-1, 2)))):
                cc = c + off
                if inside(cc):
                    for j in range(min(num[cc], 16)):
                        q = tab[cc, j]
                        if k < 64 and q != i and (pos[i] - pos[q]).norm() < h * 1.05:
                            nb[i, k] = q
                            k += 1
            nn[i] = k

    @qd.kernel
    def dens():
        for i in pos:
            r = 0.0
            for k in range(nn[i]):
                r += poly6((pos[i] - pos[nb[i, k]]).norm(), h)
            rho[i] = r

    def run():
        neighbours()
        dens()

    P = np.random.default_rng(0).random((N, 3)).astype(np.float32) * 0.3 + 0.2
    pos.from_numpy(P)
    run()
    D = np.linalg.norm(P[:, None] - P[None], axis=-1)
    w = np.where((D > 0) & (D < h), 315 / 64 / np.pi * ((h * h - D * D) / h**3) ** 3, 0).sum(1)
    np.testing.assert_allclose(rho.to_numpy(), w, rtol=1e-3)


def test_connected_components(device):
    N = 64
    par = qd.field(int, N)
    E = np.random.default_rng(3).integers(0, N, (40, 2)).astype(np.int32)

    @qd.func
    def find(i):
        r = i
        while par[r] != r:
            r = par[r]
        return r

    @qd.kernel
    def go_(e: qd.types.ndarray(dtype=qd.i32, ndim=2)):
        for i in par:
            par[i] = i
        for k in range(e.shape[0]):
            a, b = find(e[k, 0]), find(e[k, 1])
            while a != b:
                if a < b:
                    a, b = b, a
                old = qd.atomic_cas(par[a], a, b)
                if old == a:
                    break
                a = find(a)
                b = find(b)
        for i in par:
            par[i] = find(i)

    go_(E)
    lab = par.to_numpy()
    L = np.arange(N)
    for _ in range(N):
        for a, b in E:
            m = min(L[a], L[b])
            L[a] = L[b] = m
    assert len(set(lab)) == len(set(L)) and all(
        (L[i] == L[j]) == (lab[i] == lab[j]) for i in range(N) for j in range(N)
    )


def test_path_tracer(device):
    w, h = 32, 24
    img = qd.Vector.field(3, qd.f32, shape=(w, h))
    Ray = qd.types.struct(o=qd.math.vec3, d=qd.math.vec3)
    Hit = qd.types.struct(t=qd.f32, n=qd.math.vec3, col=qd.math.vec3, ok=qd.i32)
    spheres = [((0, 0, -1), 0.5, (0.8, 0.3, 0.3)), ((0, -100.5, -1), 100, (0.8, 0.8, 0))]

    @qd.func
    def hit(r):
        best = Hit(t=1e9, n=qd.math.vec3(0), col=qd.math.vec3(0), ok=0)
        for s in qd.static(spheres):
            c = qd.math.vec3(*s[0])
            rad = s[1]
            oc = r.o - c
            b = oc.dot(r.d)
            cc = oc.dot(oc) - rad * rad
            disc = b * b - cc
            if disc > 0:
                t = -b - qd.sqrt(disc)
                if 1e-3 < t < best.t:
                    best.t = t
                    best.n = ((r.o + t * r.d) - c) / rad
                    best.col = qd.math.vec3(*s[2])
                    best.ok = 1
        return best

    @qd.func
    def rand_sphere():
        p = qd.math.vec3(2.0)
        while p.norm_sqr() >= 1:
            p = 2 * qd.math.vec3(qd.random(), qd.random(), qd.random()) - 1
        return p

    @qd.kernel
    def render(spp: int):
        for i, j in img:
            acc = qd.math.vec3(0)
            for s in range(spp):
                u = (i + qd.random()) / w * 4 - 2
                v = (j + qd.random()) / h * 3 - 1.5
                r = Ray(o=qd.math.vec3(0), d=qd.math.vec3(u, v, -1).normalized())
                att = qd.math.vec3(1.0)
                for depth in range(5):
                    q = hit(r)
                    if q.ok == 0:
                        t = 0.5 * (r.d.y + 1)
                        acc += att * ((1 - t) * qd.math.vec3(1) + t * qd.math.vec3(0.5, 0.7, 1))
                        break
                    att *= q.col
                    r.o = r.o + q.t * r.d
                    r.d = (q.n + rand_sphere()).normalized()
            img[i, j] = qd.sqrt(acc / spp)

    render(4)
    a = img.to_numpy()
    assert np.isfinite(a).all() and 0.2 < a.mean() < 1


def test_solver_class(device):
    if not device.has("type.f64"):
        pytest.skip("the device has no f64")

    @qd.data_oriented
    class CG:
        def __init__(self, n, dtype=qd.f64, dim: int = 2):
            self.n, self.dim, self.dtype = n, dim, dtype
            self.r = qd.field(dtype, shape=(n,) * dim)
            self.p = qd.field(dtype, shape=(n,) * dim)
            self.x = qd.field(dtype, shape=(n,) * dim)
            self.Ap = qd.field(dtype, shape=(n,) * dim)
            self.params = {"tol": 1e-10}
            self.history = []

        @qd.func
        def at(self, f: qd.template(), I):
            r = qd.cast(0.0, self.dtype)
            ok = 1
            for d in qd.static(range(self.dim)):
                if I[d] < 0 or I[d] >= self.n:
                    ok = 0
            if ok:
                r = f[I]
            return r

        @qd.kernel
        def init(self):
            for I in qd.grouped(self.r):
                self.r[I] = 1.0
                self.p[I] = 1.0
                self.x[I] = 0

        @qd.kernel
        def apply(self):
            for I in qd.grouped(self.p):
                s = 2.0 * self.dim * self.p[I]
                for d in qd.static(range(self.dim)):
                    s -= self.at(self.p, I + qd.Vector.unit(self.dim, d)) + self.at(
                        self.p, I - qd.Vector.unit(self.dim, d)
                    )
                self.Ap[I] = s

        @qd.kernel
        def dot(self, a: qd.template(), b: qd.template()) -> qd.f64:
            s = 0.0
            for I in qd.grouped(a):
                s += a[I] * b[I]
            return s

        @qd.kernel
        def axpy(self, y: qd.template(), a: qd.f64, x: qd.template(), b: qd.f64):
            for I in qd.grouped(y):
                y[I] = b * y[I] + a * x[I]

        def solve(self):
            self.init()
            rr = self.dot(self.r, self.r)
            for k in range(200):
                self.apply()
                al = rr / self.dot(self.p, self.Ap)
                self.axpy(self.x, al, self.p, 1.0)
                self.axpy(self.r, -al, self.Ap, 1.0)
                nr = self.dot(self.r, self.r)
                self.history.append(nr)
                if nr < self.params["tol"] ** 2:
                    break
                self.axpy(self.p, 1.0, self.r, nr / rr)
                rr = nr
            return k

    for dim in (1, 2, 3):
        c = CG(8, dim=dim)
        c.solve()
        L = 2 * np.eye(8) - np.eye(8, k=1) - np.eye(8, k=-1)
        A = np.zeros((8**dim,) * 2)
        for d in range(dim):
            m = np.eye(1)
            for q in range(dim):
                m = np.kron(m, L if q == d else np.eye(8))
            A += m
        np.testing.assert_allclose(c.x.to_numpy().ravel(), np.linalg.solve(A, np.ones(8**dim)), rtol=1e-4)


def test_hashes(device):
    if not device.has("type.u64"):
        pytest.skip("the device has no u64")
    out = qd.field(qd.u32, 64)
    o64 = qd.field(qd.u64, 64)

    @qd.func
    def pcg(v: qd.u32) -> qd.u32:
        state = v * qd.u32(747796405) + qd.u32(2891336453)
        word = ((state >> ((state >> qd.u32(28)) + qd.u32(4))) ^ state) * qd.u32(277803737)
        return (word >> qd.u32(22)) ^ word

    @qd.kernel
    def k():
        for i in out:
            out[i] = pcg(qd.cast(i, qd.u32))
            h = qd.u64(14695981039346656037)
            for b in range(4):
                h ^= qd.cast((i >> (8 * b)) & 0xFF, qd.u64)
                h *= qd.u64(1099511628211)
            o64[i] = h

    k()

    def ref(v):
        s = (v * 747796405 + 2891336453) & 0xFFFFFFFF
        w = (((s >> ((s >> 28) + 4)) ^ s) * 277803737) & 0xFFFFFFFF
        return (w >> 22) ^ w

    assert out.to_numpy().tolist() == [ref(i) for i in range(64)]

    def fnv(i):
        h = 14695981039346656037
        for b in range(4):
            h = ((h ^ (i >> (8 * b) & 255)) * 1099511628211) & (2**64 - 1)
        return h

    assert o64.to_numpy().tolist() == [fnv(i) for i in range(64)]


def test_corotated_elements(device):
    if not device.has("type.f64"):
        pytest.skip("the device has no f64")
    n = 4
    x = qd.Vector.field(2, qd.f64, n)
    tri = qd.Vector.field(3, qd.i32, 2)
    B = qd.Matrix.field(2, 2, qd.f64, 2)
    F = qd.Vector.field(2, qd.f64, n)
    e = qd.field(qd.f64, ())
    x.from_numpy(np.array([[0, 0], [1, 0], [0, 1], [1, 1]], float))
    tri.from_numpy(np.array([[0, 1, 2], [1, 3, 2]], np.int32))

    @qd.func
    def Ds(t):
        a, b, c = tri[t][0], tri[t][1], tri[t][2]
        return qd.Matrix.cols([x[a] - x[c], x[b] - x[c]])

    @qd.kernel
    def init():
        for t in tri:
            B[t] = Ds(t).inverse()

    @qd.kernel
    def forces():
        for i in F:
            F[i] = [0.0, 0.0]
        e[None] = 0
        for t in tri:
            G = Ds(t) @ B[t]
            R, S = qd.polar_decompose(G)
            P = 2 * (G - R)
            W = 0.5 * abs(B[t].inverse().determinant())
            H = -W * P @ B[t].transpose()
            e[None] += W * (G - R).norm_sqr()
            a, b, c = tri[t]
            F[a] += H[:, 0] if qd.static(False) else qd.Vector([H[0, 0], H[1, 0]])
            F[b] += qd.Vector([H[0, 1], H[1, 1]])
            F[c] -= qd.Vector([H[0, 0] + H[0, 1], H[1, 0] + H[1, 1]])

    init()
    X = x.to_numpy()
    X[3] += [0.3, 0.2]
    x.from_numpy(X)
    forces()
    f = F.to_numpy()
    assert abs(f.sum()) < 1e-10
    eps = 1e-6
    g = np.zeros_like(X)
    for i in range(4):
        for k in range(2):
            for s in (1, -1):
                Y = X.copy()
                Y[i, k] += s * eps
                x.from_numpy(Y)
                forces()
                g[i, k] += s * e[None] / (2 * eps)
    np.testing.assert_allclose(f, -g, atol=1e-5)


def test_bitonic_sort(device):
    N = 256
    a = qd.field(qd.f32, shape=N)
    d = np.random.default_rng(0).random(N).astype(np.float32)
    a.from_numpy(d)

    @qd.kernel
    def step(k: int, j: int):
        for i in range(N):
            l = i ^ j
            if l > i:
                if ((i & k) == 0 and a[i] > a[l]) or ((i & k) != 0 and a[i] < a[l]):
                    a[i], a[l] = a[l], a[i]

    k = 2
    while k <= N:
        j = k >> 1
        while j > 0:
            step(k, j)
            j >>= 1
        k <<= 1
    np.testing.assert_array_equal(a.to_numpy(), np.sort(d))


def test_marching_squares(device):
    tbl = np.zeros((16, 4), np.int32)
    edges = {
        1: (3, 0),
        2: (0, 1),
        3: (3, 1),
        4: (1, 2),
        6: (0, 2),
        7: (3, 2),
        8: (2, 3),
        9: (2, 0),
        11: (2, 1),
        12: (1, 3),
        13: (1, 0),
        14: (0, 3),
    }
    for k, (a, b) in edges.items():
        tbl[k] = [1, a, b, 0]
    tf = qd.field(qd.i32, (16, 4))
    tf.from_numpy(tbl)
    n = 16
    s = qd.field(float, (n, n))
    segs = qd.Struct.field({"a": qd.math.vec2, "b": qd.math.vec2}, shape=400)
    cnt = qd.field(int, ())

    @qd.func
    def vert(e, i, j):
        p = qd.math.vec2(i, j)
        if e == 0:
            p += qd.math.vec2(0.5, 0)
        elif e == 1:
            p += qd.math.vec2(1, 0.5)
        elif e == 2:
            p += qd.math.vec2(0.5, 1)
        else:
            p += qd.math.vec2(0, 0.5)
        return p

    @qd.kernel
    def march() -> int:
        for i, j in s:
            s[i, j] = (qd.math.vec2(i, j) - 7.5).norm() - 5
        cnt[None] = 0
        for i, j in qd.ndrange(n - 1, n - 1):
            case = 0
            if s[i, j] > 0:
                case |= 1
            if s[i + 1, j] > 0:
                case |= 2
            if s[i + 1, j + 1] > 0:
                case |= 4
            if s[i, j + 1] > 0:
                case |= 8
            if tf[case, 0] > 0:
                k = qd.atomic_add(cnt[None], 1)
                segs[k].a = vert(tf[case, 1], i, j)
                segs[k].b = vert(tf[case, 2], i, j)
        return cnt[None]

    m = march()
    a = segs.a.to_numpy()[:m]
    assert m > 20 and abs(np.linalg.norm(a - 7.5, axis=1) - 5).max() < 1


def test_projected_fluid(device):
    res = 24

    class TexPair:
        def __init__(self, cur, nxt):
            self.cur, self.nxt = cur, nxt

        def swap(self):
            self.cur, self.nxt = self.nxt, self.cur

    v = TexPair(qd.Vector.field(2, float, shape=(res, res)), qd.Vector.field(2, float, shape=(res, res)))
    p = TexPair(qd.field(float, shape=(res, res)), qd.field(float, shape=(res, res)))
    div = qd.field(float, shape=(res, res))

    @qd.func
    def sample(qf, u, v_):
        I = qd.Vector([int(u), int(v_)])
        I = max(0, min(res - 1, I))
        return qf[I]

    @qd.func
    def lerp(a, b, f):
        return a + f * (b - a)

    @qd.func
    def bilerp(vf, q):
        u, w = q
        s, t_ = u - 0.5, w - 0.5
        iu, iv = qd.floor(s), qd.floor(t_)
        fu, fv = s - iu, t_ - iv
        a = sample(vf, iu, iv)
        b = sample(vf, iu + 1, iv)
        c = sample(vf, iu, iv + 1)
        d = sample(vf, iu + 1, iv + 1)
        return lerp(lerp(a, b, fu), lerp(c, d, fu), fv)

    @qd.func
    def backtrace(vf: qd.template(), q, dt_: qd.template()):
        v1 = bilerp(vf, q)
        p1 = q - 0.5 * dt_ * v1
        v2 = bilerp(vf, p1)
        p2 = q - 0.75 * dt_ * v2
        v3 = bilerp(vf, p2)
        q -= dt_ * ((2 / 9) * v1 + (1 / 3) * v2 + (4 / 9) * v3)
        return q

    @qd.kernel
    def advect(vf: qd.template(), qf: qd.template(), nf: qd.template()):
        for i, j in vf:
            q = qd.Vector([i, j]) + 0.5
            q = backtrace(vf, q, 0.03)
            nf[i, j] = bilerp(qf, q) * 0.99

    @qd.kernel
    def divergence(vf: qd.template()):
        for i, j in vf:
            vl = sample(vf, i - 1, j)
            vr = sample(vf, i + 1, j)
            vb = sample(vf, i, j - 1)
            vt = sample(vf, i, j + 1)
            vc = sample(vf, i, j)
            if i == 0:
                vl.x = -vc.x
            if i == res - 1:
                vr.x = -vc.x
            if j == 0:
                vb.y = -vc.y
            if j == res - 1:
                vt.y = -vc.y
            div[i, j] = (vr.x - vl.x + vt.y - vb.y) * 0.5

    @qd.kernel
    def jacobi(pf: qd.template(), nf: qd.template()):
        for i, j in pf:
            nf[i, j] = (
                sample(pf, i - 1, j) + sample(pf, i + 1, j) + sample(pf, i, j - 1) + sample(pf, i, j + 1) - div[i, j]
            ) * 0.25

    @qd.kernel
    def project(vf: qd.template(), pf: qd.template()):
        for i, j in vf:
            vf[i, j] -= 0.5 * qd.Vector(
                [sample(pf, i + 1, j) - sample(pf, i - 1, j), sample(pf, i, j + 1) - sample(pf, i, j - 1)]
            )

    rng = np.random.default_rng(0)
    v.cur.from_numpy(rng.normal(size=(res, res, 2)).astype(np.float32))
    advect(v.cur, v.cur, v.nxt)
    v.swap()
    divergence(v.cur)
    d0 = abs(div.to_numpy()).mean()
    for _ in range(40):
        jacobi(p.cur, p.nxt)
        p.swap()
    project(v.cur, p.cur)
    divergence(v.cur)
    d1 = abs(div.to_numpy()).mean()
    assert d1 < d0, (d0, d1)
