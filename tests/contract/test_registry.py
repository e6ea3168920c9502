"""Discovery with real distribution metadata: plugins that fail in every way leave the others working.

Each plugin is a tiny distribution (a ``dist-info`` folder and a module) in a folder of its own on the import path.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qd_core.backend.contract import CONTRACT_VERSION, Availability, Backend
from qd_core.backend.registry import Registry, core_version, known_extras
from qd_core.cli import doctor
from qd_core.errors import (
    BackendLoadError,
    BackendUnavailableError,
    ContractVersionError,
    DuplicateBackendError,
    UnknownBackendError,
)

WORKING = """
from qd_core.backend.contract import Availability, Backend, ContractVersion, DeviceInfo, Target
from qd_core.backend.capabilities import CapabilitySet
from qd_core.backend.hookspecs import hookimpl

class Plugin(Backend):
    name = {name!r}
    contract = ContractVersion({major}, {minor})
    priority = {priority}
    target = Target("toy-1", CapabilitySet(limits={{"workers": 2}}))

    def probe(self):
        return Availability(True)
    def targets(self):
        return [self.target]
    def devices(self):
        return [DeviceInfo(0, "a toy", self.target)]
    def compiler(self, target):
        raise NotImplementedError
    def open(self, info, options):
        raise NotImplementedError
{more}
"""

INSTALLED = frozenset(Registry().names())
"""Backends that this environment really has, plugins included."""

COUNTER = itertools.count()
MAJOR, MINOR = CONTRACT_VERSION.major, CONTRACT_VERSION.minor


def working(name: str, contract: tuple[int, int] = (MAJOR, MINOR), priority: int = 0, more: str = "") -> str:
    """Code of a plugin that loads and lists one device, unless `more` overrides a method."""
    return WORKING.format(name=name, major=contract[0], minor=contract[1], priority=priority, more=more)


class World:
    """Folders with plugins, on the path of this process and of children."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.monkeypatch = root, monkeypatch
        self.paths: list[Path] = []

    def add(self, name: str, code: str, *, dist="", version="1.2.3", requires="qd-core>=0.1,<1", metadata=True) -> str:
        """Install a distribution that offers backend `name`; give its module's name."""
        dist = dist or f"qd-{name}"
        module = f"plugin_{name}_{next(COUNTER)}"
        folder = self.root / module
        info = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        (info / "entry_points.txt").write_text(f"[qd_core.backends]\n{name} = {module}:Plugin\n")
        if metadata:
            head = f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\nRequires-Dist: numpy\n"
            (info / "METADATA").write_text(head + (f"Requires-Dist: {requires}\n" if requires else ""))
        self.monkeypatch.syspath_prepend(str(folder))
        self.paths.append(folder)
        return module

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, self.paths))
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def refused(backends: Registry, name: str, kind: type[BackendLoadError] = BackendLoadError) -> BackendLoadError:
    """The error of asking for a backend; the same at the second time."""
    with pytest.raises(kind) as first:
        backends.load(name)
    with pytest.raises(kind) as second:
        backends.load(name)
    assert str(first.value) == str(second.value)
    answer = backends.probe(name)
    assert not answer.available
    assert first.value.message in answer.reason
    assert answer.remedy == first.value.hint
    return first.value


def test_core_brings_cpu_and_reference():
    backends = Registry()
    assert {"cpu", "reference"} <= set(backends.names())
    assert all(backends.entry(name).distribution == "qd-core" for name in ("cpu", "reference"))


def test_nothing_is_imported_before_it_is_asked_for(world):
    module = world.add("lazy", working("lazy"))
    backends = Registry()
    assert "lazy" in backends.names()
    assert backends.entry("lazy").version == "1.2.3"
    assert module not in sys.modules
    plugin = backends.load("lazy")
    assert module in sys.modules
    assert isinstance(plugin, Backend)
    assert backends.load("lazy") is plugin
    assert backends.available("lazy") is plugin


BROKEN = {
    "ImportError": ("import qd_nowhere", "ModuleNotFoundError: No module named 'qd_nowhere'"),
    "SyntaxError": ("def f(:\n", "SyntaxError: "),
    "SystemExit": ("import sys\nsys.exit(3)", "SystemExit: 3"),
    "BaseException": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "no such attribute": ("Other = 1", "AttributeError: "),
    "constructor": ("class Plugin:\n    def __init__(self): raise OSError('no driver')", "OSError: no driver"),
    "not a backend": (f"class Plugin:\n    class contract: major, minor = {MAJOR}, {MINOR}", "TypeError: "),
    "no contract": ("class Plugin: pass", "TypeError: the attribute `contract` is None"),
    "abstract": ("from qd_core.backend.contract import Backend\nclass Plugin(Backend): name = 'bad'", "TypeError: "),
    "other name": (working("worse"), "ValueError: the backend calls itself 'worse'"),
    "misspelt hook": (
        working("bad", more="    @hookimpl\n    def qd_doctor_row(self, backend): return []"),
        "PluginValidationError: unknown hook 'qd_doctor_row'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_plugin_that_fails_is_named_with_cause_versions_and_remedy(world, fault):
    code, cause = BROKEN[fault]
    world.add("good", working("good"))
    world.add("bad", code)
    backends = Registry()
    error = refused(backends, "bad")
    assert error.message.startswith("backend 'bad' of qd-bad 1.2.3 could not be loaded: " + cause)
    assert type(error.__cause__).__name__ == cause.partition(":")[0]
    assert (
        f"qd-bad 1.2.3 (requires qd-core>=0.1,<1), qd-core {core_version()} with contract {CONTRACT_VERSION}"
        in error.why
    )
    assert "pip install --upgrade --force-reinstall qd-bad" in error.hint
    assert "pip uninstall qd-bad" in error.hint
    assert backends.probe("good") == Availability(True)
    assert [b.name for b in backends.accelerators() if b.name not in INSTALLED] == ["good"]


def test_keyboard_interrupt_is_not_recorded(world):
    world.add("slow", "raise KeyboardInterrupt")
    backends = Registry()
    with pytest.raises(KeyboardInterrupt):
        backends.load("slow")
    assert backends.entry("slow").failure is None


@pytest.mark.parametrize(
    ("contract", "behind"),
    [((MAJOR + 1, 0), "qd-core"), ((MAJOR, MINOR + 1), "qd-core"), ((MAJOR - 1, 7), "qd-bad")],
)
def test_another_contract_is_refused_with_both_versions_and_the_command(world, contract, behind):
    world.add("good", working("good"))
    world.add("bad", working("bad", contract))
    backends = Registry()
    error = refused(backends, "bad", ContractVersionError)
    assert "qd-bad 1.2.3" in error.message
    assert f"contract {contract[0]}.{contract[1]}" in error.message
    assert f"qd-core {core_version()} offers contract {CONTRACT_VERSION}" in error.message
    assert error.hint == f"python -m pip install --upgrade {behind}"
    assert backends.load("good").name == "good"


def test_another_major_need_not_look_like_a_backend(world):
    code = f"class V: major, minor = {MAJOR + 3}, 0\nclass Plugin: contract = V"
    world.add("bad", code)
    refused(Registry(), "bad", ContractVersionError)


def test_an_older_minor_is_fine(world, monkeypatch):
    world.add("old", working("old"))
    newer = type(CONTRACT_VERSION)(MAJOR, MINOR + 4)
    monkeypatch.setattr("qd_core.backend.contract.CONTRACT_VERSION", newer)
    assert Registry().load("old").contract == CONTRACT_VERSION


def test_two_distributions_with_one_name_are_both_named(world):
    world.add("good", working("good"))
    world.add("twin", working("twin"), dist="qd-twin-a", version="1.0")
    world.add("twin", working("twin"), dist="qd-twin-b", version="2.0")
    backends = Registry()
    error = refused(backends, "twin", DuplicateBackendError)
    assert "qd-twin-a 1.0" in error.message
    assert "qd-twin-b 2.0" in error.message
    assert "pip uninstall" in error.hint
    assert backends.load("good").name == "good"


def test_a_name_of_core_cannot_be_taken(world):
    module = world.add("reference", working("reference"), dist="qd-thief")
    backends = Registry()
    assert backends.entry("reference").distribution == "qd-core"
    assert backends.entry("reference").failure is None
    (thief,) = backends.rejected()
    assert thief.distribution == "qd-thief"
    assert isinstance(thief.failure, DuplicateBackendError)
    assert thief.failure.hint == "python -m pip uninstall qd-thief"
    assert module not in sys.modules
    section = next(s for s in doctor.examine(backends) if "qd-thief" in s.distribution)
    assert section.state == "broken"


def test_a_distribution_without_metadata_hurts_nobody(world):
    world.add("bare", working("bare"), metadata=False)
    world.add("good", working("good"))
    backends = Registry()
    assert backends.load("good").name == "good"
    assert backends.load("bare").name == "bare"


@pytest.mark.parametrize("name", sorted(known_extras().keys() - INSTALLED))
def test_known_and_not_installed_gives_the_install_line(name):
    backends = Registry(lambda: ())
    error = refused(backends, name, BackendUnavailableError)
    assert error.message == f"backend {name!r} is not installed"
    assert error.hint == f'python -m pip install "qd-core[{known_extras()[name]}]"'


def test_an_unknown_name_gives_the_nearest(world):
    world.add("good", working("good"))
    backends = Registry()
    assert "'good'" in refused(backends, "god", UnknownBackendError).hint
    far = refused(backends, "xxxxxxxxxx", UnknownBackendError)
    assert "good" in far.hint
    assert "reference" in far.hint
    with pytest.raises(LookupError):
        backends.load("god")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no bus')", "probing failed with ValueError: no bus"),
        ("raise SystemExit(1)", "probing failed with SystemExit: 1"),
        ("return True", "probing failed with TypeError: probe() returned bool"),
    ],
)
def test_probing_never_raises(world, body, reason):
    world.add("bad", working("bad", more=f"    def probe(self):\n        {body}"))
    answer = Registry().probe("bad")
    assert not answer.available
    assert answer.reason.startswith(reason)
    assert "qd-bad 1.2.3" in answer.remedy


def test_an_unavailable_backend_says_why_and_what_to_do(world):
    world.add("off", working("off", more="    def probe(self): return Availability(False, 'no card', 'plug it in')"))
    with pytest.raises(BackendUnavailableError) as caught:
        Registry().available("off")
    assert (caught.value.why, caught.value.hint) == ("no card", "plug it in")
    assert "qd-off 1.2.3" in caught.value.message


def test_accelerators_go_by_priority_then_name(world):
    for name, priority in (("c", 5), ("a", 1), ("b", 5), ("d", 9)):
        world.add(name, working(name, priority=priority))
    assert [b.name for b in Registry().accelerators() if b.name not in INSTALLED] == ["d", "b", "c", "a"]


def test_the_program_may_register_one_of_its_own(world):
    module = world.add("own", working("own"))
    other = Registry(lambda: ())
    other.register("own", lambda: __import__(module).Plugin())
    assert other.load("own").name == "own"
    with pytest.raises(DuplicateBackendError, match="the running program"):
        other.register("own", lambda: __import__(module).Plugin())
    other.unregister("own")
    assert other.names() == ()
    backends = Registry()
    with pytest.raises(DuplicateBackendError, match=r"qd-own 1\.2\.3"):
        backends.register("own", lambda: __import__(module).Plugin())
    with pytest.raises(ValueError, match="was not registered by the program"):
        backends.unregister("own")


def test_doctor_lists_every_backend_and_what_to_do(world):
    """The whole, in a process of its own: one good plugin, and one of each kind of bad one."""
    hook = '    @hookimpl\n    def qd_doctor_rows(self, backend): return [("bus", "asked about " + backend.name)]'
    world.add("good", working("good", more=hook))
    world.add("exits", BROKEN["SystemExit"][0])
    world.add("typo", BROKEN["SyntaxError"][0])
    world.add("missing", BROKEN["ImportError"][0])
    world.add("future", working("future", (MAJOR + 1, 0)))
    world.add("twin", working("twin"), dist="qd-twin-a")
    world.add("twin", working("twin"), dist="qd-twin-b")
    world.add("off", working("off", more="    def probe(self): return Availability(False, 'no card', 'plug it in')"))
    world.add("mute", working("mute", more="    def devices(self): raise OSError('bus error')"))
    done = world.python("-m", "qd_core", "doctor", "--json")
    report = json.loads(done.stdout)
    states = {s["name"]: s for s in report["backends"]}
    broken = {name for name, s in states.items() if s["state"] == "broken"} - INSTALLED
    assert broken == {"exits", "typo", "missing", "future", "twin", "mute"}
    absent = known_extras().keys() - INSTALLED
    assert all(states[name]["reason"] and states[name]["remedy"] for name in broken | {"off"} | absent)
    assert (states["off"]["state"], states["off"]["reason"], states["off"]["remedy"]) == (
        "unavailable",
        "no card",
        "plug it in",
    )
    assert all(states[name]["state"] == "not installed" for name in absent)
    assert states["good"]["distribution"] == "qd-good 1.2.3"
    assert states["good"]["contract"] == str(CONTRACT_VERSION)
    assert states["good"]["facts"] == [["targets", "toy-1"], ["bus", "asked about good"]]
    (device,) = states["good"]["devices"]
    assert (device["name"], device["target"]) == ("a toy", "toy-1")
    assert device["capabilities"]["limit workers"].startswith("2 (")
    for name in ("cpu", "reference"):
        assert states[name]["state"] == "available", states[name]
        assert states[name]["devices"]
    assert done.returncode == 1, "a broken plugin is no clean bill of health"


def test_doctor_prints_text_and_its_status_follows_the_names(world):
    world.add("good", working("good"))
    well = world.python("-m", "qd_core", "doctor", "good")
    assert well.returncode == 0, well.stderr
    assert "good: available\n  distribution  qd-good 1.2.3\n" in well.stdout
    assert "  device 0: a toy (toy-1)" in well.stdout
    ill = world.python("-m", "qd_core", "doctor", "good", "nosuch")
    assert ill.returncode == 1
    assert "no backend is called 'nosuch'" in ill.stdout


def test_an_unknown_subcommand_is_refused(world):
    done = world.python("-m", "qd_core", "docter")
    assert done.returncode == 2
    assert "doctor" in done.stderr
