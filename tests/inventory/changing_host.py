"""A simulated host whose sysfs changes at random, with the events that the kernel sends for each change."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_agent.host import Host
from dra_agent.topology import Uevent
from dra_simulate.tree import replace_file


@dataclass(frozen=True)
class _Removed:
    """A function that was unplugged with all below it."""

    folder: Path
    links: dict[Path, Path]
    """Links of buses and classes to it and the functions below it, with their targets."""


class ChangingHost:
    """Every change is one that an administrator, a driver or a person with a screwdriver can make."""

    def __init__(self, host: Host, parked: Path, seed: int) -> None:
        self.host = host
        self._parked = parked
        self._random = random.Random(seed)
        self._bus = host.sysfs / "bus/pci/devices"
        self._net = host.sysfs / "class/net"
        self._removed: dict[str, _Removed] = {}
        self._renamed = 0
        self._changes: list[Callable[[], list[Uevent]]] = [
            self.unplug,
            self.plug,
            self.plug,
            self.set_driver,
            self.set_virtual_functions,
            self.set_numa_node,
            self.set_link,
            self.rename_interface,
            self.set_mtu,
            self.set_route,
            self.set_module_version,
        ]

    def change(self) -> list[Uevent]:
        """Change something; return the events, none if there was nothing to change in this way."""
        return self._random.choice(self._changes)()

    def unplug(self) -> list[Uevent]:
        address, folder = self._function()
        links = {link: link.resolve() for place in (self._bus, self._net) for link in place.iterdir()}
        gone = {link: target for link, target in links.items() if target == folder or folder in target.parents}
        if len([link for link in gone if link.parent == self._bus]) > self._random.choice((1, 1, 1, 8)):
            return []  # so that most bridges stay
        events = [self._event("remove", target) for target in sorted(gone.values(), reverse=True)]
        self._removed[address] = _Removed(folder, gone)
        shutil.move(folder, self._parked / address)
        for link in gone:
            link.unlink()
        return events

    def plug(self) -> list[Uevent]:
        possible = sorted(address for address, one in self._removed.items() if one.folder.parent.exists())
        if not possible:
            return []
        address = self._random.choice(possible)
        removed = self._removed.pop(address)
        shutil.move(self._parked / address, removed.folder)
        for link, target in removed.links.items():
            link.symlink_to(target)
        return [self._event("add", target) for target in sorted(removed.links.values())]

    def set_driver(self) -> list[Uevent]:
        _, folder = self._function()
        kept = self._parked / f"driver of {folder.name}"
        lines = (folder / "uevent").read_text().splitlines()
        driver = self._random.choice(("", "vfio-pci", "own"))
        link = folder / "driver"
        if not kept.exists():
            kept.write_text(link.resolve().name if link.is_symlink() else "")
        if driver == "own":
            driver = kept.read_text()
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(self.host.sysfs / "bus/pci/drivers" / driver)
        rest = [line for line in lines if not line.startswith("DRIVER=")]
        lines = [*([f"DRIVER={driver}"] if driver else []), *rest]
        replace_file(folder / "uevent", ("\n".join(lines) + "\n").encode())
        return [self._event("bind" if driver else "unbind", folder)]

    def set_virtual_functions(self) -> list[Uevent]:
        """Change their number only: virtual functions themselves come and go like other functions."""
        physical = [folder for folder in self._folders() if (folder / "sriov_numvfs").exists()]
        if not physical:
            return []
        folder = self._random.choice(physical)
        replace_file(folder / "sriov_numvfs", f"{self._random.choice((0, 2, 4))}\n".encode())
        return [self._event("change", folder)]

    def set_numa_node(self) -> list[Uevent]:
        _, folder = self._function()
        replace_file(folder / "numa_node", f"{self._random.choice((-1, 0, 1))}\n".encode())
        return [self._event("change", folder)]

    def set_link(self) -> list[Uevent]:
        """Change what a device or a port above it can do."""
        _, folder = self._function()
        replace_file(folder / "max_link_width", f"{self._random.choice((1, 4, 8, 16))}\n".encode())
        return [self._event("change", folder)]

    def rename_interface(self) -> list[Uevent]:
        interface = self._interface()
        if interface is None:
            return []
        self._renamed += 1
        renamed = interface.with_name(f"renamed{self._renamed}")
        interface.rename(renamed)
        (self._net / interface.name).unlink()
        (self._net / renamed.name).symlink_to(renamed)
        return [self._event("move", renamed)]

    def set_mtu(self) -> list[Uevent]:
        interface = self._interface()
        if interface is None:
            return []
        replace_file(interface / "mtu", f"{self._random.choice((1500, 4200, 9000))}\n".encode())
        return [self._event("change", interface)]

    def set_route(self) -> list[Uevent]:
        """Move the default route; the kernel sends no event, so the next one is of another device."""
        interface, (_, other) = self._interface(), self._function()
        table = self.host.proc / "net/route"
        table.parent.mkdir(parents=True, exist_ok=True)
        header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        route = "" if interface is None else f"{interface.name}\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n"
        table.write_text(header + route)
        return [self._event("change", other)]

    def set_module_version(self) -> list[Uevent]:
        modules = sorted(path.parent for path in (self.host.sysfs / "module").glob("*/version"))
        if not modules:
            return []
        module = self._random.choice(modules)
        replace_file(module / "version", f"{self._random.randrange(100, 999)}.1.2\n".encode())
        return [Uevent("add", f"/module/{module.name}", "module")]

    def _folders(self) -> list[Path]:
        return sorted(link.resolve() for link in self._bus.iterdir())

    def _function(self) -> tuple[str, Path]:
        folder = self._random.choice(self._folders())
        return folder.name, folder

    def _interface(self) -> Path | None:
        found = sorted(link.resolve() for link in self._net.iterdir() if "/devices/pci" in str(link.resolve()))
        return self._random.choice(found) if found else None

    def _event(self, action: str, folder: Path) -> Uevent:
        subsystem = "net" if folder.parent.name == "net" else "pci"
        return Uevent(action, f"/{folder.relative_to(self.host.sysfs)}", subsystem)
