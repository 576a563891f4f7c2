"""A root of NVIDIA's driver: files come from below it only, appear late, are replaced, and may not be usable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import dra_simulate
from dra_agent.driver_root import LIBRARY, DriverMissingError, DriverRoot
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.topology import scan
from dra_simulate import build_machine, driver_container, nvml
from eventually import DEADLINE_S
from inventory.pair import PAIR

PATH = Path("/run/nvidia/driver")
GPU = "gpu-0000-00-04-0"
PARTITIONS = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
BUILT = Path(dra_simulate.__file__).parent / "lib" / LIBRARY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with the driver's kernel modules, and an empty driver root."""
    dra_simulate.build("vm-1gpu", tmp_path / "host")
    driver_container.remove(tmp_path / "host")
    return tmp_path / "host"


@pytest.fixture
def host(root: Path) -> Host:
    mount = root / "run/nvidia/driver"
    return replace(dra_simulate.build("vm-1gpu", root), driver_root=DriverRoot(mount, mount))


@pytest.fixture
def collector(host: Host) -> Iterator[Collector]:
    made = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    made.close()


def driver_root(host: Host) -> DriverRoot:
    assert host.driver_root is not None
    return host.driver_root


def collect(collector: Collector, host: Host) -> Inventory:
    return collector.collect(scan(host))


def gpu(inventory: Inventory) -> Device:
    device = inventory.device(GPU)
    assert device is not None
    return device


def running(library: NvmlClient) -> bool:
    return library.pid is not None


def messages(inventory: Inventory) -> str:
    return "\n".join(f"{one.where}: {one.message} [{one.hint}]" for one in inventory.problems)


def test_a_library_elsewhere_is_not_opened(host: Host, collector: Collector) -> None:
    assert host.nvml_library is not None and host.nvml_library.exists()
    inventory = collect(collector, host)
    assert gpu(inventory).attributes.get("brand") is None, "NVML was read"
    (problem,) = [one for one in inventory.problems if "driver" in one.message]
    assert problem.where == str(driver_root(host).path)
    assert "is missing (yet)" in problem.message and "nvidia-driver-daemonset" in (problem.hint or "")
    assert f'nvidia_driver_root = "{problem.where}"' in (problem.hint or "")


def test_a_driver_that_appears_late_is_used(root: Path, host: Host, collector: Collector) -> None:
    first = gpu(collect(collector, host))
    assert not first.observed and first.health == "healthy", "a start, and no failure"
    assert not collector.lost_event_stream(), "there is nothing to scan for"
    driver_container.install(root)
    assert collector.lost_event_stream(), "the next poll scans"
    after = collect(collector, host)
    assert gpu(after).health == "healthy" and gpu(after).attributes["brand"].value
    assert after.problems == ()


def test_a_removed_driver_taints_its_devices(root: Path, host: Host, collector: Collector) -> None:
    driver_container.install(root)
    before = gpu(collect(collector, host))
    library = acquire(host.nvml, DEADLINE_S)
    assert running(library)
    driver_container.announce_stop(root)
    assert collector.lost_event_stream()
    stopped = collect(collector, host)
    assert not running(library), "a process with the library keeps the modules in use"
    assert [one.cause for one in gpu(stopped).issues] == ["driver-missing"]
    driver_container.load_modules(root, loaded=False)
    driver_container.remove(root)
    unloaded = collect(collector, host)
    assert [one.cause for one in gpu(unloaded).issues] == ["driver-missing"]
    assert gpu(unloaded).attributes["uuid"] == before.attributes["uuid"]
    assert messages(unloaded).count("driver is not loaded") == 1
    driver_container.load_modules(root, loaded=True)
    assert [one.cause for one in gpu(collect(collector, host)).issues] == ["driver-missing"]
    assert not running(library)
    driver_container.install(root)
    assert collector.lost_event_stream()
    after = collect(collector, host)
    assert gpu(after).to_api() == before.to_api() and gpu(after).health == "healthy"
    library.close()


def test_gpus_that_no_driver_has_served_are_not_published(root: Path, host: Host, collector: Collector) -> None:
    driver_container.load_modules(root, loaded=False)
    inventory = collect(collector, host)
    assert inventory.device(GPU) is None
    (problem,) = [one for one in inventory.problems if "GPU" in one.message]
    assert "driver is not loaded: 1 GPU" in problem.message and "driver container" in (problem.hint or "")
    assert [(one.name, one.code) for one in inventory.excluded] == [(GPU, "no-driver")]


def test_a_replaced_library_is_opened_instead(root: Path, host: Host, collector: Collector) -> None:
    driver_container.install(root)
    collect(collector, host)
    library = acquire(host.nvml, DEADLINE_S)
    first = library.pid
    driver_container.install(root)
    assert collector.lost_event_stream()
    assert gpu(collect(collector, host)).health == "healthy"
    assert library.pid not in (None, first)
    library.close()


def test_a_library_of_another_version_than_the_module(root: Path, host: Host, collector: Collector) -> None:
    driver_container.install(root, version="999.1.2")
    inventory = collect(collector, host)
    assert "version mismatch" in messages(inventory)
    assert f"the library below {driver_root(host).path} is of another version" in messages(inventory)
    assert gpu(inventory).health == "unmonitored"
    driver_container.install(root)
    (driver_root(host).mount / driver_container.LIBRARY_DIR / "libnvidia-ml.so.999.1.2").unlink()
    assert collector.lost_event_stream()
    assert gpu(collect(collector, host)).health == "healthy"


@pytest.mark.parametrize("link", ["absolute", "relative", "above"])
def test_links_are_followed_within_the_root(tmp_path: Path, link: str) -> None:
    root = tmp_path / "root"
    real = root / "opt/libnvidia-ml.so.570.1.2"
    real.parent.mkdir(parents=True)
    shutil.copy(BUILT, real)
    (root / "usr/lib64").mkdir(parents=True)
    target = {"absolute": "/opt", "relative": "../../opt", "above": "../../../../../../opt"}[link]
    (root / "usr/lib64" / LIBRARY).symlink_to(f"{target}/{real.name}")
    assert DriverRoot(root, root).library() == real


@pytest.mark.parametrize("fault", ["dangling", "outside", "loop", "directory", "empty", "text"])
def test_a_file_that_is_not_a_library_is_named(tmp_path: Path, fault: str) -> None:
    root = tmp_path / "root"
    (root / "usr/lib64").mkdir(parents=True)
    library = root / "usr/lib64" / LIBRARY
    match fault:
        case "dangling":
            library.symlink_to("libnvidia-ml.so.570.1.2")
        case "outside":
            library.symlink_to(BUILT)
        case "loop":
            library.symlink_to(LIBRARY)
        case "directory":
            library.mkdir()
        case _:
            library.write_text("" if fault == "empty" else "not a library")
    for required in (True, False):
        with pytest.raises(DriverMissingError, match=f"usr/lib64/{LIBRARY} is "):
            DriverRoot(root, root, required).library()


def test_the_first_usable_library_is_used(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in ("usr/lib64", "usr/lib/x86_64-linux-gnu"):
        (root / folder).mkdir(parents=True)
    (root / "usr/lib64" / LIBRARY).symlink_to("gone")
    shutil.copy(BUILT, root / "usr/lib/x86_64-linux-gnu" / LIBRARY)
    assert DriverRoot(root, root).library() == root / "usr/lib/x86_64-linux-gnu" / LIBRARY


def test_auto_is_the_host_s_driver_until_there_is_another(root: Path, host: Host) -> None:
    auto = replace(driver_root(host), required=False)
    assert auto.library() is None and auto.identity() is None
    driver_container.install(root)
    library = auto.library()
    assert library is not None and library.is_relative_to(auto.mount)


def test_programs_are_those_of_the_root_with_its_libraries(root: Path, host: Host) -> None:
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        assert host.driver_tool(name) is None, "the host has another one"
    driver_container.install(root)
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        tool = host.driver_tool(name)
        assert tool is not None and tool.path == driver_root(host).mount / "usr/bin" / name
        environment = tool.environment()
        assert environment["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(tool.library and tool.library.parent)
        assert environment["PATH"].split(os.pathsep)[0] == str(tool.path.parent)


@pytest.mark.parametrize("own_dev", [False, True])
def test_device_nodes_are_those_of_the_root_if_it_has_any(
    root: Path, host: Host, collector: Collector, own_dev: bool
) -> None:
    driver_container.install(root, own_dev=own_dev)
    nodes = gpu(collect(collector, host)).nodes
    dev = driver_root(host).mount / "dev" if own_dev else host.dev
    assert {Path(node.host_path).parent for node in nodes if node.path.startswith("/dev/nvidia")} == {dev}
    assert all(Path(node.host_path).exists() for node in nodes)
    assert {node.path for node in nodes} >= {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_a_dev_without_the_driver_s_nodes_is_not_its_own(root: Path, host: Host) -> None:
    driver_container.install(root)
    (driver_root(host).mount / "dev").mkdir()
    assert driver_root(host).dev() is None
    assert host.driver_node("/dev/nvidia0") == host.dev / "nvidia0"


def test_paths_of_the_host_and_of_the_agent(tmp_path: Path) -> None:
    root = DriverRoot(Path("/run/nvidia/driver"), Path("/driver-root"))
    assert root.on_host("/driver-root/dev/nvidia0") == "/run/nvidia/driver/dev/nvidia0"
    assert root.on_host("/driver-rootless/x") == "/driver-rootless/x"
    assert root.as_seen("/run/nvidia/driver/usr/lib64/libcuda.so.1") == "/driver-root/usr/lib64/libcuda.so.1"
    assert root.as_seen("/dev/nvidia0") == "/dev/nvidia0"


def test_another_driver_has_other_profiles(tmp_path: Path) -> None:
    """Memory of MIG profiles changes between drivers (NVIDIA/mig-parted#166 and #187)."""
    root, mount = tmp_path / "host", tmp_path / "host/run/nvidia/driver"
    built = build_machine(PAIR, root)
    driver_container.install(root)
    host = replace(built, driver_root=DriverRoot(mount, mount), state=tmp_path / "state")
    collector = Collector(host, InventorySettings(nvml_timeout=DEADLINE_S, partition=(PARTITIONS,)))
    try:
        before = {one.name: one for one in collect(collector, host).devices}
        state = nvml.read(root / "lib")
        assert state.driver is not None
        smaller = tuple(
            msgspec.structs.replace(
                gpu, mig=tuple(msgspec.structs.replace(one, memory_mib=one.memory_mib - 256) for one in gpu.mig)
            )
            for gpu in state.devices
        )
        newer = msgspec.structs.replace(state.driver, version="999.1.2")
        nvml.write(root / "lib", msgspec.structs.replace(state, driver=newer, devices=smaller))
        driver_container.install(root)
        assert collector.lost_event_stream()
        after = collect(collector, host).devices
    finally:
        collector.close()
    partitions = [one for one in after if one.attributes["type"].value == "mig"]
    assert partitions and {one.attributes["driverVersion"].version for one in after} == {"999.1.2"}
    for one in partitions:
        previous = before.get(one.name)
        assert previous is None or previous.capacity["memory"] != one.capacity["memory"]
