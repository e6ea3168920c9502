"""The log buffer: how `print`, `assert`, bounds and division checks reach the user from any device.

One array of i64 words a runtime: a header of four words (cursor: words used after the header; capacity in words;
dropped records;
first error: site + 1 or 0), then records {site, iteration, payload}. The payload has one word a recorded value:
integers sign-extended, reals as
f64 bits. The first failed check of a launch records; later ones find the first error set.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.backend.contract import BufferRef, HostSpan, Stream
from qd_core.errors import QuadrantsAssertionError, QuadrantsRuntimeError
from qd_core.ir.program import Site
from qd_core.runtime.arguments import ArrayView

if TYPE_CHECKING:
    from qd_core.backend.contract import Device

__all__ = ["HEADER_WORDS", "Log", "decode"]

HEADER_WORDS = 4
CAPACITY_WORDS = 1 << 16


class Log:
    """The log of one device.

    Parameters
    ----------
    device : Device
        Where the buffer lives.
    capacity : int
        Words for records; what does not fit is counted and dropped.
    """

    def __init__(self, device: Device, capacity: int = CAPACITY_WORDS) -> None:
        self.device, self.capacity = device, capacity
        nbytes = 8 * (HEADER_WORDS + capacity)
        self.buffer = device.allocate(nbytes)
        self.view = ArrayView(BufferRef(self.buffer, 0, nbytes), (HEADER_WORDS + capacity,), (1,))
        shared = device.host_view(self.view.ref)
        self._shared = _as_array(shared) if shared is not None else None
        self.header_address = shared.address if shared is not None else 0
        self.clear(device.default_stream)

    def clear(self, stream: Stream) -> None:
        """Empty the log."""
        header = np.array([0, self.capacity, 0, 0], np.int64)
        if self._shared is not None:
            self._shared[:HEADER_WORDS] = header
        else:
            ref = BufferRef(self.buffer, 0, header.nbytes)
            stream.copy_in(ref, HostSpan(header.ctypes.data, header.nbytes, header))

    def read(self, stream: Stream) -> np.ndarray[Any, Any] | None:
        """Return the used words with the header, or None when nothing was logged."""
        if self._shared is not None:
            header = self._shared[:HEADER_WORDS]
            used = min(int(header[0]), self.capacity)
            return self._shared[: HEADER_WORDS + used].copy() if header[0] or header[2] or header[3] else None
        header = self._fetch(stream, HEADER_WORDS)
        if not (header[0] or header[2] or header[3]):
            return None
        return self._fetch(stream, HEADER_WORDS + min(int(header[0]), self.capacity))

    def _fetch(self, stream: Stream, words: int) -> np.ndarray[Any, Any]:
        out = np.empty(words, np.int64)
        stream.copy_out(HostSpan(out.ctypes.data, out.nbytes, out), BufferRef(self.buffer, 0, out.nbytes))
        return out

    def drain(self, stream: Stream, sites: Sequence[Site]) -> None:
        """Print what kernels printed, then raise the first failed check, leaving the log empty."""
        words = self.read(stream)
        if words is None:
            return
        self.clear(stream)
        records = decode(words, sites)
        _show_prints(records)
        failed = next((r for r in records if r[0].kind != "print"), None)
        failure = check_error(*failed) if failed is not None else None
        if words[2]:
            builtins.print(f"[qd] {int(words[2])} log records did not fit and were dropped")
        if failure is None and words[3]:
            failure = check_error(sites[int(words[3]) - 1], None, None)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Free the buffer."""
        self.device.free(self.buffer, after=self.device.default_stream)


Record = tuple[Site, int, list[Any]]
_ONCE = ("once", True)


def _show_prints(records: Sequence[Record]) -> None:
    """Print records in order; of a site that asks for it only the first, with the number of the others."""
    counts = Counter(id(site) for site, _, _ in records if _ONCE in site.details)
    for site, iteration, values in records:
        if site.kind != "print":
            continue
        if _ONCE not in site.details:
            builtins.print(format_print(site, values), end="")
        elif count := counts.pop(id(site), 0):
            more = f", and {count - 1} times more" if count > 1 else ""
            builtins.print(f"{format_print(site, values)}  in iteration {iteration}{more}")


def _as_array(span: HostSpan) -> np.ndarray[Any, Any]:
    import ctypes

    memory: Any = (ctypes.c_char * span.nbytes).from_address(span.address)
    return np.frombuffer(memory, np.int64)


def decode(words: np.ndarray[Any, Any], sites: Sequence[Site]) -> list[Record]:
    """Split log words into (site, iteration, values); a torn last record is left out."""
    records: list[Record] = []
    at = HEADER_WORDS
    while at + 2 <= len(words) and 0 <= int(words[at]) < len(sites):
        site = sites[int(words[at])]
        payload = words[at + 2 : at + 2 + len(site.dtypes)]
        if len(payload) < len(site.dtypes):
            break
        records.append((site, int(words[at + 1]), [_value(w, d) for w, d in zip(payload, site.dtypes, strict=True)]))
        at += 2 + len(site.dtypes)
    return records


def _value(word: Any, name: str) -> Any:
    dtype = dt.by_name(name)
    if dtype.is_real:
        return float(np.int64(word).view(np.float64))
    value = int(word)
    return value & ((1 << dtype.bits) - 1) if not dtype.is_signed else value


def _show(value: Any, spec: str) -> str:
    if spec:
        return format(value, spec)
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def format_print(site: Site, values: Sequence[Any]) -> str:
    """Return the text of a print record."""
    return "".join(p if isinstance(p, str) else _show(values[p[0]], p[1] if len(p) > 1 else "") for p in site.message)


def format_message(site: Site, values: Sequence[Any] | None) -> str:
    """Return the message of a check: text, or parts with the recorded values put in."""
    if isinstance(site.message, str):
        return site.message
    return "".join(
        p if isinstance(p, str) else _show(values[p[0]], p[1] if len(p) > 1 else "") if values is not None else "?"
        for p in site.message
    )


def check_error(site: Site, iteration: int | None, values: Sequence[Any] | None) -> Exception:
    """Return the exception of a failed check, with kernel, line and the recorded values."""
    message = format_message(site, values)
    names = dict(site.details).get("names", ())
    shown = ", ".join(f"{n} = {_show(v, '')}" for n, v in zip(names, values or (), strict=False))
    text = f"{message}\n  at {site.location}" + (f" (iteration {iteration})" if iteration is not None else "")
    if shown:
        text += f"\n  with {shown}"
    if site.excerpt:
        text += f"\n{site.excerpt}"
    return QuadrantsAssertionError(text) if site.kind in ("assert", "bounds") else QuadrantsRuntimeError(text)
