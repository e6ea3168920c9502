"""Expressions and calls that nest deeply: they work, or say so; names of the package stay what they are."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import qd_core as qd

HEAD = "import qd_core as qd\nA = qd.types.ndarray(dtype=qd.i32, ndim=1)\n"


def module(folder: Path, text: str) -> ModuleType:
    """A module with a kernel `k` of an array ``a`` of integers."""
    path = folder / f"generated_{len(list(folder.iterdir()))}.py"
    path.write_text(HEAD + text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def assigned(folder: Path, expression: str) -> ModuleType:
    return module(folder, f"@qd.kernel\ndef k(a: A):\n    for i in a:\n        a[i] = {expression}\n")


def test_a_sum_of_many_terms(device, tmp_path):
    a = np.arange(5, dtype=np.int32)
    assigned(tmp_path, " + ".join(["a[i]"] * 900)).k(a)
    np.testing.assert_array_equal(a, np.arange(5) * 900)


def test_nesting_beyond_the_stack_is_an_error(device, tmp_path):
    functions = ["@qd.func\ndef f0(x):\n    return x\n"]
    functions += [
        f"@qd.func\ndef f{k}(x):\n    r = x\n    if x > {k}:\n        r = f{k - 1}(x) + 1\n    return r\n"
        for k in range(1, 400)
    ]
    deep = module(
        tmp_path, "".join(functions) + "@qd.kernel\ndef k(a: A):\n    for i in a:\n        a[i] = f399(a[i])\n"
    )
    choices = assigned(tmp_path, " if a[i] > 3 else ".join(f"a[i] + {k}" for k in range(180)))
    for made in (deep, choices):
        with pytest.raises(qd.QuadrantsSyntaxError, match="nested too deeply"):
            made.k(np.zeros(3, np.int32))
    a = np.arange(3, dtype=np.int32)
    assigned(tmp_path, "a[i] + 1").k(a)
    np.testing.assert_array_equal(a, [1, 2, 3])


def test_public_names_survive_the_import_of_subpackages():
    text = (
        "import qd_core as qd, qd_core.math, qd_core.cpu, qd_core.reference\nprint(qd.math.pi, qd.cpu, qd.math.isnan)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("3.14159"), done.stderr
