"""Takes the inventory of a host: asks the back ends of the hardware that is there, then applies the operator's rules.

What fails is one problem in the result; the other devices are described all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.api import Taint
from dra_agent.inventory.backend import Backend, backend_of, is_usable, load
from dra_agent.inventory.device import Device, Exclusion, Inventory, Problem
from dra_agent.inventory.rules import Rules
from dra_agent.inventory.settings import DEFAULT_DRIVER, InventorySettings
from dra_agent.topology.model import Device as Function
from dra_agent.topology.model import Topology

_log = logging.getLogger(__name__)


class Collector:
    """Takes inventories of one host again and again; keeps vendor libraries and their handles in between.

    One thread at a time may use it. UsageError from the start where a rule can never work.
    """

    def __init__(self, host: Host, settings: InventorySettings | None = None, *, driver: str = DEFAULT_DRIVER) -> None:
        self._host = host
        self._settings = settings or InventorySettings()
        self._driver = driver
        self._rules = Rules(self._settings, driver)
        self._backends: dict[str, Backend] = {}

    def take(self, topology: Topology) -> Inventory:
        """Describe every device that can be claimed; never raises for a device or a library that is broken."""
        problems = [Problem(problem.where, problem.what) for problem in topology.problems]
        excluded: list[Exclusion] = []
        found: list[Device] = []
        for name, functions in self._by_backend(topology, problems).items():
            found += self._devices(name, functions, problems)
        devices = [self._tainted(device) for device in self._without_uplinks(found, excluded)]
        # The order of the topology, which is that of the addresses; partitions of one address keep theirs.
        place = {function.pci_address: number for number, function in enumerate(topology.devices)}
        devices.sort(key=lambda device: place.get(device.pci_address, len(place)))
        return Inventory(
            devices=self._rules.apply(devices, problems, excluded),
            problems=tuple(dict.fromkeys(problems)),
            excluded=tuple(excluded),
        )

    def close(self) -> None:
        """Let go of vendor libraries."""
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()

    def _by_backend(self, topology: Topology, problems: list[Problem]) -> dict[str, list[Function]]:
        chosen: dict[str, list[Function]] = {}
        for function in topology.devices:
            name = backend_of(function)
            if name is None:
                continue
            if is_usable(function):
                chosen.setdefault(name, []).append(function)
            elif function.physfn is None:
                problems.append(
                    Problem(
                        function.pci_address,
                        f"no driver is bound to this {function.kind.value} ({function.vendor_id}:{function.device_id}),"
                        " so nothing can use it",
                        "load its driver, or bind it to vfio-pci",
                        severity="warning",
                    )
                )
        return chosen

    def _devices(self, name: str, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        try:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = load(name, self._host, self._settings)
            return backend.devices(functions, problems)
        except AgentError as error:
            problems.append(Problem(error.where or name, error.what, error.todo))
        except Exception as error:  # noqa: BLE001
            # A defect in one back end must not take the devices of the others away.
            _log.exception("back end failed", extra={"backend": name})
            what = f"reading its devices failed: {type(error).__name__}: {error}"
            problems.append(Problem(f"back end {name}", what, "report this, with the agent's log"))
        return []

    def _without_uplinks(self, devices: list[Device], excluded: list[Exclusion]) -> list[Device]:
        if self._settings.host_uplink == "include":
            return devices
        for device in devices:
            if "uplink" in device.identity:
                reason = f"{device.identity['uplink']} carries the host's default route (inventory.host_uplink)"
                excluded.append(Exclusion(device.name, reason))
        return [device for device in devices if "uplink" not in device.identity]

    def _tainted(self, device: Device) -> Device:
        """Keep new claims off an unhealthy device; those that hold it decide for themselves."""
        if device.health != "unhealthy":
            return device
        taint = Taint(key=f"{self._driver}/unhealthy", effect="NoSchedule")
        return msgspec.structs.replace(device, taints=(*device.taints, taint))


def take(
    host: Host, topology: Topology, settings: InventorySettings | None = None, *, driver: str = DEFAULT_DRIVER
) -> Inventory:
    """Take the inventory once; UsageError where a rule of the settings can never work."""
    collector = Collector(host, settings, driver=driver)
    try:
        return collector.take(topology)
    finally:
        collector.close()
