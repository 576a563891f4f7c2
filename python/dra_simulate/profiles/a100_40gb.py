"""A server with A100 of 40 GB: the first products with MIG, whose mode changes with a reset only.

Memory in GiB: 4.75 (1g.5gb), 9.75 (1g.10gb, 2g.10gb), 19.62 (3g.20gb, 4g.20gb), 39.50 (7g.40gb). Multiprocessors: 14,
14, 28, 42, 56, 98. Source: MIG user guide, "A100 MIG Profiles".
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import A100_40GB
from dra_simulate.parts.servers import gpu_server

NAME = "a100-40gb"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "8 x A100-SXM4-40GB, 2 sockets",
        "profiles: MIG user guide; device id: mig-parted; rest assumed",
        A100_40GB,
        gpus=8,
        driver=NvidiaDriver("570.124.06", 12080),
    )
