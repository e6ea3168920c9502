"""Philox against the known answers that its authors publish with the Random123 library."""

from __future__ import annotations

import numpy as np
import pytest
from math_evaluation import build, run

from qd_core import dtypes as dt
from qd_core.elementary.random import philox4x32, uniform

KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    region, params = build(lambda b, p: philox4x32(b, p[:2], p[2:]), [dt.u32] * 6)
    got = run(region, params, [np.array([w], np.uint32) for w in (*key, *counter)])
    assert tuple(int(w[0]) for w in got) == words


def test_uniform_is_exact_and_below_one() -> None:
    region, params = build(lambda b, p: [uniform(b, p[0])], [dt.u32])
    words = np.array([0, 255, 256, 0x80000000, 0xFFFFFFFF], np.uint32)
    (got,) = run(region, params, [words])
    np.testing.assert_array_equal(got, (words >> 8).astype(np.float32) * np.float32(2.0**-24))
    assert got.dtype == np.float32
    assert got.max() < 1
