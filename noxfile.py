"""Sessions for developers and CI. `./dev ci` is what must pass on one machine; these take it apart.

Own distributions are built into ``dist`` and installed by path: never from an index.
"""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
EMBEDDED = sorted(PROJECT["entry-points"]["qd_core.backends"])
RUNNER = "ubuntu-latest"
PLUGINS = sorted(p.parent.name.removeprefix("qd_") for p in ROOT.glob("backends/qd_*/pyproject.toml"))


def jobs() -> list[dict[str, str]]:
    """What the job of each backend is given (``.github/workflows/backend.yml``).

    The label of a machine with its hardware stands in the plugin's ``ci-runner.txt``; others run on any.
    """
    folders = {**dict.fromkeys(EMBEDDED, Path()), **{name: Path("backends") / f"qd_{name}" for name in PLUGINS}}
    return [
        {
            "backend": name,
            "project": folder.as_posix(),
            "runner": next(iter(dev.lines_of(ROOT / folder / "ci-runner.txt")), RUNNER),
            "command": f"python -m pip install nox && python -m nox -s \"conformance(backend='{name}')\"",
        }
        for name, folder in folders.items()
    ]


nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = False

_loader = SourceFileLoader("dev", str(ROOT / "dev"))
_spec = spec_from_loader("dev", _loader)
assert _spec is not None
dev = module_from_spec(_spec)
_loader.exec_module(dev)


def install(session: nox.Session, *extras: str, backend: str = "") -> None:
    """Install core's wheel, what it requires with `extras`, and the plugin of one backend."""
    session.install(dev.BUILD_TOOL)
    chosen = [ROOT] + ([ROOT / "backends" / f"qd_{backend}"] if backend in PLUGINS else [])
    for project in chosen:
        wheel = build(session, project)
        session.install("pip", *dev.third_party(wheel, extras if project == ROOT else ["test"]))
        session.install("--no-index", "--no-deps", "--force-reinstall", str(wheel))


def build(session: nox.Session, project: Path) -> Path:
    """Build a project's wheel into ``dist``."""
    name = dev.package_name(project)
    for old in dev.DIST.glob(f"{name}-*.whl"):
        old.unlink()
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(dev.DIST)]
    session.run("python", "-m", "pip", "wheel", *options, str(project))
    (wheel,) = dev.DIST.glob(f"{name}-*.whl")
    return wheel


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests on one interpreter, with either packer; torch where its tested build is."""
    install(session, "test", "examples")
    if session.python == dev.dotted(dev.TORCH_PYTHON):
        session.install(dev.TORCH)
    for native in "01":
        session.run("pytest", "-q", *session.posargs, env={"QD_NATIVE_LAUNCH": native})


@nox.session
@nox.parametrize("backend", [*EMBEDDED, *PLUGINS])
def conformance(session: nox.Session, backend: str) -> None:
    """Device tests and, for a plugin, its own tests on one backend alone; a missing device is red."""
    install(session, "test", backend=backend)
    folders = ["tests/device"] + ([f"backends/qd_{backend}/tests"] if backend in PLUGINS else [])
    session.run("pytest", "-q", *folders, f"--qd-backend={backend}", f"--qd-require={backend}", *session.posargs)


@nox.session
@nox.parametrize("variant", ["vulkan_optimized", "vulkan_translated"])
def vulkan_variants(session: nox.Session, variant: str) -> None:
    """The kit on what Vulkan's code becomes elsewhere: after spirv-opt, and as Metal text executed on the host."""
    install(session, "test", backend="vulkan")
    kit = "backends/qd_vulkan/tests/kit"
    session.run("pytest", "-q", kit, f"--qd-backend={variant}", f"--qd-require={variant}", *session.posargs)


@nox.session
def golden(session: nox.Session) -> None:
    """Golden intermediate code and generated text; ``-- --update-golden`` rewrites it."""
    install(session, "test")
    session.run("pytest", "-q", "tests/unit/test_ir_text.py", *session.posargs)


@nox.session(python=dev.dotted(dev.TORCH_PYTHON))
def types(session: nox.Session) -> None:
    """Check types with pyright in strict mode."""
    install(session, "test", "dev")
    session.install(dev.TORCH)  # its types are checked
    session.run("pyright")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff."""
    session.install(*(line for line in PROJECT["optional-dependencies"]["dev"] if line.startswith("ruff")))
    session.run("ruff", "check", ".")


@nox.session
def docs(session: nox.Session) -> None:
    """Examples in docstrings and pages run as they are written."""
    install(session, "test")
    session.run("pytest", "-q", "--doctest-modules", "--doctest-glob=*.md", "--pyargs", "qd_core", "docs")


@nox.session(python=PYTHONS[0])
def lowest_deps(session: nox.Session) -> None:
    """The oldest Python with the oldest hard dependencies that core declares."""
    install(session, "test")
    wheel = build(session, ROOT)
    hard = [line.partition(";")[0].strip() for line in dev.third_party(wheel, [])]
    lowest = [re.sub(r"^([\w-]+).*>=([\w.]+).*$", r"\1==\2", line) for line in hard]
    session.install(*lowest, *dev.third_party(wheel, ["test"]))
    session.run("pytest", "-q", *session.posargs)


@nox.session(name="build")
def build_all(session: nox.Session) -> None:
    """Wheels of core and of every plugin, in ``dist``."""
    session.install(dev.BUILD_TOOL)
    for project in dev.projects():
        session.log("built %s", build(session, project).name)
