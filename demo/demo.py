"""`make demo`: all steps on this machine, from hardware detection to a container, a SIGKILL of the agent, and cleanup.

It runs the command `dra-agent` as a user would and leaves no files. Exits with 1 if a step failed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
AGENT = Path(sys.executable).with_name("dra-agent")
PROFILE = "dgx-h100"
START_TIMEOUT_S = 30.0


class StepFailedError(Exception):
    """A step did not have the expected result."""


@dataclass
class Demo:
    """One run: a state directory, its agent, and the result of each step."""

    directory: Path
    profile: str | None = None
    agent: subprocess.Popen[bytes] | None = None
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    @property
    def cdi_dir(self) -> Path:
        return self.directory / "cdi"

    def run(self, *arguments: str, answers: tuple[int, ...] = (0,), show: bool = True) -> str:
        """Run `dra-agent ARGUMENTS`, show command and output as a user sees them, and return its standard output."""
        if show:
            print(f"\n$ dra-agent {' '.join(arguments)}", flush=True)
        environment = {**os.environ, "DRA_AGENT_STATE_DIR": str(self.state_dir), "COLUMNS": "140"}
        result = subprocess.run(
            [AGENT, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=100, check=False
        )
        if show:
            print((result.stdout + result.stderr).rstrip())
        if result.returncode not in answers:
            raise StepFailedError(f"exit {result.returncode}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def ask(self, *arguments: str, answers: tuple[int, ...] = (0,)) -> Any:
        """Run a command and return its JSON output."""
        return json.loads(self.run(*arguments, "-o", "json", answers=answers, show=False))

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[str], None]]:
        """Run one step; its notes become its line in the summary."""
        print(f"\n=== {what}", flush=True)
        notes: list[str] = []
        try:
            yield notes.append
        except Exception as error:  # noqa: BLE001 - a failed step is reported and does not end the demo
            print(f"FAILED: {error}", flush=True)
            self.outcomes.append(("FAILED", f"{what}: {error or type(error).__name__}".splitlines()[0]))
        else:
            self.outcomes.append(("ok", f"{what}{': ' + '; '.join(notes) if notes else ''}"))

    def start(self) -> float:
        """Start the agent, wait until it accepts connections, and return the seconds that this took."""
        host = ["--simulate", self.profile] if self.profile else []
        command: list[str | Path] = [
            AGENT,
            "run",
            "--standalone",
            "--state-dir",
            self.state_dir,
            "--cdi-dir",
            self.cdi_dir,
            *host,
        ]
        log = (self.directory / "agent.log").open("ab")
        began = time.monotonic()
        self.agent = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        log.close()
        while time.monotonic() < began + START_TIMEOUT_S:
            if self.agent.poll() is not None:
                raise StepFailedError(f"the agent ended: {self.log_tail()}")
            if self.answers():
                return time.monotonic() - began
            time.sleep(0.01)
        raise StepFailedError(f"the agent did not start within {START_TIMEOUT_S:.0f} s: {self.log_tail()}")

    def answers(self) -> bool:
        """Return whether an agent listens; the socket file of a killed agent does not count."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.state_dir / "agent.sock")) == 0

    def stop(self, how: signal.Signals) -> int:
        """Stop the agent and return its exit code."""
        if self.agent is None:
            raise StepFailedError("no agent is running")
        self.agent.send_signal(how)
        code = self.agent.wait(20)
        self.agent = None
        return code

    def log_tail(self) -> str:
        log = self.directory / "agent.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else "no log"


def main() -> int:
    """Run all steps and print one line for each."""
    with tempfile.TemporaryDirectory(prefix="dra-demo-") as directory:
        demo = Demo(Path(directory))
        for made in (demo.state_dir, demo.cdi_dir):
            made.mkdir()
        try:
            steps(demo)
        finally:
            if demo.agent is not None:
                demo.stop(signal.SIGKILL)
        print("\n=== Summary")
        for outcome, line in demo.outcomes:
            print(f"{outcome:6} {line}")
        return 0 if all(outcome == "ok" for outcome, _ in demo.outcomes) else 1


def steps(demo: Demo) -> None:
    """Run the steps in order."""
    with demo.step("Detect accelerators on this machine") as note:
        devices = demo.ask("devices")["devices"]
        accelerators = [device for device in devices if device["family"] != "nic"]
        if accelerators:
            note(f"{len(accelerators)} found, using real hardware")
        else:
            demo.profile = PROFILE
            note(f"none found, using a simulated host: {PROFILE}")
    host = ["--simulate", demo.profile] if demo.profile else []

    with demo.step("Start the agent in standalone mode") as note:
        note(f"ready after {demo.start() * 1000:.0f} ms")
    if demo.agent is None:
        return

    with demo.step("Read the PCIe and NUMA topology") as note:
        demo.run("topology", *host)
        topology = demo.ask("topology", *host)
        note(f"{len(topology['devices'])} PCI functions, {len(topology['numa_nodes'])} NUMA nodes")

    with demo.step("List the devices that can be claimed") as note:
        demo.run("devices", *host)
        note(f"{len(demo.ask('devices', *host)['devices'])} devices")

    with demo.step("Apply the example DeviceClasses") as note:
        files = [word for file in sorted((EXAMPLES / "classes").glob("*.yaml")) for word in ("-f", short(file))]
        demo.run("claim", "apply", *files)
        note(f"{len(demo.ask('claim', 'list', '--classes'))} classes")

    with demo.step("Apply the example claims; claims that fit are allocated and prepared") as note:
        for file in sorted((EXAMPLES / "claims").glob("*.yaml")):
            # 1: the claim is stored, but this host can never satisfy it.
            demo.run("claim", "apply", "-f", short(file), answers=(0, 1))
        prepared = held(demo)
        if demo.profile and "gpu-and-nic-one-switch" not in prepared:
            raise StepFailedError("a GPU and a NIC below one switch were not allocated")
        note(f"{len(prepared)} prepared, {len(demo.ask('claim', 'list')) - len(prepared)} pending")

    with demo.step("Explain a claim that does not fit") as note:
        pending = {claim["name"]: claim for claim in demo.ask("claim", "list") if claim["phase"] == "Pending"}
        waiting = pending.get("two-gpus-one-root") or next(iter(pending.values()))
        path = demo.directory / "waiting.json"
        path.write_text(json.dumps({**waiting["claim"], "status": {}}))
        if not demo.run("explain", "-f", str(path), answers=(1,)).strip():
            raise StepFailedError("explain printed nothing")
        note(f"{waiting['name']}: {waiting['message']}")

    with demo.step("Print the CDI device IDs of the prepared claims") as note:
        demo.run("claims")
        note(f"{sum(len(ids) for ids in held(demo).values())} IDs")

    with demo.step("Run a container with a CDI device") as note:
        name, ids = next(iter(held(demo).items()))
        # Without a container runtime, the command prints the edits that a runtime would apply.
        shown = demo.run("cdi", "try", "--cdi-dir", str(demo.cdi_dir), *ids[:1])
        if not shown.strip():
            raise StepFailedError("cdi try printed nothing")
        note(f"claim {name}")

    with demo.step("Kill the agent with SIGKILL while claims are prepared, and restart it") as note:
        before = held(demo)
        demo.stop(signal.SIGKILL)
        (spec := next(demo.cdi_dir.glob("*.json"))).unlink()
        demo.start()
        if held(demo) != before:
            raise StepFailedError(f"before {sorted(before)}, after {sorted(held(demo))}")
        if not spec.exists():
            raise StepFailedError(f"{spec.name} was deleted and not restored")
        note(f"all {len(before)} prepared claims kept their IDs; a deleted CDI file is restored")

    with demo.step("Release all claims") as note:
        claims = [(claim["name"], claim["namespace"]) for claim in demo.ask("claim", "list")]
        for namespace in sorted({namespace for _, namespace in claims}):
            demo.run("claim", "delete", "-n", namespace, *(name for name, of in claims if of == namespace))
        left = sorted(path.name for path in demo.cdi_dir.iterdir())
        if left or demo.ask("claims"):
            raise StepFailedError(f"left behind: {left}")
        note("no claims or CDI files remain")

    with demo.step("Stop the agent with SIGTERM") as note:
        code = demo.stop(signal.SIGTERM)
        if code != 0:
            raise StepFailedError(f"exit {code}: {demo.log_tail()}")
        note("exit 0")


def held(demo: Demo) -> dict[str, list[str]]:
    """Return the CDI device IDs of each prepared claim."""
    claims = demo.ask("claim", "list")
    return {claim["name"]: claim["cdi_device_ids"] for claim in claims if claim["phase"] == "Prepared"}


def short(path: Path) -> str:
    """Return a path as a user in the repository would type it."""
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
