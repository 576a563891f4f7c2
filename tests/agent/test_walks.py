"""The walks of ARCHITECTURE.md are what agents do: each step is called, after the one before it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import preloaded
from agent import call_recorder
from agent.call_recorder import Calls
from agent.conftest import Start
from agent.test_kubernetes_mode import allocate, prepare, registered, unprepare
from dra_agent.simulate import inject
from eventually import DEADLINE_S, eventually
from fake_apiserver.fake import FakeApi
from reclaim.agent_process import CLASS, claim
from reclaim.metadata.aws import FakeAws

PAGE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
STEP = re.compile(r"^\d+\. `([\w/]+\.py:[\w.]+)`", re.MULTILINE)
NIC = "0000:00:05.0"


def walk(title: str) -> list[str]:
    """Return the first function of each step."""
    section = PAGE.partition(f"### {title}")[2].partition("\n#")[0]
    steps = STEP.findall(section)
    assert len(steps) == len(re.findall(r"^\d+\.", section, re.MULTILINE)) > 5, "each step begins with a function"
    return steps


PREPARE, UEVENT, NOTICE, APPLY = map(walk, ("NodePrepareResources", "A uevent", "A notice", "`dra-agent claim apply`"))

UEVENTS = """
import os, socket
from dra_agent.agent import refresh_loop
from dra_agent.topology import Uevent, UeventBatch

class Uevents:
    def __init__(self):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(PATH)
    def fileno(self):
        return self._socket.fileno()
    def receive(self):
        return UeventBatch((Uevent("remove", self._socket.recv(4096).decode(), "pci"),), False)
    def close(self):
        self._socket.close()

started = refresh_loop.RefreshLoop.__init__
def start(self, hardware, **options):
    started(self, hardware, **(options | {"follows_kernel": True}))
refresh_loop.RefreshLoop.__init__ = start
refresh_loop.UeventSocket = Uevents
"""
"""Has the agent receive uevents of the simulated host from the test."""


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    service = FakeAws()
    yield service
    service.close()


def send(uevents: Path, devpath: str) -> None:
    """Send the removal of a device."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as kernel:
        kernel.sendto(devpath.encode(), os.fspath(uevents))


def wait_for_walk(calls: Calls, steps: list[str]) -> None:
    """Wait until the steps were called in this order."""

    def missing() -> str:
        called = iter(calls.all())
        return next((step for step in steps if step not in called), "")

    eventually(lambda: not missing(), lambda: f"{missing()} was not called after the step before it: {calls.all()}")


def test_a_call_of_the_kubelet_a_uevent_and_a_notice(
    calls: Calls, start: Start, fake_api: FakeApi, aws: FakeAws, tmp_path: Path, state: Path, short_path: Path
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}})
    config, uevents, kubelet = tmp_path / "agent.toml", short_path / "u", short_path / "k"
    config.write_text(f'[reclaim]\ncloud = "aws"\nendpoint = "{aws.endpoint}"\nevict = "auto"\n')
    flags = ["--no-standalone", "--config", str(config), "--kubelet-dir", str(kubelet)]
    flags += ["--kubeconfig", str(fake_api.kubeconfig(tmp_path / "kubeconfig"))]
    steps = call_recorder.patch(calls.file, {*PREPARE, *UEVENT, *NOTICE})
    agent = start(*flags, patch=f"{steps}PATH = {os.fspath(uevents)!r}\n{UEVENTS}").ready()

    def published() -> set[str]:
        return {device["name"] for slice_ in fake_api.objects("resourceslices") for device in slice_["spec"]["devices"]}

    async def scenario() -> None:
        async with registered(kubelet) as driver:

            async def prepared_claim(name: str) -> tuple[str, str, str]:
                claim = allocate(fake_api, name)
                calls.forget()
                assert not (await prepare(driver, claim)).error
                calls.keep("prepare")
                return claim

            async def release(claim: tuple[str, str, str]) -> None:
                fake_api.remove("resourceclaims", claim[1], claim[0])
                assert not await unprepare(driver, claim)

            prepared = await prepared_claim("one")
            for number in range(call_recorder.REPEATS):
                await release(prepared)
                prepared = await prepared_claim(f"repeat-{number}")
            wait_for_walk(calls, PREPARE)

            eventually(lambda: len(published()) == 2, agent.log_text)
            inject.unplug(state / "simulated" / "vm-1gpu", NIC)
            calls.forget()
            send(uevents, f"/devices/pci0000:00/{NIC}")
            eventually(lambda: len(published()) == 1, agent.log_text)
            wait_for_walk(calls, UEVENT)

            calls.forget()
            when = datetime.now(UTC) + timedelta(seconds=120)
            aws.set(spot={"action": "terminate", "time": when.strftime("%Y-%m-%dT%H:%M:%SZ")})
            agent.wait_for("reclaim: notice")
            await release(prepared)
            wait_for_walk(calls, NOTICE)
            calls.keep("notice")

    asyncio.run(scenario())


def test_claim_apply(calls: Calls, start: Start, tmp_path: Path, state: Path) -> None:
    patch = call_recorder.patch(calls.file, APPLY)
    start(patch=patch).ready()
    file = tmp_path / "claims.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [CLASS, claim("one")]}))
    calls.forget()
    with (tmp_path / "output").open("w") as output:
        arguments = ["claim", "apply", "-f", str(file), "--state-dir", str(state)]
        command = preloaded.Command(arguments, stdout=output, stderr=output, patch=patch)
        assert command.wait(DEADLINE_S) == 0, (tmp_path / "output").read_text()
    wait_for_walk(calls, APPLY)
