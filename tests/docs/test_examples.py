"""The examples that learn by gradients, in short form: each fails by itself where it does not reach its aim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "words", "picture"),
    [
        ("throw_spring", ["--steps", "150", "--iterations", "12", "--side", "3"], "throw.png"),
        ("identify_pendulum", ["--steps", "40"], "fit.png"),
    ],
)
def test_an_example_reaches_its_aim(tmp_path: Path, name: str, words: list[str], picture: str) -> None:
    for module in ("matplotlib", "tqdm", "scipy"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words, "--out", str(tmp_path)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / picture).stat().st_size > 5000
