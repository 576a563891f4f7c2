"""Asks for each function of a host whether it may be claimed, and applies the rules by which an operator allows more.

`dra_agent.claimable` decides; this reads what it has to know.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Set

import msgspec

from dra_agent.claimable.decide import HostFacts, Refusal, platform_refusal, refusal
from dra_agent.claimable.network import HostNetwork
from dra_agent.claimable.use import host_use
from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.builder import is_vfio, pci_files
from dra_agent.inventory.evaluation import Rule, never_evaluated
from dra_agent.inventory.model import Device, Exclusion, Family, device_name
from dra_agent.inventory.platform_gpus import PlatformGpus
from dra_agent.inventory.products import fpga_companions, is_fpga_companion, is_fpga_management
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import character_devices
from dra_agent.inventory.vendors import GPU_VENDORS
from dra_agent.topology.model import CLAIMABLE, DeviceKind, PciFunction, Topology

_FAMILIES: dict[DeviceKind, Family] = {
    DeviceKind.GPU: "gpu",
    DeviceKind.NIC: "nic",
    DeviceKind.FPGA: "fpga",
    DeviceKind.ACCELERATOR: "accelerator",
}


class Claimability:
    """The claimable functions of one host, under one configuration. UsageError where a rule can never work."""

    def __init__(self, host: Host, network: HostNetwork, settings: InventorySettings, driver: str) -> None:
        self._host = host
        self._network = network
        self._platform_gpus = PlatformGpus(host)
        self._driver = driver
        # The older setting allowed every NIC of the host's traffic.
        uplink = ("true",) if settings.host_uplink == "include" else ()
        interfaces = [
            Rule(f"host_interfaces[{n}]", rule) for n, rule in enumerate((*settings.host_interfaces, *uplink))
        ]
        displays = [Rule(f"displays[{n}]", rule) for n, rule in enumerate(settings.displays)]
        self._rules = {"console": displays}
        self._interface_rules = interfaces
        self._asked: dict[str, Refusal] = {}
        """By PCI address: what the rules may allow, of the last call of `claimable`."""

    def claimable(
        self,
        topology: Topology,
        bound: Container[str],
        moved: Set[str],
        problems: list[Diagnostic],
        excluded: list[Exclusion],
    ) -> list[PciFunction]:
        """Return the functions to describe; add those to `excluded` that no rule may allow.

        Parts of another device are among both: the whole is described with them.

        `bound`: addresses that claims have bound to vfio-pci. `moved`: names of NICs whose interface claims have.
        """
        relevant = [one for one in topology.relevant if one.kind in CLAIMABLE and one.pci_address not in bound]
        facts = self._facts(topology, relevant, moved, problems)
        self._asked = {}
        found = []
        for function in relevant:
            reason = refusal(function, facts)
            if reason is None:
                found.append(function)
            elif reason.by_rule:
                self._asked[function.pci_address] = reason
                found.append(function)
            else:
                name = device_name(_FAMILIES[function.kind], function.pci_address)
                excluded.append(Exclusion(name, reason.reason, reason.code, function.pci_address, reason.hint))
                if reason.code == "part-of-device":
                    found.append(function)
        for gpu in self._platform_gpus.present(topology.relevant, problems):
            reason = platform_refusal(gpu)
            excluded.append(Exclusion(device_name("gpu", gpu.name), reason.reason, reason.code, hint=reason.hint))
        return found

    def allowed(self, devices: Iterable[Device], problems: list[Diagnostic], excluded: list[Exclusion]) -> list[Device]:
        """Return the devices without those that the host needs and no rule allows."""
        found = []
        asked = {}
        for device in devices:
            reason = self._asked.get(device.pci_address)
            if reason is None:
                found.append(device)
                continue
            asked[device.name] = device
            rules = self._rules.get(reason.code, self._interface_rules)
            # All rules are evaluated, so that one without a value for any device is detected.
            if any([rule.matches(self._driver, device) for rule in rules]):  # noqa: C419
                found.append(msgspec.structs.replace(device, identity={**device.identity, "host_use": reason.reason}))
            else:
                excluded.append(Exclusion(device.name, reason.reason, reason.code, device.pci_address, reason.hint))
        problems += never_evaluated((*self._interface_rules, *self._rules["console"]), asked)
        return found

    def _facts(
        self, topology: Topology, functions: Sequence[PciFunction], moved: Set[str], problems: list[Diagnostic]
    ) -> HostFacts:
        of_nics = [name for one in functions if one.kind is DeviceKind.NIC for name in one.net]
        view = self._network.view(problems) if of_nics else None
        uses = {name: use for name in of_nics if view is not None and (use := host_use(view, name)) is not None}
        cards = [one for one in topology.relevant if one.kind is DeviceKind.FPGA]
        return HostFacts(
            uses=uses,
            moved=frozenset(one.pci_address for one in functions if device_name("nic", one.pci_address) in moved),
            nodes={one.pci_address: self._nodes(one, cards) for one in functions if _has_own_nodes(one)},
            wholes={
                **{one.pci_address: None for one in cards if is_fpga_companion(one) and not is_vfio(one)},
                **{part.pci_address: whole.pci_address for whole in cards for part in fpga_companions(whole, cards)},
            },
            managing=frozenset(one.pci_address for one in cards if is_fpga_management(one)),
            changing_drivers=frozenset(
                vendor_id
                for vendor_id, vendor in GPU_VENDORS.items()
                if vendor.has_driver_root and self._host.driver_root is not None
            ),
        )

    def _nodes(self, function: PciFunction, cards: Sequence[PciFunction]) -> tuple[str, ...]:
        parts = [function, *(fpga_companions(function, cards) if function.kind is DeviceKind.FPGA else ())]
        return tuple(name for part in parts for name in character_devices(pci_files(self._host, part, [])))


def unread(functions: Iterable[PciFunction], problem: Diagnostic) -> list[Exclusion]:
    """Return exclusions of functions that could not be described because of this problem."""
    return [
        Exclusion(
            device_name(_FAMILIES[one.kind], one.pci_address),
            problem.message,
            "unreadable",
            one.pci_address,
            problem.hint or "",
        )
        for one in functions
    ]


def _has_own_nodes(function: PciFunction) -> bool:
    """Return True if its driver may have made nodes that the scan does not know."""
    return function.kind in (DeviceKind.FPGA, DeviceKind.ACCELERATOR) and function.drm is None and not function.accel
