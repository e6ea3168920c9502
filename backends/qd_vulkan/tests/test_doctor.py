"""What the doctor says where something of a Vulkan device is missing: each absence is made in turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from qd_vulkan import absence

ABSENCES = {
    "loader": (
        {"QD_VULKAN_LIBRARY": "/nowhere/libvulkan.so"},
        "no Vulkan loader: .*nowhere",
        "unset QD_VULKAN_LIBRARY",
    ),
    "driver": (
        {"VK_DRIVER_FILES": "/nowhere/icd.json", "VK_ICD_FILENAMES": "/nowhere/icd.json"},
        "no usable driver|no Vulkan device",
        r"unset VK_DRIVER_FILES, .*nowhere/icd\.json",
    ),
    "device": (
        {"QD_VISIBLE_DEVICE": "no such device"},
        "no Vulkan device is among QD_VISIBLE_DEVICE='no such device'",
        "unset it, or name one of 0: ",
    ),
}


@pytest.mark.parametrize("name", ABSENCES)
def test_the_doctor_says_what_is_missing_and_what_to_do(name: str) -> None:
    environment, reason, remedy = ABSENCES[name]
    done = subprocess.run(
        [sys.executable, "-m", "qd_core", "doctor", "vulkan"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout
    assert "\nvulkan: unavailable\n" in done.stdout, done.stdout + done.stderr
    assert re.search(f"  why +.*(?:{reason})", done.stdout), done.stdout
    assert re.search(f"  do +.*(?:{remedy})", done.stdout), done.stdout


def test_a_system_without_loader_or_driver_is_told_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("QD_VULKAN_LIBRARY", "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "QD_VISIBLE_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(absence, "_closed_nodes", lambda: [])
    for platform, loader, driver in (
        ("linux", "libvulkan1", "mesa-vulkan-drivers"),
        ("darwin", "vulkan-loader", "molten-vk"),
        ("win32", "vulkan-1.dll", "driver of the device"),
        ("freebsd14", "libvulkan1", "mesa-vulkan-drivers"),
    ):
        monkeypatch.setattr(absence.sys, "platform", platform)
        assert loader in absence.no_loader("not found").remedy
        assert driver in absence.no_driver("not found").remedy
        assert driver in absence.why_none([]).remedy


def test_a_device_node_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "renderD128"
    node.touch()
    monkeypatch.setattr(absence.os, "access", lambda path, mode: Path(path) != node)
    assert absence._closed_nodes(tmp_path) == [node]
    monkeypatch.setattr(absence, "_closed_nodes", lambda: [node])
    assert "usermod -aG render" in absence.why_none([]).remedy
    assert str(node) in absence.why_none([]).remedy


def test_devices_that_lack_something_are_named() -> None:
    old = SimpleNamespace(name="An old card", missing=("bufferDeviceAddress",))
    none = absence.why_none([old])
    assert "An old card lacks bufferDeviceAddress" in none.reason
    assert "update the driver" in none.remedy
