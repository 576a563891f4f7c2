"""Drivers to which the host's administrator binds a NIC: vfio-pci gives it to claims, and others keep it from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vm.machine import hardware
from vm.machine.agent import Commands
from vm.machine.guest import Guest

CODES = {"pci-stub": "reserved", "uio_pci_generic": "user-space-driver", "none": "no-driver"}
"""By driver, the code of the exclusion; no driver has the last name."""


@pytest.fixture
def address(guest: Guest) -> str:
    """The PCI address of the NIC below the switch."""
    return guest.address_of(hardware.SWITCH_NIC)


@pytest.fixture(params=["vfio-pci", *CODES])
def bound(request: pytest.FixtureRequest, guest: Guest, address: str) -> Iterator[str]:
    """The driver to which the NIC is bound."""
    driver: str = request.param
    bind(guest, address, driver)
    yield driver
    bind(guest, address, "")
    guest.run(f"ls -d /sys/bus/pci/drivers/e1000e/{address}")


def test_a_device_is_published_or_excluded_by_the_driver_that_the_host_binds(
    commands: Commands, address: str, bound: str
) -> None:
    listed = commands.read("devices")
    published = [one for one in listed["devices"] if one["pci_address"] == address]
    excluded = [one["code"] for one in listed["excluded"] if one["pci_address"] == address]
    if bound == "vfio-pci":
        assert attribute(published[0], "type") == "vfio" and not excluded
    else:
        assert excluded == [CODES[bound]] and not published


def bind(guest: Guest, address: str, driver: str) -> None:
    """Bind a function to this driver alone, or to any if it is empty."""
    path = f"/sys/bus/pci/devices/{address}"
    guest.run(
        f"echo {driver} > {path}/driver_override; test ! -e {path}/driver || echo {address} > {path}/driver/unbind"
    )
    guest.run(f"echo {address} > /sys/bus/pci/drivers_probe", check=False)


def attribute(device: dict[str, Any], name: str) -> object:
    """Return the value of an attribute of a published device."""
    ((_, value),) = device["attributes"][name].items()
    return value
