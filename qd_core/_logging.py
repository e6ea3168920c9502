"""Messages of the library itself: one function a level, each of which a program may replace.

The library calls them as attributes of this module, so that ``qd._logging.info = mine`` takes effect everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = [
    "CRITICAL",
    "DEBUG",
    "ERROR",
    "INFO",
    "LEVELS",
    "TRACE",
    "WARN",
    "critical",
    "debug",
    "error",
    "get_logging_level",
    "info",
    "is_logging_effective",
    "set_logging_level",
    "trace",
    "warn",
]

TRACE, DEBUG, INFO, WARN, ERROR, CRITICAL = LEVELS = ("trace", "debug", "info", "warn", "error", "critical")

_level = os.environ.get("QD_LOG_LEVEL", INFO).lower()


def set_logging_level(level: str) -> None:
    """Show messages of ``level`` (``"trace"``, ``"debug"``, ..., ``"critical"``) and above; `ValueError` for others."""
    global _level
    if level.lower() not in LEVELS:
        raise ValueError(f"a logging level is one of {', '.join(LEVELS)}, got {level!r}")
    _level = level.lower()


def get_logging_level() -> str:
    """Return the lowest level that is shown."""
    return _level


def is_logging_effective(level: str) -> bool:
    """Whether messages of ``level`` are shown."""
    wanted = LEVELS.index(_level) if _level in LEVELS else LEVELS.index(INFO)
    return LEVELS.index(level.lower()) >= wanted


def _at(level: str) -> Callable[[str], None]:
    mark = "" if level == INFO else f"[{level}] "

    def log(message: str) -> None:
        if is_logging_effective(level):
            print(f"[Quadrants] {mark}{message}", file=sys.stdout, flush=True)

    log.__name__ = level
    log.__doc__ = f"Print a message of level {level!r}."
    return log


trace, debug, info, warn, error, critical = map(_at, LEVELS)
