"""Helpers that emitted code calls, in C99.

Integer arithmetic goes through unsigned types, so nothing overflows; divisions have no fault; shifts know their width;
conversions saturate and wrap as the op table says.
"""

from __future__ import annotations

__all__ = ["HOST_PRELUDE"]

_HEAD = """#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline int64_t qd_to_i32(double v) { v = trunc(v); return v >= -0x1p31 && v < 0x1p31 ? (int64_t)v : INT32_MIN; }
static inline int64_t qd_to_i64(double v) { v = trunc(v); return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN; }
static inline uint64_t qd_to_u64(double v) {
    v = trunc(v);
    if (v >= 0x1p63 && v < 0x1p64) return (uint64_t)v;
    return v >= -0x1p63 && v < 0x1p63 ? (uint64_t)(int64_t)v : (uint64_t)1 << 63;
}
static inline int qd_popcnt(uint64_t v) { int n = 0; while (v) { v &= v - 1; n++; } return n; }
static inline int qd_clz(uint64_t v, int bits) { while (v) { v >>= 1; bits--; } return bits; }
static inline int64_t qd_floordiv(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return (int64_t)(0 - (uint64_t)a);
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t qd_mod(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline int64_t qd_div(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
static inline int64_t qd_rem(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static inline uint64_t qd_udiv(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }
static inline uint64_t qd_urem(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }
static inline uint64_t qd_shl(uint64_t a, int64_t n, int bits) { return n < 0 || n >= bits ? 0 : a << n; }
static inline uint64_t qd_shr(uint64_t a, int64_t n, int bits) { return n < 0 || n >= bits ? 0 : a >> n; }
static inline int64_t qd_sar(int64_t a, int64_t n, int bits) { return n < 0 || n >= bits ? (a < 0 ? -1 : 0) : a >> n; }
static inline int64_t qd_bits(double v) { int64_t w; memcpy(&w, &v, 8); return w; }

static int64_t *qd_append(int64_t *log, int64_t site, int64_t iteration, int64_t count) {
    if (log[0] + 2 + count > log[1]) { log[2]++; return 0; }
    int64_t *record = log + 4 + log[0];
    log[0] += 2 + count;
    record[0] = site;
    record[1] = iteration;
    return record + 2;
}
static int64_t *qd_fail(int64_t *log, int64_t site, int64_t iteration, int64_t count) {
    if (log[3]) return 0;
    log[3] = site + 1;
    return qd_append(log, site, iteration, count);
}
"""

_BITCAST = """static inline {to} qd_{source}_as_{name}({given} v) {{ {to} w; memcpy(&w, &v, sizeof w); return w; }}
"""

_NAMES = {
    "i8": "int8_t", "u8": "uint8_t", "i16": "int16_t", "u16": "uint16_t", "i32": "int32_t", "u32": "uint32_t",
    "i64": "int64_t", "u64": "uint64_t", "f32": "float", "f64": "double",
}  # fmt: skip

HOST_PRELUDE = _HEAD + "".join(
    _BITCAST.format(to=to, source=source, name=name, given=given)
    for source, given in _NAMES.items()
    for name, to in _NAMES.items()
    if source != name and source[1:] == name[1:]
)
"""Head of a file of C99."""
