"""A simulated machine that the agent treats as a real one, with one device whose driver can hang.

The agent gets its /sys and /dev as it would get those of the host, so its accesses are made as on hardware: by separate
processes, which wait in the kernel. Their writes are carried out here as the simulation does it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import dra_simulate
from dra_simulate.kernel import SimulatedKernel

from .attributes import Attribute, serve_attributes

DRIVERS, DEVICES = "bus/pci/drivers", "bus/pci/devices"
PROBE = "bus/pci/drivers_probe"


class HangableMachine:
    """The machine while it is served; `hangable_machine` creates one."""

    def __init__(self, root: Path, profile: str, address: str) -> None:
        """`address` is the PCI address of the device whose driver can hang."""
        self.root = root / "machine"
        self.address = address
        dra_simulate.build(profile, self.root)
        # Outside the directory of the marker file by which an agent recognizes a simulated machine.
        self.roots = root / "roots"
        self.roots.mkdir()
        for name in ("sys", "dev"):
            (self.roots / name).symlink_to(self.root / name)
        self._kernel = _Kernel(self.root)
        self._device_lock = threading.Lock()
        """The device lock, as in the kernel: a driver that hangs during unbind holds it."""
        self._released = threading.Event()
        self._released.set()

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of an agent on this machine."""
        run = self.roots / "run"
        return ("--sysfs-root", str(self.roots / "sys"), "--dev-root", str(self.roots / "dev"), "--run-dir", str(run))

    @property
    def environment(self) -> dict[str, str]:
        """The dynamic loader finds the machine's NVML as it finds NVIDIA's on a real one."""
        return {"LD_LIBRARY_PATH": str(self.root / "lib")}

    @property
    def driver(self) -> str | None:
        """The driver bound to the device."""
        link = self.root / "sys" / DEVICES / self.address / "driver"
        return link.readlink().name if link.is_symlink() else None

    @contextlib.contextmanager
    def hang(self) -> Iterator[None]:
        """Processes that unbind the device wait in the kernel during the block; at its end the unbind completes."""
        self._released.clear()
        try:
            yield
        finally:
            self._released.set()

    def attributes(self) -> dict[Path, Attribute]:
        """Return the files whose accesses take the device lock, and those that bind."""
        sysfs = self.root / "sys"
        override = f"{DEVICES}/{self.address}/driver_override"
        found = {
            (sysfs / override).resolve(): Attribute(self._override, lambda text: self._locked(override, text)),
            sysfs / PROBE: Attribute(write=lambda text: self._locked(PROBE, text)),
        }
        for driver in (self.driver, "vfio-pci"):
            path = f"{DRIVERS}/{driver}/unbind"
            found[sysfs / path] = Attribute(write=partial(self._unbind, path))
        return found

    def _override(self) -> str:
        with self._device_lock:
            return f"{self._kernel.override or '(null)'}\n"

    def _locked(self, path: str, text: str) -> None:
        with self._device_lock:
            self._kernel.write(path, text)

    def _unbind(self, path: str, text: str) -> None:
        with self._device_lock:
            self._released.wait()
            self._kernel.write(path, text)


class _Kernel(SimulatedKernel):
    """Keeps the driver_override of the one device whose file is served."""

    override = ""

    def _override(self, address: str) -> str:
        return self.override

    def _attribute(self, address: str, name: str, text: str) -> None:
        assert name == "driver_override", name
        self.override = "" if text == "(null)" else text


@contextlib.contextmanager
def hangable_machine(root: Path, profile: str, address: str) -> Iterator[HangableMachine]:
    """Create one below `root`, which must not exist, and serve it during the block."""
    root.mkdir()
    created = HangableMachine(root, profile, address)
    with serve_attributes(root / "attributes", created.attributes()):
        yield created
