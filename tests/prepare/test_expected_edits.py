"""Edits that are read before the claim: used once, by the next call of their thread, while they are current."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from dra_agent.cdi.edits import DeviceEdits, EditProviders
from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import RetryableError
from dra_agent.inventory.model import Device
from prepare.simulated_node import SimulatedNode, claim, partition


@pytest.fixture
def read(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the devices whose edits were read."""
    found: list[str] = []
    original = EditProviders.edits

    def edits(self: EditProviders, device: Device) -> DeviceEdits:
        found.append(device.name)
        return original(self, device)

    monkeypatch.setattr(EditProviders, "edits", edits)
    return found


def test_a_repeat_uses_what_was_expected_once(node: SimulatedNode, read: list[str]) -> None:
    a = claim("a", "gpu-0", "gpu-1")
    prepared = node.preparer.prepare(a)
    read.clear()
    node.preparer.expect("a")
    assert read == ["gpu-0", "gpu-1"]
    assert node.preparer.prepare(a) == prepared and read == ["gpu-0", "gpu-1"]
    assert node.preparer.prepare(a) == prepared and read == ["gpu-0", "gpu-1"] * 2


def test_a_spec_is_repaired_from_expected_edits(node: SimulatedNode) -> None:
    a = claim("a", "gpu-0")
    node.preparer.prepare(a)
    before = node.specs.read("a")
    node.preparer.expect("a")
    node.specs.delete("a")
    node.preparer.prepare(a)
    assert node.specs.read("a") == before


@pytest.mark.parametrize("other", ["claim", "thread", "device"])
def test_edits_of_something_else_are_not_used(node: SimulatedNode, read: list[str], other: str) -> None:
    a = claim("a", "gpu-0")
    node.preparer.prepare(a)
    node.preparer.prepare(claim("b", "gpu-1"))
    if other == "thread":
        thread = threading.Thread(target=node.preparer.expect, args=("a",))
        thread.start()
        thread.join()
    else:
        node.preparer.expect("b" if other == "claim" else "a")
    if other == "device":
        node.devices["gpu-0"] = msgspec.structs.replace(node.devices["gpu-0"], nodes=())
    read.clear()
    node.preparer.prepare(a)
    assert read == ["gpu-0"]


def test_edits_that_set_ups_change_are_read_after_them(node: SimulatedNode, read: list[str]) -> None:
    a = claim("a", "gpu-0", config=[partition(2)])
    node.preparer.prepare(a)
    read.clear()
    node.preparer.expect("a")
    assert not read
    b = claim("b", "gpu-1")
    node.preparer.prepare(b)
    node.preparer.expect("b")
    read.clear()
    # Allocated again with a configuration: the set-up comes first, then the edits.
    again: dict[str, Any] = claim("b", "gpu-1", config=[partition(2)])
    (prepared,) = node.preparer.prepare(again)
    assert read == ["gpu-1"]
    assert "PARTITION=2" in applied_edits(node.registry(), prepared.cdi_device_ids).env


def test_what_cannot_be_expected_is_left_to_prepare(node: SimulatedNode, read: list[str]) -> None:
    node.preparer.expect("new")
    assert not read
    a = claim("a", "gpu-0")
    node.preparer.prepare(a)
    missing = node.host.dev_path("/dev/dri/card0")
    missing.unlink()
    node.preparer.expect("a")
    with pytest.raises(RetryableError, match="card0"):
        node.preparer.prepare(a)
    missing.touch()
    node.preparer.prepare(a)
    device = node.devices.pop("gpu-0")
    node.preparer.expect("a")
    with pytest.raises(RetryableError, match="not on this host"):
        node.preparer.prepare(a)
    node.devices["gpu-0"] = device
