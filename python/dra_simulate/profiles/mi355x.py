"""Eight MI355X under the driver of Linux 6.18.

Source: modes: aqua_vanjaram.c; figures: AMD data sheet; board: assumed to be that of the MI300X.
"""

from __future__ import annotations

from dra_simulate.machine import Machine
from dra_simulate.parts.amd import mi355x
from dra_simulate.profiles.mi300x import board

NAME = "mi355x"


def machine() -> Machine:
    """The machine."""
    return board(
        NAME,
        "Instinct MI355X 288GB",
        lambda address, number: mi355x(address, number, machine=NAME),
        "modes: amdgpu (aqua_vanjaram.c); figures: AMD data sheet; board: assumed, as mi300x",
        {},
    )
