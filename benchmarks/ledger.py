"""Measures how long a claim waits for the ledger: durable start and completion, compared with write and fdatasync.

All variants alternate in one run on one file system, so that a busy disk slows all of them; compare the ratios. The
plain loop appends as many bytes as the ledger records, which is the minimum for any journal.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from results import Measure, measure, this_machine
from results_table import publish
from run_directory import run_directory

from dra_agent import _native

ENTRY: dict[str, Any] = {
    "namespace": "default",
    "name": "training-0",
    "devices": [
        {"pool": "gpu-host-1/gpu", "device": "", "request": "gpu"},
        {"pool": "gpu-host-1/nic", "device": "", "request": "nic"},
    ],
}
PAYLOAD = msgspec.json.encode({"cdi": ["dra-agent.internal/claim=x"] * 4, "version": 1, "setups": []})
HELD = 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to measure")
    args = parser.parse_args()
    machine = this_machine()
    with run_directory(args.dir) as directory:
        folder = Path(directory)
        (folder / "shared").mkdir()
        ledger = _native.Ledger.open(directory, "boot")
        shared = _native.Ledger.open_shared(str(folder / "shared"), "boot", "bench", 1.0)
        for number in range(HELD):
            prepare(ledger, f"held-{number}")
            with_lease(shared, lambda: prepare(shared, f"held-{number}"))  # noqa: B023 - called at once
        size = recorded(folder, ledger)
        bare = Bare(folder / "bare", size)
        json_file = WholeFile(folder, HELD)
        uids = (f"uid-{number}" for number in itertools.count())
        uid = ""

        def claim() -> None:
            prepare(ledger, uid)

        variants: dict[str, Callable[[], None]] = {
            "bare write + fdatasync": bare.append,
            "ledger: start + complete": claim,
            "shared: turn, start + complete": lambda: with_lease(shared, lambda: prepare(shared, uid)),
            "shared: a turn and nothing in it": lambda: with_lease(shared, lambda: None),
            "whole JSON file, as the peers": json_file.write,
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        releases: list[float] = []
        for uid in itertools.islice(uids, args.rounds):
            for name, call in variants.items():
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            ledger.release(uid)
            releases.append(time.perf_counter() - begin)
            with_lease(shared, lambda: shared.release(uid))  # noqa: B023
            if ledger.compaction_due:
                ledger.compact()  # what the agent does in a quiet moment
            if shared.compaction_due:
                with_lease(shared, shared.compact)
        times["ledger: release"] = releases
        bare_name = "bare write + fdatasync"
        base = milliseconds(times.pop(bare_name))
        measures = [
            measure(f"{name}, p{share * 100:.0f}", "ms", taken, at=share, compared_with=bare_name, reference=base)
            for name, taken in ((name, milliseconds(taken)) for name, taken in times.items())
            for share in (0.5, 0.99)
        ]
        print(f"{args.rounds} rounds, {HELD} other claims held, {size} bytes recorded per claim")
        publish("ledger", [*measures, together(ledger, bare, args.rounds // 4)], machine)
        ledger.close()
    return 0


def together(ledger: _native.Ledger, bare: Bare, rounds: int, threads: int = 8) -> Measure:
    """Measure concurrent claims, which share a sync."""

    def work(thread: int) -> None:
        for number in range(rounds // threads):
            prepare(ledger, f"{thread}-{number}")

    begin = time.perf_counter()
    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    shared = (time.perf_counter() - begin) / (rounds // threads * threads)
    begin = time.perf_counter()
    for _ in range(rounds):
        bare.append()
    alone = (time.perf_counter() - begin) / rounds
    name = f"{threads} threads at once, a claim"
    return measure(name, "ms", [shared * 1e3], compared_with="bare loop of one thread", reference=[alone * 1e3])


def milliseconds(seconds: list[float]) -> list[float]:
    return [one * 1e3 for one in seconds]


def prepare(ledger: _native.Ledger, uid: str) -> None:
    devices = [{**device, "device": f"{uid}-{device['request']}"} for device in ENTRY["devices"]]
    ledger.start(msgspec.json.encode({**ENTRY, "uid": uid, "devices": devices}), False)
    ledger.complete(uid, PAYLOAD)


def with_lease(ledger: _native.Ledger, call: Callable[[], object]) -> None:
    """Measure an agent on a shared ledger while no other agent runs."""
    ledger.acquire_lease(1.0)
    call()
    ledger.release_lease()


def recorded(folder: Path, ledger: _native.Ledger) -> int:
    """Return the number of bytes that one claim needs in the journal."""

    def used() -> int:
        journal = max((folder / "ledger").glob("journal-*"))
        return len(journal.read_bytes().rstrip(b"\0"))

    before = used()
    prepare(ledger, "held-size")
    return used() - before


class Bare:
    """The minimum for durability: append and fdatasync."""

    def __init__(self, path: Path, size: int) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._bytes = b"x" * size

    def append(self) -> None:
        os.write(self._handle, self._bytes)
        os.fdatasync(self._handle)


class WholeFile:
    """All claims in one JSON file: temporary file, fsync, rename, fsync of the directory."""

    def __init__(self, folder: Path, claims: int) -> None:
        self._folder = folder
        self._value = {f"uid-{n}": {**ENTRY, "payload": PAYLOAD.decode()} for n in range(claims)}

    def write(self) -> None:
        temporary = self._folder / "checkpoint.tmp"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, msgspec.json.encode(self._value))
        os.fsync(handle)
        os.close(handle)
        temporary.rename(self._folder / "checkpoint")
        handle = os.open(self._folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
