"""MIG without the permissions of the driver: what is published, and which permissions the diagnostics name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import pytest

from dra_agent.driver_root import DriverRoot
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine, driver_container, inject
from dra_simulate.nvml import Access
from eventually import DEADLINE_S
from inventory.mig_runtimes import CASES
from inventory.pair import ADDRESS, NAME, ONE_G, PAIR, TWO_G, handle, make

ALL = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
NOTHING = Access(admin=False, config=False, monitor=False)
HELM, UNIT = "Helm chart", "systemd/mig.conf"
Build = Callable[..., Host]


def built(folder: Path, access: Access, divided: bool, below_root: bool = False) -> Host:
    """Build two GPUs, the first with two instances (1g at 4, 2g at 0) if `divided`, for processes with that access."""
    root = folder / "host"
    host = build_machine(PAIR, root)
    if divided:
        library = acquire(host.nvml_library, DEADLINE_S)
        library.start()
        library.call("nvmlDeviceSetMigMode", handle(library), 1, about=ADDRESS)
        inject.set_access(root, Access(instances=access.instances), PAIR)
        make(library, ONE_G, 4, 1)
        make(library, TWO_G, 0, 2)
        library.close()
    inject.set_access(root, access, PAIR)
    driver_root = None
    if below_root:
        mount = driver_container.provide(root, Path("/run/nvidia/driver"))
        driver_root = DriverRoot(mount, mount)
    return Host(host.sysfs, host.dev, host.proc, host.nvml_library, driver_root=driver_root, state=folder / "state")


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return partial(built, tmp_path)


def collect(host: Host, *rules: PartitionRule) -> Inventory:
    with ExitStack() as stack:
        collector = Collector(host, InventorySettings(partition=rules))
        stack.callback(collector.close)
        return collector.collect(LiveTopology(host).snapshot())


def of_first(inventory: Inventory) -> list[str]:
    return [device.name.removeprefix(NAME) for device in inventory.devices if device.name.startswith(NAME)]


def test_existing_instances_are_found_without_any_permission(build: Build) -> None:
    inventory = collect(build(NOTHING, True))
    devices = {device.name.removeprefix(NAME): device for device in inventory.devices if device.pci_address == ADDRESS}
    one, two = (devices[name] for name in sorted(devices))
    assert sorted(devices)[0].startswith("-mig-1g-10gb-gi") and sorted(devices)[1].startswith("-mig-2g-20gb-gi")
    assert one.capacity["multiprocessors"].value == "16" and two.capacity["multiprocessors"].value == "32"
    assert {one.health, two.health} == {"healthy"}
    assert [node.role for node in one.nodes].count("capability") == 2
    (problem,) = inventory.problems
    assert problem.where == NAME and problem.severity == "warning"
    assert "placement" in problem.message
    assert problem.hint is not None and "mig: read" in problem.hint and UNIT in problem.hint


def test_the_nodes_of_an_instance_are_known_where_procfs_is_covered(build: Build) -> None:
    """By /proc/driver/nvidia-caps/mig-minors, or by the driver's formula where that is missing too."""
    host = build(Access(instances=False), True)
    found = []
    for _ in range(2):
        inventory = collect(host)
        assert inventory.problems == ()
        nodes = [node for device in inventory.devices for node in device.nodes if node.role == "capability"]
        assert len(nodes) == 4
        assert all(Path(node.host_path).exists() for node in nodes)
        found.append(nodes)
        (host.proc / "driver/nvidia-caps/mig-minors").unlink(missing_ok=True)
    assert found[0] == found[1]


def test_partitions_that_cannot_be_made_are_not_published(build: Build) -> None:
    inventory = collect(build(NOTHING, False), ALL)
    assert of_first(inventory) == [""], "the whole GPU can be claimed"
    assert {device.health for device in inventory.devices} == {"healthy"}
    assert {problem.where for problem in inventory.problems} == {NAME, NAME.replace("01", "02")}
    for problem in inventory.problems:
        assert problem.severity == "error"
        assert problem.hint is not None and "mig: partition" in problem.hint and UNIT in problem.hint


def test_the_agent_s_own_instances_are_not_published_as_those_of_others(build: Build, tmp_path: Path) -> None:
    """Which of the instances are the agent's cannot be known without their placements."""
    import msgspec

    from dra_agent.inventory.nvidia.mig_ownership import OwnedInstance, OwnershipRecord, note_path, read_note

    host = build(NOTHING, True)
    path = note_path(tmp_path / "state", ADDRESS)
    path.parent.mkdir(parents=True)
    boot = read_note(host, ADDRESS).boot
    mine = OwnershipRecord(ADDRESS, boot, (OwnedInstance(f"{NAME}-mig-1g-10gb-4", ONE_G, 4, 1, ("u1/x",)),))
    path.write_bytes(msgspec.json.encode(mine))
    for rules in ((ALL,), ()):
        assert of_first(collect(host, *rules)) == []


CollectWith = Callable[[Access, str, bool], Inventory]


@pytest.fixture(scope="module")
def collect_with(tmp_path_factory: pytest.TempPathFactory) -> CollectWith:
    """Collect a host with that access, in that mode, below a driver root or not.

    Many containers have the same access, and so the same host.
    """

    @cache
    def collected(access: Access, mode: str, below_root: bool) -> Inventory:
        host = built(tmp_path_factory.mktemp("host"), access, mode == "on", below_root)
        return collect(host, *((ALL,) if mode == "configured" else ()))

    return collected


@pytest.mark.parametrize(("name", "access"), CASES.items(), ids=CASES)
@pytest.mark.parametrize("mode", ["off", "on", "configured"])
def test_privileges_by_runtime_and_mode(collect_with: CollectWith, name: str, access: Access, mode: str) -> None:
    inventory = collect_with(access, mode, "driver-container" in name)
    published, hints = of_first(inventory), [problem.hint or "" for problem in inventory.problems]
    assert {device.health for device in inventory.devices} == {"healthy"}
    lists = access.admin or access.config
    match mode:
        case "off":
            assert published == [""] and hints == []
        case "on":
            assert len(published) == 2
            assert (hints == []) == lists and all("mig: read" in hint for hint in hints)
        case _:
            assert len(published) == (26 if lists else 1)
            assert (hints == []) == lists and all("mig: partition" in hint for hint in hints)
