"""The layer over pyobjc, which no test runs: its size, and that it offers what the fake device offers."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from metal_host import FakeMetal
from qd_metal import MetalBackend, objc
from qd_metal.driver import Driver, find_driver

UNEXECUTED_LINES = 200


def _methods(of: type) -> dict[str, list[str]]:
    found = {n: f for n, f in inspect.getmembers(of, inspect.isfunction) if not n.startswith("_") and n != "open"}
    return {name: list(inspect.signature(f).parameters) for name, f in found.items()}


def test_both_drivers_implement_the_protocol() -> None:
    assert _methods(Driver)
    assert _methods(objc.ObjcDriver) == _methods(Driver)
    assert _methods(FakeMetal) == _methods(Driver)


def test_the_unexecuted_layer_is_small() -> None:
    text = Path(objc.__file__).read_text()
    lines = {n.lineno for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)}
    assert 0 < len(lines) <= UNEXECUTED_LINES
    assert len(text.splitlines()) <= UNEXECUTED_LINES


@pytest.mark.parametrize("named", ["no_such_module:driver", "metal_host:no_such_function"])
def test_a_driver_that_cannot_be_found_is_a_reason(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_METAL_DRIVER", named)
    there = MetalBackend().probe()
    assert not there.available
    assert named.split(":")[0] in there.reason
    assert "Mac" in there.remedy


def test_elsewhere_than_on_a_mac_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QD_METAL_DRIVER")
    monkeypatch.setattr("sys.platform", "linux")
    assert find_driver() == "Metal is a part of macOS"
    assert MetalBackend().devices() == ()
