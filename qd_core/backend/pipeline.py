"""Passes that a plugin may put into `Compiler.pipeline`; the rest of `qd_core.passes` is private."""

from __future__ import annotations

from qd_core.passes.legalize import Native, legalize

__all__ = ["Native", "legalize"]
