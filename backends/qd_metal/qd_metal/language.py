"""The Metal Shading Language as a dialect of core's toolkit. Sections are those of its specification, version 3."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qd_core import dtypes as dt
from qd_core.codegen.cstyle.arithmetic import Rule, elementwise
from qd_core.codegen.cstyle.grid import GridDialect
from qd_core.dtypes import DType

__all__ = ["PRELUDE", "TYPES", "dialect"]

TYPES: Mapping[DType, str] = {
    dt.i8: "char", dt.i16: "short", dt.i32: "int", dt.i64: "long", dt.u1: "bool", dt.u8: "uchar", dt.u16: "ushort",
    dt.u32: "uint", dt.u64: "ulong", dt.f16: "half", dt.f32: "float",
}  # fmt: skip
"""Section 2.1; there is no double."""

PRELUDE = """#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

template <typename T> inline device T &qd_at(ulong address) { return *reinterpret_cast<device T *>(address); }
inline device atomic_uint *qd_atomic(ulong address) { return reinterpret_cast<device atomic_uint *>(address); }
inline uint qd_word(ulong address) { return atomic_load_explicit(qd_atomic(address), memory_order_relaxed); }
inline bool qd_swap(ulong address, thread uint &seen, uint next) {
    return atomic_compare_exchange_weak_explicit(
        qd_atomic(address), &seen, next, memory_order_relaxed, memory_order_relaxed);
}
template <typename T> inline T qd_field(uint word, uint shift) { return T(word >> shift); }
template <> inline bool qd_field<bool>(uint word, uint shift) { return (word >> shift & 255u) != 0u; }
template <> inline half qd_field<half>(uint word, uint shift) { return as_type<half>(ushort(word >> shift)); }
template <> inline float qd_field<float>(uint word, uint shift) { return as_type<float>(word); }
inline uint qd_insert(uint word, uint shift, uint mask, uint bits) { return (word & ~(mask << shift)) | bits << shift; }
inline uint qd_with(uint word, uint shift, bool v) { return qd_insert(word, shift, 255u, v ? 1u : 0u); }
inline uint qd_with(uint word, uint shift, uchar v) { return qd_insert(word, shift, 255u, v); }
inline uint qd_with(uint word, uint shift, char v) { return qd_insert(word, shift, 255u, uchar(v)); }
inline uint qd_with(uint word, uint shift, ushort v) { return qd_insert(word, shift, 65535u, v); }
inline uint qd_with(uint word, uint shift, short v) { return qd_insert(word, shift, 65535u, ushort(v)); }
inline uint qd_with(uint word, uint shift, half v) { return qd_insert(word, shift, 65535u, as_type<ushort>(v)); }
inline uint qd_with(uint word, uint shift, uint v) { return v; }
inline uint qd_with(uint word, uint shift, int v) { return uint(v); }
inline uint qd_with(uint word, uint shift, float v) { return as_type<uint>(v); }

#define QD_FETCH(kind, name) \\
    template <typename T> inline T qd_fetch_##kind(ulong address, T value) { \\
        return atomic_##name##_explicit(reinterpret_cast<device atomic<T> *>(address), value, memory_order_relaxed); \\
    }
QD_FETCH(add, fetch_add)
QD_FETCH(min, fetch_min)
QD_FETCH(max, fetch_max)
QD_FETCH(and, fetch_and)
QD_FETCH(or, fetch_or)
QD_FETCH(xor, fetch_xor)
QD_FETCH(exchange, exchange)
#undef QD_FETCH

inline ulong qd_quotient(ulong a, ulong b) { return (a | b) >> 32 ? a / b : ulong(uint(a) / uint(b)); }
inline ulong qd_slot(ulong slot, ulong own, ulong sharing, ulong index) {
    return (slot < own ? slot : own - 1) * sharing + index;
}

inline ulong qd_append(ulong log, ulong site, ulong iteration, uint count) {
    const ulong capacity = qd_at<ulong>(log + 8);
    if (qd_word(log) < capacity) {
        const ulong at = atomic_fetch_add_explicit(qd_atomic(log), count + 2, memory_order_relaxed);
        const ulong record = log + 32 + at * 8;
        if (at + count + 2 <= capacity) {
            qd_at<ulong>(record) = site;
            qd_at<ulong>(record + 8) = iteration;
            return record + 16;
        }
        if (at < capacity) qd_at<ulong>(record) = ~0ul;
    }
    atomic_fetch_add_explicit(qd_atomic(log + 16), 1u, memory_order_relaxed);
    return 0;
}
inline ulong qd_fail(ulong log, ulong site, ulong iteration, uint count) {
    uint seen = 0;
    do {
        if (qd_swap(log + 24, seen, uint(site) + 1u)) return qd_append(log, site, iteration, count);
    } while (seen == 0);
    return 0;
}
inline long qd_payload(float v) {
    const uint bits = as_type<uint>(v);
    const uint magnitude = bits & 0x7fffffffu;
    const bool tiny = magnitude < 0x00800000u;
    const ulong scaled = tiny ? as_type<uint>(float(magnitude)) : magnitude;
    const ulong bias = magnitude >= 0x7f800000u ? 2047 - 255 : tiny ? 1023 - 127 - 149 : 1023 - 127;
    const ulong wide = magnitude == 0 ? 0 : (scaled << 29) + (bias << 52);
    return long(wide | ulong(bits >> 31) << 63);
}

inline long qd_to_i32(float v) { return v >= -0x1p31f && v < 0x1p31f ? long(int(v)) : -2147483648L; }
inline long qd_to_i64(float v) { return v >= -0x1p63f && v < 0x1p63f ? long(v) : -9223372036854775807L - 1; }
inline ulong qd_to_u64(float v) {
    return v >= 0x1p63f && v < 0x1p64f ? ulong(v - 0x1p63f) ^ (1ul << 63) : ulong(qd_to_i64(v));
}

inline int qd_negative(int a) { return int(0u - uint(a)); }
inline long qd_negative(long a) { return long(0ul - ulong(a)); }
inline short qd_negative(short a) { return short(-int(a)); }
inline char qd_negative(char a) { return char(-int(a)); }
template <typename T> inline T qd_div(T a, T b) { return b == T(0) ? T(0) : b == T(-1) ? qd_negative(a) : T(a / b); }
template <typename T> inline T qd_rem(T a, T b) { return b == T(0) || b == T(-1) ? T(0) : T(a % b); }
template <typename T> inline T qd_floordiv(T a, T b) {
    return T(qd_div(a, b) - T(qd_rem(a, b) != T(0) && (a < T(0)) != (b < T(0))));
}
template <typename T> inline T qd_mod(T a, T b) {
    const T r = qd_rem(a, b);
    return r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
}
template <typename T> inline T qd_udiv(T a, T b) { return b == T(0) ? T(0) : T(a / b); }
template <typename T> inline T qd_urem(T a, T b) { return b == T(0) ? T(0) : T(a % b); }
template <typename T> inline T qd_shl(T a, long n, int bits) { return n < 0 || n >= bits ? T(0) : T(a << n); }
template <typename T> inline T qd_shr(T a, long n, int bits) { return n < 0 || n >= bits ? T(0) : T(a >> n); }
template <typename T> inline T qd_sar(T a, long n, int bits) {
    return n < 0 || n >= bits ? (a < T(0) ? T(-1) : T(0)) : T(a >> n);
}
template <typename T> inline int qd_popcnt(T v) { return int(popcount(v)); }
template <typename T> inline int qd_clz(T v, int) { return int(clz(v)); }
"""


def literal(dtype: DType, value: float | int | bool, ctype: str) -> str:
    """Return a constant (section 1.5 and 2.1: suffixes are ``u``, ``l``, ``f``; there is no ``long long``)."""
    if dtype is dt.u1:
        return "true" if value else "false"
    if not dtype.is_real:
        if dtype.is_signed and value == dtype.min and dtype.bits >= 32:
            return f"({ctype}({value + 1}l) - 1)"
        suffix = ("u" if dtype.kind == "u" else "") + ("l" if dtype.bits == 64 else "")
        return f"{ctype}({int(value)}{suffix})"
    if value != value:
        return f"{ctype}(NAN)"
    if value in (float("inf"), float("-inf")):
        return f"{ctype}({'-' if value < 0 else ''}INFINITY)"
    text = str(np.float32(value))
    text = text if any(c in text for c in ".e") else text + ".0"
    return f"{ctype}({text}f)"


def _bitcast(source: DType, to: DType, value: str, ctype: str) -> str:
    return f"as_type<{ctype}>({value})"


def _call(name: str) -> Rule:
    return lambda d, x, t: f"{name}({', '.join(x)})"


def _real(name: str, real: Rule) -> Rule:
    """An operation of reals that is written here, of integers as in C."""
    whole = elementwise(name)
    assert whole is not None
    return lambda d, x, t: real(d, x, t) if d.is_real else whole(d, x, t)


_RULES: Mapping[str, Rule] = {
    "floor": _call("precise::floor"),
    "ceil": _call("precise::ceil"),
    "trunc": _call("precise::trunc"),
    "round": _call("precise::round"),
    "sqrt": _call("precise::sqrt"),
    "rsqrt": lambda d, x, t: f"{t}(1.0f / precise::sqrt(float({x[0]})))",
    "isinf": lambda d, x, t: f"fabs({x[0]}) == INFINITY",
    "abs": _real("abs", _call("fabs")),
    "min": _real("min", _call("fmin")),
    "max": _real("max", _call("fmax")),
    "floordiv": _real("floordiv", lambda d, x, t: f"precise::floor({t}({x[0]} / {x[1]}))"),
    "mod": _real("mod", lambda d, x, t: f"{x[0]} - {t}({x[1]} * precise::floor({t}({x[0]} / {x[1]})))"),
    "raw_div": _real("raw_div", lambda d, x, t: f"precise::trunc({t}({x[0]} / {x[1]}))"),
}

_INTEGERS = ("add", "min", "max", "and", "or", "xor", "exchange")
_RESERVED = frozenset(
    "abs and atomic bool break case char class const constant continue default device do double else enum extern false "
    "float for fragment half if in inline int kernel linear long max metal min need not or own position private public "
    "rest return room select sharing short signed sizeof slots static struct switch template this thread thread_count "
    "thread_index threadgroup total true typedef uchar uint ulong union unsigned ushort using vertex vec void volatile "
    "while words xor log sin cos exp sqrt floor ceil trunc rint fma clamp popcount clz ctz fast precise fabs fmin fmax "
    "isnan isinf rsqrt register goto asm auto catch delete export explicit friend mutable namespace new operator "
    "protected throw try typeid typename virtual wchar_t size_t ptrdiff_t NAN INFINITY grid sampler texture mesh "
    "object visible patch decltype noexcept nullptr static_assert static_cast reinterpret_cast const_cast dynamic_cast "
    "bfloat bitand bitor compl not_eq and_eq or_eq xor_eq alignas alignof char16_t char32_t constexpr thread_local "
    "main".split()
) | {f"n{axis}" for axis in range(16)}


def dialect(features: tuple[str, ...], max_group: int) -> GridDialect:
    """Return the language as a device with ``features`` (`qd_metal.facts`) takes it."""
    natives = {(kind, d) for kind in _INTEGERS for d in (dt.i32, dt.u32)}
    if "native.add.f32" in features:
        natives.add(("add", dt.f32))
    return GridDialect(
        backend="metal",
        types=TYPES,
        prelude=PRELUDE,
        rules=dict(_RULES),
        literal=literal,
        bitcast=_bitcast,
        deduced="auto",
        signature="kernel void {name}(constant long *words [[buffer(0)]], uint3 position [[thread_position_in_grid]], "
        "uint3 grid [[threads_per_grid]])",
        begin=("const ulong thread_index = position.x;", "const ulong thread_count = grid.x;"),
        natives=natives,
        reserved=_RESERVED,
        group=min(256, max_group),
        max_group=max_group,
    )
