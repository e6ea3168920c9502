"""Features count when their kernels are right: what a driver only advertises is not claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import kernels
import numpy as np
import pytest
from qd_vulkan import VulkanBackend, probes, probing
from qd_vulkan.compiler import VulkanCompiler
from qd_vulkan.facts import spirv_target, target_from, target_of
from qd_vulkan.instance import instance
from qd_vulkan.probes import Probe

from qd_core import dtypes as dt
from qd_core.backend.contract import CompileOptions, Target
from qd_core.codegen.spirv.text import disassemble
from qd_core.errors import UnsupportedError
from qd_core.passes.offload import offload


@pytest.fixture
def asked() -> Iterator[tuple[Any, Any, Target]]:
    """Instance, physical device, and the target that it advertises."""
    found = instance()
    if isinstance(found, str) or not VulkanBackend().probe().available:
        pytest.skip(f"no Vulkan device: {VulkanBackend().probe().reason}")
    physical = next(p for p in found.physical_devices() if not p.missing)
    yield found, physical, target_of(physical)
    found.messages.clear()


def features(asked: tuple[Any, Any, Target]) -> tuple[str, ...]:
    return probing.ask(*asked)


def test_what_is_served_is_what_the_device_claims(asked: Any) -> None:
    _, physical, advertised = asked
    (info, *_) = VulkanBackend().devices()
    assert set(info.target.features) == set(features(asked))
    assert info.name == physical.name
    for kind in ("group", "shared", "subgroup"):
        assert any(f.startswith(kind + ".") for f in info.target.features) == any(
            f.startswith(kind + ".") for f in advertised.features
        )


def test_answers_are_kept_for_what_was_advertised(asked: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("QD_CACHE_DIR", str(tmp_path))
    times: list[Target] = []
    monkeypatch.setattr(probing, "ask", lambda *words: times.append(words[2]) or ("atomics32",))
    found, physical, target = asked
    probe = probing.probed.__wrapped__
    assert [probe(found, physical, target) for _ in range(3)] == [("atomics32",)] * 3
    assert len(times) == 1
    probe(found, physical, replace(target, features=(*target.features, "new")))
    assert len(times) == 2


def lies(make: Callable[..., Probe], wanted: Callable[..., bool] = lambda *a: True) -> Callable[..., Probe]:
    """Probes whose kernel leaves its array as it was, as a driver does that advertises and does nothing."""

    def lying(*words: Any) -> Probe:
        probe = make(*words)
        if not wanted(*words):
            return probe
        assert not probe.right(probe.given.copy()), "a kernel that does nothing passes for right"
        return replace(probe, right=lambda found: probe.right(probe.given.copy()))

    return lying


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.name not in ("i32", "u32", "i64", "u64", "f32")], ids=str)
def test_a_type_that_is_not_served_is_not_claimed(asked: Any, monkeypatch: pytest.MonkeyPatch, dtype: dt.DType) -> None:
    monkeypatch.setattr(probes, "type_probe", lies(probes.type_probe, lambda d: d is dtype))
    if f"type.{dtype.name}" not in asked[2].features:
        pytest.skip(f"the device does not advertise {dtype.name}")
    target = target_from("t", features(asked))
    assert not target.capabilities.has(f"type.{dtype.name}")
    assert target.capabilities.has("type.f32")
    if dtype is not dt.u1:
        program = offload(kernels.accumulate(dtype))
        with pytest.raises(UnsupportedError, match=dtype.name):
            VulkanCompiler(target).compile(program, CompileOptions())


@pytest.mark.parametrize(
    ("probe", "gone"),
    [("clock_probe", "clock"), ("subgroup_size", "subgroup"), ("group_probe", "group"), ("shared_probe", "shared")],
)
def test_what_a_group_does_not_do_is_not_claimed(
    asked: Any, monkeypatch: pytest.MonkeyPatch, probe: str, gone: str
) -> None:
    monkeypatch.setattr(probes, probe, lies(getattr(probes, probe)))
    assert not any(f.split(".")[0] == gone for f in features(asked))


@pytest.mark.parametrize("name", ["subgroup.reduce", "subgroup.shuffle", "subgroup.ballot"])
def test_an_operation_of_subgroups_that_is_not_served_is_not_claimed(
    asked: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make = probes.subgroup_probes

    def probes_of(size: int) -> dict[str, Probe]:
        return {k: lies(lambda p: p)(p) if k == name else p for k, p in make(size).items()}

    monkeypatch.setattr(probes, "subgroup_probes", probes_of)
    found = features(asked)
    assert name not in found
    assert set(asked[2].features) - set(found) == {name} & set(asked[2].features)


def test_a_group_is_as_large_as_what_runs(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "group_probe", lies(probes.group_probe, lambda n: n > 200))
    assert 100 < spirv_target(target_from("t", features(asked))).max_group <= 200


def test_an_atomic_that_is_not_right_is_emulated(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of a native 32-bit addition is wrong: compare-and-swap takes over, and is asked as well."""
    given: list[str] = []

    def probe(dtype: dt.DType, kinds: Any) -> Probe:
        kinds = tuple(kinds)
        wrong = dtype is dt.i32 and "add" in kinds and len(given) < 2
        given.extend(["wrong"] * wrong)
        return lies(make)(dtype, kinds) if wrong else make(dtype, kinds)

    make = probes.atomic_probe
    monkeypatch.setattr(probes, "atomic_probe", probe)
    target = target_from("t", features(asked))
    assert "emulated.add.i32" in target.features
    assert target.capabilities.has("atomic.add.i32")
    code = VulkanCompiler(target).compile(
        offload(kernels.accumulate()), CompileOptions(extra=(("stages", "1"),), fast_math=False)
    )
    text = "".join(code.stages.values())
    assert "OpAtomicCompareExchange" in text
    assert "OpAtomicIAdd" not in text


@pytest.mark.parametrize(("bits", "kept"), [(64, True), (32, False)])
def test_atomics_without_a_right_compare_and_swap_are_not_claimed(
    asked: Any, monkeypatch: pytest.MonkeyPatch, bits: int, kept: bool
) -> None:
    monkeypatch.setattr(probes, "atomic_probe", lies(probes.atomic_probe, lambda d, kinds: d.bits == bits))
    claims = target_from("t", features(asked)).capabilities
    assert not claims.has(f"atomic.add.i{bits}")
    assert claims.has("atomic.add.i32") == kept


def test_a_feature_that_no_device_can_be_made_with_is_not_claimed(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from qd_vulkan import binding
    from qd_vulkan.device import VulkanDevice
    from qd_vulkan.loader import VulkanError

    create = VulkanDevice._create

    def refusing(self: VulkanDevice) -> int:
        if "native.add.f64" in self.info.target.features:
            raise VulkanError("vkCreateDevice", binding.FEATURE_NOT_PRESENT)
        return create(self)

    monkeypatch.setattr(VulkanDevice, "_create", refusing)
    found, physical, target = asked
    told = replace(target, features=(*(f for f in target.features if f != "native.add.f64"), "native.add.f64"))
    serves = probing.ask(found, physical, told)
    assert set(told.features) - set(serves) == {"native.add.f64"}


def test_every_kernel_is_silent_and_right_here(asked: Any) -> None:
    """What this device advertises it serves: on a conforming driver, nothing is lost."""
    found, _, target = asked
    found.messages.clear()
    assert set(target.features) <= set(features(asked))
    assert not found.messages


def test_kernels_write_text_that_shows_what_is_asked(asked: Any) -> None:
    compiler = VulkanCompiler(asked[2])
    from qd_vulkan.compiler import unpack

    text = disassemble(unpack(probes.clock_probe().make(compiler)).tasks[0].binary)
    assert "OpReadClockKHR" in text
    assert np.all(probes.clock_probe().given == 0)
