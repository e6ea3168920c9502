"""Programs as source text of C-like languages: a toolkit for plugin authors.

What differs between devices is a `Dialect`: names of types, how an array is found from its packed word, how an atomic
is spelled, what stands at the head of a file. `HOST_C` is C99 for one thread.
"""

from __future__ import annotations

from qd_core.codegen.cstyle.dialect import HOST_C, Dialect
from qd_core.codegen.cstyle.emitter import KERNEL, emit_source

__all__ = ["HOST_C", "KERNEL", "Dialect", "emit_source"]
