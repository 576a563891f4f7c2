"""Garbage collection is paused while many objects are created, and always resumed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dra_agent import garbage_collection


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if was_enabled:
        gc.enable()
    else:
        gc.disable()


def test_the_last_of_several_pauses_resumes_it() -> None:
    first, second = garbage_collection.paused(), garbage_collection.paused()
    with first:
        second.__enter__()
        assert not gc.isenabled()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_an_error_resumes_it() -> None:
    with pytest.raises(KeyError), garbage_collection.paused():
        raise KeyError
    assert gc.isenabled()


def test_a_process_without_it_stays_without_it() -> None:
    gc.disable()
    with garbage_collection.paused():
        pass
    assert not gc.isenabled()


def test_what_was_created_meanwhile_is_old_afterwards() -> None:
    with garbage_collection.paused():
        created: list[list[int]] = [[number] for number in range(10)]
    identities = {id(one) for one in created}
    assert not identities & {id(one) for young in (0, 1) for one in gc.get_objects(generation=young)}
    assert identities <= {id(one) for one in gc.get_objects(generation=2)}
