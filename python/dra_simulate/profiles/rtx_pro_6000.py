"""A server with RTX PRO 6000 Blackwell: four memory slices; profiles with graphics, all or no media engines.

| profile | ids | memory GiB | multiprocessors | NVDEC, NVENC, JPEG, OFA | instances |
|---|---|---|---|---|---|
| 1g.24gb, +gfx | 14, 47 | 23.62 | 46 | 1, 1, 1, 0 | 4 |
| 1g.24gb+me | 21 | 23.62 | 46 | 1, 1, 1, 1 | 1 |
| 1g.24gb+me.all, -me | 65, 67 | 23.62 | 46 | 4, 4, 4, 1; none | 1, 4 |
| 2g.48gb, +gfx | 5, 35 | 47.38 | 94 | 2, 2, 2, 0 | 2 |
| 2g.48gb+me.all, -me | 64, 66 | 47.38 | 94 | 4, 4, 4, 1; none | 1, 2 |
| 4g.96gb, +gfx | 0, 32 | 95.00 | 188 | 4, 4, 4, 1 | 1 |

Sources: `nvidia-smi mig -lgip` of the product, and the MIG user guide, "RTX PRO 6000 Blackwell MIG Profiles". A
driver for vGPU hosts reports 23.12, 46.50 and 93.38 GiB.
"""

from __future__ import annotations

from dra_simulate.machine import Machine, NvidiaDriver
from dra_simulate.mig_models import RTX_PRO_6000
from dra_simulate.parts.servers import gpu_server

NAME = "rtx-pro-6000"


def machine() -> Machine:
    """The machine."""
    return gpu_server(
        NAME,
        "8 x RTX PRO 6000 Blackwell Server Edition 96GB, 2 sockets",
        "profiles: nvidia-smi mig -lgip, MIG user guide; device id: mig-parted; rest assumed",
        RTX_PRO_6000,
        gpus=8,
        driver=NvidiaDriver("580.65.06", 13000),
    )
