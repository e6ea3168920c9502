"""Finds the Vulkan loader and its functions."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from qd_vulkan import binding as vk

__all__ = ["LoaderMissing", "Table", "check", "load_library", "names_array", "strings"]

_LIBRARIES = {
    "win32": ("vulkan-1.dll",),
    "darwin": (
        "libvulkan.1.dylib",
        "libvulkan.dylib",
        "libMoltenVK.dylib",
        "/opt/homebrew/lib/libvulkan.1.dylib",
        "/usr/local/lib/libvulkan.1.dylib",
    ),
}
_POSIX = ("libvulkan.so.1", "libvulkan.so")


class LoaderMissing(Exception):
    """No Vulkan loader can be loaded; the message says which names were tried."""


class VulkanError(Exception):
    """A call failed with ``result``."""

    def __init__(self, function: str, result: int) -> None:
        super().__init__(f"{function}: {vk.RESULTS.get(result, f'result {result}')}")
        self.function, self.result = function, result


def load_library() -> ctypes.CDLL:
    """Load the loader named by ``QD_VULKAN_LIBRARY``, or the platform's."""
    chosen = os.environ.get("QD_VULKAN_LIBRARY")
    names = (chosen,) if chosen else _LIBRARIES.get(sys.platform, _POSIX)
    kind = ctypes.WinDLL if sys.platform == "win32" else ctypes.CDLL
    causes: list[str] = []
    for name in names:
        try:
            return kind(name)
        except OSError as error:
            causes.append(str(error))
    raise LoaderMissing("; ".join(causes))


class Table:
    """Functions of one level of the API as attributes, without their prefix ``vk``.

    Calls that return a result raise `VulkanError` when it is negative; ``raw`` holds them unchecked.

    Parameters
    ----------
    resolve : callable
        Gives the address of a function by name, 0 where there is none.
    functions : mapping
        Name to result and parameter types.
    """

    def __init__(self, resolve: Callable[[bytes], int | None], functions: Mapping[str, tuple[Any, ...]]) -> None:
        self.raw: dict[str, Any] = {}
        for name, (result, *parameters) in functions.items():
            address = resolve(name.encode())
            if not address:
                raise VulkanError(name, -7)
            function = ctypes.CFUNCTYPE(result, *parameters)(address)
            self.raw[name[2:]] = function
            setattr(self, name[2:], check(name, function) if result is ctypes.c_int32 else function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def check(name: str, function: Any) -> Callable[..., int]:
    """Return ``function`` with its negative results raised."""

    def call(*args: Any) -> int:
        result: int = function(*args)
        if result < 0:
            raise VulkanError(name, result)
        return result

    return call


def strings(names: list[str]) -> Any:
    """Return a C array of C strings."""
    return (ctypes.c_char_p * max(len(names), 1))(*(n.encode() for n in names))


def names_array(fill: Callable[[Any, Any], int], kind: type[ctypes.Structure], field: str) -> list[str]:
    """Enumerate structures by the API's two calls and return one text field of each."""
    return [getattr(item, field).decode() for item in enumerate_all(fill, kind)]


def enumerate_all(fill: Callable[[Any, Any], Any], kind: Any) -> list[Any]:
    """Enumerate by the API's two calls: the number, then the items."""
    count = ctypes.c_uint32()
    fill(ctypes.byref(count), None)
    items = (kind * max(count.value, 1))()
    fill(ctypes.byref(count), items)
    return list(items[: count.value])
