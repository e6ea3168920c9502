"""The workloads: what each is called, where its implementations are, and how much work one run is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Step

Implementation = Callable[..., Step]


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes
    ----------
    source : str
        ``module:attribute`` of a mapping from the peer's name to a function of ``n`` and the options.
    n : int
        Size.
    work : float
        Units of work of one run.
    unit : str
        What is counted, per second.
    options : mapping
        Further arguments of the implementations.
    tolerance : float
        Relative difference of checksums that rounding explains.
    """

    source: str
    n: int
    work: float
    unit: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-3

    def implementations(self) -> Mapping[str, Implementation]:
        """Load the implementations; importing them imports no peer."""
        module, _, name = self.source.partition(":")
        return getattr(importlib.import_module(f"benchmarks.workloads.{module}"), name)


WORKLOADS: dict[str, Workload] = {
    "saxpy 3e6": Workload("stream:SAXPY", 3_000_000, 3e6 * 12e-9, "GB"),
    "saxpy 3e7": Workload("stream:SAXPY", 30_000_000, 3e7 * 12e-9, "GB"),
    "stencil5 3e6": Workload("stream:STENCIL", 1732, 1732**2 * 8e-9, "GB"),
    "sum 2e6": Workload("stream:SUM", 2_000_000, 2e6 * 4e-9, "GB"),
    "histogram 2e6": Workload("stream:HISTOGRAM", 2_000_000, 2e6 * 4e-9, "GB"),
    "n-body 2048 AoS": Workload("nbody:AOS", 2048, 2048**2 * 20e-9, "Gflop"),
    "n-body 4096 SoA": Workload("nbody:SOA", 4096, 4096**2 * 20e-9, "Gflop"),
    "mpm88 8192": Workload("mpm88:MPM88", 8192, 8192e-6, "M particles"),
    "rigid 4096 x 20": Workload("rigid:RIGID", 4096, 4096 * 20e-6, "M links"),
    "AD loop 64 x 2000": Workload("gradient:LOOP", 2000, 2000 * 64e-6, "M iterations", tolerance=5e-2),
    "AD loop 64 x 1e5": Workload("gradient:LOOP", 100_000, 1e5 * 64e-6, "M iterations", tolerance=5e-2),
    "mass-spring 4096 x 100": Workload("springs:SPRINGS", 64, 0.1, "k steps", tolerance=1e-2),
    "launch, 1 ndarray": Workload("launch:NATIVE", 1, 1e-6, "M launches"),
    "launch, 20 ndarrays": Workload("launch:NATIVE", 20, 1e-6, "M launches"),
    "launch, 20 NumPy arrays": Workload("launch:NUMPY", 20, 1e-6, "M launches"),
}

SETS: dict[str, tuple[str, ...]] = {
    "slice": ("launch, 1 ndarray", "launch, 20 ndarrays", "AD loop 64 x 2000", "AD loop 64 x 1e5"),
    "gradients": tuple(name for name in WORKLOADS if name.startswith(("AD", "mass"))),
    "loops": tuple(name for name in WORKLOADS if not name.startswith("launch")),
    "launch": tuple(name for name in WORKLOADS if name.startswith("launch")),
    "all": tuple(WORKLOADS),
}
