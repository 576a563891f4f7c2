from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from deadlines import a_minute
from device_setup.hung import wait_for_access
from device_setup.vfio.bench import ALVEO, ALVEO_MANAGEMENT, EVERYTHING, FPGA, GPU, NIC, Bench, Crash, published
from dra_agent.cdi.model import ContainerEdits
from dra_agent.claim import ClaimDevice
from dra_agent.deadline import Deadline
from dra_agent.device_setup.nvidia import SharedNvml
from dra_agent.device_setup.vfio import VfioConfig, VfioSetup
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.passthrough import VfioBinding, VfioBindingStore
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.prepare.setup import SetupDevice, UnsuitableError
from dra_agent.topology import scan
from dra_simulate import inject
from eventually import DEADLINE_S

AUTO = VfioConfig()


def paths(bench: Bench, edits: ContainerEdits | None) -> list[str]:
    assert edits is not None
    nodes = [node.path for node in edits.device_nodes]
    return nodes + [mount.container_path for mount in edits.mounts]


def test_a_device_goes_to_vfio_and_back(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    assert vfio.default(item.device) == AUTO
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("vfio-pci", "vfio-pci")
    group = bench.machine.iommu_groups[FPGA]
    assert paths(bench, outcome.edits[item.key]) == [f"/dev/vfio/{group}", "/dev/vfio/vfio"]
    again = vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute())
    assert again == outcome
    assert [point for point in bench.points.seen if "drivers_probe" in point] == [
        "before bus/pci/drivers_probe",
        "after bus/pci/drivers_probe",
    ], "a repeat writes nothing"
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")
    assert bench.bindings.all() == {}
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(FPGA) == "dfl-pci"


@pytest.mark.parametrize("address", [FPGA, GPU, NIC])
def test_the_published_device_does_not_change_while_a_claim_holds_it(bench: Bench, address: str) -> None:
    item, vfio = bench.device(address), bench.vfio()
    before = {one.name: published(one) for one in bench.inventory().devices}
    assert item.device.attributes["type"].value == "vfio"
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert {one.name: published(one) for one in bench.inventory().devices} == before
    # Also without the rule, which may have been removed meanwhile.
    without = collect(bench.host, scan(bench.host), InventorySettings(), bindings=bench.bindings)
    assert next(published(one) for one in without.devices if one.name == item.device.name) == published(item.device)
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert {one.name: published(one) for one in bench.inventory().devices} == before
    found = bench.inventory(InventorySettings()).device(item.device.name)
    assert (found is not None and found.attributes["type"].value != "vfio" and found.nodes) or address == NIC


def test_a_gpu_keeps_its_facts_and_no_claim_for_a_gpu_gets_it(bench: Bench) -> None:
    found = bench.device(GPU).device
    attributes = {name: value.value for name, value in found.attributes.items()}
    assert (attributes["type"], attributes["driver"]) == ("vfio", "vfio-pci")
    assert attributes["productName"] == "NVIDIA L40S"
    uuid = attributes["uuid"]
    assert isinstance(uuid, str) and uuid.startswith("GPU-")
    assert "driverVersion" not in attributes and "memoryEnforcement" not in attributes
    assert found.capacity["memory"].value == "46068Mi"
    assert found.nodes == ()


def test_neighbours_that_the_host_uses_are_named_and_nothing_is_touched(bench: Bench) -> None:
    item = bench.device(ALVEO)
    with pytest.raises(PermanentError, match=rf"IOMMU group \d+: {ALVEO_MANAGEMENT} \(xclmgmt\)"):
        bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    assert bench.points.seen == []
    assert bench.driver(ALVEO) == "xocl"


def test_a_group_whose_other_functions_have_no_driver_is_given(bench: Bench) -> None:
    item = bench.device(ALVEO)
    bench.kernel.write(f"bus/pci/devices/{ALVEO_MANAGEMENT}/driver/unbind", ALVEO_MANAGEMENT)
    bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    assert bench.driver(ALVEO) == "vfio-pci"


def test_a_group_is_given_to_one_claim_as_a_whole(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(together=((FPGA, NIC),))
    fpga, nic = bench.device(FPGA), bench.device(NIC)
    with pytest.raises(PermanentError, match="0000:13:00.0"):
        bench.vfio().set_up("uid-1", [fpga], AUTO, None, a_minute())
    outcome = bench.vfio().set_up("uid-1", [fpga, nic], AUTO, None, a_minute())
    assert (bench.driver(FPGA), bench.driver(NIC)) == ("vfio-pci", "vfio-pci")
    bench.vfio().tear_down("uid-1", [nic.key], outcome.record, a_minute())
    assert (bench.driver(FPGA), bench.driver(NIC)) == ("vfio-pci", "mlx5_core")
    bench.kernel.write(f"bus/pci/devices/{NIC}/driver/unbind", NIC)
    with pytest.raises(RetryableError, match="another claim has functions of its IOMMU group"):
        bench.vfio().set_up("uid-2", [nic], AUTO, None, a_minute())


def test_a_function_without_iommu_is_not_offered(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(iommu=False)
    inventory = bench.inventory()
    assert inventory.devices == ()
    refused = [one.reason for one in inventory.excluded if one.code == "passthrough"]
    assert len(refused) == 4 and all("the IOMMU is off" in reason for reason in refused)
    assert {problem.severity for problem in inventory.problems if "passed through" in problem.message} == {"error"}


def test_without_the_module_it_is_tried_again(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(vfio=False)
    item, vfio = bench.device(FPGA), bench.vfio()
    with pytest.raises(RetryableError, match=r"the driver vfio-pci is not loaded; run `modprobe vfio-pci`"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    vfio.roll_back("uid-1", [item.key], AUTO, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")
    assert bench.bindings.all() == {}


def test_iommufd_where_the_host_has_it(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(iommufd=True)
    item, vfio = bench.device(FPGA), bench.vfio()
    group = bench.machine.iommu_groups[FPGA]
    legacy = [f"/dev/vfio/{group}", "/dev/vfio/vfio"]

    def given(iommu: str) -> list[str]:
        config = msgspec.convert({"iommu": iommu}, VfioConfig)
        return paths(bench, vfio.set_up("uid-1", [item], config, None, a_minute()).edits[item.key])

    assert given("legacy") == legacy
    newer = given("iommufd")
    assert newer[0].startswith("/dev/vfio/devices/vfio") and newer[1:] == ["/dev/iommu"]
    assert given("auto") == legacy + newer


def test_iommufd_where_the_host_does_not_have_it(bench: Bench) -> None:
    item = bench.device(FPGA)
    with pytest.raises(PermanentError, match="iommu: this host has no /dev/iommu"):
        bench.vfio().set_up("uid-1", [item], VfioConfig(iommu="iommufd"), None, a_minute())


def test_a_device_that_is_published_for_containers_is_never_bound(bench: Bench) -> None:
    ordinary = next(one for one in bench.inventory(InventorySettings()).devices if one.pci_address == GPU)
    assert bench.vfio().default(ordinary) is None
    with pytest.raises(UnsuitableError, match=r"inventory\.passthrough"):
        bench.vfio().check(ordinary, AUTO)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `group`"):
        msgspec.convert({"group": 3}, VfioConfig)
    with pytest.raises(msgspec.ValidationError, match="iommu"):
        msgspec.convert({"iommu": "none"}, VfioConfig)


def opened(bench: Bench, node: str, pid: int = 4711) -> Path:
    process = bench.host.proc / str(pid)
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("train\n")
    (process / "fd/3").symlink_to(bench.host.dev_path(node))
    return process


@pytest.mark.parametrize(("address", "node"), [(FPGA, "/dev/dfl-port.0"), (GPU, "/dev/nvidia0"), (ALVEO, None)])
def test_a_device_that_a_process_has_open_is_not_touched(bench: Bench, address: str, node: str | None) -> None:
    if node is None:
        address, node = NIC, "/dev/infiniband/uverbs0"
    item, vfio = bench.device(address), bench.vfio()
    process = opened(bench, node)
    before = bench.driver(address)
    with pytest.raises(RetryableError, match=rf"train \(process 4711\) has {node} open"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert (bench.driver(address), bench.points.seen) == (before, [])
    (process / "fd/3").unlink()
    vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert bench.driver(address) == "vfio-pci"


def test_a_machine_that_still_runs_keeps_its_device(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    process = opened(bench, f"/dev/vfio/{bench.machine.iommu_groups[FPGA]}")
    with pytest.raises(RetryableError, match="process 4711"):
        vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(FPGA) == "vfio-pci"
    (process / "fd/3").unlink()
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(FPGA) == "dfl-pci"


def bound_by_the_operator(bench: Bench, address: str) -> SetupDevice:
    kernel = bench.kernel
    kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    kernel.write(f"bus/pci/devices/{address}/driver_override", "vfio-pci")
    kernel.write("bus/pci/drivers_probe", address)
    found = next(one for one in bench.inventory(InventorySettings()).devices if one.pci_address == address)
    assert "passthrough" not in found.identity
    return SetupDevice(ClaimDevice("n/pool", found.name, ("request",)), found)


def test_a_device_that_the_operator_bound_stays_bound(bench: Bench) -> None:
    item, vfio = bound_by_the_operator(bench, FPGA), bench.vfio()
    assert vfio.default(item.device) == AUTO
    bench.points.seen.clear()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert outcome.edits == {}, "the inventory has its nodes"
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert (bench.driver(FPGA), bench.bindings.all(), bench.points.seen) == ("vfio-pci", {}, [])


def test_a_machine_that_has_a_device_of_the_operator_open_is_noticed(bench: Bench) -> None:
    item, vfio = bound_by_the_operator(bench, FPGA), bench.vfio()
    process = opened(bench, f"/dev/vfio/{bench.machine.iommu_groups[FPGA]}")
    with pytest.raises(RetryableError, match="process 4711"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    (process / "fd/3").unlink()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    # The claim's own container has it open on a repeat.
    opened(bench, f"/dev/vfio/{bench.machine.iommu_groups[FPGA]}", 4712)
    assert vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute()) == outcome


def test_a_group_that_the_host_has_come_to_use_is_not_given(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(together=((FPGA, NIC),))
    bench.kernel.write(f"bus/pci/devices/{NIC}/driver/unbind", NIC)
    item = bound_by_the_operator(bench, FPGA)
    bench.kernel.write(f"bus/pci/devices/{NIC}/driver_override", "")
    bench.kernel.write("bus/pci/drivers_probe", NIC)
    assert bench.driver(NIC) == "mlx5_core"
    with pytest.raises(PermanentError, match=rf"IOMMU group \d+: {NIC} \(mlx5_core\)"):
        bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    assert next(one.code for one in bench.inventory(InventorySettings()).excluded if one.pci_address == FPGA) == (
        "iommu-group"
    )


def test_a_device_that_the_operator_has_taken_back_is_not_given(bench: Bench) -> None:
    item = bound_by_the_operator(bench, FPGA)
    bench.kernel.write(f"bus/pci/devices/{FPGA}/driver/unbind", FPGA)
    with pytest.raises(RetryableError, match="vfio"):
        bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())


def held(bench: Bench, address: str, item: SetupDevice) -> SetupDevice:
    """The device as the inventory describes it now, without a rule of passthrough; as before if it is left out."""
    settings, names = InventorySettings(), {item.device.name}
    inventory = collect(bench.host, scan(bench.host), settings, bindings=bench.bindings, held=names)
    found = (one for one in inventory.devices if one.pci_address == address)
    return SetupDevice(item.allocated, next(found, item.device))


@pytest.mark.parametrize("address", [FPGA, GPU, NIC])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["its own driver has it", "no driver has it"])
def test_a_device_that_the_operator_takes_back_from_a_claim_is_not_bound(
    bench: Bench, address: str, is_restarted: bool
) -> None:
    original = bench.driver(address)
    item = bound_by_the_operator(bench, address)
    outcome = bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    # As after a reboot, or `driverctl unset-override`.
    bench.kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    bench.kernel.write(f"bus/pci/devices/{address}/driver_override", "\n")
    if is_restarted:
        bench.kernel.write("bus/pci/drivers_probe", address)
    now = original if is_restarted else None
    assert bench.driver(address) == now
    again = held(bench, address, item)
    bench.points.seen.clear()
    has = f"driver {now}" if now else "no driver"
    with pytest.raises(RetryableError, match=f"it has {has} and was published with vfio-pci"):
        bench.vfio().set_up("uid-1", [again], AUTO, outcome.record, a_minute())
    assert (bench.driver(address), bench.bindings.all(), bench.points.seen) == (now, {}, [])
    # Bound again by the operator, it is the claim's, and stays bound after it.
    bench.kernel.write(f"bus/pci/devices/{address}/driver_override", "vfio-pci")
    if is_restarted:
        bench.kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    bench.kernel.write("bus/pci/drivers_probe", address)
    again = held(bench, address, item)
    assert bench.vfio().set_up("uid-1", [again], AUTO, outcome.record, a_minute()) == outcome
    bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(address) == "vfio-pci"


@pytest.mark.parametrize("settings", [EVERYTHING, InventorySettings()], ids=["with the rule", "without it"])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["after a reboot", "still bound"])
def test_a_claim_whose_state_file_is_lost_keeps_its_device_on_a_repeat(
    bench: Bench, settings: InventorySettings, is_restarted: bool
) -> None:
    item, vfio = bench.device(GPU), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    (bench.bindings.folder / f"{GPU}.json").unlink()
    if is_restarted:
        bench.kernel.write(f"bus/pci/devices/{GPU}/driver_override", "\n")
        bench.kernel.write(f"bus/pci/devices/{GPU}/driver/unbind", GPU)
        bench.kernel.write("bus/pci/drivers_probe", GPU)
    found = next(one for one in bench.inventory(settings).devices if one.pci_address == GPU)
    assert vfio.set_up("uid-1", [SetupDevice(item.allocated, found)], AUTO, outcome.record, a_minute()) == outcome
    assert bench.driver(GPU) == "vfio-pci"
    assert published(bench.device(GPU).device) == published(item.device)
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert (bench.driver(GPU), bench.override(GPU), bench.bindings.all()) == ("nvidia", "(null)", {})


def test_an_interface_in_a_bond_is_not_taken(bench: Bench) -> None:
    item = bench.device(NIC)
    net = bench.host.sysfs / "class/net"
    (net / "bond0").mkdir()
    (net / "bond0/lower_ens1np0").symlink_to("../ens1np0")
    (net / "ens1np0/upper_bond0").symlink_to("../bond0")
    with pytest.raises(RetryableError, match="the host uses it: ens1np0 is the lower device of the interface bond0"):
        bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    assert bench.driver(NIC) == "mlx5_core"


class KnownLibrary(SharedNvml):
    """A library with the processes of the test, which records its calls."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.processes: list[int] = []

    def users(self, address: str) -> list[int]:
        self.events.append("asked")
        return self.processes

    @contextmanager
    def released(self) -> Iterator[None]:
        self.events.append("released")
        yield
        self.events.append("acquired")


def test_the_agents_own_library_releases_a_gpu_first(bench: Bench) -> None:
    library = KnownLibrary()

    class Telling:
        def write(self, path: str, text: str) -> None:
            library.events.append(path.rpartition("/")[2])
            bench.kernel.write(path, text)

        def read(self, path: str) -> str:
            return bench.kernel.read(path)

    vfio = VfioSetup(bench.host, Telling(), bench.state, libraries=[library])
    library.processes = [31337]
    with pytest.raises(RetryableError, match="processes compute on it: 31337"):
        vfio.set_up("uid-1", [bench.device(GPU)], AUTO, None, a_minute())
    assert (library.events, bench.bindings.all(), bench.driver(GPU)) == (["asked"], {}, "nvidia")
    library.processes = []
    library.events.clear()
    vfio.set_up("uid-1", [bench.device(GPU)], AUTO, None, a_minute())
    assert library.events == ["asked", "released", "driver_override", "unbind", "drivers_probe", "acquired"]
    library.events.clear()
    library.processes = [31337]
    vfio.set_up("uid-1", [bench.device(FPGA)], AUTO, None, a_minute())
    assert not {"asked", "released"} & set(library.events), "no library has an FPGA open"


def test_the_real_library_ends_its_process_and_is_started_again_after(bench: Bench) -> None:
    from dra_agent.inventory.nvidia.nvml_client import WorkerExitedError, acquire

    library = SharedNvml(bench.host.nvml_library, DEADLINE_S)
    nvml = acquire(bench.host.nvml_library, DEADLINE_S)
    try:
        assert library.users(GPU) == []
        assert library.users("0000:7f:00.0") == []
        before = nvml.pid
        with library.released():
            assert before is not None and nvml.pid is None
            with pytest.raises(WorkerExitedError):
                nvml.call("nvmlDeviceGetCount")
        nvml.start()
        assert nvml.pid not in (None, before)
    finally:
        nvml.close()


def test_only_the_named_device_of_a_claim_is_rolled_back(bench: Bench) -> None:
    fpga, nic, vfio = bench.device(FPGA), bench.device(NIC), bench.vfio()
    vfio.set_up("uid-1", [fpga, nic], AUTO, None, a_minute())
    assert sorted(vfio.noted("uid-1")) == sorted([fpga.key, nic.key]) and vfio.noted("uid-2") == []
    vfio.roll_back("uid-1", [fpga.key], AUTO, a_minute())
    assert (bench.driver(FPGA), bench.driver(NIC)) == ("dfl-pci", "vfio-pci")
    vfio.roll_back("uid-2", [nic.key], AUTO, a_minute())
    assert bench.driver(NIC) == "vfio-pci", "it belongs to another claim"


def test_enodev_for_a_present_device_is_a_refused_write(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    inject.answer_write(bench.folder / "host", FPGA, "unbind", errno=errno.ENODEV, machine=bench.machine)
    with pytest.raises(RetryableError, match="the kernel refused a write to unbind: No such device"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())


def test_a_driver_that_does_not_take_the_device_is_named(bench: Bench) -> None:
    class NoProbe:
        def write(self, path: str, text: str) -> None:
            if not path.endswith("drivers_probe"):
                bench.kernel.write(path, text)

        def read(self, path: str) -> str:
            return bench.kernel.read(path)

    vfio = VfioSetup(bench.host, NoProbe(), bench.state)
    with pytest.raises(RetryableError, match="vfio-pci did not take it: no driver has it now; check the kernel log"):
        vfio.set_up("uid-1", [bench.device(FPGA)], AUTO, None, a_minute())


@pytest.mark.parametrize("attribute", ["driver_override", "unbind", "drivers_probe"])
def test_errors_of_the_kernel_are_reported_and_undone(bench: Bench, attribute: str) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    inject.answer_write(bench.folder / "host", FPGA, attribute, errno=16, machine=bench.machine)
    with pytest.raises(RetryableError, match=f"the kernel refused a write to {attribute}: Device or resource busy"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert inject.clear(bench.folder / "host") == 1
    vfio.roll_back("uid-1", [item.key], AUTO, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")
    assert bench.bindings.all() == {}


def test_a_driver_that_never_releases_delays_one_device_until_its_timeout(bench: Bench, patience: float) -> None:
    fpga, nic, vfio = bench.device(FPGA), bench.device(NIC), bench.vfio(deadline=patience)
    inject.answer_write(bench.folder / "host", FPGA, "unbind", machine=bench.machine)
    with pytest.raises(RetryableError, match="a write to unbind has not returned"):
        vfio.set_up("uid-1", [fpga], AUTO, None, a_minute())
    with pytest.raises(RetryableError, match="has not returned"):
        vfio.roll_back("uid-1", [fpga.key], AUTO, a_minute())
    patient = bench.vfio()
    patient.set_up("uid-2", [nic], AUTO, None, a_minute())
    assert bench.driver(NIC) == "vfio-pci"
    inject.clear(bench.folder / "host")
    wait_for_access(FPGA)
    assert bench.driver(FPGA) is None, "what hung has happened"
    vfio.roll_back("uid-1", [fpga.key], AUTO, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")


def test_attributes_of_a_hung_driver_are_not_read(
    bench: Bench, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows some attributes only under the device's lock, which a driver that hangs has."""
    read = SysfsDir.text

    def text(files: SysfsDir, name: str) -> str | None:
        assert name not in ("driver_override", "sriov_numvfs"), "read without a deadline"
        return read(files, name)

    item, vfio = bench.device(FPGA), bench.vfio(deadline=patience)
    monkeypatch.setattr(SysfsDir, "text", text)
    inject.answer_write(bench.folder / "host", FPGA, "unbind", machine=bench.machine)
    with pytest.raises(RetryableError, match="a write to unbind has not returned"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    for call in (
        lambda: vfio.roll_back("uid-1", [item.key], AUTO, a_minute()),
        lambda: vfio.tear_down("uid-1", [item.key], None, a_minute()),
        lambda: vfio.set_up("uid-1", [item], AUTO, None, a_minute()),
    ):
        with pytest.raises(RetryableError, match="a write to unbind has not returned"):
            call()
    # Another agent on the same host, which knows nothing of it, waits for the read and no longer than its deadline.
    impatient = bench.vfio(deadline=patience)
    with pytest.raises(RetryableError, match="a read of driver_override has not returned"):
        impatient.roll_back("uid-1", [item.key], AUTO, a_minute())
    inject.clear(bench.folder / "host")
    wait_for_access(FPGA)
    vfio.roll_back("uid-1", [item.key], AUTO, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")


def test_two_claims_never_check_one_group_at_the_same_time(bench_of: Callable[..., Bench]) -> None:
    """Each would see the other's function unused, and both would take of the group."""
    bench = bench_of(together=((FPGA, NIC),))
    fpga, nic = bench.device(FPGA), bench.device(NIC)
    for address in (FPGA, NIC):
        bench.kernel.write(f"bus/pci/devices/{address}/driver/unbind", address)
    checked, go_on = threading.Event(), threading.Event()

    class Slow(VfioBindingStore):
        def write(self, binding: VfioBinding) -> None:
            checked.set()
            assert go_on.wait(60)
            super().write(binding)

    vfio = VfioSetup(bench.host, bench.kernel, bench.state, bindings=Slow(bench.state))
    first = threading.Thread(target=vfio.set_up, args=("uid-1", [fpga], AUTO, None, a_minute()))
    first.start()
    try:
        assert checked.wait(60)
        with pytest.raises(RetryableError, match=r"group \d+: claim uid-1 has been in work on it"):
            vfio.set_up("uid-2", [nic], AUTO, None, Deadline.of(0.05))
    finally:
        go_on.set()
        first.join(60)
    with pytest.raises(RetryableError, match="another claim has functions of its IOMMU group"):
        vfio.set_up("uid-2", [nic], AUTO, None, a_minute())
    assert set(bench.bindings.all()) == {FPGA}


def test_a_claim_whose_record_is_lost_is_released_by_its_state_files(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert vfio.noted("uid-1") == [item.key] and vfio.noted("uid-2") == []
    vfio.tear_down("uid-1", vfio.noted("uid-1"), None, a_minute())
    assert bench.driver(FPGA) == "dfl-pci" and vfio.noted("uid-1") == []


def test_a_device_that_is_pulled_out_while_a_claim_has_it(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    inject.unplug(bench.folder / "host", FPGA, bench.machine)
    assert bench.inventory().device(item.device.name) is None
    with pytest.raises(RetryableError, match="not on the bus"):
        vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute())
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.bindings.all() == {}
    inject.replug(bench.folder / "host", FPGA, bench.machine)
    assert bench.driver(FPGA) == "dfl-pci"
    assert bench.inventory().device(item.device.name) is not None


def test_a_repeat_binds_a_function_again(bench: Bench) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    # As after a reboot: every driver has its own device again.
    bench.kernel.write(f"bus/pci/devices/{FPGA}/driver_override", "\n")
    bench.kernel.write(f"bus/pci/devices/{FPGA}/driver/unbind", FPGA)
    bench.kernel.write("bus/pci/drivers_probe", FPGA)
    assert bench.driver(FPGA) == "dfl-pci"
    assert vfio.set_up("uid-1", [item], AUTO, outcome.record, a_minute()) == outcome
    assert bench.driver(FPGA) == "vfio-pci"


def test_a_device_of_a_claim_that_is_gone_goes_to_the_next_and_then_home(bench: Bench) -> None:
    item = bench.device(FPGA)
    bench.vfio().set_up("lost", [item], AUTO, None, a_minute())
    outcome = bench.vfio().set_up("next", [item], AUTO, None, a_minute())
    bench.vfio().tear_down("next", [item.key], outcome.record, a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")


@pytest.mark.parametrize("damage", [b"", b"{", b'{"address": "0000:11:00.1"}'])
def test_a_damaged_file_does_not_prevent_the_restore(bench: Bench, damage: bytes) -> None:
    item, vfio = bench.device(FPGA), bench.vfio()
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    (bench.bindings.folder / f"{FPGA}.json").write_bytes(damage)
    assert bench.bindings.all() == {}
    assert [path.name for path in bench.bindings.folder.iterdir()] == [f"{FPGA}.json.corrupt-1"]
    vfio.tear_down("uid-1", [item.key], msgspec.json.decode(msgspec.json.encode(outcome.record)), a_minute())
    assert (bench.driver(FPGA), bench.override(FPGA)) == ("dfl-pci", "(null)")


def deaths(bench: Bench, act: Callable[[], object]) -> int:
    """Count the points at which the agent can die while it acts."""
    bench.points.seen.clear()
    act()
    return len(bench.points.seen)


def die(bench: Bench, at: int, act: Callable[[], object]) -> str:
    bench.points.seen.clear()
    bench.points.kill_at = at
    with pytest.raises(Crash) as crash:
        act()
    bench.points.kill_at = None
    return crash.value.point


def test_an_agent_that_dies_anywhere_is_undone_or_finished_by_the_next(bench: Bench) -> None:
    item = bench.device(FPGA)
    # An override of the operator's own must be there again afterwards.
    bench.kernel.write(f"bus/pci/devices/{FPGA}/driver_override", "dfl-pci")
    original = (bench.driver(FPGA), bench.override(FPGA))
    outcome = bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
    bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute())
    binding = deaths(bench, lambda: bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute()))
    release = deaths(bench, lambda: bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute()))
    assert (binding, release) == (10, 10)
    assert (bench.driver(FPGA), bench.override(FPGA)) == original
    for point in range(binding):
        where = die(bench, point, lambda: bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute()))
        found = bench.inventory().device(item.device.name)
        assert found is not None and published(found) == published(item.device), where
        bench.vfio().roll_back("uid-1", [item.key], AUTO, a_minute())
        assert (bench.driver(FPGA), bench.override(FPGA)) == original, where
        assert bench.bindings.all() == {}, where
        # The kubelet asks again for what was undone, or the agent repeats what it had begun.
        where = die(bench, point, lambda: bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute()))
        assert bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute()) == outcome, where
        bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute())
        assert (bench.driver(FPGA), bench.override(FPGA)) == original, where
    for point in range(release):
        bench.vfio().set_up("uid-1", [item], AUTO, None, a_minute())
        where = die(bench, point, lambda: bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute()))
        bench.vfio().tear_down("uid-1", [item.key], outcome.record, a_minute())
        assert (bench.driver(FPGA), bench.override(FPGA)) == original, where
        assert bench.bindings.all() == {}, where


def test_a_real_sys_is_written_in_one_call_and_never_made(tmp_path: Path) -> None:
    from dra_agent.device_setup.sysfs_writer import RealSysfsWriter

    kernel = RealSysfsWriter(Host(sysfs=tmp_path).sysfs)
    with pytest.raises(FileNotFoundError):
        kernel.write("bus/pci/drivers_probe", "0000:11:00.0")
    (tmp_path / "probe").write_text("something longer than what is written")
    kernel.write("probe", "0000:11:00.0")
    assert (tmp_path / "probe").read_text().startswith("0000:11:00.0"), "written at its beginning, and not cut"


def test_a_process_for_sys_that_cannot_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_agent.device_setup.sysfs_writer import RealSysfsWriter

    monkeypatch.setattr("dra_agent.child.command", lambda *arguments: ["/bin/sh", "-c", "echo no memory >&2; exit 3"])
    with pytest.raises(RetryableError, match="a process that accesses /sys failed: no memory"):
        RealSysfsWriter(tmp_path).write("probe", "x")


def test_an_agent_in_a_pod_takes_no_driver_away_from_under_processes_that_it_cannot_see(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    vfio = bench.vfio()
    item = bench.device(FPGA)
    (bench.host.proc / "self/ns").mkdir(parents=True)
    (bench.host.proc / "self/ns/pid").symlink_to("pid:[4026532201]")
    with pytest.raises(RetryableError, match="open: the agent is not in the host's process namespace"):
        vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    assert (bench.driver(FPGA), bench.points.seen) == ("dfl-pci", [])
    found = [problem for problem in bench.inventory().problems if problem.where == "inventory.passthrough"]
    assert [problem.hint for problem in found] and "hostPID" in str(found[0])
    assert not [one for one in bench.inventory(InventorySettings()).problems if "hostPID" in str(one)], (
        "passthrough is off"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not [one for one in bench.inventory().problems if "hostPID" in str(one)], "a user's command is not the agent"


def test_an_agent_with_hidden_processes_restores_the_driver_of_a_claim(bench: Bench) -> None:
    vfio = bench.vfio()
    item = bench.device(FPGA)
    outcome = vfio.set_up("uid-1", [item], AUTO, None, a_minute())
    (bench.host.proc / "self/ns").mkdir(parents=True)
    (bench.host.proc / "self/ns/pid").symlink_to("pid:[4026532201]")
    vfio.tear_down("uid-1", [item.key], outcome.record, a_minute())
    assert bench.driver(FPGA) == "dfl-pci"
