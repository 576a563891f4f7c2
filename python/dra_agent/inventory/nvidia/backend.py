"""NVIDIA GPUs as devices. A library that hangs, fails or is missing leaves them with what the kernel's driver shows.

The last good answer about a GPU is kept, so that a hung library changes a device's health and not its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.device import Device, Problem
from dra_agent.inventory.draft import Draft
from dra_agent.inventory.nvidia.describe import DRIVER, describe_gpu, describe_instance
from dra_agent.inventory.nvidia.facts import (
    DriverFacts,
    GpuFacts,
    read_driver,
    read_gpu,
    read_module,
    read_procfs,
)
from dra_agent.inventory.nvidia.library import LostError, Nvml, NvmlError, UnknownGpuError
from dra_agent.inventory.nvidia.mig import MigInstance, read_instances
from dra_agent.inventory.nvidia.worker import HungError
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology.model import Device as Function

MOST_HANGS = 2
"""Calls that may hang before the rest of the GPUs is no longer asked, in one go."""


class NvidiaBackend:
    """Describes NVIDIA GPUs."""

    def __init__(self, host: Host, timeout: float) -> None:
        self._host = host
        self._nvml = Nvml(host.nvml_library, timeout)
        self._handles: dict[str, Any] = {}
        self._known: dict[str, GpuFacts] = {}
        self._mig: dict[str, list[MigInstance]] = {}
        self._driver: DriverFacts | None = None
        self._restarted = False

    def devices(self, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        """Describe each GPU as one device."""
        present = {function.pci_address for function in functions}
        for gone in (self._known.keys() | self._mig.keys() | self._handles.keys()) - present:
            self._known.pop(gone, None)
            self._mig.pop(gone, None)
            self._handles.pop(gone, None)
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
            facts = facts or GpuFacts()
            if facts.mig:
                devices += self._instances(draft, facts, driver)
            else:
                describe_gpu(draft, facts, driver)
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

    def _instances(self, whole: Draft, facts: GpuFacts, driver: DriverFacts) -> list[Device]:
        """Describe what exists of a GPU in MIG mode: no container can use it as a whole."""
        address, problems = whole.function.pci_address, whole.problems
        if whole.health == "healthy":
            try:
                self._mig[address] = read_instances(
                    self._nvml, self._handle(address), self._host, address, facts.minor, problems
                )
            except RetryableError as error:
                whole.health, whole.health_reason = "unmonitored", "NVML does not answer"
                problems.append(Problem(whole.name, f"its MIG instances: {error.what}", error.todo))
        instances = self._mig.get(address, [])
        if not instances and whole.health == "healthy":
            what = "MIG mode is on and there is no MIG instance, so that nothing of this GPU can be claimed"
            todo = "create instances (nvidia-smi mig -cgi ... -C), or switch MIG mode off (nvidia-smi -mig 0)"
            problems.append(Problem(whole.name, what, todo, severity="warning"))
        elif not instances:
            what = "its MIG instances are not known while NVML does not answer, so that nothing of it can be claimed"
            problems.append(Problem(whole.name, what))
        devices = []
        for instance in instances:
            draft = Draft(self._host, whole.function, "gpu", problems, instance.parts)
            draft.health, draft.health_reason = whole.health, whole.health_reason
            describe_instance(draft, facts, driver, instance)
            devices.append(draft.finish())
        return devices

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


def _library_problem(error: RetryableError) -> Problem:
    todo = error.todo or "look at the kernel's log (dmesg) and run `nvidia-smi`"
    what = f"{error.what}; NVIDIA GPUs are published with what the kernel's driver shows, without health"
    return Problem("NVML", what, todo)


def _hung_problem(name: str, error: HungError) -> Problem:
    return Problem(name, error.what, "look at the kernel's log (dmesg) for Xid messages and run `nvidia-smi`")


def make(host: Host, settings: InventorySettings) -> NvidiaBackend:
    """Make the back end."""
    return NvidiaBackend(host, settings.nvml_timeout)
