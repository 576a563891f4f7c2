"""Servers with each GPU on a separate root port, for profiles that describe a GPU."""

from __future__ import annotations

from typing import Literal

from dra_simulate.machine import HostBridge, Machine, NumaNode, NvidiaDriver
from dra_simulate.models import GIB, GpuModel
from dra_simulate.parts.bridges import nvme, port
from dra_simulate.parts.nvidia import gpu
from dra_simulate.roles.nvidia import FAR_SWITCH

_FIRST_BUS, _BUSES = 0x10, 0x18


def gpu_server(
    name: str,
    description: str,
    source: str,
    model: GpuModel,
    *,
    gpus: int,
    sockets: int = 2,
    driver: NvidiaDriver,
    fabric: tuple[str, int] | None = None,
    nvlinks: Literal["none", "bridges", "switches"] = "none",
) -> Machine:
    """A server with a drive, and GPUs spread over its sockets, each on a separate root.

    `nvlinks`: all links of a GPU are connected to one other GPU, or to switches without a PCI function.
    Addresses and CPUs are made up.
    """
    drive = port("0000:08:01.0", nvme("0000:09:00.0", 0))
    roots = [HostBridge("pci0000:08", 0, (drive,))]
    buses = [_FIRST_BUS + _BUSES * minor for minor in range(gpus)]
    addresses = [f"0000:{bus + 1:02x}:00.0" for bus in buses]
    for minor, bus in enumerate(buses):
        end = addresses[minor ^ 1] if nvlinks == "bridges" else FAR_SWITCH
        links = (end,) * model.nvlinks if nvlinks != "none" else ()
        accelerator = gpu(addresses[minor], model, minor, machine=name, nvlinks=links, fabric=fabric)
        below = port(f"0000:{bus:02x}:01.0", accelerator)
        roots.append(HostBridge(f"pci0000:{bus:02x}", minor * sockets // gpus, (below,)))
    distances = [tuple(10 if other == node else 21 for other in range(sockets)) for node in range(sockets)]
    nodes = tuple(NumaNode(f"{32 * node}-{32 * node + 31}", 512 * GIB, distances[node]) for node in range(sockets))
    return Machine(name=name, description=description, source=source, nodes=nodes, bridges=tuple(roots), nvidia=driver)
