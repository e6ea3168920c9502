"""The shape of the source: who imports whom, who may name a backend, how long files get, what an import loads."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import qd_core
from qd_core.backend.registry import GROUP, OWN, known_extras

ROOT = Path(__file__).parents[2]
CORE = ROOT / "qd_core"

BASE = {"errors", "dtypes"}
MIDDLE = {"passes", "elementary", "autodiff", "frontend"}
PLUGIN = BASE | {"ir", "backend", "codegen", "elementary", "testing"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "_logging": set(),
    "dtypes": {"errors"},
    "ir": BASE,
    **{name: BASE | MIDDLE | {"ir"} for name in MIDDLE},
    "backend": BASE | {"ir"} | MIDDLE,
    "codegen": BASE | {"ir", "elementary", "backend"},
    "runtime": BASE | {"_logging", "ir", "backend", "codegen"} | MIDDLE,
    # `qd.ad.gradcheck` compares with the reference: the meaning of every op.
    "api": BASE | {"_logging", "ir", "backend", "codegen", "runtime", "reference"} | MIDDLE,
    "cpu": PLUGIN,
    "reference": PLUGIN | {"passes"},  # `interpret` runs a function that no launcher has cut into tasks
}
"""What each part of the library may import besides itself. The kit and the tools around it may import all."""

FREE = {"__init__", "__main__", "cli", "compat", "testing"}


def modules(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*.py") if "__pycache__" not in p.parts)


def part(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported(path: Path, package: str) -> set[str]:
    """Parts of `package` that a module imports anywhere, in functions and for type checkers too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith(package + ".")}


def breaches(root: Path, package: str) -> list[str]:
    found = []
    for path in modules(root):
        layer = part(path, root)
        if layer in FREE:
            continue
        wrong = imported(path, package) & (LAYERS.keys() | FREE) - LAYERS[layer] - {layer}
        found += [f"{path.relative_to(root)} imports {package}.{name}" for name in sorted(wrong)]
    return found


def test_imports_point_down_only():
    assert breaches(CORE, "qd_core") == []


def test_every_part_has_a_layer():
    parts = {part(p, CORE) for p in modules(CORE)}
    assert parts <= LAYERS.keys() | FREE


def test_an_upward_import_is_noticed(tmp_path):
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "nodes.py").write_text("def f():\n    from pkg.runtime.launch import x\n    import pkg.errors\n")
    (tmp_path / "cpu.py").write_text("from pkg import runtime\n")
    assert breaches(tmp_path, "pkg") == ["cpu.py imports pkg.runtime", "ir/nodes.py imports pkg.runtime"]


# -- names of backends -------------------------------------------------------------------------------------------------


def plugin_names() -> set[str]:
    """Backends that have plugins: known to core by its data file, in this repository, or installed."""
    folders = {p.parent.name.removeprefix("qd_") for p in (ROOT / "backends").glob("qd_*/pyproject.toml")}
    points = {e.name for e in metadata.entry_points(group=GROUP) if e.dist and e.dist.name != "qd-core"}
    return {*known_extras(), *folders, *points}


def mentions(root: Path, names: set[str], allowed: set[str]) -> list[str]:
    """Lines and file names below `root` that name a backend, but for the `allowed` files and folders."""
    word = re.compile(rf"(?<![a-z])({'|'.join(sorted(names))})(?![a-z])", re.IGNORECASE)
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() or "__pycache__" in name or any(name == a or name.startswith(a + "/") for a in allowed):
            continue
        lines = [name, *path.read_text(encoding="utf-8").splitlines()]
        found += [f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines) if word.search(line)]
    return found


def test_core_names_no_backend():
    assert mentions(CORE, plugin_names(), {"cpu", "backend/known.toml"}) == []


def test_the_data_file_names_them():
    lines = mentions(CORE, set(known_extras()), {"cpu"})
    assert {line.partition(":")[0] for line in lines} == {"backend/known.toml"}
    assert all(any(f'{name} = "{extra}"' in line for line in lines) for name, extra in known_extras().items())


def test_a_named_backend_is_noticed(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nif arch == 'Toy': pass\n")
    (tmp_path / "toy_b.md").write_text("toying\n")
    (tmp_path / "known.toml").write_text("toy = 1\n")
    assert mentions(tmp_path, {"toy"}, {"known.toml"}) == ["a.py:2: if arch == 'Toy': pass", "toy_b.md:0: toy_b.md"]


# -- sizes and names ---------------------------------------------------------------------------------------------------

SOURCES = [p for d in ("qd_core", "backends", "tests", "examples", "benchmarks") for p in modules(ROOT / d)]


def test_no_file_is_long():
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {name: lines for name, lines in sizes.items() if lines > 800} == {}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    documentation = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    return function.end_lineno - function.lineno + 1 - documentation


def test_no_function_is_long():
    long = []
    for path in modules(CORE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > 50:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {code_lines(node)} lines")
    assert long == []


def test_module_names_say_what_is_inside():
    assert [str(p) for p in SOURCES if re.search(r"util|helper|misc|common|manager2|^new_", p.stem)] == []


# -- what an import loads ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Modules of a fresh process after ``import qd_core``."""
    code = "import json, sys, qd_core; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["torch", "llvmlite", "numpy", "scipy", "pluggy", "pytest"])
def test_import_stays_light(loaded, name):
    assert "qd_core" in loaded
    assert name not in loaded


def test_core_knows_its_own_entry_points():
    points = metadata.distribution("qd-core").entry_points
    assert {e.name: e.value for e in points if e.group == GROUP} == dict(OWN)
    assert metadata.version("qd-core") == qd_core.__version__


def test_import_loads_no_backend(loaded):
    points = metadata.entry_points(group=GROUP)
    assert len(points) >= 2
    assert {e.module for e in points} & loaded == set()


# -- the distribution --------------------------------------------------------------------------------------------------


def test_extras():
    extras = set(metadata.metadata("qd-core").get_all("Provides-Extra"))
    assert {"cuda", "amdgpu", "vulkan", "metal", "torch", "test"} <= extras
    assert set(known_extras().values()) <= extras
    wanted = metadata.requires("qd-core")
    for name, extra in known_extras().items():
        assert any(line.startswith(f"qd-{name}") and f"extra == '{extra}'" in line.replace('"', "'") for line in wanted)


def test_the_wheel_is_pure_python():
    wheel = metadata.distribution("qd-core").read_text("WHEEL")
    assert "Tag: py3-none-any" in wheel
    assert "Root-Is-Purelib: true" in wheel


def test_declared_pythons():
    info = metadata.metadata("qd-core")
    assert info["Requires-Python"] == ">=3.10"
    declared = {c.rpartition(" ")[2] for c in info.get_all("Classifier") if "Python :: 3." in c}
    assert declared == {"3.10", "3.11", "3.12", "3.13", "3.14"}


def test_hard_dependencies_are_few():
    hard = {re.split(r"[^\w-]", line)[0] for line in metadata.requires("qd-core") if "extra ==" not in line}
    assert hard == {"numpy", "llvmlite", "pluggy", "tomli"}


@pytest.mark.parametrize("name", ["py.typed", "backend/known.toml"])
def test_package_data_is_installed(name):
    from importlib import resources

    assert resources.files("qd_core").joinpath(name).is_file()
