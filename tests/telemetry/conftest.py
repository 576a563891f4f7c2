from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.host import Host
from dra_simulate import inject
from telemetry.rig import INTERVAL_S, Rig


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Host]:
    root = tmp_path_factory.mktemp("telemetry") / "vm"
    return root, dra_simulate.build("vm-1gpu", root)


@pytest.fixture(scope="module")
def open_rig(vm: tuple[Path, Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(vm[1], tmp_path_factory.mktemp("state"))
    yield rig
    rig.close()


@pytest.fixture
def rig(open_rig: Rig, vm: tuple[Path, Host], tmp_path: Path) -> Iterator[Rig]:
    """The rig of the module, with an empty state directory, no claims and no faults."""
    open_rig.state_dir, open_rig.entries, open_rig.claim_labels, open_rig.boot_id = tmp_path, [], True, "boot-1"
    open_rig.interval_s, open_rig.xids, open_rig.pods = INTERVAL_S, {}, {}
    open_rig.restart()
    yield open_rig
    open_rig.sampler.stop()
    inject.clear(vm[0])


@pytest.fixture
def root(vm: tuple[Path, Host]) -> Path:
    return vm[0]
