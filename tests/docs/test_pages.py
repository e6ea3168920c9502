"""The examples of the documentation's pages run as they are written."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md") if ">>> " in p.read_text())


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page: str) -> None:
    failures, count = doctest.testfile(str(ROOT / page), module_relative=False, encoding="utf-8")
    assert count
    assert not failures


def test_there_are_pages_with_examples() -> None:
    assert "docs/backend-in-300-lines.md" in PAGES
