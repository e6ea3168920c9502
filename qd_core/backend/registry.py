"""Which backends there are: found by entry points, loaded when asked for, never able to break each other.

Discovery reads distribution metadata only, and not before a name is asked for that core does not bring itself. A
backend's code runs when it is asked for by name, listed by ``doctor``, or
wanted as an accelerator. Whatever it raises then is recorded with its cause and shown whenever its name comes up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import qd_core
from qd_core.errors import (
    BackendLoadError,
    BackendUnavailableError,
    ContractVersionError,
    DuplicateBackendError,
    UnknownBackendError,
)

if TYPE_CHECKING:
    from importlib import metadata

    import pluggy

    from qd_core.backend.contract import Availability, Backend

__all__ = ["CORE", "GROUP", "Entry", "Registry", "core_version", "ignored_options", "known_extras", "registry"]

GROUP = "qd_core.backends"
"""Entry-point group: name of the backend -> a class or function without arguments that gives a `Backend`."""

CORE = "qd-core"
"""Core's own distribution: names that it claims cannot be taken by another."""

OWN: Mapping[str, str] = {"cpu": "qd_core.cpu:CpuBackend", "reference": "qd_core.reference:ReferenceBackend"}
"""Core's own entry points once more: reading the metadata of all distributions takes longer than opening the device."""


def known_extras() -> Mapping[str, str]:
    """Backends that have a name although they are not installed, with the extra of core that installs each."""
    return _known()["extras"]


def ignored_options() -> frozenset[str]:
    """Options of ``qd.init`` that scripts pass for one backend and that have no effect."""
    return frozenset(_known()["options"]["ignored"])


@cache
def _known() -> Mapping[str, Any]:
    from importlib import resources

    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    text = resources.files("qd_core.backend").joinpath("known.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def core_version() -> str:
    """Version of core."""
    return qd_core.__version__


def installed_entry_points() -> Iterable[metadata.EntryPoint]:
    """Entry points of the group in all installed distributions; loads none."""
    from importlib import metadata

    return metadata.entry_points(group=GROUP)


@dataclass(eq=False)
class Entry:
    """One backend that a distribution offers, and what came of loading it.

    Parameters
    ----------
    name : str
        What users ask for.
    factory : callable
        Imports the plugin and gives its class or function without arguments.
    source : str
        ``module:attribute``, for messages.
    distribution, version : str
        Who offers it; empty for a backend registered by the running program.
    requirement : str
        What the distribution requires of core (``"qd-core>=0.1,<1"``); empty where it states nothing.
    """

    name: str
    factory: Callable[[], Callable[[], Any]]
    source: str = ""
    distribution: str = ""
    version: str = ""
    requirement: str = ""
    backend: Backend | None = None
    failure: BackendLoadError | None = field(default=None, repr=False)

    @property
    def owner(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}" if self.distribution else "the running program"


def _entry(point: metadata.EntryPoint) -> Entry:
    try:
        dist = point.dist
        assert dist is not None
        name, version, requires = dist.metadata["Name"], dist.version, dist.requires or []
    except Exception:  # metadata that cannot be read costs the plugin its name in messages, not the others their place
        name, version, requires = "a distribution without readable metadata", "", list[str]()
    wanted = [line.partition(";")[0].strip() for line in requires if _is_core(re.split(r"[^\w.-]", line)[0])]
    return Entry(point.name, point.load, point.value, str(name), str(version), ", ".join(wanted))


def _own(name: str, source: str) -> Entry:
    module, _, attribute = source.partition(":")
    return Entry(name, lambda: getattr(import_module(module), attribute), source, CORE, core_version())


def _is_core(distribution: str) -> bool:
    return _normalised(distribution) == CORE


def _normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


class Registry:
    """Backends by name.

    Parameters
    ----------
    discover : callable, optional
        Gives the entry points; called once, at the first question about a name that is not in ``own``.
    own : mapping of str to str, optional
        Name and ``module:attribute`` of backends that core brings, known without discovery.
    """

    def __init__(
        self,
        discover: Callable[[], Iterable[metadata.EntryPoint]] = installed_entry_points,
        own: Mapping[str, str] | None = None,
    ) -> None:
        self._discover = discover
        self._own = {name: _own(name, source) for name, source in (own or {}).items()}
        self._found: dict[str, Entry] | None = None
        self._rejected: list[Entry] = []
        self._plugins: pluggy.PluginManager | None = None

    # -- what there is; runs no plugin ---------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Names of installed backends, sorted."""
        return tuple(sorted(self._entries))

    def entry(self, name: str) -> Entry:
        """What is known of an installed backend.

        Raises
        ------
        BackendUnavailableError
            QD304: the name is known and its distribution not installed.
        UnknownBackendError
            QD302: nobody offers the name.
        """
        if name in self._own:
            return self._own[name]
        if name in self._entries:
            return self._entries[name]
        raise self._absent(name)

    def rejected(self) -> Sequence[Entry]:
        """Entries whose name belongs to core, each with its `failure`."""
        _ = self._entries  # collects at the first question
        return tuple(self._rejected)

    def register(self, name: str, factory: Callable[[], Backend]) -> None:
        """Add a backend of the running program, such as a fake device of a test.

        Raises
        ------
        DuplicateBackendError
            QD303: the name is taken.
        """
        entry = Entry(name, lambda: factory)
        if name in self._entries:
            raise _duplicate(name, [self._entries[name], entry])
        self._entries[name] = entry

    def unregister(self, name: str) -> None:
        """Remove a backend that :meth:`register` added."""
        entry = self.entry(name)
        if entry.distribution:
            raise ValueError(f"backend {name!r} comes from {entry.owner} and was not registered by the program")
        del self._entries[name]
        if entry.backend is not None:
            self.plugins.unregister(entry.backend)

    @property
    def _entries(self) -> dict[str, Entry]:
        if self._found is None:
            self._found = self._collect(map(_entry, self._discover()))
        return self._found

    def _collect(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        by_name: dict[str, list[Entry]] = {name: [entry] for name, entry in self._own.items()}
        for entry in entries:
            if entry.name in self._own and _is_core(entry.distribution):
                continue
            by_name.setdefault(entry.name, []).append(entry)
        return {name: self._settle(name, rivals) for name, rivals in by_name.items()}

    def _settle(self, name: str, rivals: list[Entry]) -> Entry:
        """The entry that answers to a name: core's own if it has one, else a failure if several claim it."""
        if len(rivals) == 1:
            return rivals[0]
        failure = _duplicate(name, rivals)
        for entry in rivals:
            entry.failure = failure
        own = [entry for entry in rivals if _is_core(entry.distribution)]
        if len(own) != 1:
            return rivals[0]
        own[0].failure = None
        self._rejected.extend(entry for entry in rivals if entry is not own[0])
        return own[0]

    def _absent(self, name: str) -> BackendLoadError:
        extra = known_extras().get(name)
        if extra is not None:
            text = f"backend {name!r} is not installed"
            return BackendUnavailableError(text, backend=name, hint=f'python -m pip install "{CORE}[{extra}]"')
        import difflib

        names = sorted({*self.names(), *known_extras()})
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(names)}"
        return UnknownBackendError(f"no backend is called {name!r}", backend=name, hint=hint)

    # -- loading -------------------------------------------------------------------------------------------------------

    @property
    def plugins(self) -> pluggy.PluginManager:
        """The manager with which loaded backends are registered."""
        if self._plugins is None:
            import pluggy

            from qd_core.backend import hookspecs

            self._plugins = pluggy.PluginManager(hookspecs.PROJECT)
            self._plugins.add_hookspecs(hookspecs)
            for entry in self._own.values():
                if entry.backend is not None:
                    self._plugins.register(entry.backend, name=entry.name)
        return self._plugins

    def load(self, name: str) -> Backend:
        """Return a backend, importing its plugin at the first call.

        Parameters
        ----------
        name : str
            Name of a backend.

        Returns
        -------
        Backend
            The one instance of this registry.

        Raises
        ------
        BackendLoadError
            QD300: its plugin raised; the cause is chained. QD301 (:class:`ContractVersionError`): made for a contract
            that this core does not offer. QD302, QD304: as :meth:`entry`. QD303: two distributions claim the name.
        """
        entry = self.entry(name)
        if entry.backend is None and entry.failure is None:
            self._load(entry)
        if entry.failure is not None:
            raise entry.failure.with_traceback(None)
        assert entry.backend is not None
        return entry.backend

    def _load(self, entry: Entry) -> None:
        try:
            backend = entry.factory()()
            _check(backend, entry)
            if self._plugins is not None or entry.name not in self._own:  # core's own follow when someone asks
                self._register_hooks(backend, entry)
        except KeyboardInterrupt:
            raise
        except BackendLoadError as error:
            entry.failure = error
        except BaseException as cause:  # a plugin may raise anything, SystemExit included, and must break nobody else
            entry.failure = _load_failure(entry, cause)
        else:
            entry.backend = backend

    def _register_hooks(self, backend: Backend, entry: Entry) -> None:
        self.plugins.register(backend, name=entry.name)
        try:
            self.plugins.check_pending()
        except BaseException:
            self.plugins.unregister(backend)
            raise

    # -- choosing ------------------------------------------------------------------------------------------------------

    def probe(self, name: str) -> Availability:
        """Whether a backend can run here and, if not, why and what to do. Never raises."""
        from qd_core.backend.contract import Availability

        try:
            backend = self.load(name)
        except BackendLoadError as error:
            return Availability(False, "; ".join(filter(None, (error.message, error.why))), error.hint)
        try:
            answer = backend.probe()
            if not isinstance(answer, Availability):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"probe() returned {type(answer).__name__}, not Availability")
            return answer
        except (Exception, SystemExit) as error:
            remedy = f"report this to the authors of {self.entry(name).owner}: probe() must not raise"
            return Availability(False, f"probing failed with {_one_line(error)}", remedy)

    def available(self, name: str) -> Backend:
        """Return a backend that can run here.

        Raises
        ------
        BackendLoadError
            As :meth:`load`; QD304 (:class:`BackendUnavailableError`) also where probing finds nothing to run on.
        """
        if _disabled(name):
            text = f"backend {name!r} is switched off"
            why = f"the environment variable QD_ENABLE_{name.upper()} is {os.environ[f'QD_ENABLE_{name.upper()}']!r}"
            raise BackendUnavailableError(text, backend=name, why=why, hint="unset the variable")
        backend = self.load(name)
        answer = self.probe(name)
        if not answer.available:
            text = f"backend {name!r} of {self.entry(name).owner} cannot run here"
            raise BackendUnavailableError(text, backend=name, why=answer.reason, hint=answer.remedy)
        return backend

    def accelerators(self) -> tuple[Backend, ...]:
        """Loadable backends that core does not bring itself, highest priority first, then by name."""
        found: list[Backend] = []
        for name in self.names():
            if _is_core(self.entry(name).distribution) or _disabled(name):
                continue
            try:
                found.append(self.load(name))
            except BackendLoadError:
                continue  # recorded in the entry; `doctor` and asking by name show it
        return tuple(sorted(found, key=lambda backend: (-backend.priority, backend.name)))


def _disabled(name: str) -> bool:
    return os.environ.get(f"QD_ENABLE_{name.upper()}", "").lower() in ("0", "false", "off")


# --- what went wrong --------------------------------------------------------------------------------------------------


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _versions(entry: Entry) -> str:
    """Both sides' versions, for the `why` of an error."""
    from qd_core.backend.contract import CONTRACT_VERSION

    wants = f" (requires {entry.requirement})" if entry.requirement else ""
    return f"{entry.owner}{wants}, {CORE} {core_version()} with contract {CONTRACT_VERSION}"


def _load_failure(entry: Entry, cause: BaseException) -> BackendLoadError:
    text = f"backend {entry.name!r} of {entry.owner} could not be loaded: {_one_line(cause)}"
    why = f"loading {entry.source or entry.name} raised; versions: {_versions(entry)}"
    error = BackendLoadError(text, backend=entry.name, why=why, hint=_repair(entry))
    error.__cause__ = cause
    return error


def _repair(entry: Entry) -> str:
    if not entry.distribution:
        return "correct the factory that the program registered"
    install = f"python -m pip install --upgrade --force-reinstall {entry.distribution}"
    return install if _is_core(entry.distribution) else f"{install}, or python -m pip uninstall {entry.distribution}"


def _duplicate(name: str, rivals: Sequence[Entry]) -> DuplicateBackendError:
    owners = " and ".join(entry.owner for entry in rivals)
    removable = [e.distribution for e in rivals if e.distribution and not _is_core(e.distribution)]
    hint = "python -m pip uninstall " + " or ".join(dict.fromkeys(removable)) if removable else "choose another name"
    why = "; ".join(f"{entry.owner} offers {entry.source or entry.name}" for entry in rivals)
    return DuplicateBackendError(f"the backend name {name!r} is claimed by {owners}", backend=name, why=why, hint=hint)


def _check(backend: Any, entry: Entry) -> None:
    """Refuse what is not a backend of this contract; the version comes first, as another major may look different."""
    from qd_core.backend.contract import Backend

    _check_contract(getattr(backend, "contract", None), entry)
    if not isinstance(backend, Backend):
        raise TypeError(
            f"{entry.source} gave {type(backend).__name__}, which is not a qd_core.backend.contract.Backend"
        )
    if backend.name != entry.name:
        raise ValueError(f"the backend calls itself {backend.name!r} and its entry point is {entry.name!r}")


def _check_contract(theirs: Any, entry: Entry) -> None:
    from qd_core.backend.contract import CONTRACT_VERSION as ours

    major, minor = getattr(theirs, "major", None), getattr(theirs, "minor", None)
    if not isinstance(major, int) or not isinstance(minor, int):
        raise TypeError(f"the attribute `contract` is {theirs!r} and not a ContractVersion")
    if major == ours.major and minor <= ours.minor:
        return
    behind = entry.distribution if (major, minor) < (ours.major, ours.minor) else CORE
    raise ContractVersionError(
        f"backend {entry.name!r} of {entry.owner} is made for contract {major}.{minor}, "
        f"and {CORE} {core_version()} offers contract {ours}",
        backend=entry.name,
        why="the major versions must be equal and core's minor version at least the backend's",
        hint=f"python -m pip install --upgrade {behind or CORE}",
    )


@cache
def registry() -> Registry:
    """The registry of this process."""
    return Registry(own=OWN)
