"""Public submodules are imported in every way that Python has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qd_core as qd


def run(code: str) -> str:
    """Output of a program in a process of its own, where nothing was imported before."""
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


@pytest.mark.parametrize(
    "code",
    [
        "import qd_core.math as tm; print(tm.vec3.n)",
        "from qd_core.math import vec3, pi; print(vec3.n)",
        "from qd_core.math import *; print(vec3.n)",
        "from qd_core import math; print(math.vec3.n)",
        "import qd_core as qd; import qd_core.math; print(qd.math.vec3.n)",
        "import qd_core as qd; print(qd.math.vec3.n)",
        "import qd_core as qd; from qd_core.math import vec3; print(3 if qd.math.vec3 is vec3 else 0)",
        "from qd_core.types import vector, f32; print(vector(3, f32).n)",
        "from qd_core.ad import Tape; print(len('abc'))",
    ],
)
def test_public_names_come_from_their_submodule(code: str) -> None:
    assert run(code) == "3"


def test_kernels_leave_the_public_names_alone() -> None:
    """The first kernel loads the elementary functions, which once had the name of `qd.math`."""
    code = (
        "import qd_core as qd, tempfile, pathlib, sys;"
        "path = pathlib.Path(tempfile.mkdtemp()) / 'program.py';"
        "path.write_text('import qd_core as qd\\n@qd.kernel\\ndef f(x: qd.f32) -> qd.f32:\\n    return qd.sin(x)\\n');"
        "sys.path.insert(0, str(path.parent));"
        "qd.init(arch='cpu', log_level='error');"
        "import program; program.f(1.0); print(qd.math.vec3.n)"
    )
    assert run(code).endswith("3")


def test_other_names_are_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"qd_core\.nothing"):
        __import__("qd_core.nothing")
    assert not hasattr(qd, "nothing")
