"""The inventory of random hosts: every device is explained, none is useless, and none is taken from the host."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from claimable.hosts import MAX_FUNCTIONS, RandomHost, catalog, random_host, smallest
from claimable.properties import taken_from_host, unexplained, useless, uses
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.topology import PciFunction, scan

FILE_SAMPLE = range(40)
MANY = range(3000)
Collected = list[tuple[RandomHost, Inventory]]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Inventories of a sample, of hosts with files; those with NVML, which starts slowly, are among the profiles."""
    folder = tmp_path_factory.mktemp("random")
    found = []
    for host in map(random_host, MANY):
        if host.machine.nvidia is None:
            roots = host.build(folder / f"{host.seed}")
            found.append((host, collect(roots, scan(roots))))
        if len(found) == len(FILE_SAMPLE):
            break
    return found


def test_every_function_is_published_or_excluded(collected: Collected) -> None:
    assert {
        host.seed: found for host, inventory in collected if (found := unexplained(host.descriptions, inventory))
    } == {}


def test_no_device_is_useless(collected: Collected) -> None:
    assert {host.seed: found for host, inventory in collected if (found := useless(host.descriptions, inventory))} == {}


def test_no_device_is_taken_from_the_host(collected: Collected) -> None:
    assert {
        host.seed: found
        for host, inventory in collected
        if (found := taken_from_host(host.descriptions, host.network, inventory))
    } == {}


@pytest.mark.parametrize("seed", FILE_SAMPLE)
def test_files_of_a_host_have_the_functions_of_the_catalog(seed: int, tmp_path: Path) -> None:
    host = random_host(seed)
    topology = scan(host.build(tmp_path / "host"))
    assert topology.problems == ()
    ports = catalog(iommu=host.iommu).ports
    found = [one for one in topology.devices if one.pci_address not in ports]
    assert list(map(comparable, found)) == list(map(comparable, host.functions))


def comparable(function: PciFunction) -> PciFunction:
    """The function without the number of its KFD node, which counts those of the whole host."""
    return msgspec.structs.replace(function, kfd=None if function.kfd is None else 0)


def test_a_seed_determines_a_host_and_hosts_differ() -> None:
    hosts = [random_host(seed) for seed in MANY]
    assert hosts[:50] == [random_host(seed) for seed in MANY[:50]]
    assert {which for host in hosts for which in host.chosen} == set(range(len(catalog(iommu=True).parts)))
    assert {host.iommu for host in hosts} == {True, False}
    assert {one.kind for host in hosts for one in host.network.interfaces} == {
        "bond",
        "bridge",
        "vlan",
        "vrf",
        "macvlan",
        "openvswitch",
    }
    # A part is taken whole, so the first one may be larger than the number of functions that was drawn.
    assert max(len(host.descriptions) for host in hosts) <= MAX_FUNCTIONS
    assert sum(bool(uses(host.network)) for host in hosts) > len(hosts) // 4


def test_a_host_that_fails_is_reduced_to_what_fails() -> None:
    def has_a_stacked_bond(host: RandomHost) -> bool:
        return any(one.kind == "bond" for one in host.network.interfaces)

    host = next(host for host in map(random_host, MANY) if has_a_stacked_bond(host) and len(host.chosen) > 3)
    small = smallest(host, has_a_stacked_bond)
    assert len(small.chosen) == 1
    assert [one.kind for one in small.network.interfaces] == ["bond"]
    assert (small.network.addresses, small.network.routes) == ((), ())
