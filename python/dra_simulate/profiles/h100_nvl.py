"""A server with H100 NVL in bridged pairs (600 GB/s, 12 links: data sheet): the profiles of an H100 with more memory.

Memory in GiB: 10.75 (1g.12gb), 21.62 (1g.24gb, 2g.24gb), 46.38 (3g.47gb, 4g.47gb), 93.12 (7g.94gb).
Source: mig-parted#101. The number of multiprocessors is that of the H100 SXM.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import H100_NVL
from dra_simulate.parts.servers import gpu_server

NAME = "h100-nvl"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "4 x H100 NVL 94GB in bridged pairs, 2 sockets",
        "profile memory: mig-parted#101; device id: mig-parted; rest assumed",
        H100_NVL,
        gpus=4,
        driver=NvidiaDriver("570.124.06", 12080),
        nvlinks="bridges",
    )
