"""Derive the constants of the elementary functions: writes ``qd_core/elementary/coefficients.py``.

Each polynomial interpolates its function at Chebyshev nodes of the stated interval (200-digit arithmetic), in powers
of the reduced variable; coefficients are rounded to the type. Needs mpmath. Run ``python tools/fit_math.py`` from the
repository root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 200
TARGET = Path(__file__).parent.parent / "qd_core" / "math" / "coefficients.py"
NUMPY = {"f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class Fit:
    """A function of the reduced variable, the interval it is approximated on, and how many coefficients it gets."""

    meaning: str
    function: Callable[[Any], Any]
    interval: tuple[Any, Any]
    counts: dict[str, int]


def _series(term: Callable[[int], Any]) -> Callable[[Any], Any]:
    """Sum of term(k) z**k, for removable singularities near 0."""

    def f(z: Any) -> Any:
        return mp.fsum(term(k) * z**k for k in range(90))

    return f


def _odd(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """(f(r)/r - 1)/z with z = r*r."""

    def g(z: Any) -> Any:
        r = mp.sqrt(z)
        return (f(r) / r - 1) / z

    return g


def _pow_tail(z: Any) -> Any:
    return 3 * (_odd(mp.atanh)(z) - mp.mpf(1) / 3) / z


_QUARTER = (mp.pi / 4 + mp.mpf(1) / 1000) ** 2
_SMALL_S = mp.mpf("0.02946")  # ((sqrt(2) - 1)/(sqrt(2) + 1))**2, rounded up
_HALF_LN2 = mp.mpf("0.3475")
FITS = {
    "SIN": Fit(
        "(sin(r)/r - 1)/z, z = r*r, |r| <= pi/4",
        _series(lambda k: (-1) ** (k + 1) / mp.factorial(2 * k + 3)),
        (0, _QUARTER),
        {"f32": 3, "f64": 6},
    ),
    "COS": Fit(
        "(cos(r) - 1 + z/2)/z**2, z = r*r, |r| <= pi/4",
        _series(lambda k: (-1) ** k / mp.factorial(2 * k + 4)),
        (0, _QUARTER),
        {"f32": 3, "f64": 6},
    ),
    "TAN": Fit("(tan(r)/r - 1)/z, z = r*r, |r| <= pi/4", _odd(mp.tan), (0, _QUARTER), {"f32": 7, "f64": 15}),
    "ASIN": Fit("(asin(s)/s - 1)/z, z = s*s, |s| <= 1/2", _odd(mp.asin), (0, mp.mpf(1) / 4), {"f32": 5, "f64": 13}),
    "ATAN": Fit("(atan(t)/t - 1)/z, z = t*t, |t| <= 1", _odd(mp.atan), (0, 1), {"f32": 9, "f64": 21}),
    "TANH": Fit("(tanh(x)/x - 1)/z, z = x*x, |x| <= 5/8", _odd(mp.tanh), (0, mp.mpf(25) / 64), {"f32": 5, "f64": 12}),
    "EXP": Fit(
        "(exp(r) - 1 - r)/r**2, |r| <= ln(2)/2",
        _series(lambda k: 1 / mp.factorial(k + 2)),
        (-_HALF_LN2, _HALF_LN2),
        {"f32": 5, "f64": 11},
    ),
    "LOG": Fit(
        "(2 atanh(s) - 2 s)/(s z), z = s*s, s = f/(2 + f), 1 + f in [sqrt(1/2), sqrt(2)]",
        lambda z: 2 * _odd(mp.atanh)(z),
        (0, _SMALL_S),
        {"f32": 4, "f64": 7},
    ),
    "POW": Fit("3 (atanh(s)/s - 1 - z/3)/z**2, z = s*s, as for LOG", _pow_tail, (0, _SMALL_S), {"f32": 4, "f64": 8}),
}


def _nodes(low: Any, high: Any, count: int) -> list[Any]:
    """Chebyshev nodes of [low, high]; from 0 up, those of one degree more whose lowest lies at 0, without it.

    The polynomial is then multiplied by its variable: so spaced, the error of that product is level.
    """
    if low != 0:
        return [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    angle = mp.pi / (2 * count + 2)
    low = -high * (1 - mp.cos(angle)) / (1 + mp.cos(angle))
    return [(low + high) / 2 + (high - low) / 2 * mp.cos(angle * (2 * k + 1)) for k in range(count)]


def chebyshev_interpolant(f: Callable[[Any], Any], interval: tuple[Any, Any], count: int) -> list[Any]:
    """Coefficients, constant term first, of the polynomial through ``count`` Chebyshev nodes of ``interval``."""
    nodes = _nodes(*(mp.mpf(v) for v in interval), count)
    matrix = mp.matrix(count, count)
    for i, z in enumerate(nodes):
        for j in range(count):
            matrix[i, j] = z**j
    return list(mp.lu_solve(matrix, mp.matrix([f(z) for z in nodes])))


def rounded(value: Any, dtype: str) -> float:
    """Round a multiprecision number to ``dtype``, half to even."""
    value = mp.mpf(value)
    if value == 0:
        return 0.0
    bits = {"f32": 24, "f64": 53}[dtype]
    scale = mp.mpf(2) ** (bits - 1 - mp.floor(mp.log(abs(value), 2)))
    return float(mp.nint(value * scale) / scale)


def parts(value: Any, dtype: str, grids: list[int]) -> tuple[float, ...]:
    """Split ``value``: for each g a multiple of 2**-g, then the rounded rest."""
    result: list[float] = []
    for g in grids:
        part = mp.nint(value * mp.mpf(2) ** g) / mp.mpf(2) ** g
        result.append(float(part))
        value = value - part
    return (*result, rounded(value, dtype))


SPLITS = {
    "HALF_PI": (
        "pi/2 for n < 2**12 (f32) or 2**18 (f64): products of n with all parts but the last are exact",
        mp.pi / 2,
        {"f32": [11, 23, 35], "f64": [34, 70]},
    ),
    "HALF_PI_PAIR": ("pi/2 as an unevaluated sum", mp.pi / 2, {"f32": [23], "f64": [52]}),
    "HALF_PI_HALVES": ("pi/2 with a leading part of half the bits", mp.pi / 2, {"f32": [11], "f64": [25]}),
    "LN2": ("ln(2): products of its first part with an exponent are exact", mp.log(2), {"f32": [13], "f64": [41]}),
    "TWO_THIRDS_LOG2E": (
        "2/(3 ln(2)) with a leading part of half the bits",
        2 / (3 * mp.log(2)),
        {"f32": [11], "f64": [25]},
    ),
}
SINGLE = {"TWO_OVER_PI": 2 / mp.pi, "LOG2E": 1 / mp.log(2)}


def two_over_pi_words(count: int) -> list[int]:
    """The first ``count`` 32-bit words of the binary expansion of 2/pi."""
    with mp.workprec(32 * count + 64):
        whole = int(mp.floor(2 / mp.pi * mp.mpf(2) ** (32 * count)))
    return [(whole >> (32 * (count - 1 - i))) & 0xFFFFFFFF for i in range(count)]


def fit(name: str, dtype: str) -> tuple[float, ...]:
    """Coefficients of ``name`` rounded to ``dtype``."""
    f = FITS[name]
    return tuple(rounded(c, dtype) for c in chebyshev_interpolant(f.function, f.interval, f.counts[dtype]))


def error(name: str, dtype: str) -> float:
    """Largest |z * error| of the polynomial with unrounded coefficients over a grid of its interval."""
    f = FITS[name]
    c = chebyshev_interpolant(f.function, f.interval, f.counts[dtype])
    low, high = (mp.mpf(v) for v in f.interval)
    grid = [low + (high - low) * (k + mp.mpf(1) / 3) / 97 for k in range(97)]
    return float(max(abs(z * (mp.polyval(c[::-1], z) - f.function(z))) for z in grid))


def _table(name: str, comment: str, values: dict[str, tuple[float, ...]]) -> list[str]:
    lines = [f"# {comment}", f"{name}: Table = {{"]
    for dtype, numbers in values.items():
        lines.append(f'    "{dtype}": (')
        lines += [f"        {v!r}," for v in numbers]
        lines.append("    ),")
    return [*lines, "}", ""]


def render() -> str:
    """Text of ``coefficients.py``."""
    lines = [
        '"""Constants of the elementary functions, per type. Generated by ``tools/fit_math.py``: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "Table = dict[str, tuple[float, ...]]",
        "",
    ]
    for name, f in FITS.items():
        lines += _table(name, f.meaning, {d: fit(name, d) for d in NUMPY})
    for name, (comment, value, grids) in SPLITS.items():
        lines += _table(name, comment, {d: parts(value, d, grids[d]) for d in NUMPY})
    for name, value in SINGLE.items():
        lines += [f"{name} = {rounded(value, 'f64')!r}", ""]
    lines += ["# Binary expansion of 2/pi in 32-bit words, most significant first.", "TWO_OVER_PI_WORDS = ("]
    lines += [f"    0x{w:08X}," for w in two_over_pi_words(38)]
    return "\n".join([*lines, ")", ""])


if __name__ == "__main__":
    for fit_name in FITS:
        print(fit_name, {d: f"{error(fit_name, d):.2e}" for d in NUMPY})
    TARGET.write_text(render())
