"""What a consumer of SPIR-V contributes: data."""

from __future__ import annotations

from dataclasses import dataclass, field

from qd_core import dtypes as dt
from qd_core.dtypes import DType
from qd_core.errors import Span, UnsupportedError

__all__ = ["SpirvTarget"]


@dataclass(frozen=True, slots=True)
class SpirvTarget:
    """A target of the generator.

    Attributes
    ----------
    backend : str
        Name for errors.
    types : frozenset of DType
        Types that can be computed with and kept in memory. i32, u32, i64, u64 and f32 are always among them.
    atomics : frozenset of (str, DType)
        Atomics that are one instruction (kind, dtype). Others become a loop of compare-and-swap.
    atomic_widths : frozenset of int
        Widths in bits of an atomic compare-and-swap.
    push_words : int
        64-bit words that fit the push constants.
    max_group : int
        Largest number of invocations in a group.
    group : int
        Invocations in a group where the user asks for nothing.
    shared_nbytes : int
        Bytes of memory that a group shares; 0 where it has none, or no barriers.
    float_modes : frozenset of (str, int)
        Execution modes of real arithmetic by width, such as ``("SignedZeroInfNanPreserve", 32)``.
    plain_products : bool
        Products are not decorated `NoContraction`, only the sums that they could be fused with: a consumer that
        writes a decorated
        product as ``fma(x, y, 0)`` loses the sign of zero.
    loop_limit : bool
        The device ends loops after some number of iterations although their condition still holds: each loop checks,
        and reports it.
    """

    backend: str
    types: frozenset[DType] = frozenset({dt.i32, dt.u32, dt.i64, dt.u64, dt.f32})
    atomics: frozenset[tuple[str, DType]] = frozenset()
    atomic_widths: frozenset[int] = frozenset({32})
    push_words: int = 16
    max_group: int = 128
    group: int = 128
    shared_nbytes: int = 0
    float_modes: frozenset[tuple[str, int]] = field(default_factory=frozenset[tuple[str, int]])
    plain_products: bool = False
    loop_limit: bool = False

    def require(self, dtype: DType, span: Span | None = None) -> None:
        """Raise `UnsupportedError` for a type that the target lacks."""
        kept = dt.u8 if dtype is dt.u1 else dtype
        if dtype not in self.types and kept not in self.types:
            raise UnsupportedError(f"type.{dtype.name}", self.backend, span=span)
