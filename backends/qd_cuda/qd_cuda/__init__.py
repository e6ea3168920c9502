"""CUDA backend of qd-core: PTX from core's LLVM toolkit, launched through the driver API."""

from qd_cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
