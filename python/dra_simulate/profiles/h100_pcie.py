"""A server with H100 PCIe: fewer multiprocessors than the SXM product, in slices of unequal size.

Multiprocessors: 30 (2g.20gb), 46 (3g.40gb), 62 (4g.40gb), 114 (7g.80gb), as `nvidia-smi mig -lgip` shows them; those of
1g (14) and 1g.20gb (26), and the memory (that of the SXM product), are not verified.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import H100_PCIE
from dra_simulate.parts.servers import gpu_server

NAME = "h100-pcie"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "4 x H100 PCIe 80GB, 2 sockets",
        "multiprocessors of 2g to 7g: nvidia-smi mig -lgip; device id: mig-parted; rest assumed",
        H100_PCIE,
        gpus=4,
        driver=NvidiaDriver("570.124.06", 12080),
    )
