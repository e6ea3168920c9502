"""``python -m qd_core new-backend NAME``: a distribution with a backend that works, to start from."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from qd_core.backend.contract import CONTRACT_VERSION
from qd_core.backend.registry import core_version

__all__ = ["FILES", "configure", "run", "write_backend"]

FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "example.py": "example.py",
    "tests/test_conformance.py": "test_conformance.py",
    "qd_@NAME@/__init__.py": "__init__.py",
    "qd_@NAME@/backend.py": "backend.py",
    "qd_@NAME@/compiler.py": "compiler.py",
    "qd_@NAME@/device.py": "device.py",
}
"""Path in the new distribution, and the template that it is made from."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("name", help="what users will ask for: small letters and digits")
    parser.add_argument("--folder", type=Path, help="where the distribution goes (default: qd_NAME)")


def run(options: argparse.Namespace) -> int:
    """Write the distribution; return 2 where the name or the folder cannot be used."""
    folder: Path = options.folder or Path(f"qd_{options.name}")
    try:
        written = write_backend(options.name, folder)
    except ValueError as error:
        print(error)
        return 2
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in written)
    print(f"{folder}: {len(written)} files, {lines} lines")
    print(f"next: cd {folder} && python -m pip install -e '.[test]' && pytest --qd-backend={options.name}")
    return 0


def write_backend(name: str, folder: Path) -> list[Path]:
    """Write a distribution that offers the backend ``name``.

    Parameters
    ----------
    name : str
        Small letters and digits, beginning with a letter.
    folder : Path
        Must not exist, or be empty.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ValueError
        The name cannot be used, or the folder holds something.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*", name):
        raise ValueError(f"{name!r} cannot name a backend: small letters and digits, beginning with a letter")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    templates = files("qd_core.cli").joinpath("template")
    version = core_version()
    values = {
        "NAME": name,
        "CORE": version if version != "unknown" else "0.1",
        "MAJOR": str(CONTRACT_VERSION.major),
        "MINOR": str(CONTRACT_VERSION.minor),
    }
    written: list[Path] = []
    for path, template in FILES.items():
        target = folder / _filled(path, values)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            _filled(templates.joinpath(f"{template}.in").read_text(encoding="utf-8"), values), encoding="utf-8"
        )
        written.append(target)
    return written


def _filled(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
