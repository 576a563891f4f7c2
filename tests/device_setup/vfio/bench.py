"""A small simulated host with devices to pass through, and the set-up on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.vfio import VfioSetup
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.passthrough import VfioBinding, VfioBindingStore
from dra_agent.inventory.settings import InventorySettings, PassthroughRule
from dra_agent.prepare.setup import SetupDevice
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import L40S
from dra_simulate.parts.accelerators import alveo_u250, pac_d5005
from dra_simulate.parts.bridges import port
from dra_simulate.parts.network import connectx6dx
from dra_simulate.parts.nvidia import gpu
from eventually import DEADLINE_S

FPGA, GPU, NIC, ALVEO, ALVEO_MANAGEMENT = (
    "0000:11:00.0",
    "0000:12:00.0",
    "0000:13:00.0",
    "0000:14:00.1",
    "0000:14:00.0",
)
EVERYTHING = InventorySettings(passthrough=(PassthroughRule("true"),))


def machine() -> Machine:
    node = NumaNode("0-7", 64 << 30, (10,))
    functions = (
        port("0000:10:01.0", pac_d5005(FPGA, 0)),
        port("0000:10:02.0", gpu(GPU, L40S, 0, machine="bench")),
        port("0000:10:03.0", connectx6dx(NIC, 0, "ens1np0", 2, machine="bench")),
        port("0000:10:04.0", *alveo_u250("0000:14:00", 0x1400, 129)),
    )
    return Machine(
        name="bench",
        description="one of each",
        nodes=(node,),
        bridges=(HostBridge("pci0000:10", 0, functions),),
        together=((ALVEO_MANAGEMENT, ALVEO),),
        nvidia=NvidiaDriver("570.124.06", 12080),
    )


@dataclass
class Crash(BaseException):
    """The agent is killed here."""

    point: str


@dataclass
class Points:
    """Counts the moments at which the agent can die, and kills it at the chosen one."""

    seen: list[str] = field(default_factory=list)
    kill_at: int | None = None

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if self.kill_at is not None and len(self.seen) == self.kill_at + 1:
            raise Crash(name)


@dataclass
class DyingKernel:
    """A kernel that does its work whether or not the agent lives to see it."""

    kernel: SimulatedKernel
    points: Points

    def write(self, path: str, text: str) -> None:
        self.points(f"before {path}")
        self.kernel.write(path, text)
        self.points(f"after {path}")

    def read(self, path: str) -> str:
        return self.kernel.read(path)


class DyingBindings(VfioBindingStore):
    def __init__(self, state_dir: Path, points: Points) -> None:
        super().__init__(state_dir)
        self.points = points

    def write(self, binding: VfioBinding) -> None:
        self.points("before the binding is written")
        super().write(binding)
        self.points("after the binding is written")

    def forget(self, address: str) -> None:
        self.points("before the binding is forgotten")
        super().forget(address)
        self.points("after the binding is forgotten")


class Bench:
    """The host, and everything that outlives the agent on it."""

    def __init__(self, folder: Path, described: Machine) -> None:
        self.folder = folder
        self.machine = described
        self.host: Host = build_machine(described, folder / "host")
        self.points = Points()
        self.kernel = SimulatedKernel(folder / "host", described)
        self.state = folder / "state"

    @property
    def bindings(self) -> VfioBindingStore:
        return VfioBindingStore(self.state)

    def vfio(self, deadline: float = DEADLINE_S) -> VfioSetup:
        """An agent's set-up; a new one is an agent that was started again."""
        bindings = DyingBindings(self.state, self.points)
        kernel = DyingKernel(self.kernel, self.points)
        return VfioSetup(self.host, kernel, self.state, deadline=deadline, bindings=bindings)

    def inventory(self, settings: InventorySettings = EVERYTHING) -> Inventory:
        return collect(self.host, scan(self.host), settings, bindings=self.bindings)

    def device(self, address: str) -> SetupDevice:
        found = next(one for one in self.inventory().devices if one.pci_address == address)
        return SetupDevice(ClaimDevice("n/pool", found.name, ("request",)), found)

    def driver(self, address: str) -> str | None:
        link = self.host.sysfs / "bus/pci/devices" / address / "driver"
        return link.readlink().name if link.is_symlink() else None

    def override(self, address: str) -> str:
        return (self.host.sysfs / "bus/pci/devices" / address / "driver_override").read_text().strip()


def published(device: Device) -> object:
    return device.to_api()
