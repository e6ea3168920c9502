"""The conformance kit on what the backend's code becomes elsewhere: optimised, and translated as MoltenVK does it.

Run with ``--qd-backend=vulkan_optimized`` or ``--qd-backend=vulkan_translated``; otherwise nothing is collected here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from optimized import OptimizedBackend
from translated import TranslatedBackend

from qd_core.backend.registry import registry

VARIANTS = {b.name: b for b in (OptimizedBackend, TranslatedBackend)}

for _name, _backend in VARIANTS.items():
    if _name not in registry().names():
        registry().register(_name, _backend)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only where a variant is asked for."""
    asked = {*config.getoption("qd_backend"), *config.getoption("qd_require")}
    return None if asked & set(VARIANTS) else True
