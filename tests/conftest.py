"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Verify IR between all stages; test fake devices too: one that works at once, one that waits."""
    os.environ["QD_VERIFY_IR"] = "1"
    from qd_core.backend.registry import registry
    from qd_core.testing.fake import FakeBackend

    registry().register("fake", FakeBackend)
    registry().register("fake_async", lambda: FakeBackend("fake_async", asynchronous=True, shared=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the texts under tests/golden that differ")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file under tests/golden; with --update-golden the file is written instead."""
    folder = Path(__file__).parent / "golden"
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"tests/golden/{name} is missing: run pytest --update-golden and read what it writes"
        assert path.read_text(encoding="utf-8") == text, (
            f"tests/golden/{name} differs: if meant, run pytest --update-golden"
        )

    return compare
