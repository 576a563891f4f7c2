"""Adds the properties of an NVIDIA GPU, or of a MIG instance of one, to a device.

`gpu_info` and `mig` provide the data.
"""

from __future__ import annotations

from pathlib import Path

from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import NodeRole, device_name
from dra_agent.inventory.nvidia.gpu_info import DriverInfo, GpuInfo, has_tensor_cores
from dra_agent.inventory.nvidia.mig import MigInstance
from dra_agent.inventory.nvidia.profiles import MigProfile

CONTROL = "nvidia-cuda-mps-control"


def memory_limits(host: Host, driver_limits: bool, *, mig: bool) -> dict[str, str]:
    """Return mechanisms and why they cannot be used, "" if they can; `driver_limits`: NVML has the call."""
    return {
        "mps": "" if find_mps_control(host) else f"{CONTROL} is not found",
        "nvml-cgroup": _cgroup(host, driver_limits, mig),
    }


def find_mps_control(host: Host) -> Path | None:
    """Return the path of the MPS control daemon; on a simulated host without a driver root, next to the library."""
    if host.driver_root is None and host.nvml_library is not None:
        beside = host.nvml_library.with_name(CONTROL)
        return beside if beside.is_file() else None
    return host.driver_program(CONTROL)


def _cgroup(host: Host, driver_limits: bool, mig: bool) -> str:
    if mig:
        return "the driver limits no MIG device so"
    if not driver_limits:
        return "this NVML has no nvmlDeviceSetMemoryLimits_v1"
    if not (host.sysfs / "fs/cgroup/cgroup.controllers").exists():
        return "the host has no unified cgroup hierarchy (version 2)"
    return ""


DRIVER = "nvidia"


def describe_gpu(draft: DeviceBuilder, facts: GpuInfo, driver: DriverInfo) -> None:
    """Describe a whole GPU."""
    draft.set("productName", facts.name)
    draft.set("uuid", facts.uuid)
    _model(draft, facts, driver)
    draft.set("fabricDomain", facts.fabric_domain)
    draft.set("fabricClique", facts.fabric_clique)
    draft.set_interconnect()
    if facts.memory_bytes:
        draft.capacity["memory"] = Capacity.of_bytes(facts.memory_bytes)
    if facts.multiprocessors:
        draft.capacity["multiprocessors"] = Capacity.of(facts.multiprocessors)
    draft.memory_limits = memory_limits(draft.host, driver.memory_limits, mig=False)
    draft.add_identity(uuid=facts.uuid)
    _nodes(draft, facts)
    if draft.function.drm is not None:
        add_drm_nodes(draft, draft.function.drm.card, draft.function.drm.render)


def describe_instance(draft: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, instance: MigInstance) -> None:
    """Describe one MIG instance of a GPU."""
    draft.set("type", "mig")
    draft.set("productName", facts.name)
    draft.set("uuid", instance.uuid)
    draft.set("parentUUID", facts.uuid)
    draft.set("profile", instance.profile)
    draft.set("memoryEnforcement", "mig" if instance.alone else "none")
    _model(draft, facts, driver)
    if instance.memory_bytes:
        draft.capacity["memory"] = Capacity.of_bytes(instance.memory_bytes)
    for name, count in instance.engines.items():
        if count:
            draft.capacity[name] = Capacity.of(count)
    draft.memory_limits = memory_limits(draft.host, driver.memory_limits, mig=True)
    draft.add_identity(uuid=instance.uuid, parent=device_name("gpu", draft.function.pci_address))
    draft.add_identity(gpu_instance=instance.gpu_instance, compute_instance=instance.compute_instance)
    _nodes(draft, facts)
    for minor in instance.capability_minors:
        _node(draft, f"/dev/nvidia-caps/nvidia-cap{minor}", "capability")


def describe_partition(draft: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, profile: MigProfile) -> None:
    """Describe a MIG instance that is made when a claim for it is prepared: it has neither UUID nor nodes before."""
    draft.set("type", "mig")
    draft.set("productName", facts.name)
    draft.set("parentUUID", facts.uuid)
    draft.set("profile", profile.name)
    draft.set("memoryEnforcement", "mig")
    _model(draft, facts, driver)
    draft.capacity["memory"] = Capacity.of_bytes(profile.memory_bytes)
    for name, count in profile.engines.items():
        draft.capacity[name] = Capacity.of(count)
    draft.add_identity(parent=device_name("gpu", draft.function.pci_address), parent_uuid=facts.uuid)
    _nodes(draft, facts)


def _model(draft: DeviceBuilder, facts: GpuInfo, driver: DriverInfo) -> None:
    draft.set("brand", facts.brand)
    draft.set("architecture", facts.architecture)
    if facts.compute_capability is not None:
        major, minor = facts.compute_capability
        draft.set_version("cudaComputeCapability", f"{major}.{minor}.0")
        draft.set("tensorCores", has_tensor_cores((major, minor), draft.function.device_id))
    if draft.function.driver == DRIVER:
        draft.set_version("driverVersion", driver.version)
        draft.set_version("cudaDriverVersion", driver.cuda)


def _nodes(draft: DeviceBuilder, facts: GpuInfo) -> None:
    draft.add_identity(minor=facts.minor)
    if facts.minor is None:
        return
    _node(draft, f"/dev/nvidia{facts.minor}", "gpu")
    _node(draft, "/dev/nvidiactl", "control")
    _node(draft, "/dev/nvidia-uvm", "control")
    for path in ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"):
        if draft.host.driver_node(path).exists():
            _node(draft, path, "control")


def _node(draft: DeviceBuilder, path: str, role: NodeRole) -> None:
    """Add a node of the driver, which may have a separate /dev."""
    draft.node(path, role, draft.host.driver_node(path))
