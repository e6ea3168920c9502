"""Structures and numbers of the Vulkan API that this backend uses, as `ctypes` types.

Layouts and numbers are those of the Vulkan specification. Structures of which a few members are read keep the rest as
fillers; the tests compare
every size and offset with the C headers where those are installed.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, TypeVar

__all__ = ["RESULTS", "make", "version"]

S = TypeVar("S", bound=Structure)

API_1_2 = (1 << 22) | (2 << 12)
NAME_NBYTES = 256

QUEUE_COMPUTE = 2
BUFFER_USAGE = 1 | 2 | 32 | 0x20000  # transfer source and destination, storage, device address
MEMORY_DEVICE_LOCAL, MEMORY_HOST_VISIBLE, MEMORY_HOST_COHERENT, MEMORY_HOST_CACHED = 1, 2, 4, 8
ALLOCATE_DEVICE_ADDRESS = 2
STAGE_COMPUTE = 0x20
PIPELINE_STAGE_COMPUTE, PIPELINE_STAGE_TRANSFER, PIPELINE_STAGE_HOST = 0x800, 0x1000, 0x4000
PIPELINE_STAGE_ALL = 0x10000
ACCESS_SHADER_READ, ACCESS_SHADER_WRITE = 0x20, 0x40
ACCESS_TRANSFER_READ, ACCESS_TRANSFER_WRITE = 0x800, 0x1000
ACCESS_HOST_READ, ACCESS_HOST_WRITE = 0x2000, 0x4000
ACCESS_MEMORY_READ, ACCESS_MEMORY_WRITE = 0x8000, 0x10000
POOL_RESET_COMMAND_BUFFER = 2
ONE_TIME_SUBMIT = 1
BIND_COMPUTE = 1
WHOLE_SIZE = 2**64 - 1
SEMAPHORE_TIMELINE = 1
SUCCESS, TIMEOUT, INCOMPLETE = 0, 2, 5
OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE_LOST, FEATURE_NOT_PRESENT = -1, -2, -4, -8
PORTABILITY_ENUMERATION = 1
DEVICE_TYPES = {0: "other", 1: "integrated GPU", 2: "discrete GPU", 3: "virtual GPU", 4: "CPU"}

RESULTS = {
    -1: "out of host memory", -2: "out of device memory", -3: "initialisation failed", -4: "the device was lost",
    -5: "memory cannot be mapped", -6: "a layer is not present", -7: "an extension is not present",
    -8: "a feature is not present",
    -9: "the driver is incompatible", -10: "too many objects", -13: "unknown error", -1000011001: "validation failed",
    -1000012000: "the shader is invalid",
}  # fmt: skip
"""What the results of failed calls mean."""


def version(packed: int) -> str:
    """Text of a packed API version."""
    return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


_U32, _U64, _P = c_uint32, c_uint64, c_void_p


def _structure(name: str, fields: list[tuple[str, Any]], stype: int | None = None) -> type[Structure]:
    if stype is not None:
        fields = [("sType", c_int32), ("pNext", _P), *fields]
    return type(name, (Structure,), {"_fields_": fields, "stype": stype, "__module__": __name__})


def make(kind: type[S], **values: Any) -> S:
    """Return a structure with its type number set."""
    stype = getattr(kind, "stype", None)
    return kind(**values) if stype is None else kind(sType=stype, **values)


def _flags(*names: str) -> list[tuple[str, Any]]:
    return [(name, _U32) for name in names]


# -- instance -------------------------------------------------------------------------------------------------------
ApplicationInfo = _structure(
    "ApplicationInfo",
    [
        ("pApplicationName", c_char_p),
        ("applicationVersion", _U32),
        ("pEngineName", c_char_p),
        ("engineVersion", _U32),
        ("apiVersion", _U32),
    ],
    0,
)
InstanceCreateInfo = _structure(
    "InstanceCreateInfo",
    [
        ("flags", _U32),
        ("pApplicationInfo", _P),
        ("enabledLayerCount", _U32),
        ("ppEnabledLayerNames", _P),
        ("enabledExtensionCount", _U32),
        ("ppEnabledExtensionNames", _P),
    ],
    1,
)
ExtensionProperties = _structure(
    "ExtensionProperties", [("extensionName", c_char * NAME_NBYTES), ("specVersion", _U32)]
)
LayerProperties = _structure(
    "LayerProperties",
    [
        ("layerName", c_char * NAME_NBYTES),
        ("specVersion", _U32),
        ("implementationVersion", _U32),
        ("description", c_char * 256),
    ],
)
DebugCallback = ctypes.CFUNCTYPE(_U32, c_int32, _U32, _P, _P)
DebugUtilsMessengerCreateInfo = _structure(
    "DebugUtilsMessengerCreateInfo",
    [
        ("flags", _U32),
        ("messageSeverity", _U32),
        ("messageType", _U32),
        ("pfnUserCallback", DebugCallback),
        ("pUserData", _P),
    ],
    1000128004,
)
DebugUtilsMessengerCallbackData = _structure(
    "DebugUtilsMessengerCallbackData",
    [
        ("flags", _U32), ("pMessageIdName", c_char_p), ("messageIdNumber", c_int32), ("pMessage", c_char_p),
        ("queueLabelCount", _U32), ("pQueueLabels", _P), ("cmdBufLabelCount", _U32), ("pCmdBufLabels", _P),
        ("objectCount", _U32), ("pObjects", _P),
    ],
    1000128003,
)  # fmt: skip

# -- physical device --------------------------------------------------------------------------------------------------
PhysicalDeviceLimits = _structure(
    "PhysicalDeviceLimits",
    [
        ("_images", _U32 * 8), ("maxPushConstantsSize", _U32), ("maxMemoryAllocationCount", _U32),
        ("maxSamplerAllocationCount", _U32), ("bufferImageGranularity", _U64), ("sparseAddressSpaceSize", _U64),
        ("_graphics", _U32 * 38), ("maxComputeSharedMemorySize", _U32), ("maxComputeWorkGroupCount", _U32 * 3),
        ("maxComputeWorkGroupInvocations", _U32), ("maxComputeWorkGroupSize", _U32 * 3), ("_raster", _U32 * 13),
        ("minMemoryMapAlignment", c_size_t), ("_alignments", _U64 * 3), ("_framebuffer", _U32 * 22),
        ("timestampPeriod", c_float), ("_lines", _U32 * 12), ("_copies", _U64 * 2), ("nonCoherentAtomSize", _U64),
    ],
)  # fmt: skip
PhysicalDeviceProperties = _structure(
    "PhysicalDeviceProperties",
    [
        ("apiVersion", _U32), ("driverVersion", _U32), ("vendorID", _U32), ("deviceID", _U32),
        ("deviceType", c_int32), ("deviceName", c_char * NAME_NBYTES), ("pipelineCacheUUID", c_uint8 * 16),
        ("limits", PhysicalDeviceLimits), ("sparse", _U32 * 5),
    ],
)  # fmt: skip
PhysicalDeviceProperties2 = _structure(
    "PhysicalDeviceProperties2", [("properties", PhysicalDeviceProperties)], 1000059001
)
PhysicalDeviceVulkan11Properties = _structure(
    "PhysicalDeviceVulkan11Properties",
    [
        ("deviceUUID", c_uint8 * 16), ("driverUUID", c_uint8 * 16), ("deviceLUID", c_uint8 * 8),
        ("deviceNodeMask", _U32), ("deviceLUIDValid", _U32), ("subgroupSize", _U32),
        ("subgroupSupportedStages", _U32), ("subgroupSupportedOperations", _U32), ("_more", _U32 * 6),
        ("maxMemoryAllocationSize", _U64),
    ],
    50,
)  # fmt: skip
PhysicalDeviceVulkan12Properties = _structure(
    "PhysicalDeviceVulkan12Properties",
    [
        ("driverID", c_int32), ("driverName", c_char * 256), ("driverInfo", c_char * 256),
        ("conformanceVersion", c_uint8 * 4), ("denormBehaviorIndependence", c_int32),
        ("roundingModeIndependence", c_int32), ("signedZeroInfNanPreserve", _U32 * 3), ("denormPreserve", _U32 * 3),
        ("denormFlushToZero", _U32 * 3), ("roundingModeRTE", _U32 * 3), ("roundingModeRTZ", _U32 * 3),
        ("_descriptors", _U32 * 23), ("_depth", _U32 * 6), ("maxTimelineSemaphoreValueDifference", _U64),
        ("_samples", _U32),
    ],
    52,
)  # fmt: skip
PhysicalDeviceFeatures = _structure(
    "PhysicalDeviceFeatures",
    [
        ("robustBufferAccess", _U32),
        ("_graphics", _U32 * 38),
        ("shaderFloat64", _U32),
        ("shaderInt64", _U32),
        ("shaderInt16", _U32),
        ("_sparse", _U32 * 13),
    ],
)
PhysicalDeviceFeatures2 = _structure("PhysicalDeviceFeatures2", [("features", PhysicalDeviceFeatures)], 1000059000)
PhysicalDeviceVulkan11Features = _structure(
    "PhysicalDeviceVulkan11Features", [("storageBuffer16BitAccess", _U32), ("_more", _U32 * 11)], 49
)
PhysicalDeviceVulkan12Features = _structure(
    "PhysicalDeviceVulkan12Features",
    [
        ("_drawing", _U32 * 2), ("storageBuffer8BitAccess", _U32), ("_constants", _U32 * 2),
        ("shaderBufferInt64Atomics", _U32), ("shaderSharedInt64Atomics", _U32), ("shaderFloat16", _U32),
        ("shaderInt8", _U32), ("_descriptors", _U32 * 28), ("timelineSemaphore", _U32), ("bufferDeviceAddress", _U32),
        ("_more", _U32 * 8),
    ],
    51,
)  # fmt: skip
PhysicalDeviceShaderClockFeatures = _structure(
    "PhysicalDeviceShaderClockFeatures", _flags("shaderSubgroupClock", "shaderDeviceClock"), 1000181000
)
PhysicalDeviceShaderAtomicFloatFeatures = _structure(
    "PhysicalDeviceShaderAtomicFloatFeatures",
    [
        *_flags("shaderBufferFloat32Atomics", "shaderBufferFloat32AtomicAdd"),
        *_flags("shaderBufferFloat64Atomics", "shaderBufferFloat64AtomicAdd"),
        *_flags("shaderSharedFloat32Atomics", "shaderSharedFloat32AtomicAdd"),
        *_flags("shaderSharedFloat64Atomics", "shaderSharedFloat64AtomicAdd"),
        ("_images", _U32 * 4),
    ],
    1000260000,
)
MemoryType = _structure("MemoryType", _flags("propertyFlags", "heapIndex"))
MemoryHeap = _structure("MemoryHeap", [("size", _U64), ("flags", _U32)])
PhysicalDeviceMemoryProperties = _structure(
    "PhysicalDeviceMemoryProperties",
    [
        ("memoryTypeCount", _U32),
        ("memoryTypes", MemoryType * 32),
        ("memoryHeapCount", _U32),
        ("memoryHeaps", MemoryHeap * 16),
    ],
)
QueueFamilyProperties = _structure(
    "QueueFamilyProperties", [*_flags("queueFlags", "queueCount", "timestampValidBits"), ("granularity", _U32 * 3)]
)

# -- device -----------------------------------------------------------------------------------------------------------
DeviceQueueCreateInfo = _structure(
    "DeviceQueueCreateInfo",
    [("flags", _U32), ("queueFamilyIndex", _U32), ("queueCount", _U32), ("pQueuePriorities", _P)],
    2,
)
DeviceCreateInfo = _structure(
    "DeviceCreateInfo",
    [
        ("flags", _U32), ("queueCreateInfoCount", _U32), ("pQueueCreateInfos", _P), ("enabledLayerCount", _U32),
        ("ppEnabledLayerNames", _P), ("enabledExtensionCount", _U32), ("ppEnabledExtensionNames", _P),
        ("pEnabledFeatures", _P),
    ],
    3,
)  # fmt: skip
MemoryAllocateInfo = _structure("MemoryAllocateInfo", [("allocationSize", _U64), ("memoryTypeIndex", _U32)], 5)
MemoryAllocateFlagsInfo = _structure("MemoryAllocateFlagsInfo", [("flags", _U32), ("deviceMask", _U32)], 1000060000)
BufferCreateInfo = _structure(
    "BufferCreateInfo",
    [
        ("flags", _U32),
        ("size", _U64),
        ("usage", _U32),
        ("sharingMode", c_int32),
        ("queueFamilyIndexCount", _U32),
        ("pQueueFamilyIndices", _P),
    ],
    12,
)
MemoryRequirements = _structure("MemoryRequirements", [("size", _U64), ("alignment", _U64), ("memoryTypeBits", _U32)])
BufferDeviceAddressInfo = _structure("BufferDeviceAddressInfo", [("buffer", _U64)], 1000244001)
BufferCopy = _structure("BufferCopy", [("srcOffset", _U64), ("dstOffset", _U64), ("size", _U64)])
MemoryBarrier = _structure("MemoryBarrier", _flags("srcAccessMask", "dstAccessMask"), 46)

# -- code -------------------------------------------------------------------------------------------------------------
ShaderModuleCreateInfo = _structure(
    "ShaderModuleCreateInfo", [("flags", _U32), ("codeSize", c_size_t), ("pCode", c_char_p)], 16
)
PipelineShaderStageCreateInfo = _structure(
    "PipelineShaderStageCreateInfo",
    [("flags", _U32), ("stage", _U32), ("module", _U64), ("pName", c_char_p), ("pSpecializationInfo", _P)],
    18,
)
ComputePipelineCreateInfo = _structure(
    "ComputePipelineCreateInfo",
    [
        ("flags", _U32),
        ("stage", PipelineShaderStageCreateInfo),
        ("layout", _U64),
        ("basePipelineHandle", _U64),
        ("basePipelineIndex", c_int32),
    ],
    29,
)
PushConstantRange = _structure("PushConstantRange", _flags("stageFlags", "offset", "size"))
PipelineLayoutCreateInfo = _structure(
    "PipelineLayoutCreateInfo",
    [
        ("flags", _U32),
        ("setLayoutCount", _U32),
        ("pSetLayouts", _P),
        ("pushConstantRangeCount", _U32),
        ("pPushConstantRanges", _P),
    ],
    30,
)
PipelineCacheCreateInfo = _structure(
    "PipelineCacheCreateInfo", [("flags", _U32), ("initialDataSize", c_size_t), ("pInitialData", c_char_p)], 17
)

# -- queue ------------------------------------------------------------------------------------------------------------
SemaphoreTypeCreateInfo = _structure(
    "SemaphoreTypeCreateInfo", [("semaphoreType", c_int32), ("initialValue", _U64)], 1000207002
)
SemaphoreCreateInfo = _structure("SemaphoreCreateInfo", [("flags", _U32)], 9)
TimelineSemaphoreSubmitInfo = _structure(
    "TimelineSemaphoreSubmitInfo",
    [
        ("waitSemaphoreValueCount", _U32),
        ("pWaitSemaphoreValues", _P),
        ("signalSemaphoreValueCount", _U32),
        ("pSignalSemaphoreValues", _P),
    ],
    1000207003,
)
SubmitInfo = _structure(
    "SubmitInfo",
    [
        ("waitSemaphoreCount", _U32), ("pWaitSemaphores", _P), ("pWaitDstStageMask", _P),
        ("commandBufferCount", _U32), ("pCommandBuffers", _P), ("signalSemaphoreCount", _U32),
        ("pSignalSemaphores", _P),
    ],
    4,
)  # fmt: skip
SemaphoreWaitInfo = _structure(
    "SemaphoreWaitInfo", [("flags", _U32), ("semaphoreCount", _U32), ("pSemaphores", _P), ("pValues", _P)], 1000207004
)
CommandPoolCreateInfo = _structure("CommandPoolCreateInfo", _flags("flags", "queueFamilyIndex"), 39)
CommandBufferAllocateInfo = _structure(
    "CommandBufferAllocateInfo", [("commandPool", _U64), ("level", c_int32), ("commandBufferCount", _U32)], 40
)
CommandBufferBeginInfo = _structure("CommandBufferBeginInfo", [("flags", _U32), ("pInheritanceInfo", _P)], 42)

# -- functions --------------------------------------------------------------------------------------------------------
_OUT_U64, _OUT_P, _OUT_U32 = POINTER(_U64), POINTER(_P), POINTER(_U32)

GLOBAL_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "vkEnumerateInstanceVersion": (c_int32, _OUT_U32),
    "vkEnumerateInstanceLayerProperties": (c_int32, _OUT_U32, _P),
    "vkEnumerateInstanceExtensionProperties": (c_int32, c_char_p, _OUT_U32, _P),
    "vkCreateInstance": (c_int32, _P, _P, _OUT_P),
}
"""Result type, then parameter types."""

INSTANCE_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "vkDestroyInstance": (None, _P, _P),
    "vkEnumeratePhysicalDevices": (c_int32, _P, _OUT_U32, _P),
    "vkGetPhysicalDeviceProperties": (None, _P, _P),
    "vkGetPhysicalDeviceProperties2": (None, _P, _P),
    "vkGetPhysicalDeviceFeatures2": (None, _P, _P),
    "vkGetPhysicalDeviceMemoryProperties": (None, _P, _P),
    "vkGetPhysicalDeviceQueueFamilyProperties": (None, _P, _OUT_U32, _P),
    "vkEnumerateDeviceExtensionProperties": (c_int32, _P, c_char_p, _OUT_U32, _P),
    "vkCreateDevice": (c_int32, _P, _P, _P, _OUT_P),
    "vkGetDeviceProcAddr": (_P, _P, c_char_p),
}
DEBUG_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "vkCreateDebugUtilsMessengerEXT": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyDebugUtilsMessengerEXT": (None, _P, _U64, _P),
}
DEVICE_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "vkDestroyDevice": (None, _P, _P),
    "vkGetDeviceQueue": (None, _P, _U32, _U32, _OUT_P),
    "vkDeviceWaitIdle": (c_int32, _P),
    "vkAllocateMemory": (c_int32, _P, _P, _P, _OUT_U64),
    "vkFreeMemory": (None, _P, _U64, _P),
    "vkMapMemory": (c_int32, _P, _U64, _U64, _U64, _U32, _OUT_P),
    "vkCreateBuffer": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyBuffer": (None, _P, _U64, _P),
    "vkGetBufferMemoryRequirements": (None, _P, _U64, _P),
    "vkBindBufferMemory": (c_int32, _P, _U64, _U64, _U64),
    "vkGetBufferDeviceAddress": (_U64, _P, _P),
    "vkCreateShaderModule": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyShaderModule": (None, _P, _U64, _P),
    "vkCreatePipelineLayout": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyPipelineLayout": (None, _P, _U64, _P),
    "vkCreatePipelineCache": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyPipelineCache": (None, _P, _U64, _P),
    "vkGetPipelineCacheData": (c_int32, _P, _U64, POINTER(c_size_t), _P),
    "vkCreateComputePipelines": (c_int32, _P, _U64, _U32, _P, _P, _OUT_U64),
    "vkDestroyPipeline": (None, _P, _U64, _P),
    "vkCreateCommandPool": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroyCommandPool": (None, _P, _U64, _P),
    "vkAllocateCommandBuffers": (c_int32, _P, _P, _OUT_P),
    "vkBeginCommandBuffer": (c_int32, _P, _P),
    "vkEndCommandBuffer": (c_int32, _P),
    "vkCmdBindPipeline": (None, _P, c_int32, _U64),
    "vkCmdPushConstants": (None, _P, _U64, _U32, _U32, _U32, _P),
    "vkCmdDispatch": (None, _P, _U32, _U32, _U32),
    "vkCmdPipelineBarrier": (None, _P, _U32, _U32, _U32, _U32, _P, _U32, _P, _U32, _P),
    "vkCmdCopyBuffer": (None, _P, _U64, _U64, _U32, _P),
    "vkCmdFillBuffer": (None, _P, _U64, _U64, _U64, _U32),
    "vkCmdUpdateBuffer": (None, _P, _U64, _U64, _U64, _P),
    "vkCreateSemaphore": (c_int32, _P, _P, _P, _OUT_U64),
    "vkDestroySemaphore": (None, _P, _U64, _P),
    "vkGetSemaphoreCounterValue": (c_int32, _P, _U64, _OUT_U64),
    "vkWaitSemaphores": (c_int32, _P, _P, _U64),
    "vkQueueSubmit": (c_int32, _P, _U32, _P, _U64),
}
