"""The agent's definitions of NVML are those of pynvml."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

from dra_agent.nvml import definitions
from dra_agent.nvml.values import Codec

OWN = {name: value for name, value in vars(definitions).items() if not name.startswith("_")}
CONSTANTS = sorted(name for name, value in OWN.items() if isinstance(value, int))
STRUCTURES = sorted(
    name
    for name, value in OWN.items()
    if isinstance(value, type)
    and issubclass(value, ctypes.Structure | ctypes.Union)
    and value.__module__ == definitions.__name__
)


def layout(kind: Any) -> list[tuple[str, int, int]]:
    return [(field[0], getattr(kind, field[0]).offset, getattr(kind, field[0]).size) for field in kind._fields_]


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_that_of_pynvml(name: str) -> None:
    assert OWN[name] == getattr(pynvml, name)


def test_all_error_codes_are_known() -> None:
    codes = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert codes == definitions.KNOWN_ERRORS


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_that_of_pynvml(name: str) -> None:
    ours, theirs = OWN[name], getattr(pynvml, name)
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    if hasattr(theirs, "_fields_"):
        assert layout(ours) == layout(theirs)
        assert bytes(ours()) == bytes(theirs()), "a new one has the same size and version"


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_of_the_library_arrives_in_the_agent(name: str) -> None:
    theirs = getattr(pynvml, name)()
    arrived = Codec(definitions).decode(Codec(pynvml).encode(theirs))
    assert type(arrived) is OWN[name]
    assert bytes(arrived) == bytes(theirs)


def test_other_names_are_taken_from_pynvml() -> None:
    assert definitions.c_nvmlUtilization_t is pynvml.c_nvmlUtilization_t
    assert definitions.NVML_CLOCK_SM == pynvml.NVML_CLOCK_SM
    with pytest.raises(AttributeError):
        definitions.nothing_of_this_name  # noqa: B018
