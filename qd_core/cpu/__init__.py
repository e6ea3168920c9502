"""The CPU backend: the host's own processor, with iterations spread over SIMD lanes and threads.

Loading it imports no LLVM; that happens when something is compiled or loaded.
"""

from qd_core.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
