"""The fake device stands for Metal, here and in processes that tests start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HOST = str(Path(__file__).parents[2] / "msl_host")
sys.path[:0] = [str(Path(__file__).parent), _HOST]
os.environ["QD_METAL_DRIVER"] = "metal_host:driver"


@pytest.fixture
def metal() -> Iterator[None]:
    """The backend, chosen."""
    import msl_host

    import qd_core as qd

    if msl_host.clang() is None:
        pytest.skip("clang++ 16 or later is not installed")
    qd.init(arch="metal", enable_fallback=False, offline_cache=False)
    yield
    qd.reset()
