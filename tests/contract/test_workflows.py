"""The workflows of continuous integration, the sessions they call and the backends there are keep in step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="the extra `test` brings PyYAML")

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict[str, Any]:
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    return yaml.safe_load(text.replace("\non:\n", "\ntriggers:\n"))  # YAML 1.1 takes `on` for a truth value


@cache
def jobs() -> list[dict[str, str]]:
    pytest.importorskip("nox", reason="the extra `dev` brings nox")
    code = "import json, noxfile as n; print(json.dumps(n.jobs()))"
    return json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))


def sessions() -> set[str]:
    listed = subprocess.check_output([sys.executable, "-m", "nox", "-l"], cwd=ROOT, text=True)
    return set(re.findall(r"^[*-] ([\w.-]+(?:\(.*?\))?)", listed, re.MULTILINE))


def test_each_backend_of_this_repository_has_a_job() -> None:
    found = {job["backend"]: job for job in jobs()}
    plugins = {p.parent.name.removeprefix("qd_"): p.parent for p in ROOT.glob("backends/qd_*/pyproject.toml")}
    assert set(found) >= set(plugins) | {"cpu", "reference"}
    for name, folder in plugins.items():
        assert ROOT / found[name]["project"] == folder
    matrix = workflow("ci.yml")["jobs"]["backend"]
    assert matrix["uses"] == "./.github/workflows/backend.yml"
    given = {key: re.fullmatch(r"\$\{\{ matrix\.(\w+) \}\}", value)[1] for key, value in matrix["with"].items()}
    assert given == {key: key for key in jobs()[0]}
    assert set(given) <= set(workflow("backend.yml")["triggers"]["workflow_call"]["inputs"])


def test_sessions_that_are_called_exist() -> None:
    pytest.importorskip("nox", reason="the extra `dev` brings nox")
    steps = [s.get("run", "") for job in workflow("ci.yml")["jobs"].values() for s in job.get("steps", ())]
    text = "\n".join([*steps, *(job["command"] for job in jobs())])
    called = {a or b for a, b in re.findall(r"nox -s (?:\"([^\"$]+)\"|(\w+))", text)} - {""}
    called = {c for c in called if "${{" not in c}
    assert called >= {"lowest_deps", "conformance(backend='cpu')"}
    assert called <= sessions()
    assert {"lint", "types", "golden", "docs", "lowest_deps"} <= sessions()
    pythons = workflow("ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert {f"tests-{version}" for version in pythons} <= sessions()


def test_a_job_is_red_where_its_backend_is_missing() -> None:
    inputs = workflow("backend.yml")["triggers"]["workflow_call"]["inputs"]
    assert '--qd-require="$BACKEND"' in inputs["command"]["default"]
    assert "--qd-require={backend}" in (ROOT / "noxfile.py").read_text(encoding="utf-8")
    (job,) = workflow("backend.yml")["jobs"].values()
    assert set(job["env"]) == set(re.findall(r"\$([A-Z]+)", inputs["command"]["default"]))
    assert [name for name, value in inputs.items() if value.get("required")] == ["backend"]


def test_machines_with_hardware_are_asked_for_by_the_plugin() -> None:
    for job in jobs():
        label = ROOT / job["project"] / "ci-runner.txt"
        lines = [line for line in label.read_text().splitlines() if not line.startswith("#")] if label.exists() else []
        assert job["runner"] == (lines[0] if lines else "ubuntu-latest"), job
