"""The installed service under systemd as the guest's init: sandbox, reload, watchdog, power loss, reboot, power button.

The tests follow each other: the last one switches the guest off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packages.machine import missing_requirement
from vm.conftest import KERNEL
from vm.machine import hardware
from vm.machine.agent import added, at_address, is_ready, removed
from vm.machine.emulator import emulator
from vm.machine.guest import Guest
from vm.machine.kernels import KEPT, kernel
from vm.machine.service import CONFIGURATION, UNIT, Service, make_disk, make_root

pytestmark = pytest.mark.extended

NAME = "plugged"
SLOT_TIMEOUT_S = 60.0
RELOAD_TIMEOUT_S = 60.0
RESTART_TIMEOUT_S = 180.0
"""The watchdog waits 30 s, and 5 s for the end of the process."""
POWER_OFF_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A guest with systemd and the package, for all tests of this file."""
    if reason := missing_requirement():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="service-", dir=KEPT) as kept, tempfile.TemporaryDirectory() as folder:
        shared = Path(folder) / "shared"
        shared.mkdir()
        root, disk = make_root(Path(kept)), make_disk(Path(kept) / "disk")
        guest = Guest(emulator(), kernel(KERNEL), shared, Path(folder), root=root, init="systemd", disk=disk)
        yield Service(guest)
        guest.close()


@pytest.fixture
def nic(service: Service) -> str:
    """The PCI address of the NIC that claims bind to vfio-pci."""
    return service.guest.address_of(hardware.SWITCH_NIC)


def driver_of(service: Service, address: str) -> str:
    return service.guest.run(f"basename $(readlink /sys/bus/pci/devices/{address}/driver)").strip()


def test_the_service_follows_hot_plug_in_its_sandbox(service: Service) -> None:
    assert service.property("ActiveState") == "active"
    seen = len(service.log.entries())
    service.guest.monitor("device_add", driver="e1000e", bus=hardware.FREE_PORT, id=NAME)
    (name,) = service.log.wait_for(added, within_s=SLOT_TIMEOUT_S, after=seen)["added"]
    seen = len(service.log.entries())
    service.guest.monitor("device_del", id=NAME)
    assert service.log.wait_for(removed, within_s=SLOT_TIMEOUT_S, after=seen)["removed"] == [name]


def test_a_reload_applies_the_configuration_without_a_restart(service: Service) -> None:
    process, seen = service.property("MainPID"), len(service.log.entries())
    service.guest.run(f"sed -i '1i log_level = \"debug\"' {CONFIGURATION} && systemctl reload {UNIT}")
    service.log.wait_for(lambda entry: "log_level" in str(entry), within_s=RELOAD_TIMEOUT_S, after=seen)
    service.guest.run(f"sed -i 1d {CONFIGURATION} && systemctl reload {UNIT}")
    assert service.property("MainPID") == process


def test_a_frozen_agent_is_started_again_and_keeps_the_device_of_a_claim(service: Service, nic: str) -> None:
    service.claim("held", at_address(nic))
    assert driver_of(service, nic) == "vfio-pci"
    process, seen = service.property("MainPID"), len(service.log.entries())
    service.guest.run(f"systemctl kill --signal=STOP {UNIT}")
    service.log.wait_for(is_ready, within_s=RESTART_TIMEOUT_S, after=seen)
    assert service.property("MainPID") != process and int(service.property("NRestarts")) == 1
    assert driver_of(service, nic) == "vfio-pci"
    service.wait_until_prepared("held")


def lose_power(service: Service) -> None:
    """Restart the guest without a word to its programs."""
    service.guest.monitor("system_reset")
    service.guest.wait_for_boot()


def reboot(service: Service) -> None:
    """Restart the guest in order: claims are released before it goes down."""
    seen = len(service.log.entries())
    service.guest.run("systemctl reboot")
    service.guest.wait_for_boot()
    check_released(service, seen)


def check_released(service: Service, seen: int) -> None:
    """Check that claims were released for a shutdown, in the log from that position."""
    messages = {entry["message"] for entry in service.log.entries()[seen:]}
    assert {"claim released, it waits again", "every claim is released: the shutdown need not wait"} <= messages


@pytest.mark.parametrize("restart", [lose_power, reboot], ids=["power loss", "reboot"])
def test_a_claim_holds_its_device_again_after_a_restart(
    service: Service, nic: str, restart: Callable[[Service], None]
) -> None:
    """The kernel forgot the driver, and /run is empty."""

    def held() -> tuple[str, str]:
        return service.guest.run("dra-agent claim holders -o cdi"), service.guest.run("cat /run/cdi/*.json")

    assert driver_of(service, nic) == "vfio-pci"
    before = held()
    restart(service)
    service.follow()
    service.wait_until_prepared("held")
    assert driver_of(service, nic) == "vfio-pci"
    assert held() == before and "vfio" in before[1]


def test_the_power_button_releases_claims_before_the_guest_is_off(service: Service, nic: str) -> None:
    assert driver_of(service, nic) == "vfio-pci"
    seen = len(service.log.entries())
    service.guest.monitor("system_powerdown")
    service.guest.wait_for_end(POWER_OFF_TIMEOUT_S)
    check_released(service, seen)
