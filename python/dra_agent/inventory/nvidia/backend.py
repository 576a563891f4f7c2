"""NVIDIA GPUs as devices. While the library hangs, fails or is missing, they have the attributes of the kernel driver.

The last successful result for a GPU is kept, so that a hung library changes a device's health and not its attributes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from dra_agent.diagnostic import Diagnostic, UnreadDiagnostic
from dra_agent.driver_root import SETTING, DriverMissingError, DriverRoot
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import CounterSet
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.model import STARTING, Device, DeviceEvent, Exclusion, device_name
from dra_agent.inventory.nvidia.describe import DRIVER, describe_gpu, describe_instance
from dra_agent.inventory.nvidia.events import Events, EventTargets
from dra_agent.inventory.nvidia.gpu_info import DriverInfo, GpuInfo, read_driver, read_gpu, read_module, read_procfs
from dra_agent.inventory.nvidia.gpu_start import GpuStart, StartingError
from dra_agent.inventory.nvidia.mig import MigInstance, read_instances
from dra_agent.inventory.nvidia.mig_access import placements_denied
from dra_agent.inventory.nvidia.mig_ownership import read_note
from dra_agent.inventory.nvidia.nvlink import NvLinks
from dra_agent.inventory.nvidia.nvml_client import (
    SLOW_FACTOR,
    CallTimeoutError,
    GpuLostError,
    NvmlBusyError,
    NvmlError,
    UnknownGpuError,
    acquire,
)
from dra_agent.inventory.nvidia.partitionable import PartitionableGpus
from dra_agent.inventory.nvidia.recovery import evaluate_recovery
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology.model import PciFunction

log = logging.getLogger(__name__)

DRIVER_MISSING = "driver-missing"
"""The cause where the driver is not below its root, or not loaded, and was before."""
MAX_HANGS = 2
"""Maximum hung calls in one scan before the remaining GPUs are skipped."""


class NvidiaBackend:
    """Describes NVIDIA GPUs."""

    def __init__(self, host: Host, timeout: float) -> None:
        self._host = host
        self._nvml = acquire(host.nvml, timeout)
        self._starts = GpuStart(self._nvml, timeout * SLOW_FACTOR)
        self._affected = EventTargets(self._nvml)
        self._events = Events(self._nvml, self._affected.names)
        self._events_failure = ""
        """The reason for missing events; "" if they arrive."""
        self._handles: dict[str, Any] = {}
        self._generation = 0
        """The generation of the library that returned the handles."""
        self._needed = False
        """True if the last scan had a GPU to query."""
        self._last_event_s = time.monotonic()
        """Time of the last successful poll of events, or of the creation of the event set."""
        self._known: dict[str, GpuInfo] = {}
        self._mig: dict[str, list[MigInstance]] = {}
        self._driver: DriverInfo | None = None
        self._last_driver: DriverInfo | None = None
        """The driver whose MIG profiles are known."""
        self._missing = ""
        """Why no driver is below the driver root; "" if it is there, or if it has no root."""
        self._restarted = False
        self._rules: PartitionRules | None = None
        self._divided = PartitionableGpus(host, self._nvml)
        self._withheld: list[Exclusion] = []
        self._links = NvLinks(self._nvml, host.sysfs / "bus/pci/devices")

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe each GPU as one device."""
        present = {function.pci_address for function in functions}
        for gone in (self._known.keys() | self._mig.keys() | self._handles.keys()) - present:
            self._known.pop(gone, None)
            self._mig.pop(gone, None)
            self._handles.pop(gone, None)
        self._divided.begin(present)
        self._withheld = []
        self._restarted = False
        gpus = [one.pci_address for one in functions if one.driver == DRIVER and one.physfn is None]
        self._needed = any(function.driver == DRIVER for function in functions)
        self._nvml.expect(len(gpus))
        answers = self._start(problems) if self._needed else False
        if answers:
            self._starts.begin(address for address in gpus if address not in self._handles)
        driver = self._driver or read_module(self._host, problems)
        hangs = 0
        read: list[tuple[DeviceBuilder, GpuInfo, bool]] = []
        self._report_unloaded(functions, problems)
        for function in functions:
            if function.driver is None and function.pci_address not in self._known:
                name = device_name("gpu", function.pci_address)
                reason = "NVIDIA's driver is not loaded"
                self._withheld.append(Exclusion(name, reason, "no-driver", function.pci_address, _UNLOADED_HINT))
                continue
            builder = DeviceBuilder(self._host, function, "gpu", problems)
            facts, answered = None, False
            if function.driver is None:
                builder.add_issue(DRIVER_MISSING, "NVIDIA's driver is not loaded any more")
                facts = self._known[function.pci_address]
            elif function.driver == DRIVER and function.physfn is None:
                if answers is None:
                    self._mark_starting(builder)
                elif self._missing:
                    self._mark_missing(builder)
                elif not answers or hangs >= MAX_HANGS:
                    builder.health, builder.health_reason = "unmonitored", "NVML does not respond"
                else:
                    facts, hung = self._read_gpu(builder)
                    hangs += hung
                answered = facts is not None
                facts = facts or self._known.get(function.pci_address)
                facts = facts or read_procfs(self._host, function.pci_address, problems)
            read.append((builder, facts or GpuInfo(), answered))
        self._read_links(read, problems)
        devices = [device for one in read for device in self._described(one[0], one[1], driver, one[2])]
        self._affected.refresh(devices)
        if answers:
            self._follow(problems)
        return devices

    def _read_links(self, read: list[tuple[DeviceBuilder, GpuInfo, bool]], problems: list[Diagnostic]) -> None:
        """Read the links of the GPUs that responded.

        No GPU in MIG mode reaches another one (MIG user guide). One that the agent partitions for a claim keeps its
        group, because its description as a whole GPU is that of the other mode.
        """
        addresses = [builder.function.pci_address for builder, facts, answered in read if answered and not facts.mig]
        self._links.read({one: self._handles[one] for one in addresses if one in self._handles}, problems)
        for builder, _, _ in read:
            builder.interconnect = self._links.interconnect(builder.function.pci_address)

    def _report_unloaded(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> None:
        """Report GPUs without a driver once for all: a driver container compiles its modules for minutes."""
        unloaded = [function.pci_address for function in functions if function.driver is None]
        if not unloaded:
            return
        known = sum(address in self._known for address in unloaded)
        message = f"NVIDIA's driver is not loaded: {len(unloaded)} GPU(s) cannot be used"
        if known:
            message += f"; {known} of them stay published with a taint, because claims may hold them"
        where = str(self._host.driver_root and self._host.driver_root.path)
        problems.append(Diagnostic(where, message, _UNLOADED_HINT))

    def partition_by(self, rules: PartitionRules) -> None:
        """Take the rules by which GPUs are offered in MIG partitions."""
        self._rules = rules

    def counter_sets(self) -> Sequence[CounterSet]:
        """Return the counter sets that whole GPUs and their partitions share."""
        return self._divided.counter_sets

    def withheld(self) -> Sequence[Exclusion]:
        """Return the partitions and GPUs that cannot be offered now."""
        return [*self._withheld, *self._divided.withheld]

    def faults(self) -> list[DeviceEvent]:
        """Poll events of NVML."""
        try:
            faults = self._events.take()
            self._last_event_s = time.monotonic()
            return faults
        except RetryableError as error:
            self._events_failure = error.message
            return []

    def lost_event_stream(self) -> bool:
        """Return once per scan that the library has exited and may be restarted, or has initialized a GPU."""
        if self._starts.has_unread_results():
            return True
        if not self._needed or not self._nvml.is_due:
            return False
        self._needed = False
        return True

    def wait_for_start(self) -> bool:
        """Wait until all GPUs are initialized, or the deadline; return True if a scan shows more now."""
        return self._starts.wait()

    def close(self) -> None:
        """Close the library."""
        self._events.forget()
        self._handles.clear()
        self._nvml.close()

    def _follow(self, problems: list[Diagnostic]) -> None:
        if not self._events.hangs:
            self._events_failure = ""
        fresh = not self._events.follows
        try:
            self._events.follow(self._handles)
        except RetryableError as error:
            self._events_failure = error.message
        if fresh and self._events.follows:
            if self._generation > 1:
                # NVML queues events for existing sets only: events in between are lost.
                deaf = f"{time.monotonic() - self._last_event_s:.1f}"
                log.warning("XIDs of the time before NVML was started again are not known", extra={"seconds": deaf})
            self._last_event_s = time.monotonic()
        if self._events_failure:
            problems.append(
                UnreadDiagnostic("NVML", f"it does not report GPU events: {self._events_failure}", "run `nvidia-smi`")
            )

    def _start(self, problems: list[Diagnostic]) -> bool | None:
        """Return True if the library responds; None while it starts."""
        try:
            self._starts.library()
            if self._generation != self._nvml.generation:
                self._generation = self._nvml.generation
                self._driver = None
                self._handles.clear()
                self._starts.forget()
                self._events.forget()
                self._events_failure = ""
            self._driver = self._driver or self._read_driver()
            self._missing = ""
        except StartingError:
            problems.append(_STARTING_PROBLEM)
            return None
        except DriverMissingError as error:
            self._missing = error.message
            self._driver = None
            message = f"{error.message}; NVIDIA GPUs get no new claims"
            problems.append(Diagnostic(error.where or "NVML", message, error.hint))
            return False
        except RetryableError as error:
            problems.append(_library_problem(error, self._host.driver_root))
            return False
        return True

    def _read_driver(self) -> DriverInfo:
        """Read the versions; values of another driver are dropped, because MIG profiles depend on it."""
        driver = read_driver(self._nvml)
        if driver != self._last_driver:
            self._last_driver = driver
            self._divided.forget_profiles()
        return driver

    def _read_gpu(self, builder: DeviceBuilder) -> tuple[GpuInfo | None, bool]:
        """Read one GPU; return True if a call timed out."""
        address = builder.function.pci_address
        was_hung = self._nvml.is_hung(address)
        try:
            version = self._driver.version if self._driver else None
            facts = read_gpu(self._nvml, self._handle(address), address, builder.problems, driver=version)
        except StartingError:
            builder.problems.append(_STARTING_PROBLEM)
            self._mark_starting(builder)
            return None, False
        except NvmlBusyError:
            # The agent changes the GPU's MIG instances: nothing new is known of it.
            self._mark_starting(builder)
            return None, False
        except CallTimeoutError as error:
            builder.health, builder.health_reason = "unmonitored", "NVML does not respond"
            builder.problems.append(_hung_problem(builder.name, error))
            return None, not was_hung
        except NvmlError as error:
            has_driver = _has_driver(builder)
            if isinstance(error, GpuLostError) or not has_driver:
                self._handles.pop(address, None)
            if has_driver:
                _classify_error(builder, error)
            else:
                builder.health, builder.health_reason = "unmonitored", "its driver was just taken away"
            return None, False
        self._known[address] = facts
        _judge(builder, facts, self._driver)
        if self._events_failure and builder.health == "healthy":
            builder.health, builder.health_reason = "unmonitored", f"NVML reports no events: {self._events_failure}"
        if facts.persistence is False:
            builder.problems.append(
                Diagnostic(
                    builder.name,
                    "persistence mode is off, so that each start of a container initialises the GPU",
                    "enable nvidia-persistenced, or run `nvidia-smi -pm 1`",
                    severity="warning",
                )
            )
        return facts, False

    def _mark_starting(self, builder: DeviceBuilder) -> None:
        """Keep the last values of a GPU; one that was never read gets no new claims yet."""
        builder.observed = False
        if builder.function.pci_address not in self._known:
            builder.add_issue(STARTING, "NVML still initializes the GPU", transient=True)

    def _mark_missing(self, builder: DeviceBuilder) -> None:
        """Keep a GPU whose driver was removed below its root; one that was never read gets no new claims yet."""
        if builder.function.pci_address in self._known:
            builder.add_issue(DRIVER_MISSING, self._missing)
        else:
            builder.observed = False
            builder.add_issue(STARTING, self._missing, transient=True)

    def _described(self, builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, answered: bool) -> list[Device]:
        address = builder.function.pci_address
        rule = None
        if self._rules is not None and facts.mig is not None:
            describe_gpu(builder, self._divided.whole_facts(address, facts), driver)
            rule = self._rules.rule_for(builder.build(), "mig")
        if rule is not None:
            handle = self._handles.get(address) if answered else None
            devices = self._divided.describe(builder, facts, driver, rule, handle)
            for number, place in self._divided.places(address):
                self._affected.remember(address, number, place)
            if devices is not None:
                return devices
        if facts.mig:
            return self._instances(builder, facts, driver, answered, report_placements=rule is None)
        describe_gpu(builder, facts, driver)
        return [builder.build()]

    def _instances(
        self, whole: DeviceBuilder, facts: GpuInfo, driver: DriverInfo, answered: bool, *, report_placements: bool
    ) -> list[Device]:
        """Describe the instances of a GPU in MIG mode: no container can use it as a whole."""
        address, problems = whole.function.pci_address, whole.problems
        if whole.health == "healthy" and answered:
            try:
                self._mig[address] = read_instances(
                    self._nvml, self._handle(address), self._host, address, facts.minor, problems
                )
            except RetryableError as error:
                whole.health, whole.health_reason = "unmonitored", "NVML does not respond"
                problems.append(UnreadDiagnostic(whole.name, f"its MIG instances: {error.message}", error.hint))
        instances = self._mig.get(address, [])
        if not instances and whole.health == "healthy" and answered:
            message = "MIG mode is on without MIG instances, so this GPU cannot be claimed"
            hint = "create instances (nvidia-smi mig -cgi ... -C), or switch MIG mode off (nvidia-smi -mig 0)"
            problems.append(Diagnostic(whole.name, message, hint, severity="warning"))
            self._divided.withhold(whole.name, message)
        elif not instances:
            message = "its MIG instances are not known while NVML does not respond, so it cannot be claimed"
            problems.append(UnreadDiagnostic(whole.name, message))
            self._divided.withhold(whole.name, message)
        unplaced = any(instance.start is None for instance in instances)
        if unplaced and report_placements:
            problems.append(placements_denied(whole.name))
        if unplaced and self._has_own(address, whole):
            self._divided.withhold(whole.name, "the agent created MIG instances on it, and may not read which they are")
            return []
        devices = []
        for instance in instances:
            builder = DeviceBuilder(self._host, whole.function, "gpu", problems, instance.parts)
            builder.inherit_health(whole)
            describe_instance(builder, facts, driver, instance)
            devices.append(builder.build())
        return devices

    def _has_own(self, address: str, whole: DeviceBuilder) -> bool:
        """Return True if the agent may have created an instance on the GPU."""
        try:
            return bool(read_note(self._host, address).instances)
        except RetryableError as error:
            whole.problems.append(Diagnostic(error.where or whole.name, error.message, error.hint))
            return True

    def _handle(self, address: str) -> Any:
        handle = self._handles.get(address)
        if handle is None:
            try:
                handle = self._starts.handle(address)
            except UnknownGpuError:
                # NVML lists the GPUs when it starts: this one may have been plugged in later.
                if self._restarted:
                    raise
                self._restarted = True
                self._handles.clear()
                self._events.forget()
                self._nvml.stop()
                self._starts.forget()
                self._starts.library()
                self._generation = self._nvml.generation
                handle = self._starts.handle(address)
            self._handles[address] = handle
        return handle


def _has_driver(builder: DeviceBuilder) -> bool:
    """Return True if NVIDIA's driver has the GPU now, or it is off the bus: the topology may be older."""
    return builder.files.link("driver") == DRIVER or not builder.files.folder.is_dir()


def _classify_error(builder: DeviceBuilder, error: NvmlError) -> None:
    """Return the issues of a GPU for which NVML returns an error."""
    if isinstance(error, GpuLostError):
        builder.add_issue("gpu-lost", f"NVML: {error.message}")
        message, hint = f"the GPU is lost ({error.message})", "drain the node and reset or power-cycle the GPU"
    else:
        builder.add_issue("unreadable", f"NVML: {error.message}")
        message, hint = error.message, error.hint or "check the kernel log (dmesg)"
    builder.problems.append(UnreadDiagnostic(builder.name, message, hint))


def _judge(builder: DeviceBuilder, facts: GpuInfo, driver: DriverInfo | None) -> None:
    """Return the issues of a GPU that responds."""
    builder.memory_errors, builder.corrected_errors = facts.memory_errors, facts.corrected_errors
    if facts.remap_failed:
        builder.add_issue("row-remap-failed", "a row of its memory could not be repaired; the GPU is to be replaced")
    reason, problem = evaluate_recovery(facts.recovery, driver.version if driver else None, builder.name)
    if problem is not None:
        builder.problems.append(problem)
    if reason:
        builder.add_issue("reset-required", reason)
    elif facts.remap_pending:
        builder.add_issue("reset-required", "a row of its memory is repaired at the next reset of the GPU")
    for issue in facts.fabric_issues:
        builder.add_issue(issue.cause, issue.message, transient=issue.transient)
        builder.problems.append(Diagnostic(builder.name, issue.message, _FABRIC_HINT, severity="warning"))


_STARTING_PROBLEM = UnreadDiagnostic(
    "NVML",
    "it still initializes GPUs, which are described as soon as that is done",
    "enable nvidia-persistenced, or run `nvidia-smi -pm 1`, so that GPUs stay initialized",
    severity="warning",
)
_UNLOADED_HINT = "wait until the driver container has loaded its modules, and check the kernel log (dmesg)"
_VERSION_MISMATCH = 18
"""NVML_ERROR_LIB_RM_VERSION_MISMATCH."""
_FABRIC_HINT = (
    "check `nvidia-smi -q` (Fabric), nvidia-fabricmanager and its log; nvlsm and nvidia-imex where they are used"
)


def _library_problem(error: RetryableError, root: DriverRoot | None) -> Diagnostic:
    hint = error.hint or "check the kernel log (dmesg) and run `nvidia-smi`"
    if root is not None and isinstance(error, NvmlError) and error.code == _VERSION_MISMATCH:
        hint = (
            f"the library below {root.path} is of another version than the loaded kernel modules: wait until the "
            f'driver container has replaced both, or correct {SETTING} = "{root.path}" (chart: nvidia.driverRoot)'
        )
    message = f"{error.message}; NVIDIA GPUs are published with the kernel driver's attributes, without health"
    return UnreadDiagnostic("NVML", message, hint)


def _hung_problem(name: str, error: CallTimeoutError) -> Diagnostic:
    return UnreadDiagnostic(name, error.message, "check the kernel log (dmesg) for Xid messages and run `nvidia-smi`")


def make(host: Host, settings: InventorySettings) -> NvidiaBackend:
    """Make the back end."""
    return NvidiaBackend(host, settings.nvml_timeout)
