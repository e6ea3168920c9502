"""Checks that every claim of ``docs/status.toml`` is proven by tests that ran.

The file maps what each issue promises to ids of tests. When core's whole suite was run, or a plugin's (no selection by
path, keyword, marker, backend or earlier failure), each id below it must have been run and passed; an id without
brackets stands for all cases of its test, none of which may have been skipped. A claim with ``needs`` (modules or
programs that must be installed, or ``native launches``, which ``QD_NATIVE_LAUNCH=0`` turns off) is only reported where
they are not there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent
STATUS = ROOT / "docs" / "status.toml"
SELECTING = ("keyword", "markexpr", "lf", "collectonly", "deselect", "stepwise", "qd_backend")
"""Options of pytest and of the kit that leave tests out."""


@dataclass(frozen=True)
class Claim:
    """One promise of an issue and the tests that prove it."""

    issue: int
    text: str
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()


def read_claims(text: str) -> list[Claim]:
    """Claims of a status file; `TypeError` or `KeyError` where an entry is not of that form."""
    return [
        Claim(**{**row, "tests": tuple(row["tests"]), "needs": tuple(row.get("needs", ()))})
        for row in tomllib.loads(text)["claim"]
    ]


def _present(need: str) -> bool:
    """Whether what a claim needs is there."""
    if need == "native launches":
        return os.environ.get("QD_NATIVE_LAUNCH") != "0"
    return find_spec(need) is not None or shutil.which(need) is not None


@dataclass
class Outcomes:
    """What became of each test: the worst of its phases."""

    by_id: dict[str, str] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Take one phase of one test into account."""
        if report.when == "call" or report.outcome != "passed":
            self.by_id[report.nodeid] = report.outcome

    def cases(self, test: str) -> list[str]:
        """Outcomes of the test's cases."""
        return [result for node, result in self.by_id.items() if node == test or node.startswith(test + "[")]

    def unproven(self, claim: Claim) -> Iterable[str]:
        """What is wrong with a claim's tests, one line each."""
        for test in claim.tests:
            results = self.cases(test)
            if not results:
                yield f"{test} did not run"
            elif set(results) != {"passed"}:
                yield f"{test} {' and '.join(sorted(set(results) - {'passed'}))}"


class StatusCheck:
    """Plugin that holds the outcomes of this run against the claims at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes = Outcomes()
        self.problems: list[str] = []
        self.notes: list[str] = []

    def folders(self) -> list[str]:
        """Folders of which nothing was left out by hand, as ids begin: core's tests, or those of plugins."""
        given = [Path(a).absolute() for a in self.config.args]
        everything = [ROOT / path for path in self.config.getini("testpaths")]
        if any(self.config.getoption(name, None) for name in SELECTING):
            return []
        if given == [ROOT]:
            return [""]
        if given == everything or all(p.name == "tests" and p.parents[1] == ROOT / "backends" for p in given):
            return [f"{p.relative_to(ROOT).as_posix()}/" for p in given]
        return []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect, from this process or from the workers."""
        self.outcomes.add(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Judge before the summary is printed, and fail the run where a claim is unproven."""
        folders = self.folders()
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and folders:
            here = tuple(folders)
            claims = read_claims(STATUS.read_text(encoding="utf-8"))
            parts = [replace(c, tests=tuple(t for t in c.tests if t.startswith(here))) for c in claims]
            self._judge(c for c in parts if c.tests)
            if self.problems and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def _judge(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            absent = [need for need in claim.needs if not _present(need)]
            lines = [f"issue {claim.issue}, {claim.text!r}: {line}" for line in self.outcomes.unproven(claim)]
            if absent:
                self.notes.append(f"issue {claim.issue}, {claim.text!r}: not proven here, needs {', '.join(absent)}")
            else:
                self.problems.extend(lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show claims without proof."""
        for line in self.notes:
            terminalreporter.write_line(line)
        if self.problems:
            terminalreporter.section("claims of docs/status.toml without proof", red=True)
            for line in self.problems:
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Register the check in the process that sees all reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(StatusCheck(config), "qd-status-check")
