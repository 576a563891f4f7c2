"""Addresses of interfaces, compared with what other tools of this machine say."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from dra_agent.inventory.addresses import addresses
from eventually import eventually


def interfaces() -> list[tuple[str, str]]:
    net = Path("/sys/class/net")
    names = sorted(path.name for path in net.iterdir() if (path / "address").exists()) if net.is_dir() else []
    return [(name, (net / name / "address").read_text().strip()) for name in names]


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

    def same(name: str, mac: str) -> bool:
        """Other programs of this machine may change an interface between two questions."""
        before = theirs(name)
        ours = {address.partition("/")[0] for address in addresses(name, mac)}
        return ours == before or before != theirs(name)

    compared = 0
    for name, mac in interfaces():
        eventually(partial(same, name, mac), name, within=5)
        compared += len(theirs(name))
    if not compared:
        pytest.skip("no interface of this machine has an address")


def test_what_is_not_there_has_none() -> None:
    assert addresses("no-such-if", "02:00:00:00:00:01") == ()


def test_an_interface_of_that_name_in_another_namespace_is_another_one() -> None:
    for name, _ in interfaces():
        assert addresses(name, "02:00:00:00:00:fe") == ()
