"""Where the elementary functions are tested, and their exact values."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath as mp
import numpy as np

UNARY = ("sin", "cos", "tan", "asin", "acos", "exp", "log", "tanh")
BINARY = ("atan2", "pow")
_EXPONENTS = {"f16": (-24, 16), "f32": (-149, 128), "f64": (-1074, 1024)}
NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def edges(dtype: str) -> Any:
    """Zeros, ones, halves, infinities, NaN, subnormals and the ends of the range, of both signs."""
    info = np.finfo(NUMPY[dtype])
    tiny, normal = info.smallest_subnormal, info.smallest_normal
    below, above = 1 - info.epsneg, 1 + info.eps
    positive = [
        0,
        tiny,
        normal,
        normal * 0.75,
        info.eps,
        0.5,
        0.75,
        below,
        1,
        above,
        1.5,
        2,
        3,
        4,
        7,
        1e4,
        info.max,
        np.inf,
    ]
    positive = np.array(positive, NUMPY[dtype])
    return np.concatenate([positive, -positive, np.array([np.nan], NUMPY[dtype])])


def _spread(rng: np.random.Generator, dtype: str, count: int) -> Any:
    low, high = _EXPONENTS[dtype]
    return np.exp2(rng.uniform(low, high, count)) * rng.choice([-1.0, 1.0], count)


def _around(rng: np.random.Generator, name: str, dtype: str, n: int) -> Any:
    low, high = _EXPONENTS[dtype]
    if name in ("sin", "cos", "tan"):
        multiples = rng.integers(1, 4000, n) * (np.pi / 2)
        return np.concatenate(
            [rng.uniform(-10, 10, n), rng.uniform(-1e6, 1e6, n), multiples, np.nextafter(multiples, 0)]
        )
    if name in ("asin", "acos"):
        return np.concatenate([rng.uniform(-1, 1, 2 * n), 1 - np.exp2(rng.uniform(-50, 0, n))])
    if name == "exp":
        return np.concatenate([rng.uniform(-1, 1, n), rng.uniform((low - 2) * 0.7, (high + 2) * 0.7, 2 * n)])
    if name == "log":
        return np.concatenate(
            [rng.uniform(0, 2, n), 1 + rng.uniform(-0.01, 0.01, n), np.exp2(rng.uniform(low, high, n))]
        )
    return np.concatenate([rng.uniform(-1, 1, n), rng.uniform(-25, 25, n)])


def _pairs(rng: np.random.Generator, name: str, dtype: str, n: int) -> tuple[Any, Any]:
    a = np.concatenate([rng.uniform(-1, 1, n), _spread(rng, dtype, n), rng.uniform(0.9, 1.1, n)])
    if name == "atan2":
        return a, np.concatenate([rng.uniform(-1, 1, n), _spread(rng, dtype, n), rng.uniform(-1.1, -0.9, n)])
    limit = _EXPONENTS[dtype][1] + 4
    a = np.abs(a[n:]).astype(NUMPY[dtype]).astype(np.float64)
    with np.errstate(all="ignore"):
        exponents = rng.uniform(-limit, limit, a.size) / np.log2(a)
    whole = rng.integers(-20, 20, n).astype(float)
    return np.concatenate([a, -rng.integers(1, 50, n).astype(float)]), np.concatenate([exponents, whole])


def samples(name: str, dtype: str, count: int = 300, seed: int = 0) -> tuple[Any, ...]:
    """Arguments of function ``name``: about five times ``count`` random ones and all (pairs of) edges."""
    rng = np.random.default_rng(seed)
    ends = edges(dtype)
    with np.errstate(all="ignore"):
        if name in UNARY:
            return (
                np.concatenate([_around(rng, name, dtype, count), _spread(rng, dtype, count), ends]).astype(
                    NUMPY[dtype]
                ),
            )
        grid = np.array(list(itertools.product(ends, ends)))
        pairs = _pairs(rng, name, dtype, count)
        return tuple(np.concatenate([p, grid[:, k]]).astype(NUMPY[dtype]) for k, p in enumerate(pairs))


_EXACT = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "asin": mp.asin, "acos": mp.acos, "exp": mp.exp, "log": mp.log,
    "tanh": mp.tanh,
    "atan2": mp.atan2, "pow": mp.power,
}  # fmt: skip
_LIBM = {"asin": np.arcsin, "acos": np.arccos, "atan2": np.arctan2, "pow": np.power}


def error_in_ulp(name: str, arguments: tuple[Any, ...], got: Any) -> Any:
    """Error of each element of ``got`` in units in the last place; infinite for a wrong special value."""
    meaning = _LIBM.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        near = np.asarray(meaning(*(a.astype(np.float64) for a in arguments)))
    info = np.finfo(got.dtype)
    return np.array(
        [_error(name, [float(a[i]) for a in arguments], float(got[i]), float(near[i]), info) for i in range(got.size)]
    )


def _error(name: str, arguments: list[float], got: float, near: float, info: Any) -> float:
    if near == 0 or not np.isfinite(near):
        return _special(got, near, info)
    with mp.workdps(60):
        if name == "atan2" and not all(np.isfinite(a) and a != 0 for a in arguments):
            exact = mp.pi / 4 * round(near / (np.pi / 4))
        elif not all(np.isfinite(arguments)):
            exact = mp.mpf(near)  # 1 or -1
        else:
            exact = _EXACT[name](*map(mp.mpf, arguments))
    return _distance(got, exact, info)


def _special(got: float, near: float, info: Any) -> float:
    if np.isnan(near) or np.isnan(got):
        return 0.0 if np.isnan(near) and np.isnan(got) else np.inf
    if near == 0 and abs(got) == float(info.smallest_subnormal):
        return 1.0  # f64 underflow: the reference's zero is itself rounded
    return 0.0 if got == near and np.signbit(got) == np.signbit(near) else np.inf


def _distance(got: float, exact: Any, info: Any) -> float:
    if np.isnan(got):
        return np.inf
    with mp.workdps(60):
        if exact == 0:
            return 0.0 if got == 0 else np.inf
        exponent = max(int(mp.floor(mp.log(abs(exact), 2))), info.minexp)
        ulp = mp.mpf(2) ** (exponent - info.nmant)
        if np.isinf(got):
            beyond = mp.mpf(float(info.max)) + mp.mpf(2) ** (info.maxexp - 2 - info.nmant)
            return 0.0 if abs(exact) >= beyond and (got > 0) == (exact > 0) else np.inf
        if got == 0 and np.signbit(got) != (exact < 0):
            return np.inf
        return float(abs(mp.mpf(got) - exact) / ulp)
