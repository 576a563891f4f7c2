"""Measures the topology scan and one uevent as ratios in one run on generated trees: the first output of `make bench`.

Each program reads the same host in a separate process that measures its own time. The programs alternate, so that a
machine that slows down affects all of them. Ratios use the minimum times, which other load affects least.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from results import Measure, Target, measure, this_machine
from results_table import publish
from scan_tree import Built, build

HERE = Path(__file__).resolve().parent
TURNS = 5
GHW = "github.com/jaypipes/ghw@v0.26.0"


@dataclass
class Contender:
    """A program that prints a time in ns and the number of functions per line."""

    name: str
    command: list[str]
    rounds: int
    times: list[int] = field(default_factory=list)
    missing: str | None = None

    def turn(self, functions: int) -> None:
        if self.missing:
            return
        done = subprocess.run([*self.command, str(self.rounds)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.missing = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            return
        for line in done.stdout.splitlines():
            time, seen = map(int, line.split())
            assert seen == functions, f"{self.name} saw {seen} of {functions} functions"
            self.times.append(time)

    def measure(self, name: str, other: Contender, target: Target | None) -> Measure:
        """Compare the minimum times, which other load affects least."""
        ours, theirs = ([time / 1000 for time in one.times] for one in (self, other))
        return measure(name, "us", ours, at=0.0, compared_with=other.name, reference=theirs, target=target)


def main() -> int:
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="dra-agent-bench-") as folder:
        work = Path(folder)
        ours = build_ours()
        publish("scan", [*compare_scans(work, ours), *time_event(work, ours)], machine)
    # A missed target is reported and not a failure: a busy machine must not prevent the benchmarks that follow.
    return 0


def compare_scans(work: Path, ours: Path) -> list[Measure]:
    tree = build(work / "small", functions=137, wanted=12)
    sysfs = str(tree.root / "sys")
    scan = Contender("dra-agent", [str(ours), "scan", sysfs], 40)
    pathlib = [sys.executable, str(HERE / "scan_pathlib.py")]
    others = [
        (Contender("bare open, read, close", [str(ours), "bare", sysfs], 40), 1.5, False),
        (optional("libpci", lambda: [build_libpci(work), sysfs], 8), 5.0, True),
        (optional("ghw", lambda: [build_ghw(work), str(tree.root), "all"], 4), 20.0, True),
        (optional("ghw, PCI only", lambda: [build_ghw(work), str(tree.root), "pci"], 4), None, True),
        (Contender("pathlib", [*pathlib, "every", sysfs], 4), 20.0, True),
        (Contender("pathlib in two stages", [*pathlib, "wanted", sysfs], 4), None, True),
    ]
    for _ in range(TURNS):
        for contender in (scan, *(other for other, _, _ in others)):
            contender.turn(tree.functions)
    scanned = f"scan of {tree.functions} PCI functions"
    measures = []
    for other, limit, slower in others:
        if other.missing:
            print(f"{other.name}: skipped: {other.missing}")
            continue
        target = None
        if limit is not None:
            target = Target("ratio", "at most", 1 / limit if slower else limit)
        name = f"{scanned}, {other.name}"
        measures.append(scan.measure(name, other, target))
    return measures


def time_event(work: Path, ours: Path) -> list[Measure]:
    tree = build(work / "large", functions=4096, wanted=360)
    sysfs = str(tree.root / "sys")
    scan = Contender("full scan", [str(ours), "scan", sysfs], 5)
    gpu = middle(tree)
    switch = "/".join(gpu.split("/")[:3])
    events = [
        Contender(f"event on a {part}", [str(ours), "event", sysfs, f"/devices/{place}"], 60)
        for part, place in (("GPU", gpu), ("switch", switch))
    ]
    snapshot = [sys.executable, str(HERE / "scan_live.py"), sysfs, f"/devices/{gpu}"]
    events.append(Contender("GPU, snapshot in Python", snapshot, 60))
    for _ in range(TURNS):
        for contender in (scan, *events):
            contender.turn(tree.functions)
    measures = []
    for event in events:
        if event.missing:
            print(f"{event.name}: failed: {event.missing}")
            continue
        measures.append(
            event.measure(f"{event.name}, {tree.functions} functions", scan, Target("ratio", "at most", 0.01))
        )
    return measures


def middle(tree: Built) -> str:
    """Return a GPU from the middle of the tree."""
    return tree.wanted[len(tree.wanted) // 2 // 3 * 3]


def optional(name: str, command: Callable[[], list[str]], rounds: int) -> Contender:
    try:
        return Contender(name, command(), rounds)
    except LookupError as error:
        return Contender(name, [], rounds, missing=str(error))


def build_ours() -> Path:
    cargo = os.environ.get("CARGO", "cargo")
    built = subprocess.run(
        [
            cargo,
            "build",
            "--locked",
            "--quiet",
            "--release",
            "--package",
            "dra-topology",
            "--bench",
            "scan",
            "--message-format=json",
        ],
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    return next(
        Path(message["executable"])
        for message in messages
        if message.get("executable") and message["target"]["name"] == "scan"
    )


def build_libpci(work: Path) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        raise LookupError("no C compiler")
    program = work / "scan_libpci"
    command = [compiler, "-O2", str(HERE / "scan_libpci.c"), "-o", str(program), "-lpci"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        raise LookupError("libpci's headers are not installed (apt install libpci-dev)")
    return str(program)


def build_ghw(work: Path) -> str:
    go = shutil.which("go")
    if go is None:
        raise LookupError("Go is not installed")
    module = work / "ghw"
    program = work / "scan_ghw"
    if program.exists():
        return str(program)
    module.mkdir(exist_ok=True)
    shutil.copy(HERE / "scan_ghw.go", module / "main.go")
    for command in (["mod", "init", "scan"], ["get", GHW], ["build", "-o", str(program), "."]):
        done = subprocess.run([go, *command], cwd=module, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LookupError(f"go {command[0]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return str(program)


if __name__ == "__main__":
    sys.exit(main())
