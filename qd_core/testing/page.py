"""A survey as a page to look at: one file, no scripts from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["page"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1d2230; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 13px; } th, td { border: 1px solid #cdd3df; padding: 2px 8px; }
thead th { position: sticky; top: 0; background: #eef1f6; } tbody th { text-align: left; background: #f7f8fb; }
td { text-align: center; } td.left { text-align: left; }
.pass { background: #d9f2df; } .fail { background: #f8d0d0; font-weight: 600; }
.none { background: #f1f2f5; color: #6b7285; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 1rem; } dt { color: #55607a; } dd { margin: 0; }
input { font: inherit; padding: 4px 8px; margin: .5rem 0; width: 22rem; max-width: 100%; }
"""

_SCRIPT = """
for (const input of document.querySelectorAll("input[data-table]")) {
  const rows = document.getElementById(input.dataset.table).tBodies[0].rows;
  input.addEventListener("input", () => {
    const word = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}
"""

_DTYPES = ("i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64", "f16", "f32", "f64")


def page(data: Mapping[str, Any]) -> str:
    """Return the HTML page of a survey."""
    title = f"Conformance of {data['backend']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _facts(data),
        _section(
            "Operations", "operations", data["operations"], "Each operation on each dtype in global memory, forward."
        ),
        _section("Gradients", "gradients", data["gradients"], "Reverse mode through each differentiable operation."),
        _launcher(data["tests"]),
        _tests(data["tests"]),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n<script>{_SCRIPT}</script></body></html>\n"
    )


def _facts(data: Mapping[str, Any]) -> str:
    outcomes = Counter(test["outcome"] for test in data["tests"])
    rows = [(k, data[k]) for k in ("distribution", "core", "contract", "device", "target", "compiler")]
    rows.append(("tests", ", ".join(f"{outcomes[k]} {k}" for k in ("passed", "failed", "skipped"))))
    rows.append(("extensions", ", ".join(f"{name}: {answer}" for name, answer in data["extensions"].items())))
    rows.append(("limits", ", ".join(f"{name} {value}" for name, value in data["limits"].items())))
    rows.append(("claims", ", ".join(data["capabilities"])))
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in rows) + "</dl>"


def _cell(text: str | None) -> str:
    if text is None:
        return "<td></td>"
    if text in ("pass", "passed"):
        return '<td class="pass">pass</td>'
    if text in ("unsupported", "skipped"):
        return f'<td class="none">{text}</td>'
    return f'<td class="fail" title="{escape(text)}">fail</td>'


def _table(name: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    body = "".join(f'<tr><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>\n' for label, cells in rows)
    return f'<table id="{name}"><thead><tr><th></th>{head}</tr></thead><tbody>\n{body}</tbody></table>'


def _section(title: str, name: str, table: Mapping[str, Mapping[str, str]], text: str) -> str:
    columns = [d for d in _DTYPES if any(d in row for row in table.values())]
    rows = ((op, [_cell(row.get(d)) for d in columns]) for op, row in table.items())
    return f"<h2>{title}</h2><p>{text}</p>{_filter(name)}{_table(name, columns, rows)}"


def _filter(name: str) -> str:
    return f'<p><input data-table="{name}" aria-label="filter rows of {name}" placeholder="filter rows"></p>'


def _launcher(tests: Sequence[Mapping[str, str]]) -> str:
    """The launcher matrix: kinds of arguments against what is done with them."""
    known = {"ndarray", "numpy", "offset", "torch"}
    cells: dict[str, dict[str, str]] = {}
    for test in tests:
        kind, _, rest = test["parameters"].partition("-")
        if kind in known:
            label = test["test"].removeprefix("test_").replace("_", " ") + (f", {rest}" if rest else "")
            cells.setdefault(label, {})[kind] = test["reason"] or test["outcome"]
    columns = sorted({kind for row in cells.values() for kind in row})
    rows = ((label, [_cell(row.get(kind)) for kind in columns]) for label, row in cells.items())
    return f"<h2>Launcher matrix</h2>{_table('launcher', columns, rows)}"


def _tests(tests: Sequence[Mapping[str, str]]) -> str:
    rows = (
        (
            f"{t['test']}[{t['parameters']}]" if t["parameters"] else t["test"],
            [_cell(t["outcome"]), f'<td class="left">{escape(t["reason"][:500])}</td>'],
        )
        for t in tests
    )
    return f"<h2>Tests</h2>{_filter('tests')}{_table('tests', ['outcome', 'reason'], rows)}"
