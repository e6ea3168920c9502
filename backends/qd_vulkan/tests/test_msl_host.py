"""The header and the driver that run Metal Shading Language on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msl_host
import numpy as np
import pytest
from translated import why_not

pytestmark = pytest.mark.skipif(msl_host.clang() is None, reason=why_not() or "clang is there")

_KERNEL = """
#include <metal_stdlib>
using namespace metal;
kernel void main0(device {result}* y [[buffer(0)]], const device {kind}* x [[buffer(1)]], uint3 at
[[thread_position_in_grid]])
{{
    y[at.x] = {expression};
}}
"""

REALS = np.array([0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 2.0**23 + 1, -7.3, np.inf, -np.inf, np.nan], np.float32)
COUNTS = np.array([0, 1, 2, 3, 255, 2**31, 2**32 - 1], np.uint32)

CASES: dict[str, tuple[str, str, Any, Any]] = {
    "floor(x[at.x])": ("float", "float", REALS, np.floor),
    "ceil(x[at.x])": ("float", "float", REALS, np.ceil),
    "trunc(x[at.x])": ("float", "float", REALS, np.trunc),
    "rint(x[at.x])": ("float", "float", REALS, np.rint),
    "sqrt(abs(x[at.x]))": ("float", "float", REALS, lambda x: np.sqrt(np.abs(x))),
    "rsqrt(fabs(x[at.x]))": ("float", "float", REALS, lambda x: np.float32(1) / np.sqrt(np.abs(x))),
    "precise::min(1.0, x[at.x])": ("float", "float", REALS, lambda x: np.fmin(x, np.float32(1))),
    "precise::max(x[at.x], 1.0)": ("float", "float", REALS, lambda x: np.fmax(x, np.float32(1))),
    "fma(x[at.x], x[at.x], -53.29)": (
        "float",
        "float",
        REALS,
        lambda x: x.astype(np.float64) ** 2 - np.float64(np.float32(53.29)),
    ),
    "x[at.x] * 0.1 + 0.7": ("float", "float", REALS, lambda x: x * np.float32(0.1) + np.float32(0.7)),
    "popcount(x[at.x])": ("uint", "uint", COUNTS, np.bitwise_count),
    "clz(x[at.x])": ("uint", "uint", COUNTS, lambda x: [32 - int(v).bit_length() for v in x]),
    "as_type<uint>(x[at.x])": ("uint", "float", REALS, lambda x: x.view(np.uint32)),
    "float(half(x[at.x]))": ("float", "float", REALS, lambda x: x.astype(np.float16).astype(np.float32)),
}


def _run(expression: str, folder: Path, include: Path = msl_host.INCLUDE) -> tuple[Any, Any]:
    result, kind, x, meaning = CASES[expression]
    text = _KERNEL.format(result=result, kind=kind, expression=expression)
    kernel = msl_host.compile_msl(text, folder, include=include)
    y = np.zeros(len(x), np.uint32 if result == "uint" else np.float32)
    kernel.run({0: y.ctypes.data, 1: x.ctypes.data}, (len(x), 1), 1)
    with np.errstate(all="ignore"):
        return y, np.asarray(meaning(x)).astype(y.dtype)


@pytest.mark.parametrize("expression", CASES)
def test_function_has_its_meaning(expression: str, tmp_path: Path) -> None:
    got, want = _run(expression, tmp_path)
    np.testing.assert_array_equal(got, want)
    if got.dtype == np.float32:
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


FAULTS = [
    ("QD_REAL(floor, __builtin_floor)", "QD_REAL(floor, __builtin_trunc)", "floor(x[at.x])"),
    ("QD_REAL(rint, __builtin_rint)", "QD_REAL(rint, __builtin_round)", "rint(x[at.x])"),
    ("return __builtin_fminf(a, b)", "return a < b ? a : b", "precise::min(1.0, x[at.x])"),
    ("return __builtin_fmaf(a, b, c)", "return a * b + c", "fma(x[at.x], x[at.x], -53.29)"),
    ("bits == 0 ? sizeof(T) * 8 : __builtin_clzl(bits)", "bits == 0 ? 0 : __builtin_clzl(bits)", "clz(x[at.x])"),
]


@pytest.mark.parametrize(("right", "wrong", "expression"), FAULTS, ids=[f[2] for f in FAULTS])
def test_a_planted_fault_is_seen(right: str, wrong: str, expression: str, tmp_path: Path) -> None:
    """The checks above would fail with a header that is wrong."""
    include = tmp_path / "include"
    (include / "simd").mkdir(parents=True)
    text = (msl_host.INCLUDE / "metal_stdlib").read_text()
    assert right in text
    (include / "metal_stdlib").write_text(text.replace(right, wrong))
    got, want = _run(expression, tmp_path, include)
    assert not np.array_equal(got, want, equal_nan=True)


def test_atomics(tmp_path: Path) -> None:
    text = """
    #include <metal_stdlib>
    using namespace metal;
    kernel void main0(device uint& y [[buffer(0)]], uint3 at [[thread_position_in_grid]], uint3 n
    [[threadgroups_per_grid]])
    {
        atomic_fetch_add_explicit((device atomic_uint*)&y, at.x + 100u * at.y + n.y, memory_order_relaxed);
    }
    """
    y = np.zeros(1, np.uint32)
    msl_host.compile_msl(text, tmp_path).run({0: y.ctypes.data}, (2, 3), 4)
    assert y[0] == sum(x + 100 * row + 3 for x in range(8) for row in range(3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kernel void other() { }", "no kernel 'main0'"),
        ("kernel void main0(uint3 at [[unheard_of]]) { }", "no 'unheard_of'"),
        ("kernel void main0() { threadgroup_barrier(mem_flags::mem_none); }", "run together"),
        ("kernel void main0() { int x = metal::no_such_function(1); }", "no_such_function"),
    ],
)
def test_what_cannot_run_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(msl_host.MslError, match=words):
        msl_host.compile_msl("#include <metal_stdlib>\n" + text, tmp_path)
