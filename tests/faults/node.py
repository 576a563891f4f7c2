"""One node of the campaign: a standalone agent on a simulated host whose disk fails, and its guarantees to users.

The agent is a real process, restarted as often as a case needs. Only its hardware is simulated, outside the directories
whose disk fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dra_simulate
from dra_agent.errors import AgentError
from dra_agent.standalone.evaluation import INTERRUPTED
from dra_agent.standalone.protocol import Apply, Client, Delete, Get, ListClaims
from dra_simulate import mig, nvml
from faults.disk import Disk
from preloaded import Command

PROFILE = "b200"
DEADLINE_S = 600.0
"""For operations of seconds: a campaign runs for hours, on a machine with other load."""
MIG_GPU, VFIO_GPU = "0000:11:00.0", "0000:29:00.0"
FAILED_DISK_TIMEOUT_S = 5.0
"""For a claim on a disk that has failed, which may never become possible."""
POLL_INTERVAL_S = 0.05
DRIVER = "dra-agent.internal"
CONFIG = f"""
device_metadata = true
[[inventory.partition]]
mode = "mig"
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{MIG_GPU}"'
[[inventory.passthrough]]
when = 'device.attributes["resource.kubernetes.io"].pciBusID == "{VFIO_GPU}"'
"""
_OWN = f'device.attributes["{DRIVER}"]'
_SELECTORS = {
    "whole": f'{_OWN}.type == "gpu" && device.attributes["resource.kubernetes.io"].pciBusID != "{MIG_GPU}"',
    "slice": f'{_OWN}.type == "mig" && {_OWN}.profile == "1g.23gb"',
    "passed": f'{_OWN}.type == "vfio"',
}
_READY = ("Prepared", "Unhealthy")
_TIME_SLICE = {"apiVersion": f"{DRIVER}/v1", "kind": "GpuConfig", "timeSlicing": {"interval": "Short"}}


def device_class(name: str) -> dict[str, Any]:
    """Return a class of one kind of device, by its name in `_SELECTORS`."""
    selectors = [{"cel": {"expression": _SELECTORS[name]}}]
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    return {**meta, "spec": {"selectors": selectors}}


def claim(name: str, of_class: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a claim for one device of a class, with configuration for this driver."""
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of_class}}]}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**meta, "spec": {"devices": devices}}


CLASSES = [device_class(name) for name in _SELECTORS]
HELD = [claim("held-whole", "whole"), claim("held-slice", "slice")]
CLAIMS = [
    claim("whole", "whole"),
    claim("slice", "slice"),
    claim("passed", "passed"),
    claim("sliced-in-time", "whole", _TIME_SLICE),
]


class BrokenPromiseError(AssertionError):
    """A guarantee of the agent does not hold."""


class Node:
    """The directories, the running agent, and the claims that the agent has confirmed."""

    def __init__(self, folder: Path, library: Path, *, is_preloaded: bool = False) -> None:
        """If `is_preloaded`, agents are forks of a process that has loaded the library."""
        self._is_preloaded = is_preloaded
        self.state, self.cdi, self.log = folder / "state", folder / "cdi", folder / "log"
        self.host = self.state / "simulated" / PROFILE
        dra_simulate.build(PROFILE, self.host)
        self.cdi.mkdir(exist_ok=True)
        self._config = folder / "config.toml"
        self._config.write_text(CONFIG)
        self.disk = Disk(library, folder / "disk", roots=[self.state, self.cdi], excluded=[self.state / "simulated"])
        self.agent: subprocess.Popen[bytes] | Command | None = None
        self.prepared: dict[str, list[str]] = {}
        """CDI ids of claims reported as prepared and not released since, by claim name."""
        self.accepted: set[str] = set()
        """Claims whose apply was confirmed, and whose delete was not requested."""
        self.unconfirmed: set[str] = set()
        """Claims whose apply or delete was requested, without a response."""

    def start(self) -> bool:
        """Start the agent and wait until it is ready; False if it exited instead."""
        arguments = ["run", "--standalone", "--config", str(self._config), "--state-dir", str(self.state)]
        arguments += ["--cdi-dir", str(self.cdi), "--simulate", PROFILE, "--node-name", "node-a"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DRA_AGENT_")}
        variables |= self.disk.environment
        with self.log.open("wb") as log:
            if self._is_preloaded:
                self.agent = Command(arguments, stdout=log, stderr=log, env=variables)
            else:
                command = [sys.executable, "-m", "dra_agent", *arguments]
                self.agent = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
        end = time.monotonic() + DEADLINE_S
        while b"info ready" not in self.log.read_bytes():
            if self.agent.poll() is not None:
                return False
            if time.monotonic() > end:
                raise BrokenPromiseError(f"not ready within {DEADLINE_S:.0f} s")
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        """Stop the agent as a service manager does; it may have exited already."""
        if self.agent is None:
            return
        if self.agent.poll() is None:
            self.agent.send_signal(signal.SIGTERM)
        try:
            self.agent.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.agent.kill()
            self.agent.wait()
            raise BrokenPromiseError(f"SIGTERM did not end the agent within {DEADLINE_S:.0f} s") from None

    def close(self) -> None:
        """Kill the agent and close the disk, in any state."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
        if self.agent is not None:
            self.agent.wait()
        self.disk.close()

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects one by one; an error is a response too, and a claim may get its devices later."""
        for value in objects:
            name = value["metadata"]["name"]
            is_claim = value["kind"] == "ResourceClaim"
            if is_claim:
                self.unconfirmed.add(name)
            try:
                with Client(self.state / "agent.sock") as client:
                    client.call(Apply([value]))
                    if is_claim:
                        self.unconfirmed.discard(name)
                        self.accepted.add(name)
                        claim_deadline = ClaimDeadline(self.disk)
                        while (view := client.call(Get("default", name, POLL_INTERVAL_S)))["phase"] not in _READY:
                            if view["phase"] == "Failed" or claim_deadline.is_over():
                                break
                        else:
                            self.prepared[name] = view["cdi_device_ids"]
            except AgentError:
                continue

    def delete(self, *names: str) -> None:
        """Request the release of claims, one by one."""
        for name in names:
            self.prepared.pop(name, None)
            self.accepted.discard(name)
            self.unconfirmed.add(name)
            try:
                claim_deadline = ClaimDeadline(self.disk)
                with Client(self.state / "agent.sock") as client:
                    released = client.call(Delete("ResourceClaim", name, "default", POLL_INTERVAL_S))
                while not released and not claim_deadline.is_over():
                    time.sleep(POLL_INTERVAL_S)
                    released = name not in self.views()
                if released:
                    self.unconfirmed.discard(name)
            except AgentError:
                continue

    def views(self) -> dict[str, dict[str, Any]]:
        """Return every claim of the agent by name."""
        with Client(self.state / "agent.sock") as client:
            return {view["name"]: view for view in client.call(ListClaims())}

    def wait_until_settled(self) -> dict[str, dict[str, Any]]:
        """Wait until no claim is in progress: each is prepared, refused, or pending. Return all of them."""
        end = time.monotonic() + DEADLINE_S
        while any(map(_is_in_progress, (views := self.views()).values())):
            if time.monotonic() > end:
                in_progress = {name: (view["phase"], view["message"]) for name, view in views.items()}
                raise BrokenPromiseError(f"claims do not settle: {in_progress}")
            time.sleep(POLL_INTERVAL_S)
        return views

    def check_promises(self) -> None:
        """After a restart on a working disk: confirmed results hold, and no device has two holders."""
        views = self.wait_until_settled()
        for name in self.accepted:
            _require(name in views, f"claim {name} was accepted and is gone")
        for name, ids in self.prepared.items():
            _require(views[name]["phase"] == "Prepared", f"claim {name} was prepared: {views[name]['message']}")
            _require(views[name]["cdi_device_ids"] == ids, f"claim {name} has other CDI ids than those reported")
            self._check_usable(name, views[name])
        for name, view in views.items():
            known = name in self.accepted or name in self.unconfirmed
            _require(known, f"claim {name} was released, and exists again: {view['phase']}")
            # An agent that was killed while it allocated cannot know whether the claim was the cause.
            phase, message = view["phase"], view["message"]
            is_parked = (phase, message) == ("Failed", INTERRUPTED)
            _require(is_parked or phase in ("Prepared", "Pending"), f"claim {name}: {phase} {message}")
        holders = Counter(d["device"] for view in views.values() for d in view["devices"])
        _require(all(count == 1 for count in holders.values()), f"a device has two holders: {holders}")
        prepared = [view for view in views.values() if view["phase"] == "Prepared"]
        self._check_partitions(sum("mig" in str(view["devices"]) for view in prepared))
        self._check_log()

    def release_all(self) -> None:
        """Delete every claim, and stop; then nothing of them may remain."""
        for name in list(self.views()):
            self.delete(name)
        unreleased = self.wait_until_settled()
        _require(not unreleased, f"claims that cannot be released: {unreleased}")
        self.stop()  # a file that a running agent is writing is not a leftover
        leftovers = [path.name for path in self.cdi.rglob("*") if path.is_file()]
        _require(not leftovers, f"CDI files of released claims: {leftovers}")
        files = [path for path in self.state.rglob("*") if path.is_file() and "simulated" not in path.parts]
        temporary = [path for path in files if path.name.endswith(".tmp") or ".corrupt" in path.name]
        _require(not temporary, f"files that should not be left: {temporary}")
        self._check_partitions(0)
        self.prepared.clear()
        self.accepted.clear()
        self.unconfirmed.clear()

    def _check_usable(self, name: str, view: dict[str, Any]) -> None:
        for cdi_id in view["cdi_device_ids"]:
            kind, _, device = cdi_id.partition("=")
            specs = [json.loads(path.read_text()) for path in self.cdi.glob("*.json")]
            found = [one for spec in specs if spec["kind"] == kind for one in spec["devices"] if one["name"] == device]
            _require(len(found) == 1, f"claim {name}: {len(found)} CDI devices are named {cdi_id}")

    def _check_partitions(self, expected: int) -> None:
        device = next(d for d in nvml.read(self.host / "lib").devices if d.pci.address == MIG_GPU)
        layout = mig.read(self.host).get(device.uuid)
        made = len(layout.gpu_instances) if layout is not None else 0
        _require(made == expected, f"{made} MIG partitions for {expected} claims that hold one")

    def _check_log(self) -> None:
        text = self.log.read_text()
        _require("Traceback" not in text, f"a traceback in the log:\n{text}")


class ClaimDeadline:
    """The deadline of a claim: long while the disk works, short once it has failed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._end = time.monotonic() + DEADLINE_S
        self._failed = False

    def is_over(self) -> bool:
        if not self._failed and self._disk.was_hit:
            self._failed, self._end = True, time.monotonic() + FAILED_DISK_TIMEOUT_S
        return time.monotonic() >= self._end


def _is_in_progress(view: dict[str, Any]) -> bool:
    # An agent that has just started listens before it has tried every pending claim.
    return view["phase"] in ("Allocated", "Deleting") or view["message"].startswith("is not tried yet")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenPromiseError(message)
