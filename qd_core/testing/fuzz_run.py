"""Running random kernels for a while, and keeping those that fail as test files."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qd_core import dtypes as dt
from qd_core.errors import NotDifferentiableError
from qd_core.ir.nodes import Function
from qd_core.ir.parse import parse_function
from qd_core.ir.print import print_function
from qd_core.reference.interpret import interpret
from qd_core.testing.compare import EXACT, clone, expect, run
from qd_core.testing.fuzz import Case, cases

if TYPE_CHECKING:
    from qd_core.testing.device import DeviceUnderTest

__all__ = ["Fuzzing", "check_case", "check_text", "fuzz"]

ROUND = 60
"""Kernels of one seed."""


def check_case(device: DeviceUnderTest, case: Case) -> None:
    """Run a case forward and, where gradients are wanted, in reverse; `AssertionError` where the reference differs."""
    reference = clone(case.arguments)
    interpret(case.function, reference)
    actual = run(device, case.function, case.arguments, options=case.options)
    for path, array in actual.items():
        np.testing.assert_array_equal(array, reference[path], err_msg=f"{path} after a forward run")
    if case.gradients:
        _check_gradient(device, case)


def _check_gradient(device: DeviceUnderTest, case: Case) -> None:
    from qd_core.autodiff.reverse import reverse

    try:
        derivative = reverse(case.function, case.gradients)
    except NotDifferentiableError:
        return
    arguments = _with_gradients(derivative, case.arguments)
    expected = expect(derivative, arguments)
    for path, array in run(device, derivative, arguments, options=EXACT).items():
        expected.check(path, array, "after a reverse run: ")


def _with_gradients(derivative: Function, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add gradient arrays of ones to those arguments that the derivative takes."""
    result = dict(arguments)
    for param in derivative.params:
        name = param.path.removesuffix(".grad")
        if name != param.path and name in arguments:
            result[param.path] = np.ones_like(arguments[name])
    return result


def check_text(
    device: DeviceUnderTest, text: str, arguments: dict[str, Any], gradients: tuple[str, ...] = (), **options: Any
) -> None:
    """Run a kernel given as text: what the test files call.

    Parameters
    ----------
    device : DeviceUnderTest
        Where.
    text : str
        A function, as `qd_core.ir.print` writes it.
    arguments : dict
        Scalars, and arrays as ``(dtype name, nested list)``.
    gradients : tuple of str
        Arrays whose gradients are compared too.
    **options
        Of `CompileOptions`.
    """
    from qd_core.backend.contract import CompileOptions

    given = {p: np.array(v[1], dt.by_name(v[0]).numpy) if isinstance(v, tuple) else v for p, v in arguments.items()}
    check_case(device, Case(parse_function(text), given, CompileOptions(**options), gradients))


@dataclass(slots=True)
class Fuzzing:
    """What came of it.

    Attributes
    ----------
    kernels : int
        Kernels that were run.
    failures : list of Path
        Files that were written.
    """

    kernels: int = 0
    failures: list[Path] = field(default_factory=list[Path])


def fuzz(device: DeviceUnderTest, seconds: float, folder: Path, seed: int = 0, *, failures: int = 10) -> Fuzzing:
    """Run random kernels for a time.

    Parameters
    ----------
    device : DeviceUnderTest
        Where.
    seconds : float
        How long new kernels are made; shrinking a failing one may take longer.
    folder : Path
        Where test files of failing kernels go.
    seed : int
        The first of consecutive seeds: the same seeds make the same kernels.
    failures : int
        Stop after so many failing kernels.
    """
    result, end = Fuzzing(), time.monotonic() + seconds
    while time.monotonic() < end and len(result.failures) < failures:
        failed = _round(device, seed, end, result)
        if failed is not None:
            result.failures.append(_write(folder, *failed))
        seed += 1
    return result


def _round(device: DeviceUnderTest, number: int, end: float, result: Fuzzing) -> tuple[Case, BaseException] | None:
    """Run the kernels of one seed; return the smallest failing one."""
    from hypothesis import HealthCheck, given, seed, settings

    last: list[tuple[Case, BaseException]] = []
    types = frozenset(d for d in dt.ALL if device.has(f"type.{d.name}"))

    @seed(number)
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        report_multiple_bugs=False,
    )
    @given(cases(types, private=device.has("memory.private")))
    def attempt(case: Case) -> None:
        if time.monotonic() > end and not last:
            return
        result.kernels += 1
        try:
            check_case(device, case)
        except Exception as error:
            last[:] = [(case, error)]
            raise

    try:
        attempt()
    except Exception:
        if not last:
            raise
        return last[0]
    return None


def _write(folder: Path, case: Case, error: BaseException) -> Path:
    """Write a test file for a failing case."""
    text = print_function(case.function)
    arguments = "".join(f"    {path!r}: {_literal(value)},\n" for path, value in case.arguments.items())
    options = ", ".join(f"{k}={getattr(case.options, k)!r}" for k in ("fast_math", "lanes"))
    first = str(error).strip().partition("\n")[0].replace('"""', "'''")
    source = (
        f'"""Found by fuzzing: {type(error).__name__}: {first}"""\n\n'
        "from qd_core.testing.fuzz_run import check_text\n\n"
        f'KERNEL = """\n{text}\n"""\n\nARGUMENTS = {{\n{arguments}}}\n\n\n'
        f"def test_fuzzed(device):\n    check_text(device, KERNEL, ARGUMENTS, {case.gradients!r}, {options})\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_fuzzed_{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
    path.write_text(source, encoding="utf-8")
    return path


def _literal(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    dtype = dt.from_numpy(value.dtype)
    assert dtype is not None
    return repr((dtype.name, value.tolist()))
