"""Mutation tests of the packages of the product: whether a test fails when the behavior of a line changes.

    make mutants-python                                            # every mutant of the five packages (hours)
    make mutants-python ARGS='--package prepare --sample 200'      # a sample of one package
    make mutants-python ARGS='--mutant dra_agent/prepare/locks.py#17'

The campaign first records which test runs which line (stored below target/mutants, and recorded again if the test or a
module that it runs has changed). Each mutant then runs against the tests of the package's own folder that run its line,
fastest first, until one fails: those of `make test`, then those that it leaves out. The last lines compare the two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mutants.operators import Module, Mutant, modules
from mutants.plugin import DEADLINE, FOLDER, MODE, OPTIONS, PACKAGES
from mutants.tracing import VARIABLE
from mutants.tree import ROOT, SOURCE, Tree

MUTATED = ("prepare", "kubelet_plugin", "reclaim", "publish", "inventory", "device_setup")
EXTRA_TESTS = {
    "prepare": (
        "tests/ledger/test_journal_ledger.py",
        "tests/cli/test_config.py",
        "tests/cli/test_claims.py",
        "tests/device_setup/test_limits.py",
    ),
    "reclaim": ("tests/docs/test_generated_pages.py",),
}
"""Tests of a package in other folders: those of a command that calls little more than one function of the package."""
TARGET = ROOT / "target" / "mutants"
DEAD = frozenset({"killed", "timeout"})
TEST_DEADLINE_S = os.environ.get(DEADLINE, "20")
"""How long a test waits for an event that a mutant may never cause."""


@dataclass
class TestRun:
    """The duration of one test, and the code that it runs."""

    seconds: float
    lines: dict[str, set[int]]
    functions: dict[str, set[int]] = field(default_factory=dict)


class Record:
    """Which test runs which code."""

    def __init__(self) -> None:
        self.tests: dict[str, TestRun] = {}
        self.at_import: dict[str, set[int]] = {}
        self.excluded: dict[str, str] = {}

    def add(self, raw: dict[str, Any]) -> None:
        for file, lines in raw.pop("")["lines"].items():
            self.at_import.setdefault(file, set()).update(lines)
        for test, found in raw.items():
            if found["outcome"] != "passed":
                self.excluded[test] = found["outcome"]
                continue
            functions: dict[str, set[int]] = {}
            for entry in found.get("functions", ()):
                file, _, first = entry.rpartition(":")
                functions.setdefault(file, set()).add(int(first))
            lines = {file: set(numbers) for file, numbers in found["lines"].items()}
            self.tests[test] = TestRun(found["seconds"], lines, functions)

    def covering(self, mutant: Mutant, budget: float, among: Callable[[str], bool]) -> list[str]:
        """Return the tests that run the mutated code, fastest first: those that fit into `budget` seconds.

        For code that runs when modules are imported: all tests, starting with those that run other code of the file.
        """
        wanted = range(mutant.lines[0], mutant.lines[1] + 1)
        chosen = []
        for test, recorded in self.tests.items():
            if not among(test):
                continue
            lines, functions = recorded.lines.get(mutant.file, set()), recorded.functions.get(mutant.file, set())
            if not mutant.in_body:
                covers = True  # constants and fields are used in other files too
            else:
                covers = not lines.isdisjoint(wanted) or not functions.isdisjoint(mutant.functions)
            if covers:
                chosen.append(test)
        chosen.sort(key=lambda test: (mutant.file not in self.tests[test].lines, self.tests[test].seconds))
        spent = 0.0
        kept: list[str] = []
        for test in chosen:
            seconds = self.tests[test].seconds
            if spent + seconds <= budget:
                kept.append(test)
                spent += seconds
        return kept or chosen[:1]

    def fresh(self, mutant: Mutant) -> bool:
        """Whether the mutated code also runs when modules are imported and tests collected."""
        wanted = range(mutant.lines[0], mutant.lines[1] + 1)
        return not mutant.in_body or not self.at_import.get(mutant.file, set()).isdisjoint(wanted)


def test_files(package: str) -> list[str]:
    """Return the test files that must detect every change of the package by themselves."""
    own = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / package).rglob("test_*.py"))
    return [*own, *EXTRA_TESTS.get(package, ())]


def left_out(files: list[str]) -> frozenset[str]:
    """Return the tests of these files that `make test` leaves out."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "thorough", "--collect-only", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the tests cannot be collected:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


def load_record(target: Path, workers: int, files: list[str]) -> Record:
    """Return which tests run which code; record the files that have no current record."""
    product = {file: _hash([SOURCE / file]) for file in modules(SOURCE, list(MUTATED))}
    folder = target / "record"
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, Path] = {}
    missing: queue.SimpleQueue[str] = queue.SimpleQueue()
    for file in files:
        helpers = [*(ROOT / file).parent.glob("*.py")]
        helpers = [path for path in helpers if not path.name.startswith("test_")]
        known[file] = folder / f"{_hash([ROOT / file, *sorted(helpers)])}.json"
        if not _is_current(known[file], product):
            known[file].unlink(missing_ok=True)
            missing.put(file)
    if missing.qsize():
        print(f"recording what the tests of {missing.qsize()} files run", flush=True)
        threads = [
            threading.Thread(target=_record_files, args=(Tree(target / f"recorder-{number}"), missing, known, product))
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record = Record()
    for file, path in known.items():
        if not path.exists():
            raise SystemExit(f"{file}: its record could not be made; the output is above")
        recorded = json.loads(path.read_text())
        at_import = recorded[""]
        lines, then = at_import["lines"], at_import["product"]
        at_import["lines"] = {name: numbers for name, numbers in lines.items() if product.get(name) == then.get(name)}
        record.add(recorded)
    return record


def _is_current(path: Path, product: dict[str, str]) -> bool:
    """Whether a record exists, and the modules whose functions its tests run have not changed since."""
    if not path.exists():
        return False
    recorded = json.loads(path.read_text())
    modules_then: dict[str, str] = recorded.pop("")["product"]
    used = {file for found in recorded.values() for file in found["lines"]}
    used |= {entry.rpartition(":")[0] for found in recorded.values() for entry in found.get("functions", ())}
    return all(product.get(file) == modules_then.get(file) for file in used)


def _record_files(tree: Tree, missing: queue.SimpleQueue[str], known: dict[str, Path], product: dict[str, str]) -> None:
    tree.build()
    while True:
        try:
            file = missing.get_nowait()
        except queue.Empty:
            return
        trace, output = tree.folder / "trace", known[file].with_suffix(".new")
        trace.unlink(missing_ok=True)
        folders = [f"{tree.source}/dra_agent/{name}/" for name in MUTATED]
        variables = {
            **tree.environment(),
            FOLDER: str(tree.source),
            PACKAGES: " ".join(MUTATED),
            MODE: f"record {output}",
            VARIABLE: os.pathsep.join([str(trace), *folders]),
        }
        command = [str(tree.python), "-m", "pytest", *OPTIONS, file]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
        if not output.exists():
            print(f"{file}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}", flush=True)
            continue
        recorded = json.loads(output.read_text())
        recorded[""]["product"] = product
        output.write_text(json.dumps(recorded))
        output.rename(known[file])


class Worker:
    """A pytest process that waits for mutants."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self._tree = Tree(folder)
        self._tree.build()
        requests, self._requests = os.pipe()
        self._responses, responses = os.pipe()
        variables = {
            **self._tree.environment(),
            FOLDER: str(self._tree.source),
            PACKAGES: " ".join(MUTATED),
            MODE: f"serve {requests} {responses}",
            DEADLINE: TEST_DEADLINE_S,
        }
        command = [str(self._tree.python), "-m", "pytest", *OPTIONS, *files]
        self._log = (self._tree.folder / "log").open("wb")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=variables, pass_fds=(requests, responses), stdout=self._log, stderr=self._log
        )
        os.close(requests)
        os.close(responses)
        self._reader = os.fdopen(self._responses)

    def wait_until_ready(self) -> None:
        """Raise SystemExit if the tests cannot be collected."""
        if not self._reader.readline():
            log = (self._tree.folder / "log").read_text(errors="replace")
            raise SystemExit(f"the tests cannot be collected:\n{log[-4000:]}")

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the verdict on a mutant."""
        os.write(self._requests, (json.dumps(request) + "\n").encode())
        line = self._reader.readline()
        if not line:
            raise SystemExit(f"a worker ended; see {self._tree.folder}/log")
        response: dict[str, Any] = json.loads(line)
        return response

    def close(self) -> None:
        """Stop the process."""
        os.close(self._requests)
        self._process.wait()
        self._reader.close()
        self._log.close()


@dataclass
class Result:
    """The result of one mutant: `killed`, `survived`, `timeout`, `no test` or `error`."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float
    tests: int
    in_first_tier: bool
    """Whether the tests of `make test` detected it."""


def run_mutants(
    target: Path, record: Record, thorough: frozenset[str], chosen: list[Mutant], workers: int, budget: float
) -> list[Result]:
    """Run the mutants and return the result of each; `thorough` has the tests that run last."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    results: list[Result] = []
    files = sorted({test.partition("::")[0] for test in record.tests})
    pool = [Worker(target / f"worker-{number}", files) for number in range(workers)]
    threads = [
        threading.Thread(target=_work, args=(worker, record, thorough, waiting, results, budget)) for worker in pool
    ]
    for worker in pool:
        worker.wait_until_ready()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in pool:
        worker.close()
    return sorted(results, key=lambda result: (result.mutant.file, result.mutant.number))


def _work(
    worker: Worker,
    record: Record,
    thorough: frozenset[str],
    waiting: queue.SimpleQueue[Mutant],
    results: list[Result],
    budget: float,
) -> None:
    while True:
        try:
            mutant = waiting.get_nowait()
        except queue.Empty:
            return
        first = record.covering(mutant, budget, lambda test: test not in thorough)
        rest = record.covering(mutant, budget, lambda test: test in thorough)
        response: dict[str, Any] = {"verdict": "no test", "by": "", "seconds": 0.0}
        in_first_tier = False
        for tests in filter(None, (first, rest)):
            before = response["seconds"]
            response = worker.run(
                {
                    "file": mutant.file,
                    "number": mutant.number,
                    "tests": tests,
                    "seconds": {test: record.tests[test].seconds for test in tests},
                    "fresh": record.fresh(mutant),
                }
            )
            response["seconds"] += before
            if response["verdict"] in DEAD:
                in_first_tier = tests is first
                break
        number = len(first) + len(rest)
        result = Result(mutant, response["verdict"], response["by"], response["seconds"], number, in_first_tier)
        results.append(result)
        if result.verdict not in DEAD:
            print(f"{result.verdict.upper()} ({number} tests, {result.seconds} s) {mutant.name} {mutant}", flush=True)
        elif not result.in_first_tier:
            print(f"SURVIVED make test, then {result.verdict} by {result.by}: {mutant.name} {mutant}", flush=True)
        if len(results) % 50 == 0:
            print(f"{len(results)} mutants", flush=True)


def _hash(paths: list[Path], more: str = "") -> str:
    found = hashlib.sha256(more.encode())
    for path in paths:
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:20]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", choices=MUTATED, help="only this one; can be repeated")
    parser.add_argument("--file", help="only files whose path contains this")
    parser.add_argument("--sample", type=int, help="number of mutants of each package, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutant", action="append", help="only this one, FILE#NUMBER; can be repeated")
    parser.add_argument("--again", type=Path, help="only mutants that this results file does not show as killed")
    parser.add_argument("--tests", action="append", help="run only this test file; can be repeated")
    parser.add_argument("--workers", type=int, default=4, help="number of parallel workers; tests mostly wait")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for one mutant")
    parser.add_argument("--target", type=Path, default=TARGET, help="the folder of copies and records")
    parser.add_argument("--results", type=Path, help="the file of the results; default: TARGET/results.json")
    args = parser.parse_args()
    target = args.target.absolute()
    failed = 0
    lines: list[str] = []
    everything: list[dict[str, Any]] = []
    names, texts = set(args.mutant or ()), set()
    if args.again is not None:
        texts = {entry["text"] for entry in json.loads(args.again.read_text()) if entry["verdict"] not in DEAD}
    for package in args.package or MUTATED:
        found = [
            mutant
            for file in modules(SOURCE, [package])
            for mutant in Module(SOURCE, file).mutants
            if (args.file or "") in file
        ]
        total = len(found)
        if names or args.again is not None:
            found = [mutant for mutant in found if mutant.name in names or str(mutant) in texts]
        elif args.sample is not None and args.sample < len(found):
            found = random.Random(args.seed).sample(found, args.sample)
        if not found:
            continue
        files = args.tests or test_files(package)
        record = load_record(target, args.workers, files)
        for test, outcome in record.excluded.items():
            if outcome != "skipped":
                print(f"excluded: it {outcome} without a mutant: {test}", flush=True)
        started = time.monotonic()
        results = run_mutants(target, record, left_out(files), found, min(args.workers, len(found)), args.budget)
        counts = Counter(result.verdict for result in results)
        dead = counts["killed"] + counts["timeout"]
        lines.append(
            f"{package}: {len(results)} of {total} mutants, {counts['killed']} killed, {counts['timeout']} timeouts, "
            f"{counts['survived']} survived, {counts['no test']} without a test, {counts['error']} errors: "
            f"{100 * dead / len(results):.1f} % in {time.monotonic() - started:.0f} s"
        )
        first_tier = sum(result.in_first_tier for result in results)
        lines[-1] += f"; make test alone {first_tier} of {dead}"
        print(lines[-1], flush=True)
        failed += dead < 0.9 * len(results) or first_tier < 0.9 * dead
        everything += [
            {
                "name": result.mutant.name,
                "text": str(result.mutant),
                "verdict": result.verdict,
                "by": result.by,
                "in_first_tier": result.in_first_tier,
                "seconds": result.seconds,
            }
            for result in results
        ]
        (args.results or target / "results.json").write_text(json.dumps(everything, indent=1))
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
