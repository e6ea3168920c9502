"""Hooks that plugins may implement besides the contract.

A backend's instance is registered with pluggy once it is loaded; its methods marked with :data:`hookimpl` are then
called. A method marked so that names no hook below is refused, and the backend with it.

A hook exists here only if core calls it and a distribution of the test suite implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from qd_core.backend.contract import Backend

__all__ = ["PROJECT", "hookimpl", "hookspec", "qd_doctor_rows"]

PROJECT = "qd_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def qd_doctor_rows(backend: Backend) -> Sequence[tuple[str, str]] | None:
    """Facts to show in a backend's section of ``python -m qd_core doctor``.

    Parameters
    ----------
    backend : Backend
        The loaded backend that the section is about; it need not be the plugin that is asked.

    Returns
    -------
    sequence of (str, str), or None
        Label and text of each row, such as ``("assembler", "12.9")``.
    """
