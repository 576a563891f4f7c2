"""Owner files separate agents of one host that have different state directories."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import msgspec
import pytest

from dra_agent import file_lock
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.deadline import Deadline
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device
from dra_agent.prepare import ownership
from dra_agent.prepare.ledger import DeviceHeldError, JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.prepare.ownership import DeviceOwnership, OwnerRecord, SimulatedOwnership, is_running
from prepare.simulated_node import SimulatedNode, claim


def device(address: str = "0000:3b:00.0", name: str = "") -> Device:
    return Device(name or f"gpu-{address.replace(':', '-').replace('.', '-')}", "gpu", "nvidia", address, {})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "devices"
    folder.mkdir(parents=True)
    return folder


def agent(files: Path, name: str) -> DeviceOwnership:
    return DeviceOwnership(files, Path(f"/state/{name}"), lambda: name)


def long_deadline() -> Deadline:
    return Deadline.of(60)


def acquire(owner: DeviceOwnership, uid: str, devices: list[Device]) -> None:
    with owner.acquire(uid, devices, long_deadline()):
        pass


def test_a_device_is_refused_until_its_last_claim_is_released(files: Path) -> None:
    owner, other = agent(files, "one"), agent(files, "other")
    part, whole = device(name="gpu-mig"), device()
    acquire(owner, "a", [part])
    acquire(owner, "b", [whole, device("0000:af:00.0")])
    acquire(owner, "b", [whole])
    with pytest.raises(DeviceHeldError) as refused:
        acquire(other, "c", [device("0000:5e:00.0"), whole])
    error = str(refused.value)
    assert "/state/one" in error and f"pid {os.getpid()}" in error and "a, b" in error
    assert "--state-dir" not in error
    acquire(agent(files, "third"), "d", [device("0000:5e:00.0")])
    owner.release("a", long_deadline())
    with pytest.raises(DeviceHeldError):
        acquire(other, "c", [whole])
    # An agent that restarts on the same state directory releases devices of the earlier one.
    agent(files, "one").release("b", long_deadline())
    acquire(other, "c", [whole, device("0000:af:00.0")])
    with pytest.raises(DeviceHeldError):
        acquire(owner, "a", [part])


def test_agents_on_one_state_directory_share_their_devices(files: Path) -> None:
    old, new = agent(files, "one"), agent(files, "one")
    acquire(old, "a", [device()])
    acquire(new, "b", [device()])
    new.release("a", long_deadline())
    old.release("b", long_deadline())
    acquire(agent(files, "other"), "c", [device()])


def test_a_damaged_owner_file_is_not_ignored(files: Path) -> None:
    (files / "0000:3b:00.0").write_text("{")
    with pytest.raises(RetryableError, match="damaged"):
        acquire(agent(files, "one"), "a", [device()])
    (files / "0000:af:00.0").symlink_to("/etc/passwd")
    with pytest.raises(RetryableError):
        acquire(agent(files, "one"), "a", [device("0000:af:00.0")])


def test_an_owner_that_is_not_running_is_reported_as_such(files: Path) -> None:
    # The kernel never assigns this number, whereas the PID of a process that ended may be reused.
    ended = int(Path("/proc/sys/kernel/pid_max").read_text())
    claims = tuple("abcdef")
    for pid in (ended, os.getpid()):
        record = OwnerRecord("one", "/state/one", pid, claims if pid != os.getpid() else claims[:4])
        (files / "0000:3b:00.0").write_bytes(msgspec.json.encode(record))
        with pytest.raises(DeviceHeldError) as refused:
            acquire(agent(files, "other"), "x", [device()])
        error = str(refused.value)
        if pid == os.getpid():
            assert f"(pid {pid})" in error and error.endswith("run one agent per host") and "d; " in error
        else:
            assert (
                f"(pid {pid}, not running)" in error and "for claims a, b, c, d and 2 more; start that agent" in error
            )


def test_a_process_of_another_user_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    assert is_running(4242)


def test_only_claims_of_other_agents_are_foreign(files: Path) -> None:
    assert agent(files / "missing", "one").foreign_claims() == frozenset()
    owner = agent(files, "one")
    acquire(owner, "mine", [device()])
    acquire(agent(files, "other"), "theirs", [device("0000:af:00.0")])
    (files / "0000:5e:00.0").write_text("{")
    (files / "0000:5f:00.0").touch()
    assert owner.foreign_claims() == {"theirs"}
    simulated = SimulatedOwnership(files)
    assert simulated.foreign_claims() == {"mine", "theirs"}


def test_a_release_affects_no_other_owner_and_creates_no_file(files: Path) -> None:
    owner, other = agent(files, "one"), agent(files, "other")
    acquire(owner, "a", [device()])
    other.release("a", long_deadline())
    with pytest.raises(DeviceHeldError):
        acquire(other, "b", [device()])
    (files / "0000:3b:00.0").unlink()
    owner.release("a", long_deadline())
    assert not list(files.iterdir())


def test_a_missing_or_full_directory_is_reported(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RetryableError, match=r"missing/0000:3b:00.0: the owner of the device cannot be recorded: No such"
    ):
        acquire(agent(files / "missing", "one"), "a", [device()])

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RetryableError, match=r"0000:3b:00.0: the owner of the device cannot be recorded: No space"):
        acquire(agent(files, "one"), "a", [device()])


def test_other_users_cannot_lock_an_owner_file(files: Path) -> None:
    """A user who can read a file can lock it, and block every claim for its device."""
    before = os.umask(0)
    try:
        acquire(agent(files, "one"), "a", [device()])
        (files / "0000:af:00.0").touch(0o644)  # created by an earlier version
        acquire(agent(files, "one"), "b", [device("0000:af:00.0")])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o7777 for path in files.iterdir()} == {0o600}


def test_a_locked_owner_file_times_out(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LOCK_TIMEOUT_S", 0.05)
    owner = agent(files, "one")
    acquire(owner, "a", [device()])
    with (files / "0000:3b:00.0").open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="is locked by another process"):
            acquire(agent(files, "one"), "b", [device()])
    acquire(agent(files, "one"), "b", [device()])


def test_concurrent_agents_leave_one_owner_of_a_device(files: Path) -> None:
    winners: list[str] = []
    start = threading.Barrier(8)

    def attempt(name: str) -> None:
        start.wait()
        try:
            acquire(agent(files, name), name, [device(), device("0000:af:00.0")])
            winners.append(name)
        except DeviceHeldError:
            pass

    threads = [threading.Thread(target=attempt, args=(f"agent-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1


def test_owner_files_follow_the_ledger_at_startup(node: SimulatedNode, files: Path) -> None:
    node.preparer.prepare(claim("kept", "gpu-0"))
    owner = agent(files, "one")
    lost = next(device for device in node.devices.values() if device.name == "gpu-1")
    acquire(owner, "gone", [lost])
    assert owner.reconcile(node.ledger, node.lookup) == []
    (files / "0000:5e:00.0").write_text("{")
    assert owner.reconcile(node.ledger, node.lookup) == [], "a damaged file of a device without a claim"
    assert SimulatedOwnership(files).reconcile(node.ledger, node.lookup) == []
    other = agent(files, "other")
    assert other.foreign_claims() == {"kept"}
    acquire(other, "x", [lost])
    assert other.reconcile(node.ledger, node.lookup)[0].startswith("claim default/claim-kept (kept): ")


def test_a_start_releases_a_device_that_the_claim_does_not_hold(node: SimulatedNode, files: Path) -> None:
    """An agent was killed before its claim was in the ledger; then another device was allocated to the claim."""
    owner, other = agent(files, "one"), agent(files, "other")
    acquire(owner, "a", [node.devices["gpu-0"], node.devices["gpu-1"]])
    node.preparer.prepare(claim("a", "gpu-1", "gpu-2"))
    # The address of a device that is unplugged now is not known, so no device of the claim is released.
    unplugged = node.devices.pop("gpu-2")
    assert owner.reconcile(node.ledger, node.lookup) == []
    with pytest.raises(DeviceHeldError, match="for claims a"):
        acquire(other, "b", [node.devices["gpu-0"]])
    node.devices["gpu-2"] = unplugged
    assert owner.reconcile(node.ledger, node.lookup) == []
    acquire(other, "b", [node.devices["gpu-0"]])
    for name in ("gpu-1", "gpu-2"):
        with pytest.raises(DeviceHeldError, match="for claims a"):
            acquire(other, "b", [node.devices[name]])


def test_two_agents_never_prepare_the_same_device(node: SimulatedNode, tmp_path: Path, files: Path) -> None:
    node.ownership = agent(files, "one")
    node.start()
    second = SimulatedNode(tmp_path / "second")
    second.cdi = node.cdi
    second.ownership = agent(files, "other")
    second.start()
    node.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(DeviceHeldError, match="/state/one"):
        second.preparer.prepare(claim("b", "gpu-0"))
    assert not second.ledger.entries()
    assert second.preparer.recovery.recover().removed == ()
    assert node.usable("a")
    node.preparer.unprepare("a")
    assert second.preparer.prepare(claim("b", "gpu-0"))
    # A simulated agent on the same CDI directory keeps the specs of real devices.
    third = SimulatedNode(tmp_path / "third")
    third.cdi = node.cdi
    third.ownership = SimulatedOwnership(files)
    third.start()
    assert third.preparer.recovery.recover().removed == ()
    assert third.specs.claims().keys() == {"b"}


def sharing_node(root: Path, files: Path, name: str) -> SimulatedNode:
    node = SimulatedNode(root)
    node.ledger = JournalLedger(root / "state", "boot", shared_as=name)
    node.locks = KeyedLocks(root / "state" / "locks", process=name)
    node.ownership = agent(files, "one")
    node.start()
    return node


def test_a_locked_owner_file_affects_its_device_only(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, lock = threading.Event(), file_lock.lock

    def record_lock(handle: int, deadline: Deadline) -> bool:
        reached.set()
        return lock(handle, deadline)

    old, new = sharing_node(tmp_path, files, "old"), sharing_node(tmp_path, files, "new")
    handle = os.open(files / "0000:00:00.0", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(RetryableError, match="locked by another process"):
        old.preparer.prepare(claim("sick", "gpu-0"), Deadline.of(0.05))
    monkeypatch.setattr(ownership, "LOCK_TIMEOUT_S", 600.0)
    monkeypatch.setattr(ownership, "lock", record_lock)
    executor = DaemonExecutor(1, "test")
    waiting = executor.submit(old.preparer.prepare, claim("sick", "gpu-0"), Deadline.of(600))
    assert reached.wait(60)
    for node in (old, new):
        assert node.preparer.prepare(claim("other", "gpu-1"), long_deadline()) and node.preparer.unprepare(
            "other", long_deadline()
        )
    assert not waiting.done()
    os.close(handle)
    assert waiting.result(60) and new.preparer.unprepare("sick", long_deadline())
    executor.shutdown()


def test_a_claim_that_fails_to_start_leaves_owner_files_unchanged(files: Path) -> None:
    owner, other = agent(files, "one"), agent(files, "other")
    acquire(owner, "a", [device()])
    for devices in ([device(), device("0000:af:00.0")], [device()]):
        with pytest.raises(OSError, match="full"), owner.acquire("b", devices, long_deadline()):
            raise OSError("full")
        with pytest.raises(OSError, match="full"), owner.acquire("a", devices, long_deadline()):
            raise OSError("full")
    acquire(other, "c", [device("0000:af:00.0")])
    with pytest.raises(DeviceHeldError, match="for claims a"):
        acquire(other, "c", [device()])


def test_a_claim_that_starts_during_another_start_keeps_its_device(node: SimulatedNode, files: Path) -> None:
    owner, starting = agent(files, "one"), agent(files, "one")
    reconcilers: list[threading.Thread] = []
    with owner.acquire("a", [node.devices["gpu-0"]], long_deadline()) as unlock:
        reconcilers.append(threading.Thread(target=starting.reconcile, args=(node.ledger, node.lookup)))
        reconcilers[0].start()
        node.preparer.prepare(claim("a", "gpu-0"))  # the claim is added to the ledger only here
        unlock()
    reconcilers[0].join(60)
    with pytest.raises(DeviceHeldError, match="for claims a"):
        acquire(agent(files, "other"), "b", [node.devices["gpu-0"]])


def test_a_release_includes_a_device_missing_at_startup(node: SimulatedNode, files: Path) -> None:
    node.ownership = agent(files, "one")
    node.start()
    node.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    gone = node.devices.pop("gpu-0")
    node.ownership = agent(files, "one")
    node.crash_and_restart()
    assert node.ownership.reconcile(node.ledger, node.lookup) == []
    node.preparer.unprepare("a")
    acquire(agent(files, "other"), "b", [gone])


def test_a_device_that_returns_after_a_reboot_is_owned_again(node: SimulatedNode, files: Path) -> None:
    for operation in ("prepare", "mend"):
        node.ownership = agent(files, "one")
        node.start()
        claim_ = claim(operation, "gpu-0")
        node.preparer.prepare(claim_)
        device_ = node.devices.pop("gpu-0")
        (files / "0000:00:00.0").unlink()
        node.crash_and_restart()
        assert node.ownership.reconcile(node.ledger, node.lookup) == []
        node.devices["gpu-0"] = device_
        if operation == "prepare":
            assert node.preparer.prepare(claim_)
        else:
            assert node.preparer.recovery.repair().problems == ()
        with pytest.raises(DeviceHeldError, match=f"for claims {operation}"):
            acquire(agent(files, "other"), "b", [device_])
        node.preparer.unprepare(operation)


def test_a_claim_moved_by_another_agent_leaves_no_owner(tmp_path: Path, files: Path) -> None:
    old, new = sharing_node(tmp_path, files, "old"), sharing_node(tmp_path, files, "new")
    old.preparer.prepare(claim("a", "gpu-0"))
    new.preparer.unprepare("a")
    new.preparer.prepare(claim("a", "gpu-1"))
    old.preparer.unprepare("a")
    acquire(agent(files, "other"), "b", [old.devices["gpu-0"], old.devices["gpu-1"]])


def test_a_claim_prepared_by_another_agent_is_refused_permanently(tmp_path: Path, files: Path) -> None:
    old, new = sharing_node(tmp_path, files, "old"), sharing_node(tmp_path, files, "new")
    acquire(agent(files, "other"), "b", [old.devices["gpu-1"]])
    prepared = old.preparer.prepare(claim("a", "gpu-0"))
    # No later attempt of the new agent can succeed, even if gpu-1 is released.
    with pytest.raises(PermanentError, match=r"is prepared with other devices \(gpu-0\)"):
        new.preparer.prepare(claim("a", "gpu-1"))
    assert new.preparer.prepare(claim("a", "gpu-0")) == prepared
