"""One host, one owner of a device: owner files keep agents with different state directories apart."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dra_agent.errors import RetryableError
from dra_agent.inventory.device import Device
from dra_agent.prepare.ownership import DeviceOwnership, SimulatedOwnership
from dra_agent.prepare.ports import DeviceHeldError
from prepare.world import World, claim


def device(address: str = "0000:3b:00.0", name: str = "") -> Device:
    return Device(name or f"gpu-{address.replace(':', '-').replace('.', '-')}", "gpu", "nvidia", address, {})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "devices"
    folder.mkdir(parents=True)
    return folder


def agent(files: Path, name: str) -> DeviceOwnership:
    return DeviceOwnership(files, Path(f"/state/{name}"), name)


def test_another_state_directory_is_refused_and_named_until_the_last_claim_is_released(files: Path) -> None:
    one, other = agent(files, "one"), agent(files, "other")
    part, whole = device(name="gpu-mig"), device()
    one.acquire("a", [part])
    one.acquire("b", [whole, device("0000:af:00.0")])
    one.acquire("b", [whole])
    with pytest.raises(DeviceHeldError) as refused:
        other.acquire("c", [device("0000:5e:00.0"), whole])
    told = str(refused.value)
    assert "/state/one" in told and f"pid {os.getpid()}" in told and "a, b" in told
    assert "--state-dir" not in told
    agent(files, "third").acquire("d", [device("0000:5e:00.0")])
    one.release("a")
    with pytest.raises(DeviceHeldError):
        other.acquire("c", [whole])
    # An agent that was started again on the same state directory releases what the one before it took.
    agent(files, "one").release("b")
    other.acquire("c", [whole, device("0000:af:00.0")])
    with pytest.raises(DeviceHeldError):
        one.acquire("a", [part])


def test_agents_on_one_state_directory_share_their_devices(files: Path) -> None:
    old, new = agent(files, "one"), agent(files, "one")
    old.acquire("a", [device()])
    new.acquire("b", [device()])
    new.release("a")
    old.release("b")
    agent(files, "other").acquire("c", [device()])


def test_a_damaged_owner_file_is_no_owner_that_may_be_ignored(files: Path) -> None:
    (files / "0000:3b:00.0").write_text("{")
    with pytest.raises(RetryableError, match="damaged"):
        agent(files, "one").acquire("a", [device()])
    (files / "0000:af:00.0").symlink_to("/etc/passwd")
    with pytest.raises(RetryableError):
        agent(files, "one").acquire("a", [device("0000:af:00.0")])


def test_of_many_threads_and_agents_one_owns_a_device(files: Path) -> None:
    won: list[str] = []
    start = threading.Barrier(8)

    def attempt(name: str) -> None:
        start.wait()
        try:
            agent(files, name).acquire(name, [device(), device("0000:af:00.0")])
            won.append(name)
        except DeviceHeldError:
            pass

    threads = [threading.Thread(target=attempt, args=(f"agent-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_files_follow_the_ledger_at_start(world: World, files: Path) -> None:
    world.preparer.prepare(claim("kept", "gpu-0"))
    one = agent(files, "one")
    lost = next(device for device in world.devices.values() if device.name == "gpu-1")
    one.acquire("gone", [lost])
    assert one.reconcile(world.ledger, world.lookup) == []
    other = agent(files, "other")
    assert other.foreign_claims() == {"kept"}
    other.acquire("x", [lost])
    assert other.reconcile(world.ledger, world.lookup)[0].startswith("claim default/claim-kept (kept): ")


def test_two_preparers_with_two_ledgers_give_one_device_once(world: World, tmp_path: Path, files: Path) -> None:
    world.ownership = agent(files, "one")
    world.start()
    second = World(tmp_path / "second")
    second.cdi = world.cdi
    second.ownership = agent(files, "other")
    second.start()
    world.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(DeviceHeldError, match="/state/one"):
        second.preparer.prepare(claim("b", "gpu-0"))
    assert not second.ledger.entries()
    assert second.preparer.recover().removed == ()
    assert world.usable("a")
    world.preparer.unprepare("a")
    assert second.preparer.prepare(claim("b", "gpu-0"))
    # A simulated agent that shares the CDI directory leaves the specs of real devices alone, too.
    third = World(tmp_path / "third")
    third.cdi = world.cdi
    third.ownership = SimulatedOwnership(files, tmp_path, "")
    third.start()
    assert third.preparer.recover().removed == ()
    assert third.specs.claims().keys() == {"b"}
