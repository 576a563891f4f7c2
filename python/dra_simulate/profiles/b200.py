"""A server with eight B200: two copy engines for each compute slice.

| profile | memory GiB | multiprocessors | copy engines |
|---|---|---|---|
| 1g.23gb, +me | 22.00 (20.50 with a later driver) | 18 | 2 |
| 1g.45gb | 44.25 | 30 | 2 |
| 2g.45gb | 44.25 | 36 | 4 |
| 3g.90gb, 4g.90gb, 7g.180gb | 89.00, 89.00, 178.00 | 70, 72, 148 | 6, 8, 16 |

Sources: mig-parted#166 and #187, and the MIG user guide for copy engines. Memory and multiprocessors of the last row
are not verified.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import B200
from dra_simulate.parts.nvidia import ONE_HOST_FABRIC
from dra_simulate.parts.servers import gpu_server

NAME = "b200"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "8 x B200 180GB on one NVLink fabric, 2 sockets",
        "profiles up to 2g: mig-parted#166; device id: mig-parted; rest assumed",
        B200,
        gpus=8,
        driver=NvidiaDriver("570.86.15", 12080),
        fabric=ONE_HOST_FABRIC,
        nvlinks="switches",
    )
