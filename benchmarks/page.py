"""Results as Markdown and as one HTML page with bars, from the dictionary that `run.py` writes as JSON."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

OURS = "qd_core"
Row = Mapping[str, Any]


def scaled(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.2f} µs"


def by_workload(results: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each workload, those with a time first, fastest first."""
    groups: dict[str, list[Row]] = {}
    for row in results:
        groups.setdefault(row["workload"], []).append(row)
    return {name: sorted(rows, key=lambda r: r.get("median_s", float("inf"))) for name, rows in groups.items()}


def ratio(rows: Sequence[Row]) -> float | None:
    """Our time over the best peer's; None without both."""
    ours = [r["median_s"] for r in rows if r["peer"] == OURS and "median_s" in r]
    peers = [r["median_s"] for r in rows if r["peer"] != OURS and "median_s" in r]
    return ours[0] / min(peers) if ours and peers else None


def markdown(data: Mapping[str, Any]) -> str:
    """One table: a row for each workload and peer."""
    lines = [f"# {data['title']}", "", _machine(data), ""]
    lines += ["| workload | peer | version | median | best | CPUs | against the best peer | remark |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, rows in by_workload(data["results"]).items():
        for row in rows:
            against = ratio(rows) if row["peer"] == OURS else None
            lines.append("| " + " | ".join(_cells(name, row, against)) + " |")
    return "\n".join([*lines, "", *data.get("remarks", ()), ""])


def _cells(name: str, row: Row, against: float | None) -> list[str]:
    if "median_s" not in row:
        return [
            name,
            row["peer"],
            row.get("version", ""),
            "-",
            "-",
            "-",
            "-",
            row.get("error", "")[:90].replace("\n", " "),
        ]
    times = [scaled(row["median_s"]), scaled(row["min_s"]), f"{row.get('cpus', 0):.1f}"]
    remark = " ".join(filter(None, (row.get("note", ""), row.get("mismatch", ""))))
    return [name, row["peer"], row["version"], *times, f"{against:.2f} x" if against else "", remark]


def _machine(data: Mapping[str, Any]) -> str:
    facts = data["machine"]
    text = f"{facts['processor']}, {facts['cores']} cores, {facts['memory']}, {facts['system']}; load {facts['load']}"
    how = f"{data['rounds']} rounds in turns, {data['threads']} threads"
    return f"{text}; revision {facts['revision']}; {data['date']}; {how}."


def page(data: Mapping[str, Any]) -> str:
    """A page that stands alone: a bar for each peer of each workload."""
    style = "body{font:15px sans-serif;margin:2em;max-width:60em}text{font:12px sans-serif}"
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(data['title'])}</title><style>{style}</style>"]
    parts.append(f"<h1>{html.escape(data['title'])}</h1><p>{html.escape(_machine(data))}</p>")
    for name, rows in by_workload(data["results"]).items():
        timed = [r for r in rows if "median_s" in r]
        against = ratio(rows)
        parts.append(f"<h2>{html.escape(name)}{f': {against:.2f} x the best peer' if against else ''}</h2>")
        parts.append(_bars(timed))
        parts += [
            f"<p>{html.escape(r['peer'])}: {html.escape(r.get('error', ''))}</p>" for r in rows if "median_s" not in r
        ]
    return "\n".join(parts)


def _bars(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    longest = max(r["median_s"] for r in rows)
    lines = [f'<svg width="860" height="{24 * len(rows)}">']
    for k, row in enumerate(rows):
        width, at = max(500 * row["median_s"] / longest, 1), 24 * k
        colour = "#d55e00" if row["peer"] == OURS else "#999"
        label = html.escape(f"{row['peer']} {row['version']}")
        lines.append(f'<text x="195" y="{at + 16}" text-anchor="end">{label}</text>')
        lines.append(f'<rect x="200" y="{at + 3}" width="{width:.1f}" height="17" fill="{colour}"/>')
        lines.append(f'<text x="{205 + width:.1f}" y="{at + 16}">{scaled(row["median_s"])}</text>')
    return "\n".join([*lines, "</svg>"])
