"""Compiled artifacts on disk.

An entry's name is the SHA-256 of everything that decides the code: the program's text with its messages, all compile
options, the compiler's identity, target and
capabilities, contract and core versions. An entry carries the digest of its contents: a torn or foreign one is not
used and is written again.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qd_core.backend.contract import CONTRACT_VERSION, Artifact, CompileOptions, Compiler
from qd_core.backend.registry import core_version
from qd_core.ir.print import print_program

if TYPE_CHECKING:
    from qd_core.ir.program import Program

__all__ = [
    "ArtifactCache",
    "ObjectCache",
    "artifact_key",
    "compiler_digest",
    "default_folder",
    "digest_of",
    "package_digest",
    "program_digest",
    "settings_text",
]

_MAGIC = b"qdcache1"
_SUFFIX = ".qdc"
MAX_NBYTES = 100 << 20

_ALLOWED = {
    ("qd_core.backend.contract", "Artifact"),
    ("qd_core.backend.contract", "TaskEntry"),
    ("qd_core.ir.program", "Site"),
    ("qd_core.dtypes", "by_name"),
}


def default_folder() -> Path:
    """Return where entries live: ``QD_CACHE_DIR``, or the user's cache folder."""
    chosen = os.environ.get("QD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(base) / "qd_core"


def artifact_key(program: Program | str, options: CompileOptions, compiler: Compiler | str) -> str:
    """Return the name of the entry for ``program`` compiled by ``compiler`` under ``options``.

    In place of program and compiler, their digests will do.
    """
    return digest_of(
        program if isinstance(program, str) else program_digest(program),
        _options_text(options),
        compiler if isinstance(compiler, str) else compiler_digest(compiler),
    )


@functools.lru_cache(maxsize=64)
def _options_text(options: CompileOptions) -> str:
    return settings_text(options)


def program_digest(program: Program) -> str:
    """Digest of a program's text with its messages."""
    return digest_of(print_program(program))


def compiler_digest(compiler: Compiler) -> str:
    """Digest of a compiler with its target, and of the versions of core and contract."""
    target = compiler.target
    return digest_of(
        compiler.identity(),
        settings_text((target.name, target.features, compiler.abi)),
        target.capabilities.identity(),
        str(CONTRACT_VERSION),
        core_version(),
    )


def digest_of(*parts: str) -> str:
    """SHA-256 of texts with their lengths, in hexadecimal."""
    digest = _sha256()
    for part in parts:
        encoded = part.encode(errors="surrogateescape")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def settings_text(value: Any) -> str:
    """Text of options, the same in every process: every field of a data class in full, sets in order."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={settings_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(settings_text, value)))}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(settings_text, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{settings_text(k)}: {settings_text(v)}' for k, v in value.items())}}}"
    return repr(value)


@functools.cache
def package_digest(package: str) -> str:
    """Digest of the names, sizes and times of a package's Python files: what changes where it is edited or replaced."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found: list[str] = []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    state = entry.stat()
                    found.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
    return digest_of(*sorted(found))


class ArtifactCache:
    """Entries in one folder.

    Every failure of the file system (full disk, read-only folder) leaves the program as it would be without a cache.

    Parameters
    ----------
    folder : Path
        Created when the first entry is stored.
    max_nbytes : int
        Entries beyond this total are removed.
    policy : str
        ``"lru"``: the least recently used go first; ``"fifo"``: the oldest; ``"never"``: none goes.
    factor : float
        Share of ``max_nbytes`` that is free after some went.
    """

    def __init__(self, folder: Path, max_nbytes: int = MAX_NBYTES, policy: str = "lru", factor: float = 0.0) -> None:
        self.folder, self.max_nbytes, self.policy, self.factor = folder, max_nbytes, policy, factor
        self._stored = 0

    def load(self, key: str) -> Artifact | None:
        """Return the artifact called ``key``; None when there is no sound entry."""
        artifact = self.read(key)
        return artifact if isinstance(artifact, Artifact) else None

    def store(self, key: str, artifact: Artifact) -> None:
        """Write an entry: to a temporary file that takes the entry's name once it is complete."""
        self.write(key, artifact)

    def read(self, key: str) -> Any:
        """Return what an entry holds, an artifact or bytes; None when there is no sound entry."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value = decode(data)
        if value is not None and self.policy != "fifo":
            with contextlib.suppress(OSError):
                os.utime(path)
        return value

    def write(self, key: str, value: Artifact | bytes) -> None:
        """Write an entry; nothing happens where the file system refuses."""
        with contextlib.suppress(OSError):
            import tempfile

            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(encode(value))
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._stored += 1
            if self._stored % 64 == 1:
                self.prune()

    def prune(self) -> None:
        """Remove entries, by the policy, until the rest fits."""
        entries = sorted(((s.st_mtime, s.st_size, p) for p, s in self.entries()), reverse=True)
        total = sum(nbytes for _, nbytes, _ in entries)
        if self.policy == "never" or total <= self.max_nbytes:
            return
        kept, total = self.max_nbytes * (1 - self.factor), 0
        for _, nbytes, path in entries:
            total += nbytes
            if total > kept:
                with contextlib.suppress(OSError):
                    path.unlink()

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """Files of the cache with their state."""
        found: list[tuple[Path, os.stat_result]] = []
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"*{_SUFFIX}"):
                with contextlib.suppress(OSError):
                    found.append((path, path.stat()))
        return found

    def unfinished(self) -> list[Path]:
        """Temporary files that a process left which was killed while it wrote."""
        return list(self.folder.glob("*.tmp"))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def _sha256(data: bytes = b"") -> Any:
    import hashlib

    return hashlib.sha256(data)


class ObjectCache:
    """Machine code that is no kernel's: the worker pool and the native launch entry.

    Parameters
    ----------
    entries : ArtifactCache
        Where it is kept.
    """

    def __init__(self, entries: ArtifactCache) -> None:
        self._entries = entries

    def get(self, key: str) -> bytes | None:
        """Return what was put under ``key``, or None."""
        code = self._entries.read(f"object-{key}")
        return code if isinstance(code, bytes) else None

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``."""
        self._entries.write(f"object-{key}", data)


def encode(value: Artifact | bytes) -> bytes:
    """Return the bytes of an entry."""
    payload = pickle.dumps(value, protocol=5)
    return _MAGIC + _sha256(payload).digest() + payload


def decode(data: bytes) -> Artifact | bytes | None:
    """Return what an entry's bytes hold; None when they are not a sound entry."""
    head = len(_MAGIC) + 32
    payload = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or _sha256(payload).digest() != data[len(_MAGIC) : head]:
        return None
    try:
        value = _Unpickler(io.BytesIO(payload)).load()
    except Exception:
        return None
    return value if isinstance(value, (Artifact, bytes)) else None


class _Unpickler(pickle.Unpickler):
    """Reads plain data and the artifact's own classes, nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into a cache entry")
        return super().find_class(module, name)
