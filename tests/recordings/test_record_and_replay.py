"""A host that was recorded and built again is the same for the agent: with the fake library, and in strict replay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from claimable.hosts import random_host
from deadlines import a_minute
from dra_agent.agent.config import Config
from dra_agent.agent.setup_registry import is_recorded, is_simulated, vendor_setups
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.net import InterfaceConfig, NicConfig, NicSetup
from dra_agent.doctor.record import record
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.settings import InventorySettings
from dra_agent.prepare.setup import SetupDevice
from dra_agent.recording import load_manifest, named_recording
from dra_agent.topology import scan
from dra_simulate import inject, nvml, tree
from dra_simulate.machine import HostBridge, Machine, NumaNode
from dra_simulate.parts.display import intel_igpu
from dra_simulate.profiles import load_profile
from dra_simulate.recording import RecordedKernel
from eventually import DEADLINE_S
from rare_parts import tpu_v4, virtio_gpu, with_mediated_devices

from .compare import differences
from .conclusions import PARTITIONED, anonymous, conclusions
from .instances import divide
from .replay import replay

WITH_NETWORKS = [seed for seed in range(20) if (one := random_host(seed)).network.interfaces and not one.machine.nvidia]
SETTINGS = {"plain": InventorySettings(nvml_timeout=DEADLINE_S), "partitioned": PARTITIONED}


@pytest.fixture(scope="module", params=dra_simulate.profiles())
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Path]:
    """A simulated host and its recording, with identity."""
    folder = tmp_path_factory.mktemp(request.param)
    host = dra_simulate.build(request.param, folder / "host")
    record(host, folder / "recording", with_identity=True)
    return host, folder / "recording"


@pytest.fixture(scope="module")
def again(recorded: tuple[Host, Path], tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host that is built from the recording. Tests only read it."""
    _, recording = recorded
    return dra_simulate.build(str(recording), tmp_path_factory.mktemp("again") / "again")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_agent_concludes_the_same(recorded: tuple[Host, Path], again: Host, settings: InventorySettings) -> None:
    host, recording = recorded
    expected = conclusions(host, settings)
    assert conclusions(again, settings) == expected, "doctor/record has to name each attribute that is read"
    if (recording / "nvml.jsonl").exists():
        with replay(recording) as misses:
            assert conclusions(again, settings) == expected, "strict replay"
        assert not misses


def test_the_fake_responds_as_recorded(recorded: tuple[Host, Path], again: Host) -> None:
    _, recording = recorded
    assert differences(recording, again) == []


def test_configuration_space_is_not_read(recorded: tuple[Host, Path]) -> None:
    host, _ = recorded
    assert tree.reads(host.sysfs.parent) == []


@pytest.fixture
def t4(tmp_path: Path) -> Iterator[Host]:
    yield dra_simulate.build("vm-1gpu", tmp_path / "host")
    inject.clear(tmp_path / "host")


def test_differences_are_named_by_call(t4: Host, tmp_path: Path) -> None:
    record(t4, tmp_path / "recording")
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    state = tmp_path / "again/lib/nvml.json"
    state.write_text(state.read_text().replace('"Tesla T4"', '"Tesla T5"'))
    assert differences(tmp_path / "recording", again) == [
        "nvmlDeviceGetName(0000:00:04.0): recorded 'Tesla T4', the fake has 'Tesla T5'"
    ]


def test_errors_of_calls_are_repeated(t4: Host, tmp_path: Path) -> None:
    inject.fail(tmp_path / "host", "nvmlDeviceGetBrand", 3)
    inject.fail(tmp_path / "host", "nvmlDeviceGetRemappedRows", 999)
    record(t4, tmp_path / "recording")
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    expected = anonymous(conclusions(t4))
    assert any("nvmlDeviceGetRemappedRows" in problem for problem in expected["problems"])
    assert anonymous(conclusions(again)) == expected
    assert differences(tmp_path / "recording", again) == []


def test_a_call_that_is_not_recorded_is_named(t4: Host, tmp_path: Path) -> None:
    record(t4, tmp_path / "recording")
    log = tmp_path / "recording/nvml.jsonl"
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b"GetNumGpuCores" not in line))
    again = dra_simulate.build("vm-1gpu", tmp_path / "host")
    with replay(tmp_path / "recording") as misses:
        assert "multiprocessors" not in str(conclusions(again)["devices"])
    assert [miss.partition("(")[0] for miss in misses] == ["nvmlDeviceGetNumGpuCores"]


def assert_recorded(host: Host, tmp_path: Path, expected: object) -> None:
    """Check that the agent comes to the same conclusions on a recording of the host, and that it has every call."""
    record(host, tmp_path / "recording", with_identity=True)
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert conclusions(again) == expected
    with replay(tmp_path / "recording") as misses:
        assert conclusions(again) == expected
    assert not misses


def test_mig_instances_are_recorded(tmp_path: Path) -> None:
    host = dra_simulate.build("mixed", tmp_path / "host")
    divide(host)
    expected = conclusions(host)
    assert [device["name"] for device in expected["devices"] if "-mig-" in device["name"]]
    assert_recorded(host, tmp_path, expected)


def test_mig_instances_are_recorded_without_permission_for_mig(tmp_path: Path) -> None:
    """MIG devices are listed to all processes, the place of their GPU instances is not."""
    host = dra_simulate.build("mixed", tmp_path / "host")
    divide(host)
    inject.set_access(tmp_path / "host", nvml.Access(admin=False, config=False, monitor=False))
    expected = {name: conclusions(host, settings) for name, settings in SETTINGS.items()}
    assert len([one for one in expected["plain"]["devices"] if "-gi" in one["name"]]) == 3
    record(host, tmp_path / "recording", with_identity=True)
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert {name: conclusions(again, settings) for name, settings in SETTINGS.items()} == expected
    assert differences(tmp_path / "recording", again) == []


def test_a_hung_call_costs_its_deadline_and_is_noted(t4: Host, tmp_path: Path) -> None:
    inject.hang(tmp_path / "host", "nvmlDeviceGetMemoryInfo")
    manifest = record(t4, tmp_path / "recording", settings=InventorySettings(nvml_timeout=2.0))
    assert any("did not respond within 2 s" in omission.reason for omission in manifest.omitted)
    assert load_manifest(tmp_path / "recording") == manifest
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert [function.pci_address for function in scan(again).devices]


def test_a_value_that_the_library_does_not_return_is_noted(t4: Host, tmp_path: Path) -> None:
    inject.fail(tmp_path / "host", "nvmlDeviceGetHandleByPciBusId_v2", 999)
    manifest = record(t4, tmp_path / "recording")
    (name,) = [device["name"] for device in conclusions(t4)["devices"] if device["name"].startswith("gpu-")]
    assert name in {omission.where for omission in manifest.omitted}


def test_a_manifest_has_versions_and_missing_parts(t4: Host, tmp_path: Path) -> None:
    manifest = record(t4, tmp_path / "recording")
    assert manifest.drivers["nvidia"] == "535.216.03" and not manifest.identity
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", manifest.agent)
    assert "lspci" in {omission.where for omission in manifest.omitted}


def test_only_files_that_the_agent_reads_are_recorded(t4: Host, tmp_path: Path) -> None:
    for module in ("vxlan", "nvidia_drm"):
        (t4.sysfs / "module" / module).mkdir()
        (t4.sysfs / "module" / module / "version").write_text("1\n")
    folder = t4.sysfs / "bus/pci/devices/0000:00:04.0"
    for name in ("vpd", "config", "rom", "serial_number", "resource0", "hwmon/hwmon0/uevent"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("private")
    manifest = record(t4, tmp_path / "recording")
    assert set(manifest.drivers) <= {"nvidia", "virtio_net", "virtio-pci"}
    assert "private" not in (tmp_path / "recording/tree.jsonl").read_text()


def test_a_suspended_function_is_not_woken(t4: Host, tmp_path: Path) -> None:
    folder = t4.sysfs / "bus/pci/devices/0000:00:04.0"
    assert (folder / "current_link_speed").exists() or (folder / "max_link_speed").exists()
    (folder / "power").mkdir(exist_ok=True)
    (folder / "power/runtime_status").write_text("suspended\n")
    record(t4, tmp_path / "recording")
    text = (tmp_path / "recording/tree.jsonl").read_text()
    assert "0000:00:04.0/power/runtime_status" in text and "0000:00:04.0/current_link_speed" not in text


@pytest.mark.parametrize("recorded_host", ["hwloc-8ve", "ghw-ryzen1600", "ghw-i7-1270p", "rccl-mi300x"], indirect=True)
def test_a_recording_of_a_recorded_host_is_the_same_host(
    recorded_host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("again")
    record(recorded_host, folder / "recording", with_identity=True)
    assert conclusions(dra_simulate.build(str(folder / "recording"), folder / "again")) == conclusions(recorded_host)


def test_folders_without_files_are_kept(t4: Host, tmp_path: Path) -> None:
    interface = next((t4.sysfs / "class/net").iterdir()).resolve()
    for path in interface.iterdir():
        if not path.is_dir() or path.is_symlink():
            path.unlink()
    expected = conclusions(t4)
    assert interface.name in str(expected["topology"])
    record(t4, tmp_path / "recording", with_identity=True)
    assert conclusions(dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")) == expected


def test_what_drivers_made_is_recorded(tmp_path: Path) -> None:
    divided = with_mediated_devices(intel_igpu(9), "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")
    functions = (tpu_v4("0000:00:04.0", 0), virtio_gpu("0000:00:05.0", 0, "virtio3"), divided)
    machine = Machine("made", "", (NumaNode("0-3", 1 << 30, (10,)),), (HostBridge("pci0000:00", 0, functions),))
    host = dra_simulate.build_machine(machine, tmp_path / "host")
    found = scan(host).by_address
    assert found["0000:00:04.0"].accel and found["0000:00:05.0"].drm and found["0000:00:02.0"].mdevs
    record(host, tmp_path / "recording", with_identity=True)
    assert scan(dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")).by_address == found


def test_an_address_that_only_the_driver_reports_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = dra_simulate.build("trn1", tmp_path / "host")
    addresses = {}
    for folder in (host.sysfs / "class/neuron_device").iterdir():
        addresses[host.dev / folder.name] = (folder / "device").readlink().name
        (folder / "device").unlink()
    monkeypatch.setattr("dra_agent.inventory.neuron.query_address", lambda node: addresses[node])
    expected = conclusions(host)
    assert any(device["name"].startswith("accelerator") for device in expected["devices"])
    record(host, tmp_path / "recording", with_identity=True)
    assert conclusions(dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")) == expected


def restricted(state: nvml.NvmlState) -> nvml.NvmlState:
    return msgspec.structs.replace(state, access=nvml.Access(admin=False, config=False))


def needs_mig(state: nvml.NvmlState) -> nvml.NvmlState:
    assert state.driver is not None
    return msgspec.structs.replace(state, driver=msgspec.structs.replace(state.driver, profiles_need_mig=True))


def in_a_guest(state: nvml.NvmlState) -> nvml.NvmlState:
    gpus = [msgspec.structs.replace(gpu, virtualization=2) for gpu in state.devices]
    return msgspec.structs.replace(state, devices=tuple(gpus))


def to_be_reset(state: nvml.NvmlState) -> nvml.NvmlState:
    bad = nvml.Condition(recovery_action=1, remapped_rows=(1, 2, 1, 0), ecc_uncorrected=3, persistence_mode=False)
    return msgspec.structs.replace(state, conditions={gpu.uuid: bad for gpu in state.devices})


@pytest.mark.parametrize("change", [restricted, needs_mig, in_a_guest, to_be_reset])
def test_the_state_of_a_driver_is_recorded(change: Callable[[nvml.NvmlState], nvml.NvmlState], tmp_path: Path) -> None:
    host = dra_simulate.build("mixed", tmp_path / "host")
    before = conclusions(host, PARTITIONED)
    nvml.write(tmp_path / "host/lib", change(nvml.read(tmp_path / "host/lib")))
    expected = {name: conclusions(host, settings) for name, settings in SETTINGS.items()}
    assert expected["partitioned"] != before or change is needs_mig
    record(host, tmp_path / "recording", with_identity=True)
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert {name: conclusions(again, settings) for name, settings in SETTINGS.items()} == expected
    assert differences(tmp_path / "recording", again) == []
    with replay(tmp_path / "recording") as misses:
        assert {name: conclusions(again, settings) for name, settings in SETTINGS.items()} == expected
    assert not misses


@pytest.mark.parametrize("driver", ["570.124.06", "580.126.16", "615.71.05"])
@pytest.mark.parametrize(
    ("state", "condition"),
    [
        ("not-started", {}),
        ("in-progress", {}),
        ("completed", {"status": 999}),
        ("completed", {"failures": ["bandwidth", "route-unhealthy"]}),
        ("completed", {"failures": ["firmware"]}),
    ],
)
def test_the_fabric_of_a_gpu_is_recorded(state: str, condition: dict[str, Any], driver: str, tmp_path: Path) -> None:
    rack = load_profile("gb200-nvl")
    assert rack.nvidia is not None
    host = dra_simulate.build_machine(replace(rack, nvidia=replace(rack.nvidia, version=driver)), tmp_path / "host")
    before = conclusions(host)
    inject.fabric(tmp_path / "host", "1", state, **condition)
    expected = conclusions(host)
    assert expected != before
    assert_recorded(host, tmp_path, expected)


def test_a_recorded_host_accepts_no_writes(tmp_path: Path) -> None:
    record(dra_simulate.build("mi300x", tmp_path / "host"), tmp_path / "recording")
    host = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    assert is_recorded(host) and not is_simulated(host)
    kernel = RecordedKernel(tmp_path / "again")
    assert kernel.read("bus/pci/devices/0000:05:00.0/class").startswith("0x")
    with pytest.raises(OSError, match="the host is a recording, which cannot be changed"):
        kernel.write("bus/pci/devices/0000:05:00.0/driver_override", "vfio-pci")


def test_no_claim_changes_an_interface_of_a_recorded_host(tmp_path: Path) -> None:
    record(dra_simulate.build("dgx-h100", tmp_path / "host"), tmp_path / "recording")
    host = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    nic = next(one for one in collect(host, scan(host)).devices if one.family == "nic" and one.identity.get("ifname"))
    (setup,) = (one for one in vendor_setups(Config(state_dir=tmp_path / "state"), host) if isinstance(one, NicSetup))
    file = host.sysfs / "class/net" / nic.identity["ifname"] / "mtu"
    before = file.read_text()
    device = SetupDevice(ClaimDevice("n/nic", nic.name, ("nic",)), nic)
    mtu = NicConfig(interface=InterfaceConfig(mtu=1400))
    with pytest.raises(AgentError, match="the host is a recording, which cannot be changed"):
        setup.set_up("a", [device], mtu, None, a_minute())
    assert file.read_text() == before


def test_a_recording_is_the_same_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(dra_simulate.build("cpu-only", tmp_path / "host"), tmp_path / "recording")
    monkeypatch.chdir(tmp_path)
    for name in ("recording", "./recording", "host/../recording", str(tmp_path / "recording")):
        assert named_recording(name) == tmp_path / "recording"
    assert named_recording("cpu-only") is None


@pytest.mark.parametrize("with_identity", [True, False])
@pytest.mark.parametrize("seed", WITH_NETWORKS)
def test_a_recorded_host_uses_the_same_interfaces(seed: int, with_identity: bool, tmp_path: Path) -> None:
    host = random_host(seed).build(tmp_path / "host")
    record(host, tmp_path / "recording", with_identity=with_identity)
    again = dra_simulate.build(str(tmp_path / "recording"), tmp_path / "again")
    one, other = (collect(each, scan(each)) for each in (host, again))
    assert {device.name for device in one.devices} == {device.name for device in other.devices}
    assert {each.name: each.code for each in one.excluded} == {each.name: each.code for each in other.excluded}
    # A port of a bond, a member of a VRF, the lower device of a VLAN; routes may be recorded with other addresses.
    relations = [
        {
            each.name: each.reason.partition(", which ")[0].partition(" above it ")[0]
            for each in found.excluded
            if " of " in each.reason
        }
        for found in (one, other)
    ]
    assert relations[0] == relations[1]
