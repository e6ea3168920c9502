"""The cost of a launch: a serial kernel that adds one to the first element of each of n arrays."""

import functools
import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import LANGUAGE, Step, language


def module_of(text):
    """Import generated source; kernels are read back from their file."""
    path = Path(tempfile.mkdtemp()) / "generated.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated"] = module
    spec.loader.exec_module(module)
    return module


def of_language(name, n, numpy):
    ti = language(name)
    parameters = ", ".join(f"a{i}: Array" for i in range(n))
    body = "\n".join(f"    a{i}[0] += 1.0" for i in range(n))
    head = f"import {name} as ti\nArray = ti.types.ndarray(dtype=ti.f32, ndim=1)\n"
    kernel = module_of(f"{head}@ti.kernel\ndef touch({parameters}):\n{body}\n").touch
    if numpy:
        arrays = [np.zeros(1, np.float32) for _ in range(n)]
        return Step(lambda: kernel(*arrays), lambda: [a[0] for a in arrays], ti.sync)
    arrays = [ti.ndarray(ti.f32, 1) for _ in range(n)]
    for array in arrays:
        array.fill(0.0)
    return Step(lambda: kernel(*arrays), lambda: [a.to_numpy()[0] for a in arrays], ti.sync)


def numba(n):
    parameters = ", ".join(f"a{i}" for i in range(n))
    body = "\n".join(f"    a{i}[0] += one" for i in range(n))
    head = "import numba, numpy\none = numpy.float32(1)\n"
    kernel = module_of(f"{head}@numba.njit\ndef touch({parameters}):\n{body}\n").touch
    arrays = [np.zeros(1, np.float32) for _ in range(n)]
    return Step(lambda: kernel(*arrays), lambda: [a[0] for a in arrays])


def jax(n):
    import jax

    step = jax.jit(lambda *a: [x + 1 for x in a])
    held = [[jax.numpy.zeros(1, np.float32) for _ in range(n)]]

    def run():
        held[0] = step(*held[0])

    return Step(run, lambda: [a[0] for a in held[0]], lambda: jax.block_until_ready(held[0]))


def warp(n):
    import warp as wp

    parameters = ", ".join(f"a{i}: Array" for i in range(n))
    body = "\n".join(f"    a{i}[0] = a{i}[0] + 1.0" for i in range(n))
    head = "import warp as wp\nArray = wp.array(dtype=wp.float32)\n"
    kernel = module_of(f"{head}@wp.kernel(enable_backward=False)\ndef touch({parameters}):\n{body}\n").touch
    arrays = [wp.zeros(1, dtype=wp.float32, device="cpu") for _ in range(n)]
    return Step(lambda: wp.launch(kernel, dim=1, inputs=arrays, device="cpu"), lambda: [a.numpy()[0] for a in arrays])


NATIVE = {name: functools.partial(of_language, name, numpy=False) for name in LANGUAGE}
NATIVE |= {"numba": numba, "jax": jax, "warp": warp}
NUMPY = {name: functools.partial(of_language, name, numpy=True) for name in LANGUAGE}
NUMPY |= {"numba": numba}
