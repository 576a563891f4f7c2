"""The Python interface of the ledger: stored claims, refused calls, and recovery after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra_agent import _native
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.prepare.ledger import DeviceHeldError, HeldDevice, JournalLedger, LedgerEntry
from small_file_system import fill, small_file_system


def claim(uid: str, device: str = "gpu-0") -> LedgerEntry:
    return LedgerEntry(uid, "team", f"claim-{uid}", (HeldDevice("node/gpu", device, "gpu"),))


def test_a_completed_claim_survives_a_restart(tmp_path: Path) -> None:
    with JournalLedger(tmp_path, "boot-1") as ledger:
        ledger.start(claim("a"), durable=False)
        ledger.complete("a", {"cdi": ["vendor/claim=a"]})
        ledger.start(claim("b", "gpu-1"), durable=True)
        assert not ledger.release("nobody")
    with JournalLedger(tmp_path, "boot-2") as ledger:
        assert [(entry.uid, entry.state) for entry in ledger.entries()] == [("a", "completed"), ("b", "started")]
        stored = ledger.get("a")
        assert stored is not None
        assert stored.payload == {"cdi": ["vendor/claim=a"]}
        assert stored.devices == claim("a").devices
        assert ledger.report.started == ("b",)
        assert ledger.report.earlier_boot == ("a", "b")
        assert ledger.report.problems() == []
        assert ledger.release("a")
        assert ledger.get("a") is None


def test_a_held_device_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    with JournalLedger(tmp_path, "boot") as ledger:
        ledger.start(claim("a"), durable=True)
        with pytest.raises(DeviceHeldError, match=r"gpu-0 of pool node/gpu is held by claim team/claim-a \(uid a\)"):
            ledger.start(claim("b"), durable=True)
        assert [entry.uid for entry in ledger.entries() if entry.devices[0].device == "gpu-0"] == ["a"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with JournalLedger(tmp_path, "boot"), pytest.raises(PermanentError, match=rf"pid {os.getpid()}"):
        JournalLedger(tmp_path, "boot")


def test_invalid_calls_change_nothing(tmp_path: Path) -> None:
    native = _native.Ledger.open(str(tmp_path), "boot")
    for entry in (
        b"",
        b"[]",
        b"{}",
        b'{"uid": 1}',
        b'{"uid": ""}',
        b'{"uid": "a", "devices": [{"pool": "p"}]}',
        b"\xff",
    ):
        with pytest.raises(_native.LedgerUsageError):
            native.start(entry)
    with pytest.raises(_native.LedgerUsageError):
        native.complete("never-started")
    assert native.entries() == b"[]"
    native.close()
    with pytest.raises(_native.LedgerUsageError, match="closed"):
        native.entries()


def test_an_unwritable_state_directory_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(RetryableError, match=str(blocked)):
        JournalLedger(blocked / "state", "boot")


def not_writable(ledger: JournalLedger) -> str | None:
    return ledger.report.not_writable


def test_a_full_disk_refuses_claims_and_recovers(tmp_path: Path) -> None:
    with small_file_system(tmp_path) as small:
        with JournalLedger(small, "boot") as ledger:
            ledger.start(claim("a"), durable=False)
            ledger.complete("a", {"kept": True})
            filler = fill(small)
            # The journal has preallocated space. A claim that no longer fits is refused and changes nothing ...
            with pytest.raises(RetryableError, match="free some space"):
                for number in range(1000):
                    ledger.start(claim(f"c{number}", f"other-{number}"), durable=False)
                    ledger.complete(f"c{number}", "x" * 400)
            held = {entry.uid for entry in ledger.entries()}
            assert "a" in held and len(held) > 50
            assert not_writable(ledger)
            # ... and a claim that was recorded can be released.
            assert all(ledger.release(uid) for uid in held)
            assert ledger.entries() == []
            filler.unlink()
            ledger.start(claim("d", "gpu-2"), durable=True)
            assert not_writable(ledger) is None
        with JournalLedger(small, "boot") as ledger:
            assert {entry.uid for entry in ledger.entries()} == {"d"}


def test_an_agent_that_starts_on_a_full_disk_releases_every_claim(tmp_path: Path) -> None:
    with small_file_system(tmp_path) as small:
        with JournalLedger(small, "boot") as ledger:
            for number in range(300):
                ledger.start(claim(f"c{number}", f"gpu-{number}"), durable=False)
                ledger.complete(f"c{number}", "x" * 400)
        fill(small)
        with JournalLedger(small, "boot") as ledger:
            assert len(ledger.entries()) == 300
            assert all(ledger.release(entry.uid) for entry in ledger.entries())
        with JournalLedger(small, "boot") as ledger:
            assert ledger.entries() == []


def test_sigkill_at_any_moment_keeps_acknowledged_claims(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from dra_agent.prepare.ledger import JournalLedger
        from dra_agent.prepare.ledger import LedgerEntry, HeldDevice
        ledger = JournalLedger(Path(sys.argv[1]), "boot")
        first = len(ledger.entries())
        for number in range(first, 100000):
            ledger.start(LedgerEntry(f"{number:06}", "n", "c", (HeldDevice("p", str(number), "r"),)), durable=False)
            ledger.complete(f"{number:06}", None)
            print(number, flush=True)
    """)
    acknowledged = -1
    for attempt in range(4):
        process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20 + 13 * attempt):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        output = process.communicate()[0].split("\n")
        acknowledged = max([acknowledged, *(int(line) for line in output[:-1] if line)])
        with JournalLedger(tmp_path, "boot") as ledger:
            completed = [entry.uid for entry in ledger.entries() if entry.state == "completed"]
            assert completed[: acknowledged + 1] == [f"{number:06}" for number in range(acknowledged + 1)]
            assert ledger.report.problems() == []


def test_concurrent_threads_share_the_disk_but_not_devices(tmp_path: Path) -> None:
    with JournalLedger(tmp_path, "boot") as ledger:

        def prepare(number: int) -> bool:
            try:
                ledger.start(claim(str(number), f"gpu-{number % 10}"), durable=False)
            except DeviceHeldError:
                return False
            ledger.complete(str(number), number)
            return True

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(prepare, range(100)))
        assert sum(results) == 10
        ledger.compact()
        assert len(ledger.entries()) == 10
