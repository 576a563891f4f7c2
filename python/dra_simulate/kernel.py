"""The kernel's reaction to a write to an attribute of a simulated host: binds drivers, partitions GPUs, or fails.

Results follow drivers/base/{bus,dd,driver}.c, vfio-pci, and amdgpu_xcp.c; faults are set with
`inject.answer_write`. A hanging write takes effect when the fault is cleared, as in the kernel.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from pathlib import Path

import msgspec

from dra_simulate import builder, nvml, pci
from dra_simulate.builder import SimulatedState
from dra_simulate.machine import Function, Machine
from dra_simulate.profiles import load_profile
from dra_simulate.roles.amd import AmdGpu
from dra_simulate.tree import replace_file

_DEVICES, _DRIVERS, _INTERFACES = "bus/pci/devices/", "bus/pci/drivers/", "class/net/"
_POLL_INTERVAL_S = 0.02
"""Seconds between two checks for a cleared fault."""


class SimulatedKernel:
    """Takes the writes below one simulated /sys; safe to use from several threads and processes."""

    def __init__(self, root: Path, machine: Machine | None = None) -> None:
        """Take the root of the simulated host; `machine` is needed if it is not that of a profile."""
        self._root = root
        self._machine = machine
        self._under_way: Counter[str] = Counter()

    def write(self, path: str, text: str) -> None:
        """Write an attribute, by its path relative to /sys; raises the OSError of the kernel, with its latency."""
        folder, _, attribute = path.rpartition("/")
        if folder.startswith(_INTERFACES):
            if attribute not in ("flags", "mtu"):
                raise _answer(errno.EACCES, path)
            # The link of the class stays: the file is replaced in the folder of the device.
            replace_file((self._root / "sys" / folder).resolve(strict=True) / attribute, text.encode())
            return
        device, driver = _subject(folder, attribute, text)
        self._under_way[device] += 1
        try:
            self._write(path, text, device, driver, attribute)
        finally:
            self._under_way[device] -= 1

    def read(self, path: str) -> str:
        """Read an attribute that is under its device's lock: it waits for a write that is under way."""
        folder, _, _ = path.rpartition("/")
        while self._under_way[folder.removeprefix(_DEVICES)]:
            time.sleep(_POLL_INTERVAL_S)
        return (self._root / "sys" / path).read_text()

    def _write(self, path: str, text: str, device: str, driver: str, attribute: str) -> None:
        self._suffer(device, attribute)
        with nvml.locked(self._root / "lib"):
            machine, simulated = self._recall()
            function = next((one for one in machine.functions() if one.address == device), None)
            if function is None or _is_gone(device, machine, simulated):
                raise _answer(errno.ENODEV if driver or attribute == "drivers_probe" else errno.ENOENT, path)
            match attribute:
                case "driver_override":
                    self._attribute(device, attribute, text.strip() or "(null)")
                case "unbind":
                    self._unbind(machine, simulated, function, driver, path)
                case "drivers_probe":
                    self._probe(machine, simulated, function)
                case "bind":
                    self._bind(machine, simulated, function, driver, path)
                case "current_compute_partition":
                    self._divide(machine, simulated, function, text.strip(), path)
                case _:
                    raise _answer(errno.EACCES, path)

    def _unbind(self, machine: Machine, simulated: SimulatedState, function: Function, driver: str, path: str) -> None:
        bound = _driver(simulated, function)
        if not bound or driver not in ("", bound):
            raise _answer(errno.ENODEV if driver else errno.ENOENT, path)
        self._set_driver(machine, simulated, function.address, "")

    def _probe(self, machine: Machine, simulated: SimulatedState, function: Function) -> None:
        # A driver that fails to probe leaves the device without one, and the write succeeds.
        if _driver(simulated, function):
            return
        wanted = self._override(function.address) or function.driver
        if wanted and self._can_drive(machine, function, wanted):
            self._set_driver(machine, simulated, function.address, wanted)

    def _bind(self, machine: Machine, simulated: SimulatedState, function: Function, driver: str, path: str) -> None:
        if _driver(simulated, function):
            raise _answer(errno.EBUSY, path)
        override = self._override(function.address)
        if driver != (override or function.driver) or not self._can_drive(machine, function, driver):
            raise _answer(errno.ENODEV, path)
        self._set_driver(machine, simulated, function.address, driver)

    def _divide(self, machine: Machine, simulated: SimulatedState, function: Function, mode: str, path: str) -> None:
        gpu = next((role for role in function.roles if isinstance(role, AmdGpu)), None)
        if gpu is None or not gpu.compute_partitions or _driver(simulated, function) != function.driver:
            raise _answer(errno.ENOENT, path)
        if gpu.is_virtual:
            raise _answer(errno.EACCES, path)
        if not gpu.accepts(mode):
            raise _answer(errno.EINVAL, path)
        # Any ROCm process, on any GPU, prevents a lock of KFD (kgd2kfd_check_and_lock_kfd).
        if any((self._root / "sys/class/kfd/kfd/proc").iterdir()):
            raise _answer(errno.EBUSY, path)
        modes = {**simulated.modes, function.address: mode}
        builder.apply(machine, msgspec.structs.replace(simulated, modes=modes), self._root)
        self._attribute(function.address, "current_compute_partition", mode)

    def _can_drive(self, machine: Machine, function: Function, driver: str) -> bool:
        if not (self._root / "sys" / _DRIVERS / driver).is_dir():
            return False
        return driver == function.driver or (driver == pci.VFIO and function.address in machine.iommu_groups)

    def _set_driver(self, machine: Machine, simulated: SimulatedState, address: str, driver: str) -> None:
        drivers = {**simulated.drivers, address: driver}
        builder.apply(machine, msgspec.structs.replace(simulated, drivers=drivers), self._root)

    def _override(self, address: str) -> str:
        text = (self._root / "sys" / _DEVICES / address / "driver_override").read_text().strip()
        return "" if text == "(null)" else text

    def _attribute(self, address: str, name: str, text: str) -> None:
        replace_file((self._root / "sys" / _DEVICES / address).resolve() / name, f"{text}\n".encode())

    def _suffer(self, device: str, attribute: str) -> None:
        began = time.monotonic()
        while True:
            faults = [
                fault
                for fault in self._recall()[1].kernel_faults
                if (fault.address, fault.attribute) == (device, attribute)
            ]
            for fault in faults:
                if fault.errno is not None:
                    raise _answer(fault.errno, f"{device} {attribute}")
            waited = (time.monotonic() - began) * 1000
            if not any(not fault.delay_ms or waited < fault.delay_ms for fault in faults):
                return
            time.sleep(_POLL_INTERVAL_S)

    def _recall(self) -> tuple[Machine, SimulatedState]:
        simulated = builder.load_state(self._root)
        if simulated is None:
            raise _answer(errno.ENOENT, str(self._root))
        return self._machine or load_profile(simulated.profile), simulated


def _subject(folder: str, attribute: str, text: str) -> tuple[str, str]:
    """Return the device of a write, and the driver that it names."""
    if attribute == "drivers_probe":
        return text.strip(), ""
    if folder.startswith(_DRIVERS):
        return text.strip(), folder.removeprefix(_DRIVERS)
    device, _, _ = folder.removeprefix(_DEVICES).partition("/")
    return device, ""


def _driver(simulated: SimulatedState, function: Function) -> str:
    return simulated.drivers.get(function.address, function.driver or "")


def _is_gone(address: str, machine: Machine, simulated: SimulatedState) -> bool:
    return address not in {function.address for function in machine.without(simulated.unplugged).functions()}


def _answer(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
