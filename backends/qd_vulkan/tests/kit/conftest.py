"""The conformance kit, on the device with the validation layer, and on what its code becomes elsewhere: optimised, and
translated as MoltenVK does it.

Run with ``--qd-backend`` and ``vulkan``, ``vulkan_optimized`` or ``vulkan_translated``; otherwise nothing is collected.
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
    """Collect only where one of them is asked for."""
    return None if {*config.getoption("qd_backend")} & {"vulkan", *VARIANTS} else True
