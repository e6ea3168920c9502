"""Names of the peer's interface that this library leaves out, with the reason and what to do instead."""

from __future__ import annotations

__all__ = ["reason"]

_DENSE = "fields are dense: every element of every node has its own memory; keep a list of the active ones in a field"
_MESH = "there are no meshes: keep elements and their neighbours in fields of indices"
_CLOCK = "kernels have no clock: time launches around qd.sync()"
_QUANT = "there are no quantised types: use qd.f16, or pack bits with shifts and masks"
_LINALG = "there is no sparse linear algebra: write the product as a kernel, or use scipy.sparse.linalg"
_REASONS: dict[str, str] = {
    **dict.fromkeys(
        ("activate", "deactivate", "deactivate_all_snodes", "append", "length", "is_active", "get_addr", "sparse"),
        _DENSE,
    ),
    **dict.fromkeys(("Mesh", "MeshInstance", "mesh_patch_idx"), _MESH),
    **dict.fromkeys(("clock_counter", "clock_freq_hz"), _CLOCK),
    **dict.fromkeys(("BitpackedFields", "types.quant"), _QUANT),
    **dict.fromkeys(("linalg", "sparse_matrix_builder", "types.sparse_matrix_builder"), _LINALG),
    "perf_dispatch": "time the candidates once, and call the fastest from Python",
    "global_thread_idx": "iterations have indices, not threads: use the loop's variable",
}


def reason(name: str) -> str:
    """Return why ``name`` is left out, to be put behind an error's message; empty for any other name."""
    return f": {_REASONS[name]}" if name in _REASONS else ""
