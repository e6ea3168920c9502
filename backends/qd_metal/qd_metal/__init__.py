"""Metal as a backend of qd-core."""

from qd_metal.backend import MetalBackend

__all__ = ["MetalBackend"]
