"""Translation to Metal Shading Language: the form that is right, the form that is not, and that this harness tells
them apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernels
import msl_host
import numpy as np
import pytest
from harness import bind
from qd_vulkan.facts import spirv_target
from translated import MAX_SLOTS, TRANSLATED, TranslatedBackend, translate, why_not

from qd_core.backend.contract import CompileOptions
from qd_core.codegen.spirv.emitter import Emitter
from qd_core.codegen.spirv.task import emit_task
from qd_core.passes.offload import offload

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "tools are there")


@pytest.fixture
def device() -> Any:
    backend = TranslatedBackend()
    return backend.open(backend.devices()[0], {})


@pytest.fixture
def compiler() -> Any:
    return TranslatedBackend().compiler(TRANSLATED)


def _adjoints() -> dict[str, np.ndarray[Any, Any]]:
    return {"y.grad": np.arange(1, 301, dtype=np.float32), "x.grad": np.ones(300, np.float32)}


def test_an_adjoint_that_is_cleared_was_read_before(device: Any, compiler: Any) -> None:
    values = _adjoints()
    bound = bind(device, compiler, kernels.chain_back(), values)
    bound.run()
    np.testing.assert_array_equal(bound.fetch("y.grad"), 0)
    np.testing.assert_array_equal(bound.fetch("x.grad"), 1 + 2 * values["y.grad"])


def test_the_plain_form_loses_the_contribution_and_this_harness_sees_it(
    device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPIRV-Cross moves the load of the adjoint past the store that clears it. When this test fails, the form has
    become right there.
    """
    monkeypatch.setattr(Emitter, "pointer", Emitter.place)  # without a home in a variable
    bound = bind(device, compiler, kernels.chain_back(), _adjoints())
    bound.run()
    np.testing.assert_array_equal(bound.fetch("x.grad"), 1)


def test_the_plain_form_is_right_on_a_driver(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is valid SPIR-V: what is wrong is its translation."""
    from qd_vulkan import VulkanBackend

    monkeypatch.setattr(Emitter, "pointer", Emitter.place)  # without a home in a variable
    values = _adjoints()
    bound = bind(opened, VulkanBackend().compiler(opened.info.target), kernels.chain_back(), values)
    bound.run()
    np.testing.assert_array_equal(bound.fetch("x.grad"), 1 + 2 * values["y.grad"])
    bound.free()


def test_atomics_name_the_device_address_space(compiler: Any) -> None:
    program = offload(kernels.accumulate())
    (code,) = emit_task(program, 0, spirv_target(TRANSLATED), CompileOptions())
    text = translate(code.binary)
    assert "(device atomic_uint*)" in text
    assert "(thread atomic_uint*)" not in text


def test_300_arrays_take_one_slot(device: Any, compiler: Any) -> None:
    values = {f"x{k}": np.full(9, k, np.int32) for k in range(300)} | {"y": np.zeros(9, np.int32)}
    bound = bind(device, compiler, kernels.many(300), values)
    bound.run()
    np.testing.assert_array_equal(bound.fetch("y"), 300 * 299 // 2)
    (text,) = bound.module.texts
    assert len(msl_host.slots(text)) == 1 <= MAX_SLOTS


def test_private_memory(device: Any, compiler: Any) -> None:
    lengths = np.random.default_rng(1).integers(-3, 90, 300).astype(np.int32)
    bound = bind(device, compiler, kernels.stack(), {"length": lengths, "y": np.zeros(300, np.float32)})
    bound.run()
    want = [sum(range(i, i + max(int(n), 0))) for i, n in enumerate(lengths)]
    np.testing.assert_allclose(bound.fetch("y"), want, rtol=1e-5)


def test_a_kernel_of_more_slots_is_refused(device: Any, compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of the kit passes this check when it is loaded; with no slot allowed, none would."""
    import translated

    monkeypatch.setattr(translated, "MAX_SLOTS", 0)
    with pytest.raises(AssertionError, match="1 buffer slots"):
        bind(device, compiler, kernels.saxpy(), {"a": 1.0, "x": np.ones(4, np.float32), "y": np.ones(4, np.float32)})


def test_the_kit_runs_on_every_form_of_the_code() -> None:
    """CI has a run of the kit's slice for each: on the driver under validation, optimised, and translated."""
    lines = (Path(__file__).parents[1] / "ci-runs.txt").read_text().splitlines()
    for form in ("vulkan", "vulkan_optimized", "vulkan_translated"):
        assert f"backends/qd_vulkan/tests/kit --qd-backend={form} --qd-require={form} -n 2" in lines
