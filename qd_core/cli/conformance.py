"""``python -m qd_core conformance NAME``: the kit on an installed backend, with a report as JSON and as a page."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("backend", help="name of the backend")
    parser.add_argument("--folder", type=Path, default=Path("conformance"), help="where the reports go")
    parser.add_argument("--slice", choices=("smoke", "ci", "full"), default="ci", help="how much to run")
    parser.add_argument(
        "--keyword", default="", metavar="EXPRESSION", help="only tests whose name matches, as pytest -k"
    )


def run(options: argparse.Namespace) -> int:
    """Survey and write; 1 where something fails, 2 where the tools or the backend are missing."""
    from qd_core.errors import QuadrantsError

    try:
        from qd_core.testing.page import page
        from qd_core.testing.survey import survey

        keyword = ("-k", options.keyword) if options.keyword else ()
        data = survey(options.backend, (f"--qd-slice={options.slice}", *keyword))
    except ModuleNotFoundError as error:
        print(f"the kit needs {error.name}: python -m pip install 'qd-core[test]'")
        return 2
    except QuadrantsError as error:
        print(error)
        return 2
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{options.backend}.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    (folder / f"{options.backend}.html").write_text(page(data), encoding="utf-8")
    return _summarise(data, folder / options.backend)


def _summarise(data: dict[str, Any], path: Path) -> int:
    tests = Counter(test["outcome"] for test in data["tests"])
    cells = Counter(
        "unsupported" if text == "unsupported" else "pass" if text == "pass" else "fail"
        for table in ("operations", "gradients")
        for row in data[table].values()
        for text in row.values()
    )
    print(f"{data['backend']}: {tests['passed']} tests passed, {tests['failed']} failed, {tests['skipped']} skipped")
    print(f"operations: {cells['pass']} pass, {cells['fail']} fail, {cells['unsupported']} unsupported")
    print(f"reports: {path}.json, {path}.html")
    return int(tests["failed"] > 0 or cells["fail"] > 0 or not tests["passed"])
