"""``python -m qd_core doctor``: every backend, its versions, whether it works here, and its devices."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from qd_core.backend.capabilities import enabled_extensions
from qd_core.backend.contract import CONTRACT_VERSION, Backend, DeviceInfo
from qd_core.backend.registry import CORE, Entry, Registry, core_version, known_extras, registry
from qd_core.errors import BackendLoadError

Rows = list[tuple[str, str]]


@dataclass
class Section:
    """What there is to say about one backend.

    ``state`` is ``"available"``, ``"unavailable"`` (loads, and finds nothing to run on), ``"broken"`` (installed, and
    raises when it is loaded or describes itself) or ``"not installed"``.
    """

    name: str
    state: str
    distribution: str = ""
    contract: str = ""
    reason: str = ""
    remedy: str = ""
    devices: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    facts: Rows = field(default_factory=Rows)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("backend", nargs="*", help="only these, and fail unless each is available")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(options: argparse.Namespace) -> int:
    """Print the report; 1 where an installed backend is broken, or a named one not available, or none is."""
    sections = examine(registry(), options.backend)
    print(_as_json(sections) if options.json else "\n".join(_as_text(sections)))
    return exit_status(sections, named=bool(options.backend))


def exit_status(sections: Sequence[Section], *, named: bool) -> int:
    """0 where everything asked for works, else 1."""
    states = [section.state for section in sections]
    if named:
        return int(any(state != "available" for state in states))
    return int("broken" in states or "available" not in states)


def examine(backends: Registry, names: Sequence[str] = ()) -> list[Section]:
    """Look at each backend in turn; nothing that one of them raises stops the rest.

    Parameters
    ----------
    backends : Registry
        Where to look.
    names : sequence of str
        Only these; all that are installed or known by name where empty.

    Returns
    -------
    list of Section
        In the order of `names`, else installed ones first.
    """
    if names:
        return [_examine(backends, name) for name in names]
    absent = [name for name in known_extras() if name not in backends.names()]
    sections = [_examine(backends, name) for name in (*backends.names(), *absent)]
    return sections + [_broken(entry.name, entry, entry.failure) for entry in backends.rejected() if entry.failure]


def _examine(backends: Registry, name: str) -> Section:
    try:
        entry = backends.entry(name)
    except BackendLoadError as error:
        return Section(name, "not installed", reason=error.message, remedy=error.hint)
    try:
        backend = backends.load(name)
    except BackendLoadError as error:
        return _broken(name, entry, error)
    answer = backends.probe(name)
    state = "available" if answer.available else "unavailable"
    section = Section(name, state, entry.owner, str(backend.contract), answer.reason, answer.remedy)
    try:
        section.facts = _facts(backends, backend)
        section.devices = [_device(info) for info in backend.devices()] if answer.available else []
    except (Exception, SystemExit) as error:
        section.state = "broken"
        section.reason = f"describing itself, the backend raised {type(error).__name__}: {error}"
        section.remedy = f"report this to the authors of {entry.owner}"
    return section


def _broken(name: str, entry: Entry, error: BackendLoadError) -> Section:
    reason = "; ".join(filter(None, (error.message, error.why)))
    return Section(name, "broken", entry.owner, reason=reason, remedy=error.hint)


def _facts(backends: Registry, backend: Backend) -> Rows:
    rows: Rows = [("targets", " ".join(target.name for target in backend.targets()))]
    for more in backends.plugins.hook.qd_doctor_rows(backend=backend):
        rows.extend((str(label), str(text)) for label, text in more or ())
    return rows


def _device(info: DeviceInfo) -> dict[str, object]:
    capabilities = info.target.capabilities
    return {
        "index": info.index,
        "name": info.name,
        "target": info.target.name,
        "memory_nbytes": info.memory_nbytes,
        "extensions": sorted(enabled_extensions(capabilities)),
        "capabilities": dict(capabilities.rows()),
    }


def _as_json(sections: Iterable[Section]) -> str:
    report = {**dict(_versions()), "backends": [asdict(section) for section in sections]}
    return json.dumps(report, indent=2)


def _versions() -> Rows:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [(CORE, core_version()), ("contract", str(CONTRACT_VERSION)), ("python", python), ("platform", sys.platform)]


def _as_text(sections: Iterable[Section]) -> Iterable[str]:
    yield ", ".join(f"{label} {text}" for label, text in _versions())
    for section in sections:
        yield ""
        yield f"{section.name}: {section.state}"
        yield from _indented(_section_rows(section))
        for device in section.devices:
            yield f"  device {device['index']}: {device['name']} ({device['target']})"
            yield from _indented(_device_rows(device), 4)


def _section_rows(section: Section) -> Rows:
    return [
        ("distribution", section.distribution),
        ("contract", section.contract),
        ("why", section.reason),
        ("do", section.remedy),
        *section.facts,
    ]


def _device_rows(device: dict[str, object]) -> Rows:
    memory, extensions, groups = device["memory_nbytes"], device["extensions"], device["capabilities"]
    assert isinstance(memory, int)
    assert isinstance(extensions, list)
    assert isinstance(groups, dict)
    size = f"{memory / 2**30:.1f} GiB" if memory else ""
    return [("memory", size), ("extensions", " ".join(extensions)), *groups.items()]


def _indented(rows: Rows, blanks: int = 2) -> Iterable[str]:
    shown = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in shown), default=0)
    return (f"{' ' * blanks}{label:<{width}}  {text}" for label, text in shown)
