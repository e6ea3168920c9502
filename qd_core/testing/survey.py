"""What a backend does and does not do, as data: the operations one by one, and every test of the suite."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qd_core.backend.capabilities import EXTENSIONS, describe, enabled_extensions
from qd_core.backend.contract import CONTRACT_VERSION
from qd_core.backend.registry import core_version, registry

if TYPE_CHECKING:
    from qd_core.testing.device import DeviceUnderTest

__all__ = ["Collector", "survey"]

Table = dict[str, dict[str, str]]
"""Row and column to ``"pass"``, ``"unsupported"``, or what is wrong."""


@dataclass
class Collector:
    """A pytest plugin that keeps the outcome of every test.

    Attributes
    ----------
    outcomes : dict
        Test with parameters to ``"passed"``, ``"failed"`` or ``"skipped"`` and the reason.
    """

    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the worst phase."""
        if report.when != "call" and report.outcome == "passed":
            return
        name = report.nodeid.rpartition("::")[2]
        if report.outcome == "passed":
            self.outcomes[name] = ("passed", "")
        elif report.outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.outcomes[name] = ("skipped", reason.removeprefix("Skipped: "))
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcomes[name] = ("failed", str(crash.message if crash is not None else report.longrepr))


def survey(name: str, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    """Examine a backend.

    Parameters
    ----------
    name : str
        Of the backend.
    arguments : tuple of str
        Further words for pytest.

    Returns
    -------
    dict
        Ready for JSON; `qd_core.testing.page` shows it.

    Raises
    ------
    BackendLoadError
        It cannot be loaded, or cannot run here.
    """
    from qd_core.testing.device import open_device

    registry().available(name)
    with contextlib.redirect_stdout(io.StringIO()):
        device = open_device(name)
        result = {**_identity(device), "operations": _operations(device), "gradients": _gradients(device)}
        device.close()
    return {**result, "tests": _tests(name, arguments)}


def _identity(device: DeviceUnderTest) -> dict[str, Any]:
    entry, claims = registry().entry(device.name), device.capabilities
    extensions = enabled_extensions(claims)
    return {
        "backend": device.name,
        "distribution": entry.owner,
        "core": core_version(),
        "contract": str(CONTRACT_VERSION),
        "device": device.runtime.info.name,
        "target": device.runtime.info.target.name,
        "compiler": device.runtime.compiler.identity(),
        "capabilities": {claim: describe(claim) for claim in claims.names()},
        "limits": dict(claims.limits),
        "extensions": {e: "yes" if e in extensions else "no" for e, needs in EXTENSIONS.items() if needs is not None},
    }


def _entered(table: Table, problems: dict[str, list[str]], dtype: str) -> None:
    for op, texts in problems.items():
        table.setdefault(op, {})[dtype] = texts[0] if texts else "pass"


def _operations(device: DeviceUnderTest) -> Table:
    """Each operation on each dtype, forward, in global memory."""
    from qd_core.testing.compare import EXACT
    from qd_core.testing.samples import samples
    from qd_core.testing.suite import elementwise

    table: Table = {}
    for group in elementwise.groups():
        if device.has(*group.needs()):
            _entered(table, elementwise.problems(device, group, samples, EXACT), group.dtype.name)
        else:
            for op in group.ops:
                table.setdefault(op.name, {})[group.dtype.name] = "unsupported"
    return table


def _gradients(device: DeviceUnderTest) -> Table:
    """The gradient of each differentiable operation on each real dtype."""
    from qd_core.testing.suite import op_gradients

    table: Table = {}
    for group in op_gradients.REAL:
        if not group.ops:
            continue
        if not device.has(*group.needs()):
            found = {op.name: ["unsupported"] for op in group.ops}
        else:
            try:
                found = op_gradients.gradients(device, group)
            except Exception as error:
                found = {op.name: [f"{type(error).__name__}: {error}"] for op in group.ops}
        _entered(table, found, group.dtype.name)
    return table


def _tests(name: str, arguments: tuple[str, ...]) -> list[dict[str, str]]:
    """Run the suite under pytest and return one entry a test."""
    import pytest

    collector = Collector()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder, "test_conformance.py")
        path.write_text("from qd_core.testing.suite import *\n", encoding="utf-8")
        words = ["-q", "-p", "no:cacheprovider", "--rootdir", folder, f"--qd-backend={name}", *arguments]
        pytest.main([*words, str(path)], plugins=[collector])
    return list(_rows(collector, name))


def _rows(collector: Collector, name: str) -> Iterator[dict[str, str]]:
    for test, (outcome, reason) in collector.outcomes.items():
        title, _, rest = test.partition("[")
        parameters = "-".join(p for p in rest.removesuffix("]").split("-") if p and p != name)
        yield {"test": title, "parameters": parameters, "outcome": outcome, "reason": reason}
