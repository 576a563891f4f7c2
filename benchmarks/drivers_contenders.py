"""The processes of the two drivers that `drivers.py` compares, and the probe that acts as the kubelet for both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drivers_claims import Claim
from process_memory import family, pages_once_mib, rollup

REGISTRATION_TIMEOUT_S = 60.0
PAGES_ONCE = "pages once"
"""The memory that a cgroup is charged for the processes of a driver."""


@dataclass
class Contender:
    """A driver: its program with the flags that both support, and separate directories."""

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
        """Start and register the driver; return the seconds from the start of the process to its registration."""
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
        """Stop the driver as systemd and the kubelet do, and wait until it exits."""
        if self.process is None:
            return
        probe.ask(do="forget", driver=self.driver)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.process = None

    def kill(self) -> None:
        """Kill the driver if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def memory(self) -> dict[str, float]:
        """Return MiB of the process and its children: fields of proc_pid_smaps_rollup(5), and pages counted once."""
        assert self.process is not None
        pids = family(self.process.pid)
        each = [rollup(pid) for pid in pids]
        sums = {name: sum(one[name] for one in each) for name in ("Rss", "Pss", "Anonymous")}
        return {**sums, PAGES_ONCE: pages_once_mib(pids)}


class Probe:
    """The Go program that acts as the kubelet (godriver/probe): one request, one response."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        self._send(question)
        return self._answer()

    @contextmanager
    def registering(self, driver: str, registry: Path) -> Iterator[Callable[[], int]]:
        """Wait for a driver's socket; yield a function that waits for the registration and returns its time in ns."""
        self._send({"do": "register", "driver": driver, "registry": str(registry), "seconds": REGISTRATION_TIMEOUT_S})
        yield lambda: int(self._answer()["at"])

    def calls(self, driver: str, claims: Sequence[Claim], steps: Sequence[str], rounds: int = 1) -> list[list[int]]:
        """Run the steps for each claim, one claim after the other; return the ns of every call by step."""
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
