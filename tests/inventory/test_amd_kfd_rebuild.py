"""The directory of KFD nodes while the kernel rebuilds it: the mode of one GPU changes, and all nodes go and come."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import NODES
from dra_agent.inventory.amd.xgmi import Links, XgmiLinks
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.kernel import SimulatedKernel
from eventually import DEADLINE_S
from inventory.incomplete_nodes import incomplete_nodes
from inventory.test_amd_modes import DIVISIBLE, machine

FIRST, SECOND = "0000:11:00.0", "0000:12:00.0"
REBUILD_S = 0.1


class Bench:
    def __init__(self, root: Path) -> None:
        self.host: Host = build_machine(machine(), root)
        self.collector = Collector(self.host)
        self._kernel = SimulatedKernel(root, machine())

    def divide(self, mode: str, address: str = FIRST) -> None:
        self._kernel.write(f"bus/pci/devices/{address}/current_compute_partition", mode)

    def collect(self) -> Inventory:
        return self.collector.collect(scan(self.host))

    @contextmanager
    def rebuild(self, left: int, *, added: bool) -> Iterator[None]:
        """Show the nodes up to that number, and all of them soon after.

        kfd_topology_remove_device counts the generation before it rebuilds the tree, kfd_topology_add_device after.
        """
        nodes = self.host.sysfs / NODES
        generation = nodes.parent / "generation_id"
        aside = self.host.sysfs.parent / "aside"
        aside.mkdir(exist_ok=True)
        names = sorted(int(node.name) for node in nodes.iterdir())

        def count() -> None:
            number = int(generation.read_text())
            generation.chmod(0o644)
            generation.write_text(f"{number + 1}\n")

        def finish() -> None:
            for number in names[left:]:
                (aside / str(number)).rename(nodes / str(number))
            if added:
                count()

        if not added:
            count()
        for number in names[left:]:
            (nodes / str(number)).rename(aside / str(number))
        kernel = threading.Timer(REBUILD_S, finish)
        kernel.start()
        try:
            yield
        finally:
            kernel.join()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a rebuild as long as a slow machine may take to finish it."""
    monkeypatch.setattr("dra_agent.inventory.amd.kfd.REBUILD_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
def slow_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the directory stay as long as a kernel that takes `REBUILD_S` for the next node requires."""
    monkeypatch.setattr("dra_agent.inventory.amd.kfd.SETTLE_S", 5 * REBUILD_S)


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel pause for longer than a directory has to stay."""
    monkeypatch.setattr("dra_agent.inventory.amd.kfd.SETTLE_S", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "host")
    yield made
    made.collector.close()


def of(inventory: Inventory, address: str) -> list[Device]:
    return [device for device in inventory.devices if device.pci_address == address]


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_rebuild_is_waited_for(left: int, added: bool, bench: Bench) -> None:
    before = bench.collect()
    with bench.rebuild(left, added=added):
        assert bench.collect() == before
    assert bench.collect() == before


@pytest.mark.usefixtures("slow_kernel")
def test_a_rebuild_that_begins_when_the_nodes_were_read_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [device.to_api() for device in bench.collect().devices]
    bench.divide("CPX")
    bench.divide("SPX")
    read = XgmiLinks.listed
    with ExitStack() as rebuilt:

        def begin(links: XgmiLinks, addresses: Mapping[int, str], generation: str | None) -> Links:
            monkeypatch.setattr(XgmiLinks, "listed", read)
            rebuilt.enter_context(bench.rebuild(0, added=False))
            return read(links, addresses, generation)

        monkeypatch.setattr(XgmiLinks, "listed", begin)
        assert [device.to_api() for device in bench.collect().devices] == before


def test_links_stay_while_the_topology_does_not_settle(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [device.to_api() for device in of(bench.collect(), SECOND)]
    monkeypatch.setattr("dra_agent.inventory.amd.kfd.REBUILD_TIMEOUT_S", REBUILD_S)
    links = (bench.host.sysfs / NODES / "1/io_links").resolve()
    links.rename(bench.host.sysfs.parent / "links")
    generation = bench.host.sysfs / NODES / "../generation_id"
    generation.chmod(0o644)
    generation.write_text("not counted by the kernel")
    (bench.host.sysfs / NODES / "0").rename(bench.host.sysfs.parent / "aside")
    found = bench.collect()
    assert ["changes while it is read" in problem.message for problem in found.problems] == [True]
    assert [device.to_api() for device in of(found, SECOND)] == before


@pytest.mark.usefixtures("slow_kernel")
def test_the_first_scan_of_an_agent_waits_for_it_too(bench: Bench) -> None:
    with bench.rebuild(2, added=True):
        found = bench.collect()
    assert [device.capacity["computeUnits"].value for device in found.devices] == ["304", "304"]


def test_a_node_that_the_kernel_has_not_filled_in_is_waited_for(bench: Bench) -> None:
    # kfd_topology_add_device creates the files, counts the generation, and then sets these.
    before = bench.collect()
    properties = (bench.host.sysfs / NODES / "2/properties").resolve()
    text = properties.read_text()
    keys = ("vendor_id", "device_id", "location_id", "drm_render_minor", "hive_id", "gfx_target_version")
    rows = [line.split() for line in text.splitlines()]
    properties.chmod(0o644)
    properties.write_text("".join(f"{key} {0 if key in keys else value}\n" for key, value in rows))
    kernel = threading.Timer(REBUILD_S, properties.write_text, (text,))
    kernel.start()
    assert bench.collect() == before
    kernel.join()


@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("missing", ["1", "1/properties"])
def test_links_that_the_kernel_has_not_created_are_waited_for(missing: str, bench: Bench) -> None:
    # kfd_build_sysfs_node_entry creates the properties of a node, then its links, and then their properties.
    before = [device.to_api() for device in bench.collect().devices]
    bench.divide("CPX")
    bench.divide("SPX")
    link, aside = bench.host.sysfs / NODES / "1/io_links" / missing, bench.host.sysfs.parent / "link"
    link.rename(aside)
    kernel = threading.Timer(REBUILD_S, aside.rename, (link,))
    kernel.start()
    assert [device.to_api() for device in bench.collect().devices] == before
    kernel.join()


@pytest.mark.usefixtures("unsettled")
def test_the_nodes_of_an_unbound_gpu_are_not_waited_for(bench: Bench) -> None:
    assert len(bench.collect().devices) == 2
    bench.divide("CPX")
    (bench.host.sysfs / "bus/pci/devices" / FIRST / "driver").unlink()
    nodes = bench.host.sysfs / NODES
    for number in range(2, 10):
        (nodes / str(number)).rename(bench.host.sysfs.parent / f"node-{number}")
    found = bench.collect()
    assert [problem.message for problem in found.problems if "changes while it is read" in problem.message] == []
    assert [device.attributes["type"].value for device in of(found, SECOND)] == ["gpu"]


def test_a_topology_that_never_settles_delays_a_scan_for_a_bounded_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.inventory.amd.kfd.REBUILD_TIMEOUT_S", REBUILD_S)
    before = bench.collect()
    node = bench.host.sysfs / NODES / "0"
    node.rename(bench.host.sysfs.parent / "aside")
    found = bench.collect()
    assert [device.name for device in found.devices] == [device.name for device in before.devices]
    (problem,) = found.problems
    assert "changes while it is read" in problem.message


def test_another_gpu_is_published_alike_after_a_change(bench: Bench) -> None:
    before = of(bench.collect(), SECOND)
    for mode in ("CPX", "DPX", "SPX"):
        bench.divide(mode)
        after = of(bench.collect(), SECOND)
        assert [device.to_api() for device in after] == [device.to_api() for device in before]
        assert [device.nodes for device in after] == [device.nodes for device in before]


def test_a_scan_during_changes_does_not_change_other_gpus(bench: Bench) -> None:
    before = [device.to_api() for device in of(bench.collect(), SECOND)]
    over = threading.Event()

    def change() -> None:
        for mode in ("CPX", "SPX", "QPX", "SPX"):
            bench.divide(mode)
        over.set()

    thread = threading.Thread(target=change)
    thread.start()
    scans = 0
    while not over.is_set() or not scans:
        assert [device.to_api() for device in of(bench.collect(), SECOND)] == before
        scans += 1
    thread.join()


def test_numbers_and_generation_change_as_in_the_kernel(bench: Bench) -> None:
    topology = bench.host.sysfs / NODES

    def renders() -> list[str]:
        nodes = sorted(topology.iterdir(), key=lambda node: int(node.name))
        assert [int(node.name) for node in nodes] == list(range(len(nodes)))
        return [
            line.split()[1]
            for node in nodes
            for line in (node / "properties").read_text().splitlines()
            if line.startswith("drm_render_minor")
        ]

    assert (renders(), (topology.parent / "generation_id").read_text()) == (["0", "128", "136"], "3\n")
    bench.divide("DPX")
    assert renders() == ["0", "136", "128", "129"], "the GPU that was there moves down, the new nodes are last"
    assert (topology.parent / "generation_id").read_text() == "6\n", "one removed, two added"


def test_a_gpu_in_a_mode_of_which_a_part_is_there_is_not_offered_as_a_whole(bench: Bench) -> None:
    bench.divide("CPX")
    with incomplete_nodes(bench.host, FIRST, left=1):
        assert [device.attributes["type"].value for device in of(bench.collect(), FIRST)] == ["partition"]
    with incomplete_nodes(bench.host, FIRST, left=0):
        found = bench.collect()
        assert of(found, FIRST) == [] and [one.code for one in found.excluded] == ["incomplete-nodes"]
        assert bench.collector.lost_event_stream(), "it is scanned again soon"
    assert len(of(bench.collect(), FIRST)) == 8
    assert not bench.collector.lost_event_stream()


def test_a_gpu_whose_nodes_stay_incomplete_is_not_scanned_ever_faster(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.inventory.amd.backend.SETTLE_TIMEOUT_S", 0.0)
    bench.divide("DPX")
    with incomplete_nodes(bench.host, FIRST, left=1):
        assert of(bench.collect(), FIRST) == []
        assert not bench.collector.lost_event_stream(), "the next periodic scan is soon enough"
    assert len(of(bench.collect(), FIRST)) == 2


def test_gpus_that_claims_divide_wait_for_a_rebuild_too(bench: Bench) -> None:
    collector = Collector(bench.host, DIVISIBLE)
    before = collector.collect(scan(bench.host))
    with bench.rebuild(2, added=True):
        assert collector.collect(scan(bench.host)) == before
        assert not collector.lost_event_stream()
    collector.close()
