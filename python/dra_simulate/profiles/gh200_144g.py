"""A GH200 with 144 GB.

Memory in GiB: 17.50 (1g.18gb), 35.25 (1g.36gb, 2g.36gb); 71.00 (3g.72gb, 4g.72gb) and 142.50 (7g.144gb)
are not verified. Multiprocessors: 16, 26, 32, 60, 64, 132. Source: mig-parted#139.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import GH200_144GB
from dra_simulate.parts.servers import gpu_server

NAME = "gh200-144g"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "a GH200 144G HBM3e",
        "memory of 1g and 2g: mig-parted#139; device id: mig-parted; rest assumed",
        GH200_144GB,
        gpus=1,
        sockets=1,
        driver=NvidiaDriver("570.124.06", 12080),
    )
