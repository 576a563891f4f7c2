"""Steering rules that a container leaves on an adapter, with the requests of ethtool(8) to a driver that has some."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from typing import Any

import pytest

from dra_agent.device_setup import steering
from dra_agent.device_setup.link import TooManyError


class FlowSpec(ctypes.Structure):
    """struct ethtool_rx_flow_spec."""

    _fields_ = (
        ("flow_type", ctypes.c_uint32),
        ("values", ctypes.c_uint8 * 72),
        ("masks", ctypes.c_uint8 * 72),
        ("ring_cookie", ctypes.c_uint64),
        ("location", ctypes.c_uint32),
    )


class Request(ctypes.Structure):
    """struct ethtool_rxnfc."""

    _fields_ = (
        ("cmd", ctypes.c_uint32),
        ("flow_type", ctypes.c_uint32),
        ("data", ctypes.c_uint64),
        ("fs", FlowSpec),
        ("rule_cnt", ctypes.c_uint32),
    )


class IfReq(ctypes.Structure):
    """struct ifreq of SIOCETHTOOL."""

    _fields_ = (("name", ctypes.c_char * 16), ("data", ctypes.c_void_p), ("rest", ctypes.c_uint8 * 16))


class Driver:
    """Rules by location, with the queue that they direct packets to."""

    def __init__(self) -> None:
        self.rules: dict[int, int] = {}
        self.fixed: set[int] = set()

    def ioctl(self, _: object, request_number: int, data: bytes) -> int:
        assert request_number == 0x8946
        ifreq = IfReq.from_buffer_copy(data)
        assert ifreq.name == b"lo"
        request: Any = Request.from_address(ifreq.data)
        location = request.fs.location
        if request.cmd == 0x2E:
            request.rule_cnt = len(self.rules)
        elif request.cmd == 0x30:
            if request.rule_cnt < len(self.rules):
                raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
            request.rule_cnt = len(self.rules)
            listed = (ctypes.c_uint32 * len(self.rules)).from_address(ifreq.data + Request.rule_cnt.offset + 4)
            for number, one in enumerate(sorted(self.rules)):
                listed[number] = one
        elif request.cmd == 0x2F:
            request.fs.ring_cookie = self.rules[location]
        elif request.cmd == 0x31 and location not in self.fixed:
            del self.rules[location]
        else:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return 0


INDEX = socket.if_nametoindex("lo")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr("dra_agent.device_setup.steering.fcntl.ioctl", made.ioctl)
    return made


def test_rules_of_a_container_are_deleted(driver: Driver) -> None:
    driver.rules = {1000: 3}
    before = steering.read(INDEX)
    assert before is not None and list(before) == [1000]
    driver.rules |= {5: 1, 70000: 2}
    changed, differing = steering.restore(INDEX, before)
    assert (changed, differing) == (["steering rule 5 deleted", "steering rule 70000 deleted"], [])
    assert driver.rules == {1000: 3}
    assert steering.restore(INDEX, before) == ([], [])


def test_a_rule_of_the_host_that_a_container_changed_or_deleted_is_missed(driver: Driver) -> None:
    driver.rules = {1000: 3, 1001: 4}
    before = steering.read(INDEX)
    assert before is not None
    driver.rules = {1000: 7}
    _, (differing,) = steering.restore(INDEX, before)
    assert differing == "steering rules (`ethtool -n`): none, not as before (1000, 1001)"


def test_a_rule_that_cannot_be_deleted_is_reported(driver: Driver) -> None:
    assert steering.read(INDEX) == {}
    driver.rules, driver.fixed = {5: 1}, {5}
    assert steering.restore(INDEX, {}) == ([], ["steering rules (`ethtool -n`): 5, not as before (none)"])


def test_more_rules_than_a_record_has_are_neither_recorded_nor_ignored(driver: Driver) -> None:
    driver.rules = dict.fromkeys(range(4097), 1)
    with pytest.raises(TooManyError, match="it has 4,097 steering rules, and at most 4,096 can be restored"):
        steering.read(INDEX)
    changed, (differing,) = steering.restore(INDEX, {})
    assert changed == [] and differing.startswith("steering rules (`ethtool -n`): it has 4,097 steering rules")


def test_a_driver_without_rules() -> None:
    assert steering.read(INDEX) is None, "lo, from the kernel"
    assert steering.read(2**31 - 1) is None
