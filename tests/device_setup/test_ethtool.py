"""What has to be set so that the settings of a driver are those of before: as the kernel returns them."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from dra_agent.device_setup import ethtool
from dra_agent.device_setup.ethtool import changes
from dra_agent.device_setup.netlink_request import attribute, attributes

ON, OFF = b"\x01", b"\x00"
UNKNOWN = b"\xff" * 4


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def bitset(value: int, mask: int | None = None) -> bytes:
    """Of 64 bits; without a mask, the kernel adds a flag instead."""
    bits = attribute(2, u32(64)) + attribute(4, value.to_bytes(8, "little"))
    return attribute(1, b"") + bits if mask is None else bits + attribute(5, mask.to_bytes(8, "little"))


def bits(data: bytes) -> tuple[int, int]:
    found = attributes(data)
    assert found[2] == u32(64) and 1 not in found
    value, mask = (int.from_bytes(found[kind], "little") for kind in (4, 5))
    return value, mask


def test_values_that_differ_are_set() -> None:
    before = {6: u32(512), 9: u32(512), 10: u32(2048)}
    assert changes("rings", before, before) == {}
    assert changes("rings", before, before | {6: u32(64), 9: u32(4096)}) == {6: u32(512), 9: u32(512)}
    assert changes("rings", before, {}) == before, "the driver returns none"
    assert changes("rings", {}, before) == {}, "none was recorded"
    assert changes("rings", {2: u32(8192)}, {2: u32(4096)}) == {}, "a maximum cannot be set"


def test_only_changed_bits_are_set() -> None:
    assert changes("features", {3: bitset(0b1100)}, {3: bitset(0b1100)}) == {}
    (found,) = changes("features", {3: bitset(0b1100)}, {3: bitset(0b1010)}).values()
    assert bits(found) == (0b0100, 0b0110), "a request with features that cannot be changed is rejected"


def test_bits_that_are_not_supported_before_and_now_are_not_compared() -> None:
    """Another cable or module: its link modes are not what a container has changed."""
    before = {2: ON, 3: bitset(0b0111, 0b0111)}
    assert changes("link modes", before, {2: ON, 3: bitset(0b1001, 0b1001)}) == {}
    (found,) = changes("link modes", before, {2: ON, 3: bitset(0b0001, 0b0111)}).values()
    assert bits(found) == (0b0110, 0b0110)


def test_what_a_driver_or_the_link_partner_adjusts_is_not_compared() -> None:
    adaptive = {2: u32(8), 11: ON, 6: u32(16), 12: OFF}
    assert changes("coalescing", adaptive, adaptive | {2: u32(64)}) == {}
    assert changes("coalescing", adaptive, adaptive | {6: u32(64)}) == {6: u32(16)}
    assert changes("coalescing", adaptive, adaptive | {11: OFF, 2: u32(64)}) == {11: ON}
    assert changes("pause frames", {2: ON, 3: ON, 4: ON}, {2: ON, 3: OFF, 4: OFF}) == {}
    assert changes("pause frames", {2: OFF, 3: ON, 4: ON}, {2: OFF, 3: OFF, 4: ON}) == {3: ON}


@pytest.mark.parametrize("speed", [UNKNOWN, u32(25000)])
def test_a_fixed_speed_is_set_also_while_the_link_is_down(speed: bytes) -> None:
    before = {2: OFF, 5: u32(100000), 6: ON}
    now = {2: OFF, 5: speed, 6: b"\xff"}
    assert changes("link modes", before, now) == {5: u32(100000), 6: ON}
    written = changes("link modes", before, {2: OFF, 5: UNKNOWN, 6: b"\xff"}, written=True)
    assert written == {}, "the kernel shows it when the link is up"
    assert changes("link modes", {2: OFF, 5: UNKNOWN}, {2: OFF, 5: u32(25000)}) == {}, "unknown at prepare"


def test_a_kernel_that_rejects_the_interface_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(ethtool, "Connection", refuse)
    assert ethtool.read(1) is None
    assert ethtool.restore(1, {"rings": {6: u32(512)}}) == (
        [],
        ["the settings of ethtool cannot be read: Permission denied"],
    )
