"""`qd.experimental`: names that programs of the peer use; they are those of `qd.`."""

from __future__ import annotations

from qd_core.frontend.functions import real_func

__all__ = ["real_func"]
