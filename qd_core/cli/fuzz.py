"""``python -m qd_core fuzz``: random kernels on a backend, compared with the reference."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("--backend", required=True, metavar="NAME", help="backend to run on")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="first seed: the same seeds make the same kernels")
    parser.add_argument("--folder", type=Path, default=Path("fuzzed"), help="where test files of failing kernels go")


def run(options: argparse.Namespace) -> int:
    """Fuzz; return 1 where a kernel failed, 2 where the tools or the backend are missing."""
    try:
        from qd_core.testing.fuzz_run import fuzz
    except ModuleNotFoundError as error:
        print(f"fuzzing needs {error.name}: python -m pip install 'qd-core[test]'")
        return 2
    from qd_core.errors import QuadrantsError
    from qd_core.testing.device import open_device

    try:
        device = open_device(options.backend)
    except QuadrantsError as error:
        print(error)
        return 2
    result = fuzz(device, 60 * options.minutes, options.folder, options.seed)
    device.close()
    print(f"{options.backend}: {result.kernels} kernels, {len(result.failures)} failures")
    for path in result.failures:
        print(f"  pytest {path} --qd-backend={options.backend}")
    return 1 if result.failures else 0
