"""The two drivers that `drivers.py` compares, as processes, and the probe that plays the kubelet for both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivers_claims import Claim

REGISTERED_WITHIN = 60.0


@dataclass
class Contender:
    """A driver: its program with the flags that both understand, and folders of its own."""

    name: str
    program: Sequence[str]
    driver: str
    node: str
    folder: Path
    kubeconfig: Path
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def registry(self) -> Path:
        return self.folder / "kubelet/plugins_registry"

    def start(self, probe: Probe) -> float:
        """Start it and register it; gives the seconds from the start of the process until it was registered."""
        for name in ("kubelet/plugins_registry", "kubelet/plugins", "cdi", "state"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        flags = {
            "kubeconfig": self.kubeconfig,
            "node-name": self.node,
            "driver-name": self.driver,
            "kubelet-dir": self.folder / "kubelet",
            "cdi-dir": self.folder / "cdi",
            "state-dir": self.folder / "state",
        }
        command = [*self.program, *(f"--{flag}={value}" for flag, value in flags.items())]
        with probe.registering(self.driver, self.registry) as registered, (self.folder / "log").open("ab") as log:
            began = time.monotonic_ns()
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.variables})
            return (registered() - began) / 1e9

    def stop(self, probe: Probe) -> None:
        """End it as systemd and the kubelet do, and wait for it."""
        if self.process is None:
            return
        probe.ask(do="forget", driver=self.driver)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.process = None

    def kill(self) -> None:
        """End it in any case."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def memory(self) -> dict[str, float]:
        """MiB resident, by share and of its own alone, of the process and those that it started; smaps_rollup(5)."""
        assert self.process is not None
        each = [rollup(pid) for pid in _family(self.process.pid)]
        return {name: sum(one[name] for one in each) for name in ("Rss", "Pss", "Anonymous")}


class Probe:
    """The Go program that plays the kubelet (godriver/probe): one question, one answer."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        self._send(question)
        return self._answer()

    @contextmanager
    def registering(self, driver: str, registry: Path) -> Iterator[Any]:
        """Wait for a driver's socket; gives a call that waits for the registration and gives its instant, in ns."""
        self._send({"do": "register", "driver": driver, "registry": str(registry), "seconds": REGISTERED_WITHIN})
        yield lambda: self._answer()["at"]

    def calls(self, driver: str, claims: Sequence[Claim], steps: Sequence[str], rounds: int = 1) -> list[list[int]]:
        """Make the steps of every claim in turn; gives ns of every call, for each of the steps."""
        question = {"do": "calls", "driver": driver, "claims": [asdict(claim) for claim in claims]}
        took: list[list[int]] = self.ask(**question, steps=list(steps), rounds=rounds)["took"]
        return took

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _send(self, question: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if answer.get("error"):
            raise RuntimeError(answer["error"])
        return answer


def rollup(pid: int) -> dict[str, float]:
    """MiB by field of one process; smaps_rollup(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


def _family(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in lists for child in file.read_text().split()]
    return [pid, *(member for child in children for member in _family(int(child)))]
