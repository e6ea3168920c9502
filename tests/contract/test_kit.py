"""The kit on itself: every fake backend that breaks one promise is found out by a test that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qd_core import dtypes as dt
from qd_core.backend.registry import registry
from qd_core.errors import ContractVersionError
from qd_core.testing import suite
from qd_core.testing.device import open_device, untested
from qd_core.testing.fake.broken import BROKEN
from qd_core.testing.suite.elementwise import GROUPS

F64_UNARY = next(p.values[0] for p in GROUPS if p.id == "f64-1")
F32_UNARY = next(p.values[0] for p in GROUPS if p.id == "f32-1")
ADD = {"kind": "add", "dtype": dt.f32}

CAUGHT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "drops_the_gradient": (
        suite.test_reverse_kinds_and_sizes,
        {"kind": "numpy"},
        r"\.grad: \d+ of \d+ elements differ",
    ),
    "passes_a_host_address": (
        suite.test_kinds_and_sizes,
        {"kind": "ndarray", "grad": True},
        r"'read' \(data\) is 0x[0-9a-f]+, an address of the host",
    ),
    "copies_back_too_little": (suite.test_copies_of_parts, {"nbytes": 3}, "differ|Mismatch"),
    "copies_back_too_much": (suite.test_copying_out_touches_nothing_else, {}, "wrote another length than it was asked"),
    "clobbers_what_it_does_not_write": (
        suite.test_launches_change_only_what_they_write,
        {"kind": "numpy"},
        "places not written have changed",
    ),
    "ignores_alignment": (suite.test_addresses_keep_the_alignment, {"alignment": 64}, "ignores the alignment"),
    "leaks": (suite.test_freed_memory_is_given_back, {}, "it leaks"),
    "lies_about_an_atomic": (suite.test_atomics, ADD, "atomic add of f32 at place 0: .*no remaining update saw that"),
    "loses_updates": (
        suite.test_atomics_without_their_old_value,
        {"dtype": dt.f32},
        r"x_add: \d+ of 5 elements differ",
    ),
    "truncates_a_dtype": (suite.test_operations, {"group": F64_UNARY}, "sqrt of f64: .*elements differ"),
    "runs_tasks_in_the_wrong_order": (
        suite.test_serial_code_between_parallel_loops,
        {},
        "nothing was ever written|differ",
    ),
    "misses_a_barrier": (suite.test_serial_code_between_parallel_loops, {}, "x: 1 of 37 elements differ"),
    "swallows_messages": (suite.test_the_device_works_after_a_failed_check, {}, "DID NOT RAISE"),
    "copies_before_the_work_is_done": (suite.test_copies_of_parts, {"nbytes": 4}, "differ|Mismatch"),
    "borrows_the_hosts_memory": (suite.test_copying_in_takes_a_snapshot, {}, "differ|Mismatch"),
    "ignores_events": (suite.test_events_order_streams, {}, "assert|nothing ever wrote"),
    "returns_a_stale_artifact": (suite.test_kernels_of_one_name_are_told_apart, {}, "a stale artifact"),
    "claims_too_little": (suite.test_unclaimed_atomics_do_not_work, {}, r"work and are not claimed: atomic\.add\.f32"),
    "cannot_compile_an_operation": (
        suite.test_operations,
        {"group": F32_UNARY},
        "sin of f32: NotImplementedError: no such instruction",
    ),
}
"""Broken backend -> the test that finds it out, its parameters, and what its message says."""


@pytest.fixture
def register() -> Iterator[Any]:
    """Register broken backends for one test."""
    names: list[str] = []

    def add(name: str) -> None:
        registry().register(name, lambda: BROKEN[name](name))
        names.append(name)

    yield add
    for name in names:
        registry().unregister(name)


def options(test: Any) -> dict[str, Any]:
    """Options of `qd.init` that a test's mark asks for."""
    return next((dict(m.kwargs) for m in getattr(test, "pytestmark", ()) if m.name == "qd_options"), {})


@pytest.mark.parametrize("name", CAUGHT)
def test_a_broken_promise_is_found_out(name: str, register: Any) -> None:
    """The test fails on the broken backend, with a message that says what is wrong, and passes on the whole one."""
    register(name)
    test, parameters, message = CAUGHT[name]
    device = open_device(name, options(test))
    with pytest.raises((AssertionError, pytest.fail.Exception), match=f"(?s){message}"):
        test(device, **parameters)
    import qd_core as qd

    qd.reset()
    whole = open_device("fake", options(test))
    test(whole, **parameters)
    whole.close()


def test_raising_in_probe_is_not_taken_for_absence(register: Any) -> None:
    register("raises_in_probe")
    with pytest.raises(AssertionError, match=r"probe\(\) of 'raises_in_probe' raised OSError.*must never raise"):
        untested("raises_in_probe", ())


def test_another_contract_is_refused(register: Any) -> None:
    register("built_for_another_contract")
    with pytest.raises(ContractVersionError, match=r"made for contract 99\.0"):
        registry().load("built_for_another_contract")


def test_every_broken_backend_is_tried() -> None:
    assert CAUGHT.keys() | {"raises_in_probe", "built_for_another_contract"} == BROKEN.keys()


def test_a_guard_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for arguments that share no memory must not run on those that do: the kit has a kernel that shows it."""
    from qd_core.runtime import launch

    monkeypatch.setattr(launch, "no_overlap", lambda *facts: True)
    device = open_device("cpu")
    with pytest.raises(AssertionError, match="elements differ"):
        suite.test_overlapping_arguments(device, "numpy")
    device.close()
