"""`new-backend`: what it writes is small, installs from local files, is found, and passes the kit."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from qd_core.__main__ import main
from qd_core.cli.scaffold import write_backend

ROOT = Path(__file__).parents[2]


def execute(command: Sequence[str | Path], cwd: Path) -> str:
    """Run a command without the variables that point at this run; `AssertionError` with its output where it fails."""
    hidden = ("PYTEST_ADDOPTS", "PYTHONPATH", "QD_WANTED_ARCHS", "QD_ARCH")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def wheel(project: Path, folder: Path) -> Path:
    """Build a project's wheel, from local files alone."""
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    execute([sys.executable, "-m", "pip", "wheel", *options, project], folder)
    return max(folder.glob("*.whl"), key=lambda p: p.stat().st_mtime)


def test_a_new_backend_has_at_most_300_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-backend", "mychip", "--folder", str(tmp_path / "chip")]) == 0
    files = [p for p in (tmp_path / "chip").rglob("*") if p.is_file()]
    assert sum(len(p.read_text().splitlines()) for p in files) <= 300
    assert "@" not in "".join(p.read_text() for p in files if p.suffix == ".toml")
    assert "pytest --qd-backend=mychip" in capsys.readouterr().out
    assert (tmp_path / "chip/tests/test_conformance.py").read_text().splitlines() == [
        "from qd_core.testing.suite import *"
    ]


@pytest.mark.parametrize("name", ["My", "1x", "a-b", ""])
def test_names_that_cannot_be_used_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a backend"):
        write_backend(name, tmp_path / "x")


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").write_text("mine")
    assert main(["new-backend", "mychip", "--folder", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_new_backend_installs_from_wheels_and_passes_the_kit(tmp_path: Path) -> None:
    chip, wheels = tmp_path / "chip", tmp_path / "wheels"
    wheels.mkdir()
    write_backend("mychip", chip)
    built = [wheel(ROOT, wheels), wheel(chip, wheels)]
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(execute([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip())
    execute(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, *built],
        tmp_path,
    )
    # Third-party packages come from this environment; our own distributions were found first.
    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert str(site) in execute([python, "-c", "import qd_core; print(qd_core.__file__)"], tmp_path)
    assert "mychip" in execute([python, "-m", "qd_core", "doctor"], tmp_path)
    assert "gradient [-0.5" in execute([python, "example.py"], chip)
    text = execute([python, "-m", "pytest", "-q", "--qd-backend=mychip", "--qd-require=mychip"], chip)
    assert "mychip: ran" in text
    assert "failed 0" in text
