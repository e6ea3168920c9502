"""The meaning of `cast`, on NumPy data, independent of what the host's processor does outside a type's range."""

from __future__ import annotations

from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["convert"]

_THROUGH_I32 = frozenset({dt.i8, dt.i16, dt.i32, dt.u8, dt.u16})


def convert(values: Any, to: DType) -> np.ndarray[Any, Any]:
    """Convert NumPy data as the operation `cast` does.

    Parameters
    ----------
    values : numpy array or scalar
        Data of one of the language's types.
    to : DType
        Target type.

    Returns
    -------
    ndarray
        Of dtype ``to.numpy`` and the same shape (0-dimensional for a scalar).
    """
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        if to is dt.u1:
            return np.asarray(values != 0)
        if values.dtype.kind == "f" and not to.is_real:
            return _to_integer(values.astype(np.float64), to)
        return np.asarray(values.astype(to.numpy))


def _to_integer(values: np.ndarray[Any, Any], to: DType) -> np.ndarray[Any, Any]:
    """Truncate f64 values through i32 or i64, whose minimum stands for everything outside the range; then wrap."""
    whole = np.trunc(values)
    low = -(2.0**31) if to in _THROUGH_I32 else -(2.0**63)
    high = 2.0**64 if to is dt.u64 else -low
    inside = (whole >= low) & (whole < high)
    upper = inside & (whole >= 2.0**63)
    small = np.where(inside & ~upper, whole, low).astype(np.int64)
    if to is dt.u64:
        large = np.where(upper, whole - 2.0**63, 0.0).astype(np.uint64) + np.uint64(1 << 63)
        return np.where(upper, large, small.astype(np.uint64))
    return np.asarray(small.astype(to.numpy))
