"""Own distributions built into wheels, and installed from those alone into fresh environments."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

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


def environment(folder: Path) -> Path:
    """Make a virtual environment below `folder` that has third-party packages and none of ours; give its Python."""
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = Path(execute([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    others = folder / "third-party"
    others.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().lstrip("_").startswith(("qd_", "qd-", "editable_impl_qd")):
            (others / entry.name).symlink_to(entry)
    (site / "third-party.pth").write_text(f"{others}\n")
    return python


def install(python: Path, *words: str | Path) -> str:
    """Install into an environment, never from an index; what pip says."""
    return execute([sys.executable, "-m", "pip", "--python", python, "install", "--no-index", *words], python.parent)
