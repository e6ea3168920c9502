"""``python -m qd_core cache``: what the disk cache of compiled kernels holds; check it, empty it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qd_core.runtime.cache import MAX_NBYTES, ArtifactCache, decode, default_folder

ACTIONS = ("show", "verify", "clear")
KINDS = {"source": "sources of kernels", "object": "objects of the runtime"}
CODE = "code of kernels"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=ACTIONS,
        default=ACTIONS[0],
        help="show (default): what is there; verify: read every entry, and remove damaged ones; clear: remove all",
    )
    parser.add_argument("--folder", type=Path, help="default: QD_CACHE_DIR, or the user's cache folder")


def run(options: argparse.Namespace) -> int:
    """Do one action; 1 where entries were damaged, or cannot be removed."""
    cache = ArtifactCache(options.folder if options.folder is not None else default_folder())
    action = {"show": _show, "verify": _verify, "clear": _clear}[options.action]
    return action(cache)


def _show(cache: ArtifactCache) -> int:
    entries = cache.entries()
    nbytes = sum(state.st_size for _, state in entries)
    print(f"folder   {cache.folder}")
    print(f"entries  {len(entries)}, {_size(nbytes)} of at most {_size(MAX_NBYTES)} by default")
    counted = Counter(_kind(path) for path, _ in entries)
    sizes = Counter[str]()
    for path, state in entries:
        sizes[_kind(path)] += state.st_size
    for kind, count in sorted(counted.items()):
        print(f"         {count} {kind}, {_size(sizes[kind])}")
    if entries:
        used = [state.st_mtime for _, state in entries]
        print(f"used     {_age(min(used))} to {_age(max(used))} ago")
    return 0


def _verify(cache: ArtifactCache) -> int:
    entries = cache.entries()
    damaged = [path for path, _ in entries if _is_damaged(path)]
    for path in damaged:
        print(f"damaged  {path}")
    left = _remove(damaged)
    print(f"{len(entries)} entries, {len(damaged)} damaged, {len(damaged) - left} of them removed")
    return int(bool(damaged))


def _clear(cache: ArtifactCache) -> int:
    files = [path for path, _ in cache.entries()] + cache.unfinished()
    left = _remove(files)
    print(f"removed {len(files) - left} entries from {cache.folder}")
    return int(left > 0)


def _is_damaged(path: Path) -> bool:
    try:
        return decode(path.read_bytes()) is None
    except FileNotFoundError:
        return False  # another process has removed it
    except OSError:
        return True


def _remove(paths: Sequence[Path]) -> int:
    """Remove files; return how many are left."""
    left = 0
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            left += 1
            print(f"cannot remove {path}: {error.strerror}", file=sys.stderr)
    return left


def _kind(path: Path) -> str:
    return KINDS.get(path.name.partition("-")[0], CODE)


def _size(nbytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"


def _age(when: float) -> str:
    seconds = max(time.time() - when, 0)
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
