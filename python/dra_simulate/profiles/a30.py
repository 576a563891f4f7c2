"""An NVIDIA A30 server: four compute and four memory slices, and an MIG mode that changes with a reset only.

| profile | id | memory GiB | multiprocessors | engines (NVDEC, JPEG, OFA) | instances |
|---|---|---|---|---|---|
| 1g.6gb, +me | 14, 21 | 5.81 | 14 | none; +me 1, 1, 1 | 4, 1 |
| 2g.12gb, +me | 5, 6 | 11.69 | 28 | 2, 0, 0; +me 2, 1, 1 | 2, 1 |
| 4g.24gb | 0 | 23.44 | 56 | 4, 1, 1 | 1 |

Source: MIG user guide, "A30 MIG Profiles". Memory is not verified.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import A30
from dra_simulate.parts.servers import gpu_server

NAME = "a30"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "4 x A30 24GB with four memory slices, 2 sockets",
        "profiles: MIG user guide (memory not verified); device id: mig-parted; rest assumed",
        A30,
        gpus=4,
        driver=NvidiaDriver("570.124.06", 12080),
    )
