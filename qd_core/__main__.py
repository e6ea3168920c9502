"""``python -m qd_core SUBCOMMAND``: a table of subcommands, each loaded when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "doctor": "list every backend, whether it works here, and what to do if not",
    "cache": "show, check or empty the disk cache of compiled kernels",
    "conformance": "run the conformance kit on a backend and write a report",
    "new-backend": "write a distribution with a backend that works, to start from",
    "fuzz": "run random kernels on a backend and compare with the reference",
}
"""Name of each module of `qd_core.cli`, and what it does."""


MODULES = {"new-backend": "scaffold"}
"""Modules of subcommands whose names differ."""


def _module(command: str) -> str:
    return f"qd_core.cli.{MODULES.get(command, command)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after ``python -m qd_core``; those of the process by default.

    Returns
    -------
    int
        Exit status: 0 where all is well; 2 where the words cannot be understood.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m qd_core", description="Tools of qd-core.")
    table = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True)
    for name, purpose in COMMANDS.items():
        command = table.add_parser(name, help=purpose, description=purpose)
        if name in words[:1]:
            import_module(_module(name)).configure(command)
    options = parser.parse_args(words)
    return int(import_module(_module(options.command)).run(options))


if __name__ == "__main__":
    sys.exit(main())
