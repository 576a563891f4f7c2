"""Eight MI308X, which have four dies, on the board of the profile mi300x.

Source: files and numbers of amdgpu: kernel source (aqua_vanjaram.c) and a listing of an MI308X host; figures: AMD data
sheet; board: assumed to be that of the MI300X.
"""

from __future__ import annotations

from dra_simulate.machine import Machine
from dra_simulate.parts.amd import mi308x
from dra_simulate.profiles.mi300x import board

NAME = "mi308x"


def machine() -> Machine:
    """The machine."""
    return board(
        NAME,
        "Instinct MI308X 192GB",
        lambda address, number: mi308x(address, number, machine=NAME),
        "modes of 4 dies: amdgpu (aqua_vanjaram.c); figures: AMD data sheet; board: assumed, as mi300x",
        {"amdgpu": "6.12.12"},
    )
