"""Run the fuzz targets and report what they found.

make fuzz MINUTES=5                                  # every target, five minutes each
make fuzz MINUTES=5 ARGS='--target quantity'         # one of them
make fuzz ARGS='--target quantity --input FILE'      # one input, to reproduce a failure
make fuzz ARGS='--target quantity --minimise'        # replace the committed corpus by a minimised one
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz import corpus, libfuzzer
from fuzz.targets import PYTHON, ROOT, TARGETS, WORK, Target, build_drivers, install_atheris

MEMORY = Path("/dev/shm")
"""Targets write here if this file system exists: a disk is many times slower."""


class Campaign:
    """Built targets and their working corpora."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = targets
        self.environment = dict(os.environ)
        if any(target in PYTHON for target in targets):
            paths = (str(install_atheris()), str(ROOT / "tests"), os.environ.get("PYTHONPATH", ""))
            self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if any(target not in PYTHON for target in targets):
            self._drivers = build_drivers()

    def command(self, target: Target) -> list[str]:
        """Return the command that drives a target."""
        if target in PYTHON:
            return [sys.executable, "-m", "fuzz.drive", target.name, *target.options()]
        return [str(self._drivers / target.name), *target.options()]

    def fuzz(self, target: Target, seconds: int, inputs: int) -> libfuzzer.Outcome:
        """Fuzz one target; new inputs are kept in its working corpus."""
        corpora = [WORK / "corpus" / target.name, unpacked(target)]
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            return libfuzzer.run(
                self.command(target),
                corpora,
                WORK / "failures" / target.name,
                seconds=seconds,
                inputs=inputs,
                environment={**self.environment, "TMPDIR": folder},
            )

    def minimise(self, target: Target) -> int:
        """Replace the committed corpus by fewer inputs with the same coverage, and new ones; return their number.

        Inputs named `past-...` failed once. They are kept.
        """
        committed = unpacked(target)
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            fresh = Path(folder) / target.name
            corpora = [committed, WORK / "corpus" / target.name]
            log = WORK / "failures" / target.name / "minimise.log"
            libfuzzer.minimise(self.command(target), fresh, corpora, log, self.environment)
            inputs = corpus.read_files([*committed.glob("past-*"), *fresh.iterdir()])
        corpus.write(corpus.archive(target.name), inputs)
        return len(inputs)


def unpacked(target: Target) -> Path:
    """Return a folder with the committed inputs of a target."""
    folder = WORK / "committed" / target.name
    corpus.unpack(corpus.archive(target.name), folder)
    return folder


def main(arguments: list[str]) -> int:
    """Run a campaign; return 1 if a target failed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1, help="for each target")
    parser.add_argument("--inputs", type=int, default=0, help="end a target after so many inputs (default: no limit)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--input", type=Path, help="run one input of one target, and nothing else")
    parser.add_argument("--minimise", action="store_true", help="replace the committed corpus by a minimised one")
    options = parser.parse_args(arguments)
    campaign = Campaign([TARGETS[name] for name in options.target or TARGETS])
    if options.input is not None:
        (target,) = campaign.targets
        command = [*campaign.command(target), str(options.input)]
        return subprocess.run(command, cwd=ROOT, env=campaign.environment, check=False).returncode
    if options.minimise:
        for target in campaign.targets:
            print(f"{target.name}: {campaign.minimise(target)} inputs in {corpus.archive(target.name)}")
        return 0
    failures: list[str] = []
    seconds = max(1, round(options.minutes * 60))
    print(f"{'target':14}{'inputs':>12}{'edges':>8}{'new files':>11}{'seconds':>9}  failure")
    for target in campaign.targets:
        outcome = campaign.fuzz(target, seconds, options.inputs)
        counts = f"{outcome.inputs:>12,}{outcome.coverage:>8}{outcome.new_files:>11}{outcome.seconds:>9.0f}"
        print(f"{target.name:14}{counts}  {'none' if not outcome.failed else 'yes'}", flush=True)
        if outcome.failed:
            failures.append(describe(target, outcome))
    print(f"\nNew inputs are in {WORK}/corpus. " + (f"{len(failures)} targets FAILED." if failures else "No failure."))
    print("\n\n".join(failures))
    return 1 if failures else 0


def describe(target: Target, outcome: libfuzzer.Outcome) -> str:
    """Return the failure and the command that reproduces it."""
    if outcome.failure is None:
        tail = "\n".join(outcome.log.read_text(errors="replace").splitlines()[-5:])
        return f"{target.name}: libFuzzer ended without an input that fails: {outcome.log}\n{tail}"
    lines = outcome.log.read_text(errors="replace").splitlines()
    panics = [index for index, line in enumerate(lines) if "panicked at" in line or line.startswith(" === Uncaught")]
    reason = "\n".join(lines[panics[0] : panics[0] + 4]) if panics else lines[-1]
    command = f"make fuzz ARGS='--target {target.name} --input {outcome.failure}'"
    return f"{target.name}: {reason}\nreproduce: {command}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
