"""What a run says about each backend at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from qd_core.testing.waivers import Waiver

__all__ = ["BackendReport", "Tally", "without_backend"]


@dataclass(slots=True)
class Tally:
    """Tests of one backend: outcomes, skips by their reason, and kernels that were compiled for them."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    compiled: int = 0

    def lines(self, name: str) -> Iterator[str]:
        """Yield the backend's part of the summary."""
        passed, failed, skipped = (self.outcomes[k] for k in ("passed", "failed", "skipped"))
        waived = self.outcomes["waived"]
        ran = passed + failed + waived
        counts = f"ran {ran}, passed {passed}, failed {failed}, waived {waived}, skipped {skipped}"
        yield f"{name}: {counts}; compiled {self.compiled} kernels"
        for reason, count in self.reasons.most_common():
            yield f"    {count} x {reason}"


class BackendReport:
    """Plugin that counts device tests by backend, and fails runs that tested less than they should have.

    Parameters
    ----------
    config : pytest.Config
        Of the run.
    tested : callable
        Gives the names that the run tests.
    waivers : sequence of Waiver
        Failures that the repository expects.
    """

    def __init__(
        self, config: pytest.Config, tested: Callable[[pytest.Config], list[str]], waivers: Sequence[Waiver] = ()
    ) -> None:
        self.config, self.tested, self.waivers = config, tested, waivers
        self.tallies: dict[str, Tally] = {}
        self.called: dict[str, str] = {}
        self.needs: dict[str, tuple[str, ...]] = {}
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect, from this process or from the workers."""
        properties: dict[str, Any] = dict(report.user_properties)
        name = properties.get("qd_backend")
        if name is None:
            return
        if report.when == "teardown":
            self.tallies.setdefault(name, Tally()).compiled += int(properties.get("qd_compiled", 0))
        if not (report.when == "call" or report.outcome != "passed"):
            return
        tally = self.tallies.setdefault(name, Tally())
        waived = hasattr(report, "wasxfail")
        outcome = "waived" if waived else report.outcome
        tally.outcomes[outcome] += 1
        if report.when == "call":
            self.called[report.nodeid] = outcome
        elif report.when == "teardown":  # the test itself was counted already
            tally.outcomes[self.called.get(report.nodeid, "failed")] -= 1
        if waived:
            tally.reasons[str(report.wasxfail)] += 1
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            tally.reasons[reason.removeprefix("Skipped: ")] += 1
            self.needs[without_backend(report.nodeid, name)] = tuple(properties.get("qd_requires", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run where a required backend was missing or a test can run nowhere."""
        if hasattr(self.config, "workerinput") or session.exitstatus not in (0, 1, 5):
            return
        self.problems = [*self._required(), *self._nowhere(), *self._expired()]
        if self.problems and session.exitstatus != pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _required(self) -> Iterator[str]:
        from qd_core.testing.device import untested

        required: Any = self.config.getoption("qd_require")
        for name in required:
            try:
                reason = untested(name, ())
            except AssertionError as error:
                reason = str(error)
            if reason:
                yield f"backend {name!r} is required: {reason}"

    def _expired(self) -> Iterator[str]:
        return (f"an expired waiver: {waiver}" for waiver in self.waivers if waiver.expired)

    def _nowhere(self) -> Iterator[str]:
        """Tests whose capabilities no installed and available backend claims: nothing would ever run them."""
        from qd_core.backend.requirements import owners

        for test, needs in self.needs.items():
            if needs and not set[str].intersection(*(set(owners(name)) for name in needs)):
                yield f"{test} needs {', '.join(needs)}, which no installed backend has: it never runs"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say for each backend what ran, or why nothing did."""
        if self.tallies:
            terminalreporter.section("backends")
            for line in self._lines():
                terminalreporter.write_line(line)
        for problem in self.problems:
            terminalreporter.write_line(f"ERROR: {problem}", red=True)

    def _lines(self) -> Iterator[str]:
        from qd_core.backend.registry import registry

        for name in self.tested(self.config):
            if name in self.tallies:
                yield from self.tallies[name].lines(name)
                continue
            answer = registry().probe(name)
            yield f"{name}: ran nothing" if answer.available else f"{name}: unavailable because {answer.reason}"


def without_backend(nodeid: str, name: str) -> str:
    """Return a test's id without the backend among its parameters."""
    test, bracket, parameters = nodeid.partition("[")
    rest = [p for p in parameters.removesuffix("]").split("-") if p != name]
    return test + (bracket + "-".join(rest) + "]" if rest else "")
