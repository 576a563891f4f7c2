"""Collects the inventory of a host: calls the back ends of the present hardware, then applies the operator's rules.

A failure is a problem in the result; the other devices are still described.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence, Set

from dra_agent.claimable.network import HostNetwork
from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.backend import (
    DeviceBackend,
    EventSource,
    ExclusionSource,
    FunctionBackend,
    ModeChangeListener,
    PartitioningBackend,
    SlowStart,
    backend_of,
    load_backend,
)
from dra_agent.inventory.claimability import Claimability, unread
from dra_agent.inventory.descriptions import Descriptions
from dra_agent.inventory.fabric_file import FabricFile
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import HOST_USE, Device, DeviceEvent, Exclusion, Inventory
from dra_agent.inventory.passthrough import Passthrough, VfioBindingStore
from dra_agent.inventory.pool_groups import PoolGroups
from dra_agent.inventory.rules import PartitionRules, Rules, used_counter_sets
from dra_agent.inventory.settings import DEFAULT_DRIVER, InventorySettings
from dra_agent.inventory.shares import Shares
from dra_agent.topology.model import PciFunction, Topology, address_order

_log = logging.getLogger(__name__)


class Collector:
    """Collects inventories of one host repeatedly, and keeps vendor libraries and their handles.

    One thread at a time may use it. UsageError from the start where a rule can never work.
    """

    def __init__(
        self,
        host: Host,
        settings: InventorySettings | None = None,
        *,
        driver: str = DEFAULT_DRIVER,
        bindings: VfioBindingStore | None = None,
        mode_changes: ModeChanges | None = None,
    ) -> None:
        self._mode_changes = mode_changes or ModeChanges()
        self._host = host
        self._settings = settings or InventorySettings()
        self._driver = driver
        self._rules = Rules(self._settings, driver)
        self._network = HostNetwork(host)
        self._claimability = Claimability(host, self._network, self._settings, driver)
        self._partitions = PartitionRules(self._settings.partition, driver)
        self._fabric_file = FabricFile(self._settings.fabric_file)
        self._shares = Shares(self._settings.share, driver)
        self._bindings = bindings
        self._passthrough = Passthrough(host, self._settings.passthrough, driver, bindings)
        self._backends: dict[str, DeviceBackend | FunctionBackend] = {}
        # A check of a protocol takes longer than a kept description.
        self._partitioning: dict[str, PartitioningBackend] = {}
        self._excluding: dict[str, ExclusionSource] = {}
        self._descriptions = Descriptions()
        self._pool_groups = PoolGroups()
        self.kept = frozenset[str]()
        """Names of devices that the last collection did not describe again."""

    def configure(self, settings: InventorySettings) -> None:
        """Use other rules, `overhead`, `fabric_file`, `host_interfaces` and `displays` from the next collection on.

        Raises:
            UsageError: A rule can never work; nothing changed.
        """
        rules, claimability = (
            Rules(settings, self._driver),
            Claimability(self._host, self._network, settings, self._driver),
        )
        if settings.fabric_file != self._settings.fabric_file:
            self._fabric_file = FabricFile(settings.fabric_file)
        self._rules, self._claimability, self._settings = rules, claimability, settings

    def collect(
        self, topology: Topology, touched: Set[str] | None = None, held: Collection[str] = frozenset()
    ) -> Inventory:
        """Describe every device that can be claimed; never raises for a device or a library that is broken.

        `touched`: addresses of functions with kernel events; others are described again only if the topology has
        another object for them, or if a claim has changed their interface. None: everything is described again.
        `held`: names of the devices that claims have; they stay published while the host uses them.
        """
        problems = [Diagnostic(problem.where, problem.message) for problem in topology.problems]
        excluded: list[Exclusion] = []
        bound = self._passthrough.bound(problems)
        found: list[Device] = []
        if bound:
            found = [bound[one.pci_address] for one in topology.devices if one.pci_address in bound]
        moved: Set[str] = frozenset()
        if self._bindings is not None:
            moved = self._bindings.moved.devices()
            changed = self._bindings.moved.changed_by_claims()
            touched = None if touched is None else touched | changed
        self._descriptions.begin(touched)
        claimable = self._claimability.claimable(topology, touched, bound, moved, held, problems, excluded)
        by_backend: dict[str, list[PciFunction]] = {}
        for function in claimable:
            by_backend.setdefault(backend_of(function), []).append(function)
        for name, functions in by_backend.items():
            found += self._devices(name, functions, problems, excluded)
        self.kept = self._descriptions.end()
        found = self._passthrough.with_new_bindings(found, bound, problems)
        if self._bindings is not None:
            found = self._bindings.moved.apply(found, topology)
        found = self._passthrough.apply(found, topology, problems, excluded)
        described = self._claimability.allowed(found, problems, excluded)
        # The network and the claims change without an event of the function.
        self.kept -= {device.name for device in described if any(one.cause == HOST_USE for one in device.issues)}
        # In the order of the topology, by address; partitions of one address keep their order.
        position = {function.pci_address: number for number, function in enumerate(topology.relevant)}
        described.sort(key=lambda device: _order(device.pci_address, position))
        problems += self._partitions.problems(
            function.pci_address for name in self._partitioning for function in by_backend.get(name, ())
        )
        for name, source in self._excluding.items():
            if name in by_backend:
                excluded += source.withheld()
        placed = self._fabric_file.apply(described, problems)
        published = self._rules.apply(placed, problems, excluded)
        kept = used_counter_sets(published, self._counter_sets())
        devices = self._shares.apply(published, problems)
        if self._settings.pools == "product":
            devices = self._pool_groups.apply(devices, topology)
        return Inventory(
            devices=devices,
            counter_sets={"gpu": kept} if kept else {},
            problems=tuple(dict.fromkeys(problems)),
            excluded=tuple(excluded),
        )

    def faults(self) -> list[DeviceEvent]:
        """Return device events since the last call; never raises for a broken library."""
        found: list[DeviceEvent] = []
        for name, backend in self._backends.items():
            if isinstance(backend, EventSource):
                try:
                    found += backend.faults()
                except Exception:  # noqa: BLE001 - an event of a library must not end the agent
                    _log.exception("back end cannot report events", extra={"backend": name})
        return found

    def wait_for_start(self) -> bool:
        """Wait for libraries that a scan did not wait for; return True if another scan shows more."""
        slow = [backend for backend in self._backends.values() if isinstance(backend, SlowStart)]
        waited = [backend.wait_for_start() for backend in slow]
        return any(waited)

    def lost_event_stream(self) -> bool:
        """Return once that a back end has lost its event stream until the next scan."""
        return any(
            backend.lost_event_stream() for backend in self._backends.values() if isinstance(backend, EventSource)
        )

    @property
    def reports_events(self) -> bool:
        """True if any active back end reports events."""
        return any(isinstance(backend, EventSource) for backend in self._backends.values())

    def close(self) -> None:
        """Close the vendor libraries and sockets."""
        self._network.close()
        for backend in self._backends.values():
            backend.close()
        for loaded in (self._backends, self._partitioning, self._excluding):
            loaded.clear()
        self._descriptions = Descriptions()

    def _counter_sets(self) -> list[CounterSet]:
        return [counters for backend in self._partitioning.values() for counters in backend.counter_sets()]

    def _load(self, name: str) -> DeviceBackend | FunctionBackend:
        backend = load_backend(name, self._host, self._settings)
        if isinstance(backend, PartitioningBackend):
            backend.partition_by(self._partitions)
            self._partitioning[name] = backend
        if isinstance(backend, ExclusionSource):
            self._excluding[name] = backend
        if isinstance(backend, ModeChangeListener):
            backend.follow(self._mode_changes)
        self._backends[name] = backend
        return backend

    def _devices(
        self, name: str, functions: Sequence[PciFunction], problems: list[Diagnostic], excluded: list[Exclusion]
    ) -> list[Device]:
        try:
            backend = self._backends.get(name) or self._load(name)
            if name in self._partitioning and self._descriptions.describes_again(name, backend, functions):
                self._partitions.begin([function.pci_address for function in functions])
            return self._descriptions.of(name, backend, functions, problems)
        except AgentError as error:
            problem = Diagnostic(error.where or name, error.message, error.hint)
        except Exception as error:  # noqa: BLE001
            # A defect in one back end must not take the devices of the others away.
            _log.exception("back end failed", extra={"backend": name})
            message = f"reading its devices failed: {type(error).__name__}: {error}"
            problem = Diagnostic(f"back end {name}", message, "report this, with the agent's log")
        problems.append(problem)
        excluded += unread(functions, problem)
        return []


def _order(address: str, position: Mapping[str, int]) -> tuple[int, int, str]:
    known = position.get(address)
    return (len(position), *address_order(address)) if known is None else (known, 0, "")


def collect(
    host: Host,
    topology: Topology,
    settings: InventorySettings | None = None,
    *,
    driver: str = DEFAULT_DRIVER,
    bindings: VfioBindingStore | None = None,
    held: Collection[str] = frozenset(),
) -> Inventory:
    """Take the inventory once, however long libraries need to start; `held`: names of the devices that claims have.

    UsageError where a rule of the settings can never work.
    """
    collector = Collector(host, settings, driver=driver, bindings=bindings)
    try:
        inventory = collector.collect(topology, held=held)
        # Twice at most: the library first, then its GPUs.
        for _ in range(2):
            if collector.wait_for_start():
                inventory = collector.collect(topology, held=held)
        return inventory
    finally:
        collector.close()
