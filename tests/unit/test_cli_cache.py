"""`python -m qd_core cache` and the cache where the file system fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from qd_core.__main__ import main
from qd_core.backend.contract import Artifact
from qd_core.runtime.cache import ArtifactCache

ARTIFACT = Artifact("format", b"code", ())


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    cache = ArtifactCache(tmp_path / "entries")
    cache.store("0" * 64, ARTIFACT)
    cache.write("source-1", b"[]")
    cache.write("object-2", b"machine code")
    return cache


def words(action: str, cache: ArtifactCache) -> list[str]:
    return ["cache", action, "--folder", str(cache.folder)]


def test_show(cache: ArtifactCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("show", cache)) == 0
    shown = capsys.readouterr().out
    assert str(cache.folder) in shown
    assert "entries  3" in shown
    assert all(f"1 {kind}" in shown for kind in ("code of kernels", "sources of kernels", "objects of the runtime"))


def test_verify_removes_damaged_entries_alone(cache: ArtifactCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("verify", cache)) == 0
    (cache.folder / "source-1.qdc").write_bytes(b"torn")
    assert main(words("verify", cache)) == 1
    assert "1 damaged, 1 of them removed" in capsys.readouterr().out
    assert main(words("verify", cache)) == 0
    assert cache.load("0" * 64) == ARTIFACT


def test_clear(cache: ArtifactCache) -> None:
    (cache.folder / "left.tmp").write_bytes(b"half an entry")
    (cache.folder / "notes.txt").write_text("not ours")
    assert main(words("clear", cache)) == 0
    assert [p.name for p in cache.folder.iterdir()] == ["notes.txt"]
    assert main(words("clear", cache)) == 0


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("show", "verify", "clear"):
        assert main(["cache", action, "--folder", str(tmp_path / "none")]) == 0
    assert "entries  0" in capsys.readouterr().out


def test_a_full_disk_leaves_no_torn_entry(cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.store("3" * 64, ARTIFACT)
    assert cache.load("3" * 64) is None
    assert cache.load("0" * 64) == ARTIFACT
    assert cache.unfinished() == []
