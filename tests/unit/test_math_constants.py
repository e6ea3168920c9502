"""Every constant has a source: the generator gives what is committed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from qd_core.elementary import coefficients

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("fit_math", ROOT / "tools" / "fit_math.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_math"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fit_math"]


@pytest.mark.parametrize("name", ["SIN", "EXP", "TANH"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_polynomials(generator: Any, name: str, dtype: str) -> None:
    assert getattr(coefficients, name)[dtype] == generator.fit(name, dtype)


def test_splits_and_words(generator: Any) -> None:
    for name, (_, value, grids) in generator.SPLITS.items():
        assert getattr(coefficients, name) == {d: generator.parts(value, d, g) for d, g in grids.items()}
    assert list(coefficients.TWO_OVER_PI_WORDS) == generator.two_over_pi_words(38)


def test_committed_text_has_every_table(generator: Any) -> None:
    text = Path(coefficients.__file__).read_text()
    assert all(f"\n{name}: Table" in text for name in [*generator.FITS, *generator.SPLITS])
