"""Algorithms over whole arrays: functions to call at the top level of a kernel, with scratch that the caller owns.

Each is a sequence of parallel loops over tiles of `TILE` elements (`SORT_TILE` when sorting), with a serial pass over
what the tiles found between them, so that every backend has them and results do not depend on the number of threads.
Scratch is a one-dimensional array of u32, or u64 for elements of 8 bytes where the algorithm keeps elements in it
(reductions and scans). It need not be initialised; its size is what the ``*_scratch_slots`` functions say.

``n``, the number of elements, may be read from memory; ``log256_max_n`` says that it is at most ``256**log256_max_n``
and is accepted for programs that pass it. Nothing beyond ``n`` is read or written.

Source: scans and compaction as Blelloch, Prefix sums and their applications, CMU-CS-90-190; sorting by digits from the
lowest as Knuth, The Art of Computer Programming 3, 5.2.5.
"""

# Annotations of kernels are values, which the front end reads.
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportUnusedVariable=false

from __future__ import annotations

from typing import Any

import qd_core as qd
from qd_core.api.ops import func
from qd_core.errors import ArgumentValueError

__all__ = [
    "PrefixSumExecutor",
    "exclusive_scan_add",
    "exclusive_scan_max",
    "exclusive_scan_min",
    "exclusive_scan_scratch_slots",
    "parallel_sort",
    "reduce_add",
    "reduce_by_key_add",
    "reduce_by_key_scratch_slots",
    "reduce_max",
    "reduce_min",
    "reduce_scratch_slots",
    "select",
    "select_scratch_slots",
    "sort",
    "sort_scratch_slots",
]

TILE = 256
SORT_TILE = 1024
DIGITS = 256
ADD, MIN, MAX = 0, 1, 2


def _tiles(n: int, tile: int) -> int:
    return max(-(-int(n) // tile), 1)


def reduce_scratch_slots(n: int, log256_max_n: int | None = None) -> int:
    """Slots of scratch that reducing up to ``n`` elements takes."""
    return _tiles(n, TILE)


exclusive_scan_scratch_slots = select_scratch_slots = reduce_by_key_scratch_slots = reduce_scratch_slots


def sort_scratch_slots(n: int, log256_max_n: int | None = None) -> int:
    """Slots of scratch that sorting up to ``n`` elements takes."""
    return _tiles(n, SORT_TILE) * DIGITS


# -- words: elements in scratch, whose type is unsigned ----------------------------------------------------------------
@func
def _identity(op: qd.template(), dtype: qd.template()):
    result = qd.cast(0, dtype)
    if qd.static(op == MIN):
        result = qd.cast(dtype.max if not dtype.is_real else qd.math.inf, dtype)
    if qd.static(op == MAX):
        result = qd.cast(dtype.min if not dtype.is_real else -qd.math.inf, dtype)
    return result


@func
def _joined(a, b, op: qd.template()):
    result = a
    if qd.static(op == ADD):
        result = a + b
    if qd.static(op == MIN):
        result = qd.min(a, b)
    if qd.static(op == MAX):
        result = qd.max(a, b)
    return result


@func
def _reduce(arr: qd.template(), out: qd.template(), scratch: qd.template(), n, dtype: qd.template(), op: qd.template()):
    tiles = (n + (TILE - 1)) // TILE
    whole = n // qd.max(tiles, 1)
    for b in range(tiles):
        # Every tiles-th element: neighbouring iterations read neighbouring elements.
        total = _identity(op, dtype)
        for k in range(whole):
            total = _joined(total, arr[k * tiles + b], op)
        if whole * tiles + b < n:
            total = _joined(total, arr[whole * tiles + b], op)
        scratch[b] = qd.bit_cast(total, scratch.dtype)
    for _ in range(1):
        total = _identity(op, dtype)
        for b in range(tiles):
            total = _joined(total, qd.bit_cast(scratch[b], dtype), op)
        out[0] = total


@func
def _scan(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    op: qd.template(),
    inclusive: qd.template(),
):
    tiles = (n + (TILE - 1)) // TILE
    for b in range(tiles):
        total = _identity(op, dtype)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            total = _joined(total, arr[i], op)
        scratch[b] = qd.bit_cast(total, scratch.dtype)
    for _ in range(1):
        before = _identity(op, dtype)
        for b in range(tiles):
            total = qd.bit_cast(scratch[b], dtype)
            scratch[b] = qd.bit_cast(before, scratch.dtype)
            before = _joined(before, total, op)
    for b in range(tiles):
        before = qd.bit_cast(scratch[b], dtype)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            after = _joined(before, arr[i], op)
            if qd.static(inclusive):
                out[i] = after
            else:
                out[i] = before
            before = after


@func
def _counts_before(scratch: qd.template(), num_out: qd.template(), tiles):
    """Turn counts of tiles into how many come before each; the total goes to ``num_out[0]``."""
    for _ in range(1):
        before = qd.u32(0)
        for b in range(tiles):
            count = scratch[b]
            scratch[b] = before
            before += count
        num_out[0] = qd.cast(before, num_out.dtype)


@func
def reduce_add(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store the sum of the first ``n`` elements of ``arr``, of type ``dtype``, in ``out[0]``."""
    _reduce(arr, out, scratch, n, dtype, ADD)


@func
def reduce_min(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store the minimum of the first ``n`` elements of ``arr``, of type ``dtype``, in ``out[0]``."""
    _reduce(arr, out, scratch, n, dtype, MIN)


@func
def reduce_max(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store the maximum of the first ``n`` elements of ``arr``, of type ``dtype``, in ``out[0]``."""
    _reduce(arr, out, scratch, n, dtype, MAX)


@func
def exclusive_scan_add(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store in ``out[i]`` the sum of the elements of ``arr`` before ``i``; ``out`` may be ``arr``."""
    _scan(arr, out, scratch, n, dtype, ADD, False)


@func
def exclusive_scan_min(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store in ``out[i]`` the minimum of the elements of ``arr`` before ``i``; ``out`` may be ``arr``."""
    _scan(arr, out, scratch, n, dtype, MIN, False)


@func
def exclusive_scan_max(
    arr: qd.template(),
    out: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Store in ``out[i]`` the maximum of the elements of ``arr`` before ``i``; ``out`` may be ``arr``."""
    _scan(arr, out, scratch, n, dtype, MAX, False)


@func
def select(
    arr: qd.template(),
    flags: qd.template(),
    out: qd.template(),
    num_out: qd.template(),
    scratch: qd.template(),
    n,
    log256_max_n: qd.template(),
):
    """Copy the elements of ``arr`` whose flag is not 0 to the front of ``out``, in order, and count them in
    ``num_out[0]``.
    """
    tiles = (n + (TILE - 1)) // TILE
    for b in range(tiles):
        count = qd.u32(0)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            if flags[i] != 0:
                count += qd.u32(1)
        scratch[b] = count
    _counts_before(scratch, num_out, tiles)
    for b in range(tiles):
        at = qd.cast(scratch[b], qd.i32)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            if flags[i] != 0:
                out[at] = arr[i]
                at += 1


@func
def _is_head(keys: qd.template(), i):
    return i == 0 or keys[i] != keys[qd.max(i - 1, 0)]


@func
def reduce_by_key_add(
    keys_in: qd.template(),
    values_in: qd.template(),
    keys_out: qd.template(),
    values_out: qd.template(),
    num_runs: qd.template(),
    scratch: qd.template(),
    n,
    value_dtype: qd.template(),
    log256_max_n: qd.template(),
):
    """Add up the values of each run of equal keys: key and sum of run r go to ``keys_out[r]`` and ``values_out[r]``,
    the number of runs to ``num_runs[0]``. A run is added by one thread, in order.
    """
    tiles = (n + (TILE - 1)) // TILE
    for b in range(tiles):
        count = qd.u32(0)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            if _is_head(keys_in, i):
                count += qd.u32(1)
        scratch[b] = count
    _counts_before(scratch, num_runs, tiles)
    for b in range(tiles):
        run = qd.cast(scratch[b], qd.i32)
        for i in range(b * TILE, qd.min((b + 1) * TILE, n)):
            if _is_head(keys_in, i):
                key = keys_in[i]
                total = qd.cast(values_in[i], value_dtype)
                j = i + 1
                while j < n and keys_in[qd.min(j, n - 1)] == key:
                    total += values_in[j]
                    j += 1
                keys_out[run] = key
                values_out[run] = total
                run += 1


# -- sorting by digits of 8 bits, the lowest first ---------------------------------------------------------------------
@func
def _ordered_bits(key, dtype: qd.template()):
    """Bits of a key as an unsigned number in the keys' order; zeros are equal, and NaN comes last."""
    word = qd.static(qd.u64 if dtype.nbytes == 8 else qd.u32)
    top = qd.cast(1, word) << qd.static(8 * dtype.nbytes - 1)
    bits = qd.bit_cast(key, word)
    if qd.static(dtype.is_real):
        if key == 0:
            bits = top
        elif key != key:
            bits = ~qd.cast(0, word)
        elif (bits & top) != 0:
            bits = ~bits
        else:
            bits = bits | top
    elif qd.static(dtype.is_signed):
        bits = bits ^ top
    return bits


@func
def _digit(key, dtype: qd.template(), shift: qd.template()):
    return qd.cast((_ordered_bits(key, dtype) >> shift) & 255, qd.i32)


@func
def _sort_pass(
    keys: qd.template(),
    to_keys: qd.template(),
    values: qd.template(),
    to_values: qd.template(),
    scratch: qd.template(),
    n,
    dtype: qd.template(),
    has_values: qd.template(),
    shift: qd.template(),
):
    tiles = (n + (SORT_TILE - 1)) // SORT_TILE
    for b in range(tiles):
        for d in range(DIGITS):
            scratch[d * tiles + b] = qd.u32(0)
        for i in range(b * SORT_TILE, qd.min((b + 1) * SORT_TILE, n)):
            d = _digit(keys[i], dtype, shift)
            scratch[d * tiles + b] = scratch[d * tiles + b] + qd.u32(1)
    for _ in range(1):
        before = qd.u32(0)
        for k in range(tiles * DIGITS):
            count = scratch[k]
            scratch[k] = before
            before += count
    for b in range(tiles):
        for i in range(b * SORT_TILE, qd.min((b + 1) * SORT_TILE, n)):
            d = _digit(keys[i], dtype, shift)
            at = scratch[d * tiles + b]
            scratch[d * tiles + b] = at + qd.u32(1)
            to_keys[qd.cast(at, qd.i32)] = keys[i]
            if qd.static(has_values):
                to_values[qd.cast(at, qd.i32)] = values[i]


@func
def sort(
    keys: qd.template(),
    tmp_keys: qd.template(),
    values: qd.template(),
    tmp_values: qd.template(),
    scratch: qd.template(),
    n,
    key_dtype: qd.template(),
    has_values: qd.template(),
    end_bit: qd.template(),
    log256_max_n: qd.template(),
):
    """Sort the first ``n`` keys, of 32 or 64 bits, ascending and stably, and ``values`` with them where ``has_values``.

    ``tmp_keys`` and ``tmp_values`` are overwritten. Only the lowest ``end_bit`` bits of the order decide: those of the
    number for unsigned keys, all (32 or 64) for others. NaN comes last.
    """
    qd.static_assert(key_dtype.nbytes == 4 or key_dtype.nbytes == 8, "qd.algorithms.sort takes keys of 32 or 64 bits")
    qd.static_assert(0 < end_bit <= 8 * key_dtype.nbytes, "end_bit must be 1 to the number of bits of a key")
    for p in qd.static(range((end_bit + 7) // 8)):
        if qd.static(p % 2 == 0):
            _sort_pass(keys, tmp_keys, values, tmp_values, scratch, n, key_dtype, has_values, 8 * p)
        else:
            _sort_pass(tmp_keys, keys, tmp_values, values, scratch, n, key_dtype, has_values, 8 * p)
    if qd.static((end_bit + 7) // 8 % 2 == 1):
        for i in range(n):
            keys[i] = tmp_keys[i]
            if qd.static(has_values):
                values[i] = tmp_values[i]


# -- called from Python ------------------------------------------------------------------------------------------------
@qd.kernel
def _sort_kernel(
    keys: qd.Tensor,
    tmp_keys: qd.Tensor,
    values: qd.Tensor,
    tmp_values: qd.Tensor,
    scratch: qd.Tensor,
    n: qd.i32,
    dtype: qd.template(),
    has_values: qd.template(),
):
    sort(keys, tmp_keys, values, tmp_values, scratch, n, dtype, has_values, qd.static(8 * dtype.nbytes), 4)


@qd.kernel
def _scan_kernel(arr: qd.Tensor, scratch: qd.Tensor, n: qd.i32):
    _scan(arr, arr, scratch, n, arr.dtype, ADD, True)


def parallel_sort(keys: Any, values: Any = None) -> None:
    """Sort a one-dimensional field or array of keys of 32 or 64 bits ascending, and ``values`` with them.

    Allocates scratch at every call; `sort` in a kernel does not.

    Raises
    ------
    ArgumentValueError
        The shapes differ or have more than one axis.
    """
    n = _length(keys)
    if values is not None and _length(values) != n:
        raise ArgumentValueError(f"there are {n} keys and {_length(values)} values")
    if n == 0:
        return
    tmp_keys, scratch = qd.ndarray(keys.dtype, n), qd.ndarray(qd.u32, sort_scratch_slots(n))
    if values is None:
        _sort_kernel(keys, tmp_keys, keys, tmp_keys, scratch, n, keys.dtype, False)
    else:
        _sort_kernel(keys, tmp_keys, values, qd.ndarray(values.dtype, n), scratch, n, keys.dtype, True)


class PrefixSumExecutor:
    """Inclusive sums in place.

    Parameters
    ----------
    length : int
        Number of elements of the arrays; scratch is allocated once.
    """

    def __init__(self, length: int) -> None:
        self.length = int(length)
        self._scratch: dict[int, Any] = {}

    def run(self, input_arr: Any) -> None:
        """Replace every element of a one-dimensional field or array by the sum of the elements up to it.

        Raises
        ------
        ArgumentValueError
            The array has another length.
        """
        n = _length(input_arr)
        if n != self.length:
            raise ArgumentValueError(f"the sums were made for {self.length} elements, and the array has {n}")
        nbytes = input_arr.dtype.nbytes
        if nbytes not in self._scratch:
            kind = {4: qd.u32, 8: qd.u64}.get(nbytes)
            if kind is None:
                raise ArgumentValueError(f"sums are of elements of 32 or 64 bits, not {input_arr.dtype}")
            self._scratch[nbytes] = qd.ndarray(kind, exclusive_scan_scratch_slots(n))
        _scan_kernel(input_arr, self._scratch[nbytes], n)


def _length(array: Any) -> int:
    if len(array.shape) != 1 or getattr(array, "element_shape", ()):
        raise ArgumentValueError(f"algorithms take one-dimensional arrays of scalars, not {array!r}")
    return int(array.shape[0])
