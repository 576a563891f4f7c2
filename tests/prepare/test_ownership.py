"""One host, one owner of a device: owner files keep agents with different state directories apart."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import msgspec
import pytest

from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare import ownership
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.prepare.ownership import DeviceOwnership, OwnerRecord, SimulatedOwnership, is_running
from prepare.simulated_world import World, claim


def device(address: str = "0000:3b:00.0", name: str = "") -> Device:
    return Device(name or f"gpu-{address.replace(':', '-').replace('.', '-')}", "gpu", "nvidia", address, {})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "devices"
    folder.mkdir(parents=True)
    return folder


def agent(files: Path, name: str) -> DeviceOwnership:
    return DeviceOwnership(files, Path(f"/state/{name}"), name)


def far() -> Deadline:
    return Deadline.of(60)


def acquire(owner: DeviceOwnership, uid: str, devices: list[Device]) -> None:
    with owner.acquire(uid, devices, far()):
        pass


def test_another_state_directory_is_refused_and_named_until_the_last_claim_is_released(files: Path) -> None:
    one, other = agent(files, "one"), agent(files, "other")
    part, whole = device(name="gpu-mig"), device()
    acquire(one, "a", [part])
    acquire(one, "b", [whole, device("0000:af:00.0")])
    acquire(one, "b", [whole])
    with pytest.raises(DeviceHeldError) as refused:
        acquire(other, "c", [device("0000:5e:00.0"), whole])
    told = str(refused.value)
    assert "/state/one" in told and f"pid {os.getpid()}" in told and "a, b" in told
    assert "--state-dir" not in told
    acquire(agent(files, "third"), "d", [device("0000:5e:00.0")])
    one.release("a", far())
    with pytest.raises(DeviceHeldError):
        acquire(other, "c", [whole])
    # An agent that was started again on the same state directory releases what the one before it took.
    agent(files, "one").release("b", far())
    acquire(other, "c", [whole, device("0000:af:00.0")])
    with pytest.raises(DeviceHeldError):
        acquire(one, "a", [part])


def test_agents_on_one_state_directory_share_their_devices(files: Path) -> None:
    old, new = agent(files, "one"), agent(files, "one")
    acquire(old, "a", [device()])
    acquire(new, "b", [device()])
    new.release("a", far())
    old.release("b", far())
    acquire(agent(files, "other"), "c", [device()])


def test_a_damaged_owner_file_is_no_owner_that_may_be_ignored(files: Path) -> None:
    (files / "0000:3b:00.0").write_text("{")
    with pytest.raises(RetryableError, match="damaged"):
        acquire(agent(files, "one"), "a", [device()])
    (files / "0000:af:00.0").symlink_to("/etc/passwd")
    with pytest.raises(RetryableError):
        acquire(agent(files, "one"), "a", [device("0000:af:00.0")])


def test_an_owner_that_ended_is_named_as_such(files: Path) -> None:
    # The kernel gives out no such number, whereas the number of a process that ended may be another one's by now.
    ended = int(Path("/proc/sys/kernel/pid_max").read_text())
    claims = tuple("abcdef")
    for pid in (ended, os.getpid()):
        record = OwnerRecord("one", "/state/one", pid, claims if pid != os.getpid() else claims[:4])
        (files / "0000:3b:00.0").write_bytes(msgspec.json.encode(record))
        with pytest.raises(DeviceHeldError) as refused:
            acquire(agent(files, "other"), "x", [device()])
        said = str(refused.value)
        if pid == os.getpid():
            assert f"(pid {pid})" in said and said.endswith("run one agent per host") and "d; " in said
        else:
            assert f"(pid {pid}, not running)" in said and "for claims a, b, c, d and 2 more; start that agent" in said


def test_a_process_that_may_not_be_asked_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    assert is_running(4242)


def test_only_claims_of_others_are_foreign(files: Path) -> None:
    assert agent(files / "missing", "one").foreign_claims() == frozenset()
    one = agent(files, "one")
    acquire(one, "mine", [device()])
    acquire(agent(files, "other"), "theirs", [device("0000:af:00.0")])
    (files / "0000:5e:00.0").write_text("{")
    (files / "0000:5f:00.0").touch()
    assert one.foreign_claims() == {"theirs"}
    simulated = SimulatedOwnership(files, files, "simulated")
    assert simulated.foreign_claims() == {"mine", "theirs"}


def test_a_release_takes_nothing_of_others_and_makes_no_file(files: Path) -> None:
    one, other = agent(files, "one"), agent(files, "other")
    acquire(one, "a", [device()])
    other.release("a", far())
    with pytest.raises(DeviceHeldError):
        acquire(other, "b", [device()])
    (files / "0000:3b:00.0").unlink()
    one.release("a", far())
    assert not list(files.iterdir())


def test_a_directory_that_is_not_there_or_full_is_named(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RetryableError, match=r"missing/0000:3b:00.0: the owner of the device cannot be recorded: No such"
    ):
        acquire(agent(files / "missing", "one"), "a", [device()])

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RetryableError, match=r"0000:3b:00.0: the owner of the device cannot be recorded: No space"):
        acquire(agent(files, "one"), "a", [device()])


def test_nobody_else_can_lock_an_owner_file(files: Path) -> None:
    """Who can read a file can lock it, and no claim would get its device for as long as that lasts."""
    before = os.umask(0)
    try:
        acquire(agent(files, "one"), "a", [device()])
        (files / "0000:af:00.0").touch(0o644)  # as an earlier agent made it
        acquire(agent(files, "one"), "b", [device("0000:af:00.0")])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o7777 for path in files.iterdir()} == {0o600}


def test_a_file_that_somebody_keeps_locked_is_given_up_in_time(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LOCK_TIMEOUT_S", 0.05)
    one = agent(files, "one")
    acquire(one, "a", [device()])
    with (files / "0000:3b:00.0").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="is locked by another process"):
            acquire(agent(files, "one"), "b", [device()])
    acquire(agent(files, "one"), "b", [device()])


def test_of_many_threads_and_agents_one_owns_a_device(files: Path) -> None:
    won: list[str] = []
    start = threading.Barrier(8)

    def attempt(name: str) -> None:
        start.wait()
        try:
            acquire(agent(files, name), name, [device(), device("0000:af:00.0")])
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
    acquire(one, "gone", [lost])
    assert one.reconcile(world.ledger, world.lookup) == []
    (files / "0000:5e:00.0").write_text("{")
    assert one.reconcile(world.ledger, world.lookup) == [], "a damaged file of a device that no claim has"
    assert SimulatedOwnership(files, files, "simulated").reconcile(world.ledger, world.lookup) == []
    other = agent(files, "other")
    assert other.foreign_claims() == {"kept"}
    acquire(other, "x", [lost])
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


def sharing(root: Path, files: Path, name: str) -> World:
    world = World(root)
    world.ledger = JournalLedger(root / "state", "boot", shared_as=name)
    world.locks = KeyedLocks(root / "state" / "locks", process=name)
    world.ownership = agent(files, "one")
    world.start()
    return world


def test_an_owner_file_that_stays_locked_holds_up_its_device_alone(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, lock = threading.Event(), ownership._lock

    def seen(path: str, deadline: Deadline, *, create: bool = True) -> int:
        reached.set()
        return lock(path, deadline, create=create)

    old, new = sharing(tmp_path, files, "old"), sharing(tmp_path, files, "new")
    handle = os.open(files / "0000:00:00.0", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(RetryableError, match="locked by another process"):
        old.preparer.prepare(claim("sick", "gpu-0"), Deadline.of(0.05))
    monkeypatch.setattr(ownership, "LOCK_TIMEOUT_S", 600.0)
    monkeypatch.setattr(ownership, "_lock", seen)
    executor = DaemonExecutor(1, "test")
    waiting = executor.submit(old.preparer.prepare, claim("sick", "gpu-0"), Deadline.of(600))
    assert reached.wait(60)
    for world in (old, new):
        assert world.preparer.prepare(claim("other", "gpu-1"), far()) and world.preparer.unprepare("other", far())
    assert not waiting.done()
    os.close(handle)
    assert waiting.result(60) and new.preparer.unprepare("sick", far())
    executor.shutdown()


def test_a_claim_that_does_not_begin_leaves_the_files_as_they_were(files: Path) -> None:
    one, other = agent(files, "one"), agent(files, "other")
    acquire(one, "a", [device()])
    for taken in ([device(), device("0000:af:00.0")], [device()]):
        with pytest.raises(OSError, match="full"), one.acquire("b", taken, far()):
            raise OSError("full")
        with pytest.raises(OSError, match="full"), one.acquire("a", taken, far()):
            raise OSError("full")
    acquire(other, "c", [device("0000:af:00.0")])
    with pytest.raises(DeviceHeldError, match="for claims a"):
        acquire(other, "c", [device()])


def test_a_claim_that_begins_while_another_agent_starts_keeps_its_device(world: World, files: Path) -> None:
    one, starting = agent(files, "one"), agent(files, "one")
    compared: list[threading.Thread] = []
    with one.acquire("a", [device()], far()) as unlock:
        compared.append(threading.Thread(target=starting.reconcile, args=(world.ledger, world.lookup)))
        compared[0].start()
        world.preparer.prepare(claim("a", "gpu-0"))  # the claim is in the ledger only now
        unlock()
    compared[0].join(60)
    with pytest.raises(DeviceHeldError, match="for claims a"):
        acquire(agent(files, "other"), "b", [device()])


def test_a_release_frees_a_device_that_was_not_there_when_the_agent_started(world: World, files: Path) -> None:
    world.ownership = agent(files, "one")
    world.start()
    world.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    gone = world.devices.pop("gpu-0")
    world.ownership = agent(files, "one")
    world.crash_and_restart()
    assert world.ownership.reconcile(world.ledger, world.lookup) == []
    world.preparer.unprepare("a")
    acquire(agent(files, "other"), "b", [gone])


def test_a_device_that_comes_back_after_a_reboot_is_owned_again(world: World, files: Path) -> None:
    for ask in ("prepare", "mend"):
        world.ownership = agent(files, "one")
        world.start()
        wanted = claim(ask, "gpu-0")
        world.preparer.prepare(wanted)
        back = world.devices.pop("gpu-0")
        (files / "0000:00:00.0").unlink()
        world.crash_and_restart()
        assert world.ownership.reconcile(world.ledger, world.lookup) == []
        world.devices["gpu-0"] = back
        assert world.preparer.prepare(wanted) if ask == "prepare" else world.preparer.repair().problems == ()
        with pytest.raises(DeviceHeldError, match=f"for claims {ask}"):
            acquire(agent(files, "other"), "b", [back])
        world.preparer.unprepare(ask)


def test_a_claim_that_another_agent_moved_to_another_device_leaves_no_owner(tmp_path: Path, files: Path) -> None:
    old, new = sharing(tmp_path, files, "old"), sharing(tmp_path, files, "new")
    old.preparer.prepare(claim("a", "gpu-0"))
    new.preparer.unprepare("a")
    new.preparer.prepare(claim("a", "gpu-1"))
    old.preparer.unprepare("a")
    acquire(agent(files, "other"), "b", [old.devices["gpu-0"], old.devices["gpu-1"]])


def test_a_claim_that_another_agent_prepared_is_refused_as_such_where_its_new_device_is_held_too(
    tmp_path: Path, files: Path
) -> None:
    old, new = sharing(tmp_path, files, "old"), sharing(tmp_path, files, "new")
    acquire(agent(files, "other"), "b", [old.devices["gpu-1"]])
    prepared = old.preparer.prepare(claim("a", "gpu-0"))
    # No later attempt of the new agent succeeds, whoever releases gpu-1.
    with pytest.raises(PermanentError, match=r"is prepared with other devices \(gpu-0\)"):
        new.preparer.prepare(claim("a", "gpu-1"))
    assert new.preparer.prepare(claim("a", "gpu-0")) == prepared
