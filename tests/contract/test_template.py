"""`new-backend`: what it writes is small, installs from local files, is found, and passes the kit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from distributions import ROOT, environment, execute, install, wheel

from qd_core.__main__ import main
from qd_core.cli.scaffold import write_backend

MOST_KERNELS = 450
"""That one run of the kit may compile."""


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
    python = environment(tmp_path)
    install(python, wheel(ROOT, wheels), wheel(chip, wheels))
    assert "mychip" in execute([python, "-m", "qd_core", "doctor"], tmp_path)
    assert "gradient [-0.5" in execute([python, "example.py"], chip)
    text = execute([python, "-m", "pytest", "-q", "--qd-backend=mychip", "--qd-require=mychip"], chip)
    assert "failed 0" in text
    ran, compiled = re.search(r"mychip: ran (\d+), .*; compiled (\d+) kernels", text).groups()  # type: ignore[union-attr]
    assert int(ran) > 300
    assert 100 < int(compiled) <= MOST_KERNELS, "operations are batched: a run of the whole kit stays cheap"
