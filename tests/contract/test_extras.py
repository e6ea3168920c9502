"""Extras and plugins as users install them: from wheels built here, into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from distributions import ROOT, environment, execute, install, wheel

from qd_core.backend.registry import known_extras
from qd_core.cli.scaffold import write_backend

RUN = """
import numpy as np
import qd_core as qd
qd.init(arch={arch!r}, log_level="error")
@qd.kernel
def double(x: qd.types.ndarray(dtype=qd.f32, ndim=1)):
    for i in x:
        x[i] *= 2
a = np.arange(4, dtype=np.float32)
double(a)
print(a.tolist())
"""

NEXT_MINOR = """
import qd_core.backend.contract as contract
ours = contract.CONTRACT_VERSION
contract.CONTRACT_VERSION = contract.ContractVersion(ours.major, ours.minor + 1)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Core, the plugins of this repository, and for each other extra a generated plugin of that name."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(ROOT, folder)
    for name in known_extras():
        project = ROOT / "backends" / f"qd_{name}"
        if not (project / "pyproject.toml").exists():
            project = folder / "projects" / name
            write_backend(name, project)
        wheel(project, folder)
    return folder


@pytest.fixture(scope="module")
def python(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with all of them, each installed by its extra."""
    made = environment(tmp_path_factory.mktemp("user"))
    for extra in sorted(set(known_extras().values())):
        install(made, "--find-links", wheels, f"qd-core[{extra}]")
    return made


def program(python: Path, code: str) -> Path:
    """Write a program: kernels are read from files."""
    path = python.parent / "program.py"
    path.write_text(code, encoding="utf-8")
    return path


def output(python: Path, code: str) -> str:
    return execute([python, program(python, code)], python.parent)


def test_extras_bring_their_plugins(python: Path) -> None:
    names = "from qd_core.backend.registry import registry; print(*registry().names())"
    assert set(output(python, names).split()) == {"cpu", "reference", *known_extras()}
    assert output(python, RUN.format(arch="cpu")).splitlines()[-1] == "[0.0, 2.0, 4.0, 6.0]"


def test_a_plugin_of_the_previous_minor_runs_on_this_core(wheels: Path, tmp_path: Path) -> None:
    write_backend("older", tmp_path / "older")
    python = environment(tmp_path)
    install(python, "--find-links", wheels, wheel(tmp_path / "older", tmp_path))
    text = output(python, NEXT_MINOR + RUN.format(arch="older"))
    assert text.splitlines()[-1] == "[0.0, 2.0, 4.0, 6.0]"
    assert "older: available" in output(python, NEXT_MINOR + DOCTOR)


DOCTOR = "import sys; from qd_core.__main__ import main; sys.exit(main(['doctor', 'older']))"


def test_core_works_without_a_plugin_that_was_uninstalled(python: Path) -> None:
    name = next(iter(known_extras()))
    execute([sys.executable, "-m", "pip", "--python", python, "uninstall", "--yes", f"qd-{name}"], python.parent)
    assert output(python, RUN.format(arch="cpu")).splitlines()[-1] == "[0.0, 2.0, 4.0, 6.0]"
    lost = program(python, RUN.format(arch=name))
    done = subprocess.run([python, lost], cwd=python.parent, env={"PATH": ""}, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[0.0, 2.0, 4.0, 6.0]", "another device takes its place"
    assert f'python -m pip install "qd-core[{known_extras()[name]}]"' in done.stderr
