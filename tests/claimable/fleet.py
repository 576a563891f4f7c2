"""Takes the inventories of thousands of random hosts: one collector for all, on the files of the whole catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from claimable.hosts import RandomHost, catalog, random_host, smallest
from claimable.properties import (
    divided,
    taken_from_host,
    unexplained,
    useless,
    wireless,
    without_nodes,
    without_viable_group,
    wrong_nodes,
)
from dra_agent.claimable.network_view import NetworkView
from dra_agent.diagnostic import Diagnostic
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import Topology, scan
from eventually import DEADLINE_S

MAX_SHOWN = 3
"""Failing hosts that are reduced to what fails."""


class Fleet:
    """The collectors of hosts with and without an IOMMU."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._view = NetworkView({})
        self.change: Callable[[NetworkView], NetworkView] = lambda view: view
        """Made to the network of each host."""
        self._collectors = {}
        for iommu in (True, False):
            host = catalog(iommu=iommu).build(folder / f"iommu-{iommu}", nvml=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("dra_agent.inventory.collector.HostNetwork", lambda _: self)
                self._collectors[iommu] = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
            stack.callback(self._collectors[iommu].close)
            # NVIDIA's library starts here, for all tests.
            self._collect(self._collectors[iommu], scan(host))

    def inventory(self, host: RandomHost) -> Inventory:
        """Collect as from the files of the host itself."""
        self._view = self.change(host.view)
        return self._collect(self._collectors[host.iommu], host.topology)

    def _collect(self, collector: Collector, topology: Topology) -> Inventory:
        inventory = collector.collect(topology)
        while collector.wait_for_start():
            inventory = collector.collect(topology)
        return inventory

    def failures(self, seeds: Iterable[int]) -> dict[str, list[str]]:
        """Return by seed which properties the host does not have; the first ones reduced to what fails."""
        found: dict[str, list[str]] = {}
        for seed in seeds:
            host = random_host(seed)
            if wrong := self._wrong(host):
                if len(found) < MAX_SHOWN:
                    small = smallest(host, lambda one: bool(self._wrong(one)))
                    wrong = [*self._wrong(small), f"{[one.address for one in small.descriptions]}, {small.network}"]
                found[f"random_host({seed})"] = wrong
        return found

    def view(self, problems: list[Diagnostic]) -> NetworkView:
        """Return the network of the present host."""
        return self._view

    def close(self) -> None:
        """Do nothing: the network has no thread."""

    def _wrong(self, host: RandomHost) -> list[str]:
        inventory = self.inventory(host)
        return [
            *(f"not explained: {one}" for one in unexplained(host.descriptions, inventory)),
            *(f"useless: {one}" for one in useless(host.descriptions, inventory)),
            *(f"missing: {one}" for one in without_nodes(inventory)),
            *(f"divided: {one}" for one in divided(host.descriptions, inventory)),
            *(f"wrong nodes: {one}" for one in wrong_nodes(host.descriptions, inventory)),
            *(f"wireless: {one}" for one in wireless(host.descriptions, inventory)),
            *(f"group in use: {one}" for one in without_viable_group(host.descriptions, inventory)),
            *(f"in use: {one}" for one in taken_from_host(host.descriptions, host.network, inventory)),
        ]


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Build the catalogs."""
    with ExitStack() as stack:
        yield Fleet(folder, stack)
