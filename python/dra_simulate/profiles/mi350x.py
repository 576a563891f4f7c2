"""Eight MI350X under AMD's driver package 6.16.13, where a whole GPU has another id in KFD than its board.

Source: ids: a report of such a host, see `roles.amd.ROCM_7_1`; modes: aqua_vanjaram.c; figures: AMD data sheet; board:
assumed to be that of the MI300X.
"""

from __future__ import annotations

from dra_simulate.machine import Machine
from dra_simulate.parts.amd import mi350x
from dra_simulate.profiles.mi300x import board
from dra_simulate.roles.amd import ROCM_7_1

NAME = "mi350x"


def machine() -> Machine:
    """The machine."""
    return board(
        NAME,
        "Instinct MI350X 288GB",
        lambda address, number: mi350x(address, number, machine=NAME, driver=ROCM_7_1),
        "ids under amdgpu 6.16.13: report of a host; figures: AMD data sheet; board: assumed, as mi300x",
        {"amdgpu": "6.16.13"},
    )
