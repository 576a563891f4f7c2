"""The host of the profile mi300x with the driver of Linux 6.18: each partition has its own id.

Source: recording of the profile mi300x; ids, names and files of amdgpu: kernel source, see `roles.amd.LINUX_6_18`.
"""

from __future__ import annotations

from dra_simulate.machine import Machine
from dra_simulate.parts.amd import mi300x
from dra_simulate.profiles.mi300x import board
from dra_simulate.roles.amd import LINUX_6_18

NAME = "mi300x-linux-6.18"


def machine() -> Machine:
    """The machine."""
    return board(
        NAME,
        "Instinct MI300X 192GB",
        lambda address, number: mi300x(address, number, machine=NAME, driver=LINUX_6_18),
        "board: as mi300x; ids and names of partitions: source of Linux 6.18 (kfd_topology.c, amdgpu_xcp_drv.c)",
        {},
    )
