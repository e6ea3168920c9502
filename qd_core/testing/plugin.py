"""The pytest side of the conformance kit: which backends a run tests, and what it says about them.

The fixture ``device`` runs a test once for every backend that is installed and available: there is no list. A test says
what it needs by `requires`, never by a backend's name.

=========================== ===========================================================================================
``--qd-backend NAME``       only this backend (repeatable)
``--qd-require NAME``       this backend must be available: its tests fail where they would be left out (repeatable)
``--qd-slice NAME``         ``smoke``, ``ci`` (default) or ``full``: how much is run
``QD_WANTED_ARCHS``         comma-separated names, ``^name`` leaves one out
=========================== ===========================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from qd_core.testing.report import BackendReport, without_backend
from qd_core.testing.waivers import FILE_NAME, Waiver, find_waiver, read_waivers

if TYPE_CHECKING:
    from qd_core.testing.device import DeviceUnderTest

__all__ = ["device", "in_slice", "requires"]

pytest.register_assert_rewrite("qd_core.testing.suite")

SLICES = ("smoke", "ci", "full")

requires = pytest.mark.qd_requires
"""``@requires("atomic.add.f32", …)``: skip on backends that do not claim these capabilities."""

in_slice = pytest.mark.qd_slice
"""``@in_slice("full")``: the smallest slice that runs the test; unmarked tests belong to ``ci``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("qd-core", "backends of qd-core")
    group.addoption(
        "--qd-backend", action="append", default=[], metavar="NAME", help="test only this backend (repeatable)"
    )
    group.addoption(
        "--qd-require", action="append", default=[], metavar="NAME", help="fail where this backend is not available"
    )
    group.addoption("--qd-slice", choices=SLICES, default="ci", help="how much of the kit to run")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marks; start the report."""
    config.addinivalue_line("markers", "qd_requires(*names): capabilities that a device test needs")
    config.addinivalue_line("markers", "qd_slice(name): smallest slice that runs the test")
    config.addinivalue_line("markers", "qd_options(**options): options of qd.init for a device test")
    try:
        waivers = read_waivers(config.rootpath)
    except ValueError as error:
        raise pytest.UsageError(f"{FILE_NAME}: {error}") from None
    report = BackendReport(config, tested_backends, waivers)
    config.pluginmanager.register(report, "qd-backend-report")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse names of backends that are not installed."""
    tested_backends(session.config)


def option(config: pytest.Config, name: str) -> list[str]:
    """Return what was given for a repeatable option of the kit."""
    given: Any = config.getoption(name)
    return list(given)


def wanted(names: Sequence[str], text: str) -> list[str]:
    """Those of ``names`` that ``text`` (the form of ``QD_WANTED_ARCHS``) selects."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    chosen = {word for word in words if not word.startswith("^")}
    dropped = {word[1:] for word in words if word.startswith("^")}
    return [name for name in names if (not chosen or name in chosen) and name not in dropped]


def tested_backends(config: pytest.Config) -> list[str]:
    """Return the names this run tests, whether available or not.

    Raises
    ------
    pytest.UsageError
        A name that was asked for is not installed.
    """
    from qd_core.backend.registry import registry

    installed = registry().names()
    asked = [*option(config, "qd_backend"), *option(config, "qd_require")]
    missing = [name for name in asked if name not in installed]
    if missing:
        raise pytest.UsageError(f"backend {missing[0]!r} is not installed; there are: {', '.join(installed)}")
    selected = wanted(installed, os.environ.get("QD_WANTED_ARCHS", ""))
    selected = option(config, "qd_backend") or selected
    return list(dict.fromkeys([*selected, *option(config, "qd_require")]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run device tests once a backend."""
    if "qd_backend_name" not in metafunc.fixturenames:
        return
    names = tested_backends(metafunc.config)
    if not metafunc.config.getoption("qd_backend"):
        from qd_core.backend.registry import registry

        required = option(metafunc.config, "qd_require")
        names = [name for name in names if name in required or registry().probe(name).available]
    metafunc.parametrize("qd_backend_name", names, ids=names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what larger slices hold; expect waived tests to fail."""
    report = config.pluginmanager.get_plugin("qd-backend-report")
    assert isinstance(report, BackendReport)
    for item in items:
        waive(item, report.waivers)
    limit = SLICES.index(config.getoption("qd_slice"))
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if SLICES.index(_slice_of(item)) <= limit else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def waive(item: pytest.Item, waivers: Sequence[Waiver]) -> None:
    """Expect a waived test to fail, strictly: passing fails the run."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    name = parameters.get("qd_backend_name")
    if name is None or not waivers:
        return
    waiver = find_waiver(waivers, without_backend(item.name, name), name)
    if waiver is not None and not waiver.expired:
        item.add_marker(pytest.mark.xfail(reason=f"waived: {waiver.reason} ({waiver.link})", strict=True))


def _slice_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("qd_slice")
    if mark is not None:
        return str(mark.args[0])
    return "ci" if "qd_backend_name" in getattr(item, "fixturenames", ()) else "smoke"


@pytest.fixture
def device(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, qd_backend_name: str
) -> Iterator[DeviceUnderTest]:
    """Open a backend's first device and make it the active one; afterwards, close it and compare allocations.

    Skips where a required capability is not claimed. The mark ``qd_options`` passes options to ``qd.init``.
    """
    from qd_core.testing.device import open_device, untested

    name = qd_backend_name
    node: Any = request.node
    node.user_properties.append(("qd_backend", name))
    needs = [capability for mark in node.iter_markers("qd_requires") for capability in mark.args]
    node.user_properties.append(("qd_requires", tuple(needs)))
    try:
        reason = untested(name, needs)
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)
    if reason:
        if name in option(request.config, "qd_require") and reason.startswith("unavailable"):
            pytest.fail(f"backend {name!r} is required: {reason}", pytrace=False)
        pytest.skip(reason)
    monkeypatch.delenv("QD_ARCH", raising=False)
    options: dict[str, Any] = {}
    for mark in node.iter_markers("qd_options"):
        options = {**mark.kwargs, **options}
    opened = open_device(name, options)
    yield opened
    node.user_properties.append(("qd_compiled", opened.compiled))
    opened.close()
