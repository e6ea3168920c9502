"""The fake device stands for Metal, here and in processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HOST = str(Path(__file__).parents[2] / "msl_host")
sys.path[:0] = [str(Path(__file__).parent), _HOST]
os.environ["QD_METAL_DRIVER"] = "metal_host:driver"
