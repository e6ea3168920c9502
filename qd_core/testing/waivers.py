"""Waivers: known failures of a backend, kept in its own repository.

A file ``qd-waivers.toml`` in the root of the tests' repository holds entries::

    [[waiver]]
    test = "test_operations[f16-1]"          # as pytest shows it, without the backend's name
    backend = "mychip"                        # optional
    reason = "the driver rounds sqrt wrongly"
    link = "https://example.org/issues/7"
    expires = 2030-01-31

A waived test runs and is expected to fail: when it passes, the run fails, and so it does after the day of expiry.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FILE_NAME", "Waiver", "find_waiver", "read_waivers"]

FILE_NAME = "qd-waivers.toml"

_KEYS = {"test", "reason", "link", "expires"}


@dataclass(frozen=True, slots=True)
class Waiver:
    """One known failure.

    Attributes
    ----------
    test : str
        Name with parameters, without the backend's.
    reason, link : str
        Why, and where it is followed up.
    expires : datetime.date
        Last day on which the waiver counts.
    backend : str
        Empty: all of them.
    """

    test: str
    reason: str
    link: str
    expires: datetime.date
    backend: str = ""

    @property
    def expired(self) -> bool:
        """Whether its last day is over."""
        return datetime.date.today() > self.expires

    def __str__(self) -> str:
        return f"{self.test}: {self.reason} ({self.link}, until {self.expires})"


def read_waivers(folder: Path) -> list[Waiver]:
    """Return the waivers of a repository; none where it has no such file.

    Raises
    ------
    ValueError
        An entry lacks something, or has what no waiver has.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    return [_waiver(row) for row in tomllib.loads(path.read_text(encoding="utf-8")).get("waiver", [])]


def _waiver(row: dict[str, Any]) -> Waiver:
    wrong = (_KEYS - row.keys()) | (row.keys() - _KEYS - {"backend"})
    if wrong or not isinstance(row["expires"], datetime.date):
        raise ValueError(f"a waiver needs {', '.join(sorted(_KEYS))} (a date) and may have backend; wrong: {row}")
    return Waiver(**row)


def find_waiver(waivers: Iterable[Waiver], test: str, backend: str) -> Waiver | None:
    """Return the waiver for ``test`` (its name and parameters without the backend) on ``backend``."""
    matching: Sequence[Waiver] = [w for w in waivers if w.test == test and w.backend in ("", backend)]
    return matching[0] if matching else None
