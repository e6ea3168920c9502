"""Programs that say `import quadrants`, under `qd_core.compat`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import qd_core

PROGRAM = """
import multiprocessing, subprocess, sys
import numpy as np
import quadrants as qd
import quadrants.lang.impl as impl
from quadrants.lang.exception import QuadrantsRuntimeError, QuadrantsSyntaxError
from quadrants.lang.misc import get_host_arch_list, is_arch_supported, loop_config
from quadrants.lang.util import has_pytorch, to_numpy_type, to_quadrants_type
from quadrants.lang._template_mapper import TemplateMapper
from quadrants.lang import kernel_impl, ops
from quadrants._logging import info
from quadrants.math import vec3
from quadrants.algorithms import sort
import quadrants.types


@qd.kernel
def fill(x: quadrants.types.NDArray[qd.f32, 1], v: vec3):
    qd.loop_config(serialize=True)
    for i in x:
        x[i] = v.y * i


def work(n):
    qd.init(arch=qd.cpu, log_level="error")
    x = np.zeros(n, np.float32)
    fill(x, vec3(1, 2, 3))
    return float(x.sum())


if __name__ == "__main__":
    assert sys.argv[1:] == ["one", "two"], sys.argv
    assert qd.__version__ >= (1, 3)
    try:
        impl.get_runtime().prog
    except QuadrantsRuntimeError:
        print("not open")
    said = []
    qd._logging.info = said.append
    qd.init(arch=qd.cpu)
    assert said, "the replaced function was not called"
    assert impl.current_cfg().arch == qd.cpu == qd.lang.impl.get_runtime().prog.config().arch
    assert to_numpy_type(qd.f32) is np.float32 and to_quadrants_type(np.int64) is qd.i64
    assert get_host_arch_list() == [qd.cpu] and is_arch_supported(qd.cpu) and loop_config is qd.loop_config
    assert kernel_impl.kernel is qd.kernel and ops.sin is qd.sin
    for wrong in ("quadrants.lang.nothing", "quadrants.nothing"):
        try:
            __import__(wrong)
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError(wrong)
    print(work(4))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [5]))
    code = "import quadrants as qd; qd.init(arch=qd.cpu); print(qd.lang.impl.current_cfg().arch.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(done.stdout.splitlines()[-1])
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(qd_core.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, cwd=cwd, env=environment, check=False
    )


def test_a_program_and_its_children(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    for words in (["program.py"], ["-m", "program"]):
        done = run("-m", "qd_core.compat", "run", *words, "one", "two", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["not open", "12.0", "[20.0]", "cpu"]


def test_install_in_a_program(tmp_path):
    code = "import qd_core.compat as c; q = c.install(); import quadrants as qd; assert qd is q; print(qd.f32)"
    done = run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "f32\n"), done.stderr
    (tmp_path / "quadrants.py").write_text("")
    done = run("-c", "import quadrants, qd_core.compat as c; c.install()", cwd=tmp_path)
    assert "another quadrants was imported already" in done.stderr


def test_wrong_words_get_the_usage(tmp_path):
    done = run("-m", "qd_core.compat", "walk", cwd=tmp_path)
    assert done.returncode == 2
    assert "usage: python -m qd_core.compat run" in done.stderr
