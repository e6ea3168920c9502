"""The kit's pytest plugin in small projects: selecting backends, requiring them, waiving, what it says at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str]]

CONFTEST = """
from qd_core.backend.contract import Availability
from qd_core.backend.registry import registry
from qd_core.testing.fake import FakeBackend
from qd_core.testing.fake.broken import BROKEN

class Absent(FakeBackend):
    def probe(self):
        return Availability(False, "no chip is plugged in", "plug it in")

def pytest_configure():
    registry().register("fake", FakeBackend)
    registry().register("absent", lambda: Absent("absent"))
    registry().register("raising", lambda: BROKEN["raises_in_probe"]("raising"))
"""

TESTS = """
import pytest
from qd_core.testing.plugin import in_slice, requires

def test_plain(device):
    assert device.runtime.backend.name == device.name

@requires("memory.address")
def test_needs_addresses(device):
    assert device.has("memory.address")

@requires("launch.native")
def test_needs_native(device):
    pass

@in_slice("full")
def test_long(device):
    pass
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a small project; give the exit status and what was printed."""

    def run(*words: str, tests: str = TESTS, env: dict[str, str] | None = None, **files: str) -> tuple[int, str]:
        for name, text in {"conftest.py": CONFTEST, "test_x.py": tests, **files}.items():
            (tmp_path / name).write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "qd_core.testing.plugin",
            "--rootdir",
            str(tmp_path),
            *words,
        ]
        variables = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "QD_WANTED_ARCHS")}
        variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | (env or {})
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


def test_tests_run_once_for_each_available_backend(run: Run) -> None:
    status, text = run()
    assert status == 0, text
    assert "fake: ran 2, passed 2, failed 0, waived 0, skipped 1" in text
    assert "cpu: ran 3, passed 3" in text
    assert "1 x lacks launch.native" in text
    assert "absent: unavailable because no chip is plugged in" in text


def test_one_backend_is_selected(run: Run) -> None:
    status, text = run("--qd-backend=reference", "--qd-slice=full")
    assert status == 0, text
    assert "reference: ran 2" in text
    assert "cpu:" not in text


def test_the_environment_selects_and_leaves_out(run: Run) -> None:
    _, text = run(env={"QD_WANTED_ARCHS": "fake,cpu,^cpu"})
    assert "fake: ran" in text
    assert "cpu:" not in text
    _, text = run(env={"QD_WANTED_ARCHS": "^reference"})
    assert "cpu: ran" in text
    assert "reference:" not in text


def test_an_unknown_name_is_refused_with_those_there_are(run: Run) -> None:
    status, text = run("--qd-backend=nochip")
    assert status == pytest.ExitCode.USAGE_ERROR
    known = text.partition("backend 'nochip' is not installed; there are: ")[2].splitlines()[0].split(", ")
    assert {"absent", "cpu", "fake", "raising", "reference"} <= set(known)


def test_an_absent_backend_is_skipped_and_a_required_one_is_red(run: Run) -> None:
    status, text = run("--qd-backend=absent", "-k", "plain")
    assert status == 0, text
    assert "1 x unavailable: no chip is plugged in" in text
    status, text = run("--qd-backend=fake", "--qd-require=absent", "-k", "plain")
    assert status == 1, text
    assert "fake: ran 1, passed 1" in text
    assert "backend 'absent' is required: unavailable: no chip is plugged in" in text


def test_raising_in_probe_is_red(run: Run) -> None:
    status, text = run("--qd-backend=raising", "-k", "plain")
    assert status == 1, text
    assert "probe() of 'raising' raised OSError: cannot open the driver; it must never raise" in text


def test_a_test_that_no_backend_can_run_fails_the_run(run: Run) -> None:
    tests = "from qd_core.testing.plugin import requires\n@requires('subgroup.ballot')\ndef test_x(device): pass\n"
    status, text = run("--qd-backend=fake", tests=tests)
    assert status == 1, text
    assert "needs subgroup.ballot, which no installed backend has: it never runs" in text


def test_one_backend_that_can_run_a_test_is_enough(run: Run) -> None:
    """Of several: skipped on all of them fails the run, and names what is lacking; skipped on some does not."""
    status, text = run("--qd-backend=fake", "--qd-backend=cpu", "-k", "native")
    assert status == 0, text
    assert "fake: ran 0, passed 0, failed 0, waived 0, skipped 1" in text
    assert "cpu: ran 1, passed 1" in text
    status, text = run("--qd-backend=fake", "-k", "native")
    assert status == 0, text  # this run left out the backend that has it
    tests = "from qd_core.testing.plugin import requires\n@requires('launch.native', 'subgroup.ballot')\n"
    status, text = run(tests=tests + "def test_x(device): pass\ndef test_y(device): pass\n")
    assert status == 1, text
    assert text.count("which no installed backend has: it never runs") == 1
    assert "test_x needs launch.native, subgroup.ballot" in text
    assert "cpu: ran 1, passed 1, failed 0, waived 0, skipped 1" in text


def test_kernels_that_a_run_compiles_are_counted(run: Run) -> None:
    tests = """
import numpy as np, pytest, qd_core as qd
@qd.kernel
def double(x: qd.types.ndarray()):
    for i in x:
        x[i] *= 2
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_x(device, dtype):
    for size in (3, 5):
        double(np.zeros(size, dtype))
"""
    _, text = run("--qd-backend=fake", tests=tests)
    assert "fake: ran 2, passed 2, failed 0, waived 0, skipped 0; compiled 2 kernels" in text, text


def test_leaks_fail_the_test_that_made_them(run: Run) -> None:
    status, text = run("--qd-backend=fake", tests="def test_x(device): device.runtime.device.allocate(99)\n")
    assert status == 1, text
    assert "1 buffers were never freed, of 99 bytes" in text
    assert "fake: ran 1, passed 0, failed 1" in text


WAIVER = """
[[waiver]]
test = "test_x"
backend = "fake"
reason = "rounds wrongly"
link = "https://example.org/7"
expires = {}
"""


def test_a_waived_failure_is_counted(run: Run) -> None:
    bad = "def test_x(device): assert device.name == 'reference'\n"
    waivers = {"qd-waivers.toml": WAIVER.format("2999-01-01")}
    status, text = run("--qd-backend=fake", tests=bad, **waivers)
    assert status == 0, text
    assert "fake: ran 1, passed 0, failed 0, waived 1" in text
    assert "1 x waived: rounds wrongly (https://example.org/7)" in text
    status, _ = run("--qd-backend=cpu", tests=bad, **waivers)
    assert status == 1, text


def test_a_waived_test_that_passes_fails_the_run(run: Run) -> None:
    status, text = run(
        "--qd-backend=fake", tests="def test_x(device): pass\n", **{"qd-waivers.toml": WAIVER.format("2999-01-01")}
    )
    assert status == 1, text
    assert "XPASS(strict)" in text


def test_an_expired_or_incomplete_waiver_fails_the_run(run: Run) -> None:
    good = "def test_x(device): pass\n"
    status, text = run("--qd-backend=fake", tests=good, **{"qd-waivers.toml": WAIVER.format("2020-01-01")})
    assert status == 1, text
    assert "an expired waiver: test_x: rounds wrongly" in text
    status, text = run("--qd-backend=fake", tests=good, **{"qd-waivers.toml": "[[waiver]]\ntest = 'test_x'\n"})
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "a waiver needs expires, link, reason, test" in text
