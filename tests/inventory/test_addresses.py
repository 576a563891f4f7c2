"""Addresses of interfaces, compared with what other tools of this machine say."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dra_agent.inventory.addresses import addresses


def interfaces() -> list[tuple[str, str]]:
    net = Path("/sys/class/net")
    names = sorted(path.name for path in net.iterdir() if (path / "address").exists()) if net.is_dir() else []
    return [(name, (net / name / "address").read_text().strip()) for name in names]


def test_an_interface_has_the_addresses_that_others_see() -> None:
    import psutil

    theirs = psutil.net_if_addrs()
    compared = 0
    for name, mac in interfaces():
        if name not in theirs:
            continue
        ours = addresses(name, mac)
        wanted = {
            entry.address
            for entry in theirs[name]
            if entry.family in (socket.AF_INET, socket.AF_INET6)
            and not entry.address.startswith(("fe80:", "127."))
            and entry.address != "::1"
        }
        assert {address.partition("/")[0] for address in ours} == wanted, name
        compared += len(wanted)
    if not compared:
        pytest.skip("no interface of this machine has an address")


def test_what_is_not_there_has_none() -> None:
    assert addresses("no-such-if", "02:00:00:00:00:01") == ()


def test_an_interface_of_that_name_in_another_namespace_is_another_one() -> None:
    for name, _ in interfaces():
        assert addresses(name, "02:00:00:00:00:fe") == ()
