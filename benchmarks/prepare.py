"""Measures how long a claim waits for prepare: in this process, on the durable ledger, compared with file operations.

The bare loop does the minimum for any driver: for prepare, check the device's nodes, write the CDI file with a
rename, and append one record with fdatasync; for a repeat, check the nodes and read the CDI file; for unprepare,
remove it and append one record with fdatasync. Both alternate in one run on one file system; compare the ratios.
Transport is not included: every driver also needs time for the kubelet's call and to read the claim from an API server.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import Measure, this_machine
from results import measure as measured
from results_table import publish
from run_directory import run_directory

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.locks import KeyedLocks
from dra_agent.prepare.ownership import DeviceOwnership

DRIVER = "dra-agent.internal"
POOL = "node-a/gpu"
NODES = ("/dev/nvidia{}", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
GPUS = 8
TMPFS = Path("/dev/shm")
"""The file system for owner files, which are under /run on a real host."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--held", type=int, default=64, help="claims that stay prepared during the run")
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the file system to measure")
    args = parser.parse_args()
    print(f"one GPU per claim, {args.held} other claims held, {args.rounds} rounds")
    machine, measures = this_machine(), list[Measure]()
    for title, shared_as in (("one agent", None), ("shared ledger", "bench")):
        with run_directory(args.dir) as directory, tempfile.TemporaryDirectory(dir=TMPFS) as owners:
            measures += report(title, run(Path(directory), Path(owners), args, shared_as))
    publish("prepare", measures, machine)


def make_preparer(
    root: Path, owners: Path, ledger: JournalLedger, devices: dict[str, Device], *, shared_as: str | None = None
) -> Preparer:
    """Return a preparer with its specs and state below `root`, and owner files in `owners`."""
    return Preparer(
        DRIVER,
        ledger,
        SpecDirectory(root / "cdi", DRIVER),
        lambda pool, name: devices.get(name),
        node=POOL.partition("/")[0],
        host=Host(dev=root / "dev"),
        edit_providers=EditProviders(Host(dev=root / "dev"), directories=[root / "cdi"]),
        device_locks=KeyedLocks(root / "state" / "locks", process=shared_as) if shared_as else None,
        ownership=DeviceOwnership(owners, root / "state", lambda: "bench"),
    )


def run(root: Path, owners: Path, args: argparse.Namespace, shared_as: str | None) -> dict[str, dict[str, list[float]]]:
    devices = make_devices(root, GPUS + args.held)
    with JournalLedger(root / "state", "boot", shared_as=shared_as) as ledger:
        preparer = make_preparer(root, owners, ledger, devices, shared_as=shared_as)
        for number in range(args.held):
            preparer.prepare(claim(f"held-{number}", f"gpu-{GPUS + number}"))
        bare = Bare(root / "bare", devices["gpu-0"], preparer, root / "cdi")
        return measure(preparer, bare, ledger, args.rounds)


class Bare:
    """Only the file operations of one claim."""

    def __init__(self, folder: Path, device: Device, preparer: Preparer, specs: Path) -> None:
        folder.mkdir()
        self.nodes = [node.host_path for node in device.nodes]
        self.file = str(folder / "claim.json")
        self.temporary = str(folder / "claim.tmp")
        preparer.prepare(claim("sample", "gpu-0"))
        self.spec = SpecDirectory(specs, DRIVER).read("sample") or b""
        preparer.unprepare("sample")
        self.journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.record = b"x" * 700

    def prepare(self) -> None:
        for path in self.nodes:
            os.lstat(path)
        handle = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(handle, self.spec)
        os.close(handle)
        os.rename(self.temporary, self.file)  # noqa: PTH104 - bare
        self._append()

    def repeat(self) -> None:
        for path in self.nodes:
            os.lstat(path)
        handle = os.open(self.file, os.O_RDONLY)
        os.read(handle, 1 << 16)
        os.close(handle)

    def unprepare(self) -> None:
        os.unlink(self.file)  # noqa: PTH108 - bare
        self._append()

    def _append(self) -> None:
        os.write(self.journal, self.record)
        os.fdatasync(self.journal)


def measure(preparer: Preparer, bare: Bare, ledger: JournalLedger, rounds: int) -> dict[str, dict[str, list[float]]]:
    times: dict[str, dict[str, list[float]]] = {
        step: {"dra-agent": [], "bare": []} for step in ("prepare", "prepare again", "unprepare")
    }
    for number in range(rounds):
        wanted = claim(f"uid-{number}", f"gpu-{number % GPUS}")
        for step, ours, theirs in (
            ("prepare", lambda: preparer.prepare(wanted), bare.prepare),  # noqa: B023 - called within the round
            ("prepare again", lambda: preparer.prepare(wanted), bare.repeat),  # noqa: B023
            ("unprepare", lambda: preparer.unprepare(wanted["metadata"]["uid"]), bare.unprepare),  # noqa: B023
        ):
            pair: list[tuple[str, Callable[[], object]]] = [("dra-agent", ours), ("bare", theirs)]
            for name, call in pair if number % 2 else reversed(pair):
                began = time.perf_counter()
                call()
                times[step][name].append(time.perf_counter() - began)
        ledger.compact()
    return times


def report(title: str, times: dict[str, dict[str, list[float]]]) -> list[Measure]:
    return [
        measured(
            f"{step}, {title}, p{share * 100:.0f}",
            "us",
            [one * 1e6 for one in sides["dra-agent"]],
            at=share,
            compared_with="its file operations only",
            reference=[one * 1e6 for one in sides["bare"]],
        )
        for step, sides in times.items()
        for share in (0.5, 0.99)
    ]


def make_devices(root: Path, count: int) -> dict[str, Device]:
    (root / "dev").mkdir()
    devices = {}
    for number in range(count):
        paths = [path.format(number) for path in NODES]
        for path in paths:
            (root / path.lstrip("/")).touch()
        nodes = tuple(DeviceNode(path, str(root / path.lstrip("/")), "gpu") for path in paths)
        uuid = {"uuid": f"GPU-00000000-0000-0000-0000-{number:012}"}
        address = f"0000:{number:02x}:00.0"
        devices[f"gpu-{number}"] = Device(f"gpu-{number}", "gpu", "nvidia", address, {}, nodes=nodes, identity=uuid)
    return devices


def claim(uid: str, device: str) -> dict[str, Any]:
    result = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device}
    return {
        "metadata": {"name": f"claim-{uid}", "namespace": "default", "uid": uid},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


if __name__ == "__main__":
    main()
