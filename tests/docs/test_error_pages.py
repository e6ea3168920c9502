"""Every error has a page, whose first example raises it and whose second does not."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from qd_core import errors

PAGES = Path(__file__).parents[2] / "docs" / "errors"
CLASSES = {
    kind.code: kind
    for kind in map(errors.__dict__.get, errors.__all__)
    if isinstance(kind, type) and issubclass(kind, errors.QuadrantsError)
}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_class_has_a_page_and_a_row():
    assert {p.stem for p in PAGES.glob("QD*.md")} == set(CLASSES)
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    for code, kind in CLASSES.items():
        page = (PAGES / f"{code}.md").read_text(encoding="utf-8")
        assert page.startswith(f"# {code} {kind.__name__}\n")
        assert f"[{code}]({code}.md) | `{kind.__name__}`" in index
        assert BLOCK.findall(page) or "No example: " in page


def examples() -> list[tuple[str, int]]:
    pages = {code: (PAGES / f"{code}.md").read_text(encoding="utf-8") for code in CLASSES}
    return [(code, n) for code, page in pages.items() for n in range(len(BLOCK.findall(page)))]


@pytest.fixture
def restored():
    """Close what an example opened; take back what it registered."""
    import qd_core as qd
    from qd_core.backend.registry import registry

    before = set(registry().names())
    yield
    qd.reset()
    for name in set(registry().names()) - before:
        registry().unregister(name)


@pytest.mark.parametrize(("code", "number"), examples())
def test_examples(restored, tmp_path, code, number):
    text = BLOCK.findall((PAGES / f"{code}.md").read_text(encoding="utf-8"))[number]
    file = tmp_path / f"{code.lower()}_{number}.py"
    file.write_text(text, encoding="utf-8")
    if number:
        runpy.run_path(str(file))
        return
    with pytest.raises(CLASSES[code]) as caught:
        runpy.run_path(str(file))
    assert caught.value.code == code
    assert f"[{code}]" in str(caught.value)
