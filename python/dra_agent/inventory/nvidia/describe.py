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
from dra_agent.inventory.nvidia.gpu_info import DriverInfo, GpuInfo, has_tensor_cores, is_integrated
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
        candidate = host.nvml_library.with_name(CONTROL)
        return candidate if candidate.is_file() else None
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


def describe_gpu(builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo) -> None:
    """Describe a whole GPU."""
    builder.set("productName", facts.name)
    builder.set("uuid", facts.uuid)
    _model(builder, facts, driver)
    builder.set("fabricDomain", facts.fabric_domain)
    builder.set("fabricClique", facts.fabric_clique)
    builder.set_interconnect()
    if facts.memory_bytes:
        builder.capacity["memory"] = Capacity.of_bytes(facts.memory_bytes)
    if facts.multiprocessors:
        builder.capacity["multiprocessors"] = Capacity.of(facts.multiprocessors)
    builder.memory_limits = memory_limits(builder.host, driver.memory_limits, mig=False)
    builder.add_identity(uuid=facts.uuid)
    _nodes(builder, facts)
    if builder.function.drm is not None:
        add_drm_nodes(builder, builder.function.drm.card, builder.function.drm.render)


def describe_instance(builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, instance: MigInstance) -> None:
    """Describe one MIG instance of a GPU."""
    builder.set("type", "mig")
    builder.set("productName", facts.name)
    builder.set("uuid", instance.uuid)
    builder.set("parentUUID", facts.uuid)
    builder.set("profile", instance.profile)
    builder.set("memoryEnforcement", "mig" if instance.alone else "none")
    _model(builder, facts, driver)
    if instance.memory_bytes:
        builder.capacity["memory"] = Capacity.of_bytes(instance.memory_bytes)
    for name, count in instance.engines.items():
        if count:
            builder.capacity[name] = Capacity.of(count)
    builder.memory_limits = memory_limits(builder.host, driver.memory_limits, mig=True)
    builder.add_identity(uuid=instance.uuid, parent=device_name("gpu", builder.function.pci_address))
    builder.add_identity(gpu_instance=instance.gpu_instance, compute_instance=instance.compute_instance)
    _nodes(builder, facts)
    for minor in instance.capability_minors:
        _node(builder, f"/dev/nvidia-caps/nvidia-cap{minor}", "capability")


def describe_partition(builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, profile: MigProfile) -> None:
    """Describe a MIG instance that is made when a claim for it is prepared: it has neither UUID nor nodes before."""
    builder.set("type", "mig")
    builder.set("productName", facts.name)
    builder.set("parentUUID", facts.uuid)
    builder.set("profile", profile.name)
    builder.set("memoryEnforcement", "mig")
    _model(builder, facts, driver)
    builder.capacity["memory"] = Capacity.of_bytes(profile.memory_bytes)
    for name, count in profile.engines.items():
        builder.capacity[name] = Capacity.of(count)
    builder.add_identity(parent=device_name("gpu", builder.function.pci_address), parent_uuid=facts.uuid)
    _nodes(builder, facts)


def _model(builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo) -> None:
    builder.set("brand", facts.brand)
    builder.set("architecture", facts.architecture)
    if facts.compute_capability is not None:
        major, minor = facts.compute_capability
        builder.set_version("cudaComputeCapability", f"{major}.{minor}.0")
        builder.set("integrated", is_integrated((major, minor)))
        builder.set("tensorCores", has_tensor_cores((major, minor), builder.function.device_id))
    if builder.function.driver == DRIVER:
        builder.set_version("driverVersion", driver.version)
        builder.set_version("cudaDriverVersion", driver.cuda)


def _nodes(builder: DeviceBuilder, facts: GpuInfo) -> None:
    builder.add_identity(minor=facts.minor)
    if facts.minor is None:
        return
    _node(builder, f"/dev/nvidia{facts.minor}", "gpu")
    _node(builder, "/dev/nvidiactl", "control")
    _node(builder, "/dev/nvidia-uvm", "control")
    for path in ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"):
        if builder.host.driver_node(path).exists():
            _node(builder, path, "control")


def _node(builder: DeviceBuilder, path: str, role: NodeRole) -> None:
    """Add a node of the driver, which may have a separate /dev."""
    builder.node(path, role, builder.host.driver_node(path))
