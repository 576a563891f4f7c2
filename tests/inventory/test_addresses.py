"""Addresses of interfaces, compared with the output of other tools of this machine."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from functools import partial
from pathlib import Path

import pytest

from claimable.fake_kernel import DONE, END, GETADDR, FakeKernel, address, message
from dra_agent.claimable import kernel_network
from dra_agent.inventory.addresses import addresses
from eventually import eventually

NET = Path("/sys/class/net")


def mac_of(name: str) -> str | None:
    """Read an interface's hardware address; None where it has none, or has gone: others of this machine remove them."""
    try:
        return (NET / name / "address").read_text().strip()
    except OSError:
        return None


def interfaces() -> list[tuple[str, str]]:
    names = sorted(path.name for path in NET.iterdir()) if NET.is_dir() else []
    return [(name, mac) for name in names if (mac := mac_of(name)) is not None]


def test_an_interface_has_the_addresses_that_others_see() -> None:
    import psutil

    def theirs(name: str) -> set[str]:
        return {
            entry.address
            for entry in psutil.net_if_addrs().get(name, [])
            if entry.family in (socket.AF_INET, socket.AF_INET6)
            and not entry.address.startswith(("fe80:", "127."))
            and entry.address != "::1"
        }

    def same(name: str) -> bool:
        """Other programs of this machine may change an interface between two questions."""
        mac, before = mac_of(name), theirs(name)
        if mac is None:
            return True
        try:
            ours = {address.partition("/")[0] for address in addresses(name, mac)}
        except OSError:
            return False
        return ours == before or (mac, before) != (mac_of(name), theirs(name))

    compared = 0
    for name, _ in interfaces():
        eventually(partial(same, name), name)
        compared += len(theirs(name))
    if not compared:
        pytest.skip("no interface of this machine has an address")


def test_a_missing_interface_has_none() -> None:
    assert addresses("no-such-if", "02:00:00:00:00:01") == ()


def test_an_error_of_the_kernel_is_not_an_interface_without_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_network, "_RTM_GETADDR", 0x7FF)  # the kernel knows no such request
    with pytest.raises(OSError, match=r"not supported") as refused:
        addresses("lo", "00:00:00:00:00:00")
    assert refused.value.errno == errno.EOPNOTSUPP


def test_an_incomplete_response_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeKernel({GETADDR: [message(DONE, struct.pack("=i", -errno.ENOBUFS))]}).install(monkeypatch)
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.ENOBUFS))):
        addresses("lo", "00:00:00:00:00:00")


def test_addresses_that_expire_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    index = socket.if_nametoindex("lo")
    found = [address(index, "192.0.2.5", 24, flags=0), address(index, "192.0.2.6", 24), address(9999, "192.0.2.7", 24)]
    FakeKernel({GETADDR: [*found, END]}).install(monkeypatch)
    assert addresses("lo", "00:00:00:00:00:00") == ("192.0.2.5/24", "192.0.2.6/24")
    assert addresses("lo", "00:00:00:00:00:00", permanent=True) == ("192.0.2.6/24",)


def test_an_interface_of_that_name_in_another_namespace_is_another_one() -> None:
    for name, _ in interfaces():
        assert addresses(name, "02:00:00:00:00:fe") == ()
