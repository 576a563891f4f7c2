from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from doctor.conftest import Findings, Scanned
from dra_agent import revision
from dra_agent.doctor import CheckContext, Severity, is_healthy, run_checks
from dra_agent.doctor.finding import Finding, ok
from dra_agent.host import Host
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.topology import Link, PciFunction, Sriov
from dra_simulate import inject
from dra_simulate.nvml import Access, Condition
from dra_simulate.tree import replace_file
from eventually import DEADLINE_S


def changed(examination: CheckContext, address: str, **facts: object) -> CheckContext:
    """The examination with one function that the scan found otherwise."""
    topology = examination.topology
    assert topology is not None
    devices = tuple(
        msgspec.structs.replace(device, **facts) if device.pci_address == address else device
        for device in topology.devices
    )
    examination.topology = msgspec.structs.replace(topology, devices=devices)
    return examination


def functions(examination: CheckContext) -> tuple[PciFunction, ...]:
    assert examination.topology is not None
    return examination.topology.devices


def inventory(examination: CheckContext) -> Inventory:
    assert examination.inventory is not None
    return examination.inventory


def nvml_library(host: Host) -> Path:
    assert host.nvml_library is not None
    return host.nvml_library


def gpu(examination: CheckContext) -> PciFunction:
    return next(
        device for device in functions(examination) if device.vendor_id == "0x10de" and device.kind.value == "gpu"
    )


def nic(examination: CheckContext) -> PciFunction:
    return next(device for device in functions(examination) if device.kind.value == "nic")


def test_a_healthy_host_has_no_findings(healthy_host: CheckContext, findings: Findings) -> None:
    assert findings(healthy_host) == []
    assert is_healthy(run_checks(healthy_host))


def test_a_simulated_host_is_well(scanned: Scanned, findings: Findings) -> None:
    assert [str(finding) for finding in findings(scanned()) if finding.severity is Severity.PROBLEM] == []


def test_a_missing_device_node_is_named_with_its_device(scanned: Scanned, host: Host, findings: Findings) -> None:
    examination = scanned()
    node = next(node for device in inventory(examination).devices for node in device.nodes if node.role == "gpu")
    (host.dev / node.path.removeprefix("/dev/")).unlink()
    found = [finding for finding in findings(scanned()) if finding.check == "device nodes"]
    assert [finding.where for finding in found] == [str(host.dev / node.path.removeprefix("/dev/"))]
    assert "gpu-" in found[0].message and "nvidia" in found[0].hint


def test_a_plain_file_is_not_a_device_node_on_a_real_host(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    node = next(node for device in inventory(examination).devices for node in device.nodes)
    plain = examination.host.dev / "plain"
    plain.write_text("")
    device = msgspec.structs.replace(
        inventory(examination).devices[0], nodes=(msgspec.structs.replace(node, host_path=str(plain)),)
    )
    examination.inventory = msgspec.structs.replace(inventory(examination), devices=(device,))
    examination.simulated = False
    assert any("not a character device" in finding.message for finding in findings(examination))


def test_a_missing_vendor_library_is_a_finding(scanned: Scanned, host: Host, findings: Findings) -> None:
    nvml_library(host).unlink()
    found = [finding for finding in findings(scanned()) if finding.check == "hardware"]
    assert any("NVML" in finding.where or "NVML" in finding.message for finding in found), found


def test_persistence_mode_that_is_off_is_a_warning(scanned: Scanned, host: Host, findings: Findings) -> None:
    path = nvml_library(host).parent / "nvml.json"
    state = json.loads(path.read_text())
    condition = msgspec.to_builtins(Condition(persistence_mode=False))
    state["conditions"] = {state["devices"][0]["uuid"]: condition}
    path.write_text(json.dumps(state))
    found = [finding for finding in findings(scanned()) if "persistence" in finding.message]
    assert found and all(finding.severity is Severity.WARNING and "nvidia-smi" in finding.hint for finding in found)


def test_an_unplugged_gpu_leaves_the_others_well(scanned: Scanned, host: Host, findings: Findings) -> None:
    inject.unplug(host.sysfs.parent, gpu(scanned()).pci_address)
    assert is_healthy(run_checks(scanned())), findings(scanned())


def test_nouveau_is_a_problem(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    found = findings(changed(examination, gpu(examination).pci_address, driver="nouveau"))
    assert [finding.hint for finding in found if "nouveau" in finding.message] == [
        "blacklist nouveau and install NVIDIA's driver"
    ]


def test_a_gpu_without_a_driver_is_a_warning(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    address = gpu(examination).pci_address
    found = findings(changed(examination, address, driver=None, drm=None, kfd=None))
    assert ("no driver is bound to it", address) in [(finding.message, finding.where) for finding in found]


@pytest.mark.parametrize(
    ("link", "what"),
    [
        (Link(generation=5, width=8, max_generation=5, max_width=16), "its link has 8 of 16 lanes"),
        (Link(generation=3, width=16, max_generation=5, max_width=16), "its link runs at generation 3 of 5"),
    ],
)
def test_a_slow_link_of_a_nic_is_a_warning(scanned: Scanned, findings: Findings, link: Link, what: str) -> None:
    examination = scanned()
    address = nic(examination).pci_address
    found = findings(changed(examination, address, link=link))
    assert (what, address) in [(finding.message, finding.where) for finding in found]


def test_a_slow_link_of_a_card_with_a_switch_inside_is_a_warning(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    address = gpu(examination).pci_address
    inside = Link(generation=1, width=1, max_generation=1, max_width=1)
    card = Link(generation=4, width=4, max_generation=4, max_width=16)
    found = findings(changed(examination, address, link=inside, card_link=card))
    assert [finding.message for finding in found if finding.where == address] == ["its link has 4 of 16 lanes"]


def test_an_idle_gpu_may_lower_its_link(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    address = gpu(examination).pci_address
    link = Link(generation=1, width=16, max_generation=5, max_width=16)
    assert [finding for finding in findings(changed(examination, address, link=link)) if finding.where == address] == []


def test_unknown_numa_nodes_are_a_warning(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    assert examination.topology is not None and len(examination.topology.numa_nodes) > 1
    address = nic(examination).pci_address
    found = findings(changed(examination, address, numa_node=None, numa_source=None))
    assert any("NUMA" in finding.message and finding.where == address for finding in found)


def test_virtual_functions_that_do_not_fit_are_warnings(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    address = nic(examination).pci_address
    attribute = examination.host.sysfs / "bus/pci/devices" / address / "sriov_numvfs"
    attribute.write_text("4\n")
    capable = changed(examination, address, sriov=Sriov(total_vfs=8, num_vfs=0), virtfns=())
    assert any("4 virtual functions, 0 exist" in finding.message for finding in findings(capable))
    orphan = changed(examination, address, physfn="0000:ff:00.0")
    assert any("0000:ff:00.0, which does not exist" in finding.message for finding in findings(orphan))


def test_passing_through_needs_the_iommu(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    shutil.rmtree(examination.host.sysfs / "class/iommu", ignore_errors=True)
    for device in functions(examination):
        examination = changed(examination, device.pci_address, iommu_group=None)
    address = gpu(examination).pci_address
    found = findings(changed(examination, address, driver="vfio-pci", vfio="vfio0"))
    assert any(finding.check == "IOMMU" and finding.where == address and "off" in finding.message for finding in found)


def test_a_shared_iommu_group_is_a_warning(scanned: Scanned, findings: Findings) -> None:
    examination = scanned()
    one, other = gpu(examination).pci_address, nic(examination).pci_address
    examination = changed(examination, one, driver="vfio-pci", iommu_group=900)
    found = findings(changed(examination, other, iommu_group=900))
    assert any(finding.check == "IOMMU" and finding.where == one and other in finding.message for finding in found)


def test_functions_that_the_scan_skipped_are_reported(scanned: Scanned, host: Host, findings: Findings) -> None:
    found_functions = sorted((host.sysfs / "bus/pci/devices").iterdir())
    damaged = next(path for path in found_functions if path.name == gpu(scanned()).pci_address)
    replace_file(damaged.resolve() / "class", b"garbage")
    found = findings(scanned())
    assert any(finding.check == "hardware" and damaged.name in finding.where for finding in found)


def test_a_host_that_cannot_be_scanned_is_a_problem(healthy_host: CheckContext, findings: Findings) -> None:
    healthy_host.failure = "/nowhere: no such directory"
    assert [finding.message for finding in findings(healthy_host)] == ["/nowhere: no such directory"]


def test_version_and_revision_are_among_the_findings(healthy_host: CheckContext) -> None:
    (found,) = [finding for finding in run_checks(healthy_host) if finding.check == "agent"]
    assert found.severity is Severity.OK
    assert found.message == f"dra-agent {revision.describe()}"


def test_a_check_that_fails_is_a_finding_and_hides_no_other(healthy_host: CheckContext) -> None:
    def broken(examination: CheckContext) -> Iterator[Finding]:
        yield ok("before")
        raise KeyError("surprise")

    findings = run_checks(healthy_host, {"broken": broken, "good": lambda _: [ok("after")]})
    assert [(finding.check, finding.severity.value) for finding in findings] == [
        ("broken", "ok"),
        ("broken", "problem"),
        ("good", "ok"),
    ]


def test_cgroup_version_1_is_a_warning(healthy_host: CheckContext, findings: Findings) -> None:
    (healthy_host.host.sysfs / "fs/cgroup/memory").mkdir(parents=True)
    assert [finding.check for finding in findings(healthy_host)] == ["kernel"]
    (healthy_host.host.sysfs / "fs/cgroup/cgroup.controllers").write_text("cpu memory dmem\n")
    assert findings(healthy_host) == []


def test_missing_permissions_for_mig_are_findings_with_the_line_to_add(
    host: Host, scanned: Scanned, findings: Findings
) -> None:
    library = acquire(host.nvml_library, DEADLINE_S)
    library.start()
    gpu = library.call("nvmlDeviceGetHandleByPciBusId", b"0000:1b:00.0")
    library.call("nvmlDeviceSetMigMode", gpu, 1)
    instance = library.call("nvmlDeviceCreateGpuInstance", gpu, 19)
    library.call("nvmlGpuInstanceCreateComputeInstance", instance, 0)
    library.close()
    assert findings(scanned()) == []
    inject.set_access(host.sysfs.parent, Access(admin=False, config=False, monitor=False))
    (found,) = findings(scanned())
    assert (found.check, found.severity, found.where) == ("hardware", Severity.WARNING, "gpu-0000-1b-00-0")
    assert "mig: read" in found.hint and "systemd/mig.conf" in found.hint
