"""Layouts and numbers of the binding against the C headers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from qd_vulkan import binding

_HEADER = next(
    (p for p in (Path("/usr/include"), Path("/usr/local/include")) if (p / "vulkan/vulkan_core.h").exists()), None
)
_COMPILER = next((c for c in ("cc", "gcc", "clang", "clang-16") if shutil.which(c)), None)

_SUFFIX = {
    "DebugUtilsMessengerCreateInfo": "EXT",
    "DebugUtilsMessengerCallbackData": "EXT",
    "PhysicalDeviceShaderAtomicFloatFeatures": "EXT",
    "PhysicalDeviceShaderClockFeatures": "KHR",
}
_MEMBER = {
    "sparse": "sparseProperties", "granularity": "minImageTransferGranularity",
    "signedZeroInfNanPreserve": "shaderSignedZeroInfNanPreserveFloat16",
    "denormPreserve": "shaderDenormPreserveFloat16",
    "denormFlushToZero": "shaderDenormFlushToZeroFloat16", "roundingModeRTE": "shaderRoundingModeRTEFloat16",
    "roundingModeRTZ": "shaderRoundingModeRTZFloat16",
}  # fmt: skip
_NUMBERS = {
    "QUEUE_COMPUTE": "VK_QUEUE_COMPUTE_BIT", "MEMORY_DEVICE_LOCAL": "VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT",
    "MEMORY_HOST_VISIBLE": "VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT",
    "MEMORY_HOST_COHERENT": "VK_MEMORY_PROPERTY_HOST_COHERENT_BIT",
    "MEMORY_HOST_CACHED": "VK_MEMORY_PROPERTY_HOST_CACHED_BIT",
    "ALLOCATE_DEVICE_ADDRESS": "VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT",
    "STAGE_COMPUTE": "VK_SHADER_STAGE_COMPUTE_BIT", "PIPELINE_STAGE_COMPUTE": "VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT",
    "PIPELINE_STAGE_TRANSFER": "VK_PIPELINE_STAGE_TRANSFER_BIT", "PIPELINE_STAGE_HOST": "VK_PIPELINE_STAGE_HOST_BIT",
    "ACCESS_SHADER_WRITE": "VK_ACCESS_SHADER_WRITE_BIT", "ACCESS_TRANSFER_WRITE": "VK_ACCESS_TRANSFER_WRITE_BIT",
    "ACCESS_HOST_READ": "VK_ACCESS_HOST_READ_BIT", "ACCESS_MEMORY_READ": "VK_ACCESS_MEMORY_READ_BIT",
    "ACCESS_MEMORY_WRITE": "VK_ACCESS_MEMORY_WRITE_BIT",
    "POOL_RESET_COMMAND_BUFFER": "VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT",
    "ONE_TIME_SUBMIT": "VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT", "BIND_COMPUTE": "VK_PIPELINE_BIND_POINT_COMPUTE",
    "SEMAPHORE_TIMELINE": "VK_SEMAPHORE_TYPE_TIMELINE", "DEVICE_LOST": "VK_ERROR_DEVICE_LOST",
    "API_1_2": "VK_API_VERSION_1_2",
    "PORTABILITY_ENUMERATION": "VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR", "WHOLE_SIZE": "VK_WHOLE_SIZE",
    "FEATURE_NOT_PRESENT": "VK_ERROR_FEATURE_NOT_PRESENT",
    "OUT_OF_DEVICE_MEMORY": "VK_ERROR_OUT_OF_DEVICE_MEMORY", "OUT_OF_HOST_MEMORY": "VK_ERROR_OUT_OF_HOST_MEMORY",
    "BUFFER_USAGE": "(VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT"
                    " | VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT)",
}  # fmt: skip


def _structures() -> dict[str, type[ctypes.Structure]]:
    kinds = {n: k for n, k in vars(binding).items() if isinstance(k, type) and issubclass(k, ctypes.Structure)}
    del kinds["Structure"]
    return kinds


def _facts() -> dict[str, int]:
    """Expression in C to what the binding has."""
    facts = {c: getattr(binding, name) for name, c in _NUMBERS.items()}
    for name, kind in _structures().items():
        c = f"Vk{name}{_SUFFIX.get(name, '')}"
        facts[f"sizeof({c})"] = ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            if not field.startswith("_"):
                facts[f"offsetof({c}, {_MEMBER.get(field, field)})"] = getattr(kind, field).offset
        if kind.stype is not None:
            facts[_stype(name)] = kind.stype
    return facts


def _stype(name: str) -> str:
    """The specification's name of a structure's type number."""
    text = "".join("_" + c if c.isupper() else c for c in name + _SUFFIX.get(name, "")).upper()
    text = text.replace("_E_X_T", "_EXT").replace("_K_H_R", "_KHR")
    text = text.replace("PROPERTIES2", "PROPERTIES_2").replace("FEATURES2", "FEATURES_2")
    return "VK_STRUCTURE_TYPE" + text.replace("VULKAN11", "VULKAN_1_1").replace("VULKAN12", "VULKAN_1_2")


@pytest.mark.skipif(_HEADER is None, reason="the C headers are not installed (libvulkan-dev)")
@pytest.mark.skipif(_COMPILER is None, reason="there is no C compiler")
def test_layouts_and_numbers_are_those_of_the_headers(tmp_path: Path) -> None:
    facts = _facts()
    lines = "".join(f'printf("%lld\\n", (long long)({expression}));\n' for expression in facts)
    source = tmp_path / "facts.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <vulkan/vulkan.h>\nint main() {{\n{lines}}}\n"
    )
    program = tmp_path / "facts"
    subprocess.run([str(_COMPILER), f"-I{_HEADER}", str(source), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    wrong = {
        e: (ours, int(theirs))
        for (e, ours), theirs in zip(facts.items(), said, strict=True)
        if ours % 2**64 != int(theirs) % 2**64
    }
    assert len(facts) > 200
    assert not wrong
