"""NVIDIA GPUs as devices. A library that hangs, fails or is missing leaves them with what the kernel's driver shows.

The last good answer about a GPU is kept, so that a hung library changes a device's health and not its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.device import Device, Problem
from dra_agent.inventory.draft import Draft
from dra_agent.inventory.nvidia.facts import (
    DriverFacts,
    GpuFacts,
    has_tensor_cores,
    read_driver,
    read_gpu,
    read_module,
    read_procfs,
)
from dra_agent.inventory.nvidia.library import LostError, Nvml, NvmlError, UnknownGpuError
from dra_agent.inventory.nvidia.worker import HungError
from dra_agent.inventory.plain import add_drm_nodes
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology.model import Device as Function

DRIVER = "nvidia"
MOST_HANGS = 2
"""Calls that may hang before the rest of the GPUs is no longer asked, in one go."""


class NvidiaBackend:
    """Describes NVIDIA GPUs."""

    def __init__(self, host: Host, timeout: float) -> None:
        self._host = host
        self._nvml = Nvml(host.nvml_library, timeout)
        self._handles: dict[str, Any] = {}
        self._known: dict[str, GpuFacts] = {}
        self._driver: DriverFacts | None = None
        self._restarted = False

    def devices(self, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        """Describe each GPU as one device."""
        present = {function.pci_address for function in functions}
        for gone in self._known.keys() - present:
            del self._known[gone]
        for gone in self._handles.keys() - present:
            del self._handles[gone]
        self._restarted = False
        answers = self._start(problems) if any(function.driver == DRIVER for function in functions) else False
        driver = self._driver or read_module(self._host, problems)
        hangs = 0
        devices = []
        for function in functions:
            draft = Draft(self._host, function, "gpu", problems)
            facts = None
            if function.driver == DRIVER and function.physfn is None:
                if not answers or hangs >= MOST_HANGS:
                    draft.health, draft.health_reason = "unmonitored", "NVML does not answer"
                else:
                    facts, hung = self._ask(draft)
                    hangs += hung
                facts = facts or self._known.get(function.pci_address)
                facts = facts or read_procfs(self._host, function.pci_address, problems)
            self._fill(draft, facts or GpuFacts(), driver)
            devices.append(draft.finish())
        return devices

    def close(self) -> None:
        """Let go of the library."""
        self._handles.clear()
        self._nvml.close()

    def _start(self, problems: list[Problem]) -> bool:
        try:
            self._nvml.start()
            self._driver = self._driver or read_driver(self._nvml)
        except RetryableError as error:
            problems.append(_library_problem(error))
            return False
        return True

    def _ask(self, draft: Draft) -> tuple[GpuFacts | None, bool]:
        """Read one GPU; says whether a call hung for it just now."""
        address = draft.function.pci_address
        was_stuck = self._nvml.is_stuck(address)
        try:
            facts = read_gpu(self._nvml, self._handle(address), address, draft.problems)
        except HungError as error:
            draft.health, draft.health_reason = "unmonitored", "NVML does not answer"
            draft.problems.append(_hung_problem(draft.name, error))
            return None, not was_stuck
        except LostError as error:
            self._handles.pop(address, None)
            draft.health, draft.health_reason = "unhealthy", f"NVML: {error.what}"
            draft.problems.append(
                Problem(
                    draft.name, f"the GPU is lost ({error.what})", "drain the node and reset or power-cycle the GPU"
                )
            )
            return None, False
        except NvmlError as error:
            draft.health, draft.health_reason = "unhealthy", f"NVML: {error.what}"
            draft.problems.append(Problem(draft.name, error.what, error.todo or "look at the kernel's log (dmesg)"))
            return None, False
        self._known[address] = facts
        if facts.persistence is False:
            draft.problems.append(
                Problem(
                    draft.name,
                    "persistence mode is off, so that each start of a container initialises the GPU",
                    "enable nvidia-persistenced, or run `nvidia-smi -pm 1`",
                    severity="warning",
                )
            )
        return facts, False

    def _handle(self, address: str) -> Any:
        handle = self._handles.get(address)
        if handle is None:
            domain, _, rest = address.partition(":")
            bus_id = f"{int(domain, 16):08X}:{rest.upper()}"
            try:
                handle = self._nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), about=address)
            except UnknownGpuError:
                # NVML lists the GPUs when it starts: this one may have been plugged in later.
                if self._restarted:
                    raise
                self._restarted = True
                self._handles.clear()
                self._nvml.restart()
                handle = self._nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id.encode(), about=address)
            self._handles[address] = handle
        return handle

    def _fill(self, draft: Draft, facts: GpuFacts, driver: DriverFacts) -> None:
        draft.set("productName", facts.name)
        draft.set("uuid", facts.uuid)
        draft.set("brand", facts.brand)
        draft.set("architecture", facts.architecture)
        if facts.compute_capability is not None:
            major, minor = facts.compute_capability
            draft.set_version("cudaComputeCapability", f"{major}.{minor}.0")
            draft.set("tensorCores", has_tensor_cores((major, minor), draft.function.device_id))
        draft.set("fabricDomain", facts.fabric_domain)
        draft.set("fabricClique", facts.fabric_clique)
        if draft.function.driver == DRIVER:
            draft.set_version("driverVersion", driver.version)
            draft.set_version("cudaDriverVersion", driver.cuda)
        if facts.memory_bytes:
            draft.capacity["memory"] = Capacity.of_bytes(facts.memory_bytes)
        if facts.multiprocessors:
            draft.capacity["multiprocessors"] = Capacity.of(facts.multiprocessors)
        draft.identify(uuid=facts.uuid, minor=facts.minor)
        if facts.minor is not None:
            draft.node(f"/dev/nvidia{facts.minor}", "gpu")
            draft.node("/dev/nvidiactl", "control")
            draft.node("/dev/nvidia-uvm", "control")
            draft.node_if_there("/dev/nvidia-uvm-tools", "control")
            draft.node_if_there("/dev/nvidia-modeset", "control")
        if draft.function.drm is not None:
            add_drm_nodes(draft, draft.function.drm.card, draft.function.drm.render)


def _library_problem(error: RetryableError) -> Problem:
    todo = error.todo or "look at the kernel's log (dmesg) and run `nvidia-smi`"
    what = f"{error.what}; NVIDIA GPUs are published with what the kernel's driver shows, without health"
    return Problem("NVML", what, todo)


def _hung_problem(name: str, error: HungError) -> Problem:
    return Problem(name, error.what, "look at the kernel's log (dmesg) for Xid messages and run `nvidia-smi`")


def make(host: Host, settings: InventorySettings) -> NvidiaBackend:
    """Make the back end."""
    return NvidiaBackend(host, settings.nvml_timeout)
