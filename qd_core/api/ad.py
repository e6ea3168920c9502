"""Automatic differentiation: `qd.ad`."""

from __future__ import annotations

from qd_core.runtime.interop import with_grad

__all__ = ["with_grad"]
