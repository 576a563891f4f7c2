from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dra_simulate
import tiers
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.gpu_info import has_tensor_cores, is_integrated
from dra_agent.inventory.nvidia.nvml_client import WHOLE
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.tracker import InventoryTracker
from dra_agent.topology import scan
from dra_simulate import inject, nvml
from eventually import DEADLINE_S, eventually
from inventory.hurry import HURRY_S, hurry
from inventory.rescan import rescan

GPUS = [f"gpu-0000-{bus:02x}-00-0" for bus in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)]
LOST, UNKNOWN_ERROR, NO_PERMISSION = 15, 999, 4


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """One for all tests: building it takes longer than they do, and each leaves it as it was."""
    return dra_simulate.build("dgx-h100", tmp_path_factory.mktemp("host") / "dgx")


@pytest.fixture
def collector(dgx: Host) -> Iterator[Collector]:
    made = Collector(dgx, InventorySettings(nvml_timeout=DEADLINE_S))
    yield made
    inject.clear(dgx.sysfs.parent)
    made.close()


def take(collector: Collector, host: Host) -> Inventory:
    return collector.collect(scan(host))


def health(inventory: Inventory) -> dict[str, str]:
    return {device.name: device.health for device in inventory.family("gpu") if device.health != "healthy"}


def test_a_dgx_has_eight_equal_gpus(dgx: Host, collector: Collector) -> None:
    inventory = take(collector, dgx)
    assert inventory.problems == ()
    assert [device.name for device in inventory.family("gpu")] == GPUS
    first = inventory.family("gpu")[0]
    api = first.to_api()
    uuid = api["attributes"].pop("uuid")["string"]
    assert uuid.startswith("GPU-")
    assert "fabricDomain" not in api["attributes"], "its NVSwitches connect these eight and no other host"
    assert api == {
        "name": "gpu-0000-1b-00-0",
        "attributes": {
            "type": {"string": "gpu"},
            "vendor": {"string": "nvidia"},
            "vendorID": {"string": "0x10de"},
            "deviceID": {"string": "0x2330"},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "driver": {"string": "nvidia"},
            "pcieSwitch": {"string": "0000:16:00.0"},
            "pcieGeneration": {"int": 5},
            "pcieWidth": {"int": 16},
            "iommuGroup": api["attributes"]["iommuGroup"],
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 0},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "integrated": {"bool": False},
            "tensorCores": {"bool": True},
            "driverVersion": {"version": "570.124.6"},
            "cudaDriverVersion": {"version": "12.8.0"},
            "interconnectGroup": {"string": "0000:1b:00.0"},
            "interconnectWidth": {"int": 18},
        },
        "capacity": {"memory": {"value": "81559Mi"}, "multiprocessors": {"value": "132"}},
    }
    paths = {node.path for node in first.nodes if node.role == "gpu"}
    assert paths == {"/dev/nvidia0"}
    assert all(Path(node.host_path).exists() for device in inventory.devices for node in device.nodes)
    assert len({device.attributes["uuid"].value for device in inventory.family("gpu")}) == 8


def test_a_gpu_whose_calls_hang_keeps_its_attributes_and_harms_no_other(
    dgx: Host, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = take(collector, dgx)
    root = dgx.sysfs.parent
    inject.hang(root, None, before.family("gpu")[3].identity["uuid"])
    waited = hurry(monkeypatch, lambda lane: lane == "0000:61:00.0")
    hung = take(collector, dgx)
    assert waited == ["0000:61:00.0"]
    assert health(hung) == {GPUS[3]: "unmonitored"}
    (problem,) = hung.problems
    assert problem.where == GPUS[3]
    assert f"did not respond within {HURRY_S} s" in problem.message
    assert [device.to_api() for device in hung.devices] == [device.to_api() for device in before.devices]
    # The stuck call is not made again, so this waits for nothing.
    assert health(take(collector, dgx)) == {GPUS[3]: "unmonitored"}
    assert waited == ["0000:61:00.0"]
    monkeypatch.undo()
    inject.clear(root)
    eventually(lambda: health(take(collector, dgx)) == {})


def test_a_library_that_hangs_from_the_start_leaves_the_kernels_attributes(
    dgx: Host, collector: Collector, monkeypatch: pytest.MonkeyPatch, real_children: None
) -> None:
    root = dgx.sysfs.parent
    before = children()
    inject.hang(root, None)
    waited = hurry(monkeypatch, lambda lane: True)
    inventory = take(collector, dgx)
    assert health(inventory) == dict.fromkeys(GPUS, "unmonitored")
    assert len(inventory.family("nic")) == 10
    gpu = inventory.family("gpu")[0]
    assert gpu.attributes["uuid"].value == gpu.identity["uuid"]
    assert gpu.attributes["productName"].value == "NVIDIA H100 80GB HBM3"
    assert gpu.attributes["driverVersion"].value == "570.124.6"
    assert gpu.capacity == {}
    assert {node.role for node in gpu.nodes} == {"gpu", "control"}
    for _ in range(20):
        take(collector, dgx)
    assert waited == [WHOLE]
    assert library_threads(before) <= 2
    monkeypatch.undo()
    inject.clear(root)
    eventually(lambda: health(take(collector, dgx)) == {})
    assert take(collector, dgx).family("gpu")[0].capacity["memory"].value == "81559Mi"


@tiers.PATIENCE
def test_all_gpus_hanging_later_costs_two_deadlines_and_never_more_threads(
    dgx: Host, collector: Collector, monkeypatch: pytest.MonkeyPatch, real_children: None
) -> None:
    processes = children()
    before = take(collector, dgx)
    inject.hang(dgx.sysfs.parent, None)
    waited = hurry(monkeypatch, lambda lane: True)
    inventory = take(collector, dgx)
    assert waited == ["0000:1b:00.0", "0000:43:00.0"]
    assert health(inventory) == dict.fromkeys(GPUS, "unmonitored")
    assert [device.to_api() for device in inventory.devices] == [device.to_api() for device in before.devices]
    for _ in range(6):
        take(collector, dgx)
    assert library_threads(processes) <= 11, "one for each GPU that was ever asked about, for events, and for the rest"
    monkeypatch.undo()
    inject.clear(dgx.sysfs.parent)
    eventually(lambda: health(take(collector, dgx)) == {})


def test_a_lost_gpu_is_unhealthy_and_comes_back(dgx: Host, collector: Collector) -> None:
    before = take(collector, dgx)
    root = dgx.sysfs.parent
    inject.fail(root, None, LOST, before.family("gpu")[5].identity["uuid"])
    inventory = take(collector, dgx)
    assert health(inventory) == {GPUS[5]: "unhealthy"}
    lost = inventory.device(GPUS[5])
    assert lost is not None
    assert [issue.cause for issue in lost.issues] == ["gpu-lost"]
    assert lost.attributes == before.family("gpu")[5].attributes
    (problem,) = inventory.problems
    assert "lost" in problem.message
    assert problem.hint
    inject.clear(root)
    assert health(take(collector, dgx)) == {}


def test_one_failing_call_costs_one_fact(dgx: Host, collector: Collector) -> None:
    inject.fail(dgx.sysfs.parent, "nvmlDeviceGetBrand", UNKNOWN_ERROR)
    inventory = take(collector, dgx)
    assert health(inventory) == {}
    assert {"brand" in device.attributes for device in inventory.family("gpu")} == {False}
    assert {"architecture" in device.attributes for device in inventory.family("gpu")} == {True}
    assert [problem.where for problem in inventory.problems] == [
        device.pci_address for device in inventory.family("gpu")
    ]
    assert "nvmlDeviceGetBrand" in inventory.problems[0].message


def test_a_missing_permission_has_a_hint(dgx: Host, collector: Collector) -> None:
    inject.fail(dgx.sysfs.parent, "nvmlInit", NO_PERMISSION)
    inventory = take(collector, dgx)
    assert health(inventory) == dict.fromkeys(GPUS, "unmonitored")
    (problem,) = inventory.problems
    assert problem.where == "NVML"
    assert "as root" in str(problem)


def test_a_driver_that_is_not_loaded_is_reported_and_recovers(dgx: Host, collector: Collector) -> None:
    folder = dgx.sysfs.parent / "lib"
    state = nvml.read(folder)
    nvml.write(folder, msgspec.structs.replace(state, driver=None))
    (problem,) = take(collector, dgx).problems
    assert "modprobe nvidia" in str(problem)
    nvml.write(folder, state)
    assert health(take(collector, dgx)) == {}


@pytest.mark.parametrize("content", [None, b"no library"])
def test_a_library_that_is_missing_or_damaged_is_one_problem(dgx: Host, content: bytes | None) -> None:
    path = dgx.sysfs.parent / "lib" / "other.so"
    if content is not None:
        path.write_bytes(content)
    collector = Collector(Host(dgx.sysfs, dgx.dev, dgx.proc, path))
    inventory = take(collector, dgx)
    assert len(inventory.family("gpu")) == 8
    (problem,) = inventory.problems
    assert str(path) in problem.message
    assert problem.hint
    collector.close()


def test_an_unplugged_gpu_goes_and_a_replugged_one_comes_back(dgx: Host, collector: Collector) -> None:
    root = dgx.sysfs.parent
    watch = InventoryTracker(collector, scan(dgx))
    assert not rescan(watch, dgx)
    address = inject.unplug(root, "0000:61:00.0")
    seen = rescan(watch, dgx)
    assert seen.removed == (GPUS[3],)
    assert (seen.added, seen.changed, seen.health) == ((), (), ())
    assert watch.inventory.lookup("n/gpu", GPUS[3]) is None
    inject.replug(root, address)
    seen = rescan(watch, dgx)
    assert seen.added == (GPUS[3],)
    assert (seen.removed, seen.changed, seen.health) == ((), (), ())
    device = watch.inventory.lookup("n/gpu", GPUS[3])
    assert device is not None
    assert device.health == "healthy"
    assert device.capacity["memory"].value == "81559Mi"
    watch.close()


def test_a_gpu_plugged_in_after_the_start_is_found(dgx: Host, collector: Collector) -> None:
    root = dgx.sysfs.parent
    address = inject.unplug(root, "0000:df:00.0")
    assert len(take(collector, dgx).family("gpu")) == 7
    inject.replug(root, address)
    inventory = take(collector, dgx)
    assert len(inventory.family("gpu")) == 8
    assert health(inventory) == {}


def test_two_simulated_hosts_in_one_process_are_two_libraries(dgx: Host, collector: Collector, tmp_path: Path) -> None:
    # The same files, with another library and state.
    shutil.copytree(dgx.sysfs.parent / "lib", tmp_path / "lib")
    inject.fail(dgx.sysfs.parent, None, LOST)
    other = Collector(Host(dgx.sysfs, dgx.dev, dgx.proc, tmp_path / "lib" / nvml.LIBRARY))
    assert len(health(take(collector, dgx))) == 8
    assert len(health(take(other, dgx))) == 0
    other.close()


@pytest.mark.parametrize(
    ("capability", "device_id", "expected"),
    [
        ((6, 1), "0x1b06", False),
        ((7, 0), "0x1db6", True),
        ((7, 5), "0x1eb8", True),
        ((7, 5), "0x1f82", False),
        ((7, 5), "0x2184", False),
        ((9, 0), "0x2330", True),
    ],
)
def test_tensor_cores(capability: tuple[int, int], device_id: str, expected: bool) -> None:
    assert has_tensor_cores(capability, device_id) is expected


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((9, 0), False),
        ((10, 0), False),
        ((12, 0), False),
        ((12, 1), True),
        ((11, 0), True),
        ((8, 7), True),
        ((99, 0), None),
    ],
)
def test_gpus_that_use_the_memory_of_the_cpu(capability: tuple[int, int], expected: bool | None) -> None:
    assert is_integrated(capability) is expected


def children() -> set[int]:
    """The processes that this one has started."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile has none
            found |= {int(pid) for pid in path.read_text().split()}
    return found


def library_threads(before: set[int]) -> int:
    """Count the threads of the one process that has come since then."""
    (pid,) = children() - before
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
