"""Recorded machines for tests that only read them. Each is built once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra_agent import simulate
from dra_agent.host import Host
from recordings.pack import unpack

Machine = Callable[[str], Host]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return the host of a committed recording by its name; read-only."""
    built: dict[str, Host] = {}

    def build(name: str) -> Host:
        if name not in built:
            folder = tmp_path_factory.mktemp(name)
            built[name] = simulate.build(str(unpack(name, folder)), folder / "host")
        return built[name]

    return build
