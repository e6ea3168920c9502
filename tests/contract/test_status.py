"""`docs/status.toml`: its form, that its ids exist, and that a claim without proof fails a run of the whole suite."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CLAIMS = tomllib.loads((ROOT / "docs" / "status.toml").read_text(encoding="utf-8"))["claim"]


def defined(path: Path) -> set[str]:
    """Ids (without the file) of the test functions of a module, those that it takes over by a star included."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
        elif isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            module = ROOT.joinpath(*node.module.split("."))
            found |= defined(module / "__init__.py" if module.is_dir() else module.with_suffix(".py"))
    return found


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c['issue']}-{c['text'][:40]}")
def test_a_claim_names_tests_that_exist(claim):
    assert set(claim) <= {"issue", "text", "tests", "needs"}
    assert isinstance(claim["issue"], int)
    assert claim["text"]
    assert claim["tests"]
    for test in claim["tests"]:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), f"{file} does not exist"
        assert re.sub(r"\[.*", "", name) in defined(ROOT / file), f"{test} does not exist"


def test_no_claim_stands_twice():
    texts = [(claim["issue"], claim["text"]) for claim in CLAIMS]
    assert len(set(texts)) == len(texts)


SURFACE = """
0 default types
0 promotion
0 wraparound
0 true division
0 floor division and modulo
0 division by zero
0 powers
0 shifts
0 comparison
0 and, or, not
0 casts
0 rounding
0 unary functions
0 variables
0 scope
0 kernel arguments
0 return
0 outermost loops
0 break and continue
0 range
0 other loops
0 augmented assignment
0 unsupported
0 indexing
0 Python scope
0 literals and containers
3 primitive types
3 compound types
3 predicates and ref
3 quantised types and matrix builders
3 types of qd.math
4 kernel
4 func
4 real_func
4 pyfunc
4 data_oriented
4 dataclass
4 perf_dispatch and pure
4 calls
4 scalar arguments
4 annotations
5 template
5 scalars, vectors, matrices, structs
5 arrays
5 Tensor
5 dataclasses
5 text annotations and Optional
5 many arguments
6 field
6 field members
6 ndarray
6 tensor
6 Vector and Matrix
6 structs
6 nodes
7 loop_config
7 block_local, cache_read_only, mesh_local
7 assume_in_range
7 static, static_assert, static_print
7 zero, one, grouped, ndrange, stop_grad, volatile_load
7 global_thread_idx, clock_counter, clock_freq_hz
8 elementary functions
8 builtins
8 select and choice
8 linear algebra
8 qd.math
8 random numbers
9 atomics
14 assert
14 print
14 QD_DUMP_IR
19 exceptions
""".strip().splitlines()
"""Lines of the user-facing interface, by section: each works, or is refused with a typed error, and has its claim."""


def test_every_line_of_the_interface_has_its_claim():
    covered = [c["text"].removeprefix("API ").partition(":")[0] for c in CLAIMS if c["text"].startswith("API ")]
    assert covered == SURFACE


PROJECT = {
    "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n',
    "tests/test_some.py": """
import pytest
def test_good(): pass
def test_skips(): pytest.skip("no device")
@pytest.mark.parametrize("n", [1, 2])
def test_cases(n):
    if n == 2: pytest.skip("no second")
""",
}


@pytest.fixture
def run(tmp_path):
    """Run a small project with this repository's check and one claim; give the exit status and what was printed."""
    for name, text in {**PROJECT, "conftest.py": (ROOT / "conftest.py").read_text()}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").mkdir()

    def run(test: str, *words: str, more: str = "") -> tuple[int, str]:
        claim = f'[[claim]]\nissue = 1\ntext = "it works"\ntests = ["tests/test_some.py::{test}"]\n{more}\n'
        (tmp_path / "docs" / "status.toml").write_text(claim)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("test", ["test_good", "test_cases[1]"])
def test_a_proven_claim_passes(run, test):
    status, text = run(test)
    assert status == 0, text
    assert "without proof" not in text


@pytest.mark.parametrize(
    ("test", "why"),
    [("test_gone", "did not run"), ("test_skips", "skipped"), ("test_cases", "skipped"), ("test_cases[2]", "skipped")],
)
def test_an_unproven_claim_fails_the_whole_run(run, test, why):
    status, text = run(test)
    assert status == 1, text
    assert f"issue 1, 'it works': tests/test_some.py::{test} {why}" in text


def test_workers_report_to_the_check(run):
    status, text = run("test_skips", "-p", "xdist.plugin", "-n", "1")
    assert status == 1, text
    assert "test_skips skipped" in text
    assert run("test_good", "-p", "xdist.plugin", "-n", "1")[0] == 0


@pytest.mark.parametrize("words", [("tests/test_some.py",), ("-k", "good")])
def test_a_partial_run_judges_nothing(run, words):
    status, text = run("test_gone", *words)
    assert status == 0, text


def test_a_plugins_run_judges_what_is_claimed_of_it(run, tmp_path):
    plugin = tmp_path / "backends" / "qd_some" / "tests" / "test_own.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text("import pytest\ndef test_own(): pytest.skip('no device')\n")
    more = 'tests = ["tests/test_some.py::test_good", "backends/qd_some/tests/test_own.py::test_own"]'
    claim = f'[[claim]]\nissue = 2\ntext = "of both"\n{more}'
    assert run("test_good", more=claim)[0] == 0  # core's run: the plugin's part is not asked for
    status, text = run("test_good", "backends/qd_some/tests", more=claim)
    assert status == 1, text
    assert "issue 2, 'of both': backends/qd_some/tests/test_own.py::test_own skipped" in text


def test_a_claim_may_need_a_module_or_a_program(run):
    status, text = run("test_skips", more='needs = ["qd_nowhere"]')
    assert status == 0, text
    assert "'it works': not proven here, needs qd_nowhere" in text
    assert run("test_skips", more='needs = ["json"]')[0] == 1
    assert run("test_skips", more='needs = ["sh"]')[0] == 1
