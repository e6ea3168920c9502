"""Rebuilding the Python value that a kernel returns from its result arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.dtypes import DType

__all__ = ["Results"]

Fetch = Callable[[str], "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class Results:
    """What a kernel returns.

    Parameters
    ----------
    specs : tuple
        One ``(path, kind, dtype name, shape)`` a value, as `frontend.lower` describes them.
    several : bool
        The kernel returns a tuple.
    types : tuple
        Type of each value.
    matrix, struct : callable
        Make the library's matrix from a NumPy array, and its struct from its type and a dict of members.
    """

    specs: tuple[tuple[str, str, str, Any], ...]
    several: bool
    types: tuple[Any, ...]
    matrix: Callable[[np.ndarray[Any, Any]], Any]
    struct: Callable[[Any, dict[str, Any]], Any]

    @property
    def scalar(self) -> DType | None:
        """Type of the only result where it is one scalar that needs no conversion to Python."""
        if self.several or self.specs[0][1] != "scalar":
            return None
        dtype = dt.by_name(self.specs[0][2])
        return dtype if dtype is not dt.u1 else None

    def decode(self, fetch: Fetch) -> Any:
        """Return the kernel's value; ``fetch`` gives the contents of a result array by path."""
        values = [self._value(spec, fetch, type) for spec, type in zip(self.specs, self.types, strict=True)]
        return tuple(values) if self.several else values[0]

    def _value(self, spec: tuple[str, str, str, Any], fetch: Fetch, type: Any) -> Any:
        path, kind, _, shape = spec
        if kind == "struct":
            return self.struct(type, {name: self._value(part, fetch, type.members[name]) for name, part in shape})
        data = fetch(path)
        if kind == "matrix":
            return self.matrix(data.reshape(shape))
        value = data[0].item()
        return int(value) if isinstance(value, bool) else value
