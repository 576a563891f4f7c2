"""What crosses between the agent and the library's process, both ways, and what does not."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.nvml.values import Codec, Handles, StaleHandleError, targets

ADDRESS = 0x7F00_1234_5678

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.lists(inner).map(tuple), max_leaves=20)


@pytest.fixture
def agent() -> Codec:
    return Codec(pynvml)


def child(generation: int = 1) -> Codec:
    handles = Handles(generation)
    return Codec(pynvml, handles.token, handles.address)


def word(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


@given(values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    codec = Codec(pynvml)
    assert codec.decode(json.loads(json.dumps(codec.encode(value)))) == value


def test_a_handle_is_a_token_outside_and_an_address_inside(agent: Codec) -> None:
    library = child()
    handle = ctypes.cast(ADDRESS, pynvml.c_nvmlDevice_t)
    outside = agent.decode(library.encode(handle))
    assert type(outside) is pynvml.c_nvmlDevice_t
    assert word(outside) not in (0, ADDRESS)
    assert word(library.decode(agent.encode(outside))) == ADDRESS
    assert word(agent.decode(library.encode(handle))) == word(outside), "one handle has one token"
    assert word(library.decode(agent.encode(pynvml.c_nvmlDevice_t()))) == 0


def test_handles_inside_of_structures_and_arrays_are_tokens_too(agent: Codec) -> None:
    library = child()
    event = pynvml.c_nvmlEventData_t(device=ctypes.cast(ADDRESS, pynvml.c_nvmlDevice_t), eventType=8, eventData=79)
    event.gpuInstanceId, event.computeInstanceId = 3, 0xFFFFFFFF
    outside = agent.decode(library.encode(event))
    assert (outside.eventType, outside.eventData, outside.gpuInstanceId) == (8, 79, 3)
    known = agent.decode(library.encode(ctypes.cast(ADDRESS, pynvml.c_nvmlDevice_t)))
    assert word(outside.device) == word(known)
    array = (pynvml.c_nvmlGpuInstance_t * 3)()
    reference = ctypes.byref(array)
    inside = library.decode(agent.encode(reference))
    targets(inside)[1] = ctypes.cast(ADDRESS + 8, pynvml.c_nvmlGpuInstance_t)
    agent.fill(targets(reference), library.content(targets(inside)))
    assert [bool(word(item)) for item in array] == [False, True, False]
    assert word(library.decode(agent.encode(array[1]))) == ADDRESS + 8


def test_a_handle_of_an_earlier_process_is_refused(agent: Codec) -> None:
    old = agent.decode(child(1).encode(ctypes.cast(ADDRESS, pynvml.c_nvmlDevice_t)))
    successor = child(2)
    successor.encode(ctypes.cast(ADDRESS, pynvml.c_nvmlDevice_t))
    with pytest.raises(StaleHandleError):
        successor.decode(agent.encode(old))


def test_output_arguments_arrive(agent: Codec) -> None:
    library = child()
    placements = (pynvml.c_nvmlGpuInstancePlacement_t * 2)()
    count = ctypes.c_uint(2)
    for mine in (ctypes.byref(placements), ctypes.byref(count), placements):
        theirs = library.decode(agent.encode(mine))
        target = targets(theirs)
        if isinstance(target, ctypes.c_uint):
            target.value = 7
        else:
            target[1].start, target[1].size = 4, 4
        agent.fill(targets(mine), library.content(target))
    assert (placements[1].start, placements[1].size, count.value) == (4, 4, 7)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"b": 1},
        {"b": "0"},
        {"d": ["c_nvmlMemory_t", "00"]},
        {"d": ["nvmlInit", ""]},
        {"p": ["c_uint", 1]},
        {"x": 1},
    ],
)
def test_malformed_values_are_refused(agent: Codec, broken: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        agent.decode(broken)


def test_values_that_cannot_be_encoded_are_refused(agent: Codec) -> None:
    class Foreign(ctypes.Structure):
        _fields_ = (("number", ctypes.c_int),)

    for value in (Foreign(), object(), {"a": 1}):
        with pytest.raises((TypeError, ValueError)):
            agent.encode(value)


def test_no_pointer_to_text_arrives(agent: Codec) -> None:
    text = ctypes.c_char_p(b"in the other process")
    assert agent.decode(child().encode(text)).value is None
