"""The reference: NumPy execution of programs, which is the meaning of every operation, and a backend like any other."""

from __future__ import annotations

from qd_core.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
