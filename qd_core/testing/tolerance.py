"""The one rule by which results of devices are compared with the reference.

A real result may differ from the exact value (the reference in f64 on the same operands) by at most 8 times the error
that the reference itself makes in the result's type, plus 4 units in the last place. An f64 result's own error is not
seen in f64: it is the f32 reference's error scaled by the ratio of the two types' precisions, where that is known.
Where elements of one array come from the same code, as in a kernel, the reference's error in the array
is that of its worst element (`together`): which element a cancellation or another order of a sum hits is chance.
Integers and truth values are equal, NaN answers NaN, and an infinity may stand for a finite value only where the rule's
interval reaches beyond the largest number of the type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FACTOR", "ULPS", "allowed_error", "assert_close", "disagreements"]

Array = np.ndarray[Any, Any]

FACTOR = 8.0
"""How many times the reference's own error a device may make."""

ULPS = 4.0
"""Units in the last place that are granted in any case."""

_F32_TO_F64 = float(np.finfo(np.float64).eps) / float(np.finfo(np.float32).eps)


def allowed_error(
    dtype: Any, reference: Array, exact: Array, narrow: Array | None = None, *, together: bool = False
) -> Array:
    """Return the largest permitted distance from ``exact``.

    Parameters
    ----------
    dtype : numpy dtype
        Real type of the result.
    reference : ndarray
        What the reference computes in ``dtype``.
    exact : ndarray
        What it computes in f64.
    narrow : ndarray, optional
        What it computes in f32: only for f64 results.
    together : bool
        The error of the worst element counts for all.

    Returns
    -------
    ndarray
        f64, of the same shape.
    """
    with np.errstate(all="ignore"):
        exact = np.asarray(exact, np.float64)
        own = np.abs(np.asarray(reference, np.float64) - exact)
        if np.dtype(dtype) == np.float64:
            own = (
                np.zeros_like(exact) if narrow is None else np.abs(np.asarray(narrow, np.float64) - exact) * _F32_TO_F64
            )
        own = np.where(np.isfinite(own), own, 0.0)
        if together and own.size:
            own = np.full_like(own, own.max())
        ulp = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
        return FACTOR * own + ULPS * np.where(np.isfinite(ulp), ulp, 0.0)


def disagreements(
    actual: Any, reference: Any, exact: Any = None, narrow: Any = None, *, together: bool = False
) -> Array:
    """Return a mask of the elements that break the rule; see `assert_close`."""
    actual, reference = np.asarray(actual), np.asarray(reference)
    if actual.shape != reference.shape or actual.dtype != reference.dtype:
        raise AssertionError(f"got {actual.dtype}{actual.shape}, wanted {reference.dtype}{reference.shape}")
    with np.errstate(all="ignore"):
        if actual.dtype.kind != "f":
            return np.asarray(actual != reference)
        wide = reference.astype(np.float64) if exact is None else np.asarray(exact, np.float64)
        allowed = allowed_error(actual.dtype, reference, wide, narrow, together=together)
        same = (actual == reference) | (np.isnan(actual) & np.isnan(reference))
        near = np.isfinite(actual) & (np.abs(actual.astype(np.float64) - wide) <= allowed)
        return ~(same | near | _overflows(actual, wide, allowed))


def _overflows(actual: Array, exact: Array, allowed: Array) -> Array:
    """Where an infinity is right for a finite value at the end of the type's range."""
    largest = float(np.finfo(actual.dtype).max)
    return np.isinf(actual) & (np.sign(actual) == np.sign(exact)) & (np.abs(exact) + allowed >= largest)


def assert_close(
    actual: Any,
    reference: Any,
    exact: Any = None,
    narrow: Any = None,
    *,
    together: bool = False,
    what: str = "result",
) -> None:
    """Hold a device's result against the reference.

    Parameters
    ----------
    actual, reference : array_like
        Of one dtype and shape.
    exact : array_like, optional
        The reference's result in f64; where missing, the reference itself.
    narrow : array_like, optional
        The reference's result in f32, for f64 results whose own error matters.
    together : bool
        Results of one kernel: the error of the reference's worst element counts for all.
    what : str
        Name for the message.

    Raises
    ------
    AssertionError
        An element breaks the rule: says how many, and the worst one with its index and the permitted error.
    """
    actual, reference = np.asarray(actual), np.asarray(reference)
    wrong = disagreements(actual, reference, exact, narrow, together=together)
    if not wrong.any():
        return
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    text = f"{what}: {int(wrong.sum())} of {wrong.size} elements differ; first at {tuple(map(int, first))}: "
    text += f"got {actual[first]!r}, the reference has {reference[first]!r}"
    if actual.dtype.kind == "f":
        wide = reference.astype(np.float64) if exact is None else np.asarray(exact, np.float64)
        allowed = allowed_error(actual.dtype, reference, wide, narrow, together=together)[first]
        text += f" (exact {wide[first]!r}, permitted error {allowed:.3g})"
    raise AssertionError(text)
