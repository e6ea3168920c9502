"""Threads that launch kernels, in a process of their own: what they could break would end it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import numpy as np
import qd_core as qd
from qd_core.runtime.context import current

qd.init({device!r}, enable_fallback=False)
A = qd.types.ndarray(dtype=qd.f32, ndim=1)

@qd.kernel
def increment(a: A):
    for i in a:
        a[i] += 1.0

wrong, done = [], threading.Event()
start = threading.Barrier(4)

def work():
    start.wait()
    while not done.is_set():
        a = np.zeros(100, np.float32)
        try:
            increment(a)
        except qd.errors.QuadrantsError:
            continue  # the device was closed meanwhile
        if not (a == 1).all():
            wrong.append(a)

threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads:
    t.start()
start.wait()
for k in range(20):
    done.wait(0.02)
    {disturbance}
done.set()
for t in threads:
    t.join()
print("wrong" if wrong else "right")
"""


@pytest.mark.parametrize("disturbance", ["pass", "current().forget_plans()", "qd.init({device!r})"])
def test_first_launches_at_the_same_time(tmp_path, disturbance):
    program = tmp_path / "program.py"  # a kernel needs a source
    program.write_text(PROGRAM.format(device="cpu", disturbance=disturbance.format(device="cpu")), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("right"), done.stdout
