"""Runs the parts of `make test` or `make test-rest`, each a make target, two at a time.

    python tests/run_parts.py NAME MAIN [OTHER...]

MAIN prints while it runs; the others run one after the other next to it. Their output is in target/test, and follows if
they fail. Every part runs, even if another one fails. The last lines name the duration of each part, the parts that
failed, and what did not run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LOGS = Path("target/test")
FURTHER = {
    "make test-all": "the tests above; cargo tests of all crates; lint and types",
    "make test-cluster": "scenarios on a two-node cluster with real Kubernetes binaries",
    "make test-packages": "packages, the systemd unit and the quickstarts in a clean root",
    "make test-vm": "a real kernel with PCI devices: hot-plug, vfio-pci, network interfaces of the host, containers",
    "make test-gpu": "real NVIDIA GPUs",
}
"""What each further command covers."""


class Part:
    """One make target."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        self.passed = False

    def run(self, output: int | None) -> None:
        began = time.monotonic()
        command = [os.environ.get("MAKE", "make"), "--no-print-directory", self.name]
        self.passed = subprocess.run(command, stdout=output, stderr=output, check=False).returncode == 0
        self.seconds = time.monotonic() - began


def main(name: str, first: str, *rest: str) -> int:
    began = time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    main_part, others = Part(first), [Part(other) for other in rest]
    thread = threading.Thread(target=_run_others, args=(others,))
    print(f"== make {first}" + (f", and at the same time: {' '.join(rest)}" if rest else ""), flush=True)
    thread.start()
    main_part.run(None)
    thread.join()
    for other in others:
        print(f"== make {other.name}: {'passed' if other.passed else 'FAILED'} ({_log(other)})", flush=True)
        if not other.passed:
            print(_log(other).read_text(errors="replace"), end="", flush=True)
    parts = [main_part, *others]
    durations = ", ".join(f"{part.name} {part.seconds:.0f} s" for part in parts)
    print(f"\nmake {name}: duration: {durations}, total {time.monotonic() - began:.0f} s")
    _print_further(name)
    failed = [part.name for part in parts if not part.passed]
    if failed:
        hint = "See the output above, after '== make PART'; each part is also a make target."
        print(f"make {name}: FAILED: {' '.join(failed)}. {hint}")
        return 1
    print(f"make {name}: passed: {' '.join(part.name for part in parts)}")
    return 0


def _run_others(parts: list[Part]) -> None:
    for part in parts:
        with _log(part).open("wb") as output:
            part.run(output.fileno())


def _log(part: Part) -> Path:
    return LOGS / f"{part.name}.log"


def _print_further(name: str) -> None:
    print(f"make {name}: not covered, and the command that covers it:")
    for command, what in FURTHER.items():
        if name == "test" or command != "make test-all":
            print(f"  {command:20}{what}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        sys.exit(130)
