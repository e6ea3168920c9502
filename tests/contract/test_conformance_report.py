"""`python -m qd_core conformance`: the report as data and as a page, in a real browser where one is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from qd_core.__main__ import main
from qd_core.backend.contract import CONTRACT_VERSION
from qd_core.backend.registry import registry
from qd_core.testing.fake.broken import BROKEN
from qd_core.testing.page import page

NAME = "truncates_a_dtype"
KEYWORD = "test_kinds_and_sizes or test_copies_of_parts or f64"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports on a backend that keeps f32 where it claims f64."""
    folder = tmp_path_factory.mktemp("report")
    registry().register(NAME, lambda: BROKEN[NAME](NAME))
    assert main(["conformance", NAME, "--folder", str(folder), "--keyword", KEYWORD]) == 1
    registry().unregister(NAME)
    return folder / NAME


@pytest.fixture
def data(report: Path) -> dict[str, Any]:
    return json.loads(report.with_suffix(".json").read_text())


def test_each_operation_stands_for_itself(data: dict[str, Any]) -> None:
    operations = data["operations"]
    assert operations["sqrt"]["f32"] == operations["add"]["i64"] == "pass"
    assert operations["sqrt"]["f64"].startswith("sqrt of f64: ")
    assert operations["isnan"]["f64"] == "pass"
    assert "i32" not in operations["sqrt"]
    assert data["gradients"]["sqrt"]["f32"] == "pass"
    assert data["gradients"]["sqrt"]["f64"].startswith("gradient of sqrt of f64")


def test_tests_extensions_and_versions_are_reported(data: dict[str, Any]) -> None:
    outcomes = {(t["test"], t["parameters"]): t["outcome"] for t in data["tests"]}
    assert outcomes["test_kinds_and_sizes", "numpy-grad"] == "passed"
    assert outcomes["test_operations", "f64-1"] == "failed"
    assert data["extensions"]["data64"] == "yes"
    assert data["extensions"]["bls"] == "no"
    assert data["capabilities"]["type.f64.global"] == "f64 in global memory"
    assert data["contract"] == str(CONTRACT_VERSION)


class Reader(HTMLParser):
    """Collects the cells of tables by their class."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[str] = []
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input"):
            self.opened.append(tag)
        if tag == "td":
            self.classes.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def test_the_page_is_whole_and_escapes_what_it_shows(report: Path, data: dict[str, Any]) -> None:
    reader = Reader()
    reader.feed(report.with_suffix(".html").read_text())
    assert reader.opened == []
    assert reader.classes.count("pass") > 300
    assert reader.classes.count("fail") > 10
    data["tests"][0]["reason"] = "<script>alert(1)</script>"
    assert "<script>alert" not in page(data)


@pytest.mark.skipif(BROWSER is None, reason="no browser (chromium) is installed")
def test_a_browser_shows_the_page_and_filters_rows(report: Path, tmp_path: Path) -> None:
    """The page's own script runs: typing into the filter leaves the matching row."""
    text = report.with_suffix(".html").read_text()
    probe = """<script>
    const input = document.querySelector('input[data-table="operations"]');
    input.value = "sqrt";
    input.dispatchEvent(new Event("input"));
    const shown = [...document.getElementById("operations").tBodies[0].rows].filter(r => r.offsetHeight > 0);
    document.title = shown.map(r => r.cells[0].textContent).join(" ")
        + " " + getComputedStyle(document.querySelector("td.fail")).backgroundColor;
    </script></body>"""
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", probe))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert "<title>rsqrt" in done.stdout or "<title>sqrt" in done.stdout, done.stderr[-2000:]
    assert "sqrt rsqrt rgb(248, 208, 208)</title>" in done.stdout


def test_a_missing_backend_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "nochip"]) == 2
    assert "no backend is called 'nochip'" in capsys.readouterr().out
