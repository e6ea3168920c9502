"""Vulkan compute as a backend of qd-core."""

from qd_vulkan.backend import VulkanBackend

__all__ = ["VulkanBackend"]
