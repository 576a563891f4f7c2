"""A real agent in Kubernetes mode, with a fake kubelet on its sockets and a fake API server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from agent.conftest import AgentProcess, ServiceManager, Start
from dra_simulate import inject
from eventually import eventually, eventually_async
from fake_apiserver.fake import FakeApi
from kubelet_plugin.fake_kubelet import Driver, FakeKubelet

DRIVER = "dra-agent.internal"
GPU = "gpu-0000-00-04-0"


@pytest.fixture
def kubernetes(start: Start, fake_api: FakeApi, tmp_path: Path, kubelet_dir: Path) -> Callable[..., AgentProcess]:
    """Start an agent in Kubernetes mode."""
    credentials = fake_api.kubeconfig(tmp_path / "kubeconfig")

    def run(*flags: str, **options: Any) -> AgentProcess:
        connection = ("--kubelet-dir", str(kubelet_dir), "--kubeconfig", str(credentials))
        return start("--no-standalone", *connection, "--metrics-address", "127.0.0.1:0", *flags, **options)

    return run


def allocate(api: FakeApi, name: str, device: str = GPU, driver: str = DRIVER, **devices: Any) -> tuple[str, str, str]:
    """Create an allocated claim in the API server, and return (namespace, name, uid)."""
    pool = f"node-a/{device.partition('-')[0]}"
    result = {"request": "gpu", "driver": driver, "pool": pool, "device": device}
    claim = api.put(
        "resourceclaims",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": name, "uid": str(uuid.uuid4())},
            "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": [result], **devices}}},
        },
    )
    return "default", name, claim["metadata"]["uid"]


@asynccontextmanager
async def registered(directory: Path) -> AsyncIterator[Driver]:
    kubelet = FakeKubelet(directory)
    try:
        yield await kubelet.driver()
    finally:
        await kubelet.close()


async def prepare(driver: Driver, claim: tuple[str, str, str], timeout: float = 45.0) -> Any:
    return (await driver.call("prepare", [claim], timeout)).claims[claim[2]]


async def unprepare(driver: Driver, claim: tuple[str, str, str]) -> str:
    return str((await driver.call("unprepare", [claim])).claims[claim[2]].error)


def specs(tmp_path: Path) -> list[str]:
    return [path.read_text() for path in (tmp_path / "cdi").glob("*.json")]


def test_a_claim_from_prepare_to_unprepare(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    claim = allocate(fake_api, "one")
    agent = kubernetes()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            first = await prepare(driver, claim)
            assert not first.error
            assert [device.device_name for device in first.devices] == [GPU]
            assert first.devices[0].pool_name == "node-a/gpu"
            (spec,) = specs(tmp_path)
            assert first.devices[0].cdi_device_ids[0].partition("=")[2] in spec
            other = allocate(fake_api, "two")
            refused = (await prepare(driver, other)).error
            assert "is held by another claim" in refused and "default/one" not in refused, (
                "other tenants read this message"
            )
            assert await prepare(driver, claim) == first
            assert await unprepare(driver, claim) == ""
            assert specs(tmp_path) == []
            assert not (await prepare(driver, other)).error

    asyncio.run(scenario())
    status, metrics = agent.get("/metrics")
    assert status == 200
    assert "dra_agent_registered 1.0" in metrics
    assert 'dra_agent_registrations_total{result="registered"} 1.0' in metrics
    assert 'dra_agent_dra_phase_duration_seconds_count{phase="fetch"} 4.0' in metrics
    for phase in ("lock", "ledger", "cdi"):
        count = re.search(rf'phase_duration_seconds_count{{phase="{phase}"}} (\d+)', metrics)
        assert count and int(count[1]) >= 2, phase
    assert 'dra_agent_dra_requests_total{operation="prepare",result="ok"} 3.0' in metrics
    writes = [request for request in fake_api.writes() if "resourceclaims" in request.path]
    assert not [request for request in writes if "status" not in request.path], (
        "prepare does not change the claim outside of its status"
    )


def test_a_start_needs_few_requests_and_an_idle_agent_none(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi
) -> None:
    fake_api.put("nodes", {"metadata": {"name": "node-a"}, "status": {"capacity": {}}})
    agent = kubernetes().ready()

    def sent() -> list[tuple[str, str]]:
        return sorted(
            ("WATCH" if request.watch else request.method, request.path.rpartition("/")[2])
            for request in fake_api.requests
        )

    expected = [
        ("GET", "nodes"),
        ("GET", "resourceslices"),  # those of this node
        ("GET", "resourceslices"),  # and those without a node's name, which may be of this node, too
        ("POST", "resourceslices"),  # GPUs
        ("POST", "resourceslices"),  # and others
        ("WATCH", "nodes"),
        ("WATCH", "resourceslices"),
        ("WATCH", "resourceslices"),
    ]
    eventually(lambda: len(sent()) >= len(expected), agent.log_text)
    # What the agent sends for a slice that was deleted follows everything that it would send on its own.
    fake_api.remove("resourceslices", fake_api.objects("resourceslices")[0]["metadata"]["name"])
    eventually(lambda: len(fake_api.objects("resourceslices")) == 2, agent.log_text)
    assert sent() == sorted([*expected, ("POST", "resourceslices")])
    assert agent.end() == 0


def test_readiness_and_systemd_status_show_the_registration(
    kubernetes: Callable[..., AgentProcess], kubelet_dir: Path, service_manager: ServiceManager
) -> None:
    agent = kubernetes(environment={"NOTIFY_SOCKET": str(service_manager.path)}).ready()
    assert agent.get("/readyz") == (503, "waiting for the kubelet\n")
    assert agent.get("/healthz")[0] == 200
    assert service_manager.messages[0] == "READY=1\nSTATUS=2 devices on node node-a, waiting for the kubelet"

    async def scenario() -> None:
        async with registered(kubelet_dir):
            pass

    asyncio.run(scenario())
    eventually(lambda: len(service_manager.status_messages()) > 1, agent.log_text)
    assert service_manager.status_messages()[1] == "STATUS=2 devices on node node-a, registered with the kubelet"
    assert agent.get("/readyz") == (200, "ok\n")
    assert agent.end() == 0
    assert not [path for path in kubelet_dir.rglob("*") if not path.is_dir()], "the agent removes its own sockets"
    assert "Traceback" not in agent.log_text()


def test_a_prepared_claim_is_the_same_after_sigkill(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path
) -> None:
    claim = allocate(fake_api, "one")
    agent = kubernetes()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            before = await prepare(driver, claim)
        agent.end(signal.SIGKILL)
        assert list(kubelet_dir.rglob("*.sock")), "the killed agent removed no sockets"
        kubernetes().ready()
        async with registered(kubelet_dir) as driver:
            assert await prepare(driver, claim) == before
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())


def test_the_kubelet_gets_responses_while_the_nvidia_library_hangs(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, state: Path, tmp_path: Path
) -> None:
    host = state / "simulated" / "vm-1gpu"
    state.mkdir()
    dra_simulate.build("vm-1gpu", host)
    inject.hang(host, None)
    config = tmp_path / "config.toml"
    config.write_text("[inventory]\nnvml_timeout = 600\n")
    claim = allocate(fake_api, "one", "nic-0000-00-05-0")
    # On every machine the response comes long before the deadline of the kubelet.
    agent = kubernetes(
        "--config", str(config), patch="from dra_agent.kubelet_plugin import service\nservice.CALL_TIMEOUT_S = 1.0"
    )

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert "still starting" in (await prepare(driver, claim)).error
            kubelet = FakeKubelet(kubelet_dir)
            for _ in range(20):
                await kubelet.register(next(iter(kubelet.sockets())))  # fails if GetInfo takes a second
                await kubelet.close()
            assert "info ready" not in agent.log_text()
            inject.clear(host)
            await asyncio.to_thread(agent.ready)

    asyncio.run(scenario())


def test_claims_are_prepared_while_those_of_an_earlier_agent_are_repaired(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path
) -> None:
    """A repair can hang for as long as a driver does."""
    claim = allocate(fake_api, "one")
    agent = kubernetes(
        patch="import threading\nfrom dra_agent.prepare.recovery import ClaimRecovery\n"
        "ClaimRecovery.recover = lambda *_: print('repairing', file=sys.stderr, flush=True) or threading.Event().wait()"
    )

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error

    asyncio.run(scenario())
    agent.ready().wait_for("repairing")
    assert agent.get("/healthz")[0] == 200
    assert agent.end() == 0


def test_temporary_api_errors_are_retried_and_permanent_ones_fail(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path
) -> None:
    claim = allocate(fake_api, "one")
    agent = kubernetes().ready()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            early = 'resourceclaims "one" is forbidden: no relationship found between node "node-a" and this object'
            fake_api.fail(403, times=3, path="resourceclaims", body=json.dumps({"kind": "Status", "message": early}))
            fake_api.fail(429, path="resourceclaims", retry_after=1)
            fake_api.fail(500, path="resourceclaims")
            fake_api.html(path="resourceclaims")
            fake_api.reset(path="resourceclaims")
            assert not (await prepare(driver, claim)).error
            assert await unprepare(driver, claim) == ""
            fake_api.fail(403, times=None, path="resourceclaims", body='{"kind":"Status","message":"no"}')
            fake_api.requests.clear()
            assert (
                "default/resourceclaims/one: no; grant this identity the permission"
                in (await prepare(driver, claim, timeout=100.0)).error
            )
            reads = [request for request in fake_api.requests if "/resourceclaims/one" in request.path]
            assert len(reads) <= 2, "permanent errors are not retried until the deadline"

    asyncio.run(scenario())
    assert "Traceback" not in agent.log_text()


def test_without_an_api_server_prepare_fails_and_unprepare_works(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path
) -> None:
    claim, other = allocate(fake_api, "one"), allocate(fake_api, "two", "nic-0000-00-05-0")
    # On every machine the response comes long before the deadline of the kubelet.
    agent = kubernetes(patch="from dra_agent.kubelet_plugin import service\nservice.CALL_TIMEOUT_S = 5.0").ready()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:

            async def is_prepared() -> bool:
                return not (await prepare(driver, claim)).error

            await eventually_async(is_prepared, agent.log_text)
            fake_api.stop()
            assert "cannot be read" in (await prepare(driver, other)).error
            assert await unprepare(driver, claim) == ""

    asyncio.run(scenario())
    assert "Traceback" not in agent.log_text()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"apiVersion": "x/v1", "kind": "Nonsense"}, "'Nonsense' of 'x/v1' is not known to this agent"),
        ({"kind": "Nonsense"}, "config[0].opaque.parameters.apiVersion: is missing"),
        ("text", "config[0].opaque.parameters: is not an object"),
    ],
)
def test_unknown_device_configuration_is_reported(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, parameters: Any, message: str
) -> None:
    config = [
        {"source": "FromClaim", "opaque": {"driver": "another.example.com", "parameters": {"anything": 1}}},
        {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": parameters}},
    ]
    claim = allocate(fake_api, "one", config=config)
    foreign = allocate(fake_api, "two", config=config[:1])
    kubernetes()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            response = await driver.call("prepare", [claim, foreign])
            assert message.replace("[0]", "[1]") in response.claims[claim[2]].error
            assert not response.claims[foreign[2]].error

    asyncio.run(scenario())


def test_devices_of_other_drivers_are_ignored(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path
) -> None:
    claim = allocate(fake_api, "one", driver="another.example.com")
    kubernetes()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            response = await prepare(driver, claim)
            assert not response.error and not response.devices

    asyncio.run(scenario())


def test_a_missing_kubeconfig_ends_the_start(kubernetes: Callable[..., AgentProcess], tmp_path: Path) -> None:
    agent = kubernetes("--kubeconfig", str(tmp_path / "absent"))
    assert agent.process.wait(60) in (1, 2)
    assert str(tmp_path / "absent") in agent.log_text()
    assert "Traceback" not in agent.log_text()


def test_metrics_can_have_the_pods_of_claims(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('[telemetry]\ninterval = 1\nclaim_pods = true\nclaim_labels = "on"\n')
    claim = allocate(fake_api, "train")
    (stored,) = fake_api.objects("resourceclaims")
    users = [{"resource": "pods", "name": "train-0", "uid": "1"}]
    fake_api.set_status("resourceclaims", "default", "train", {**stored["status"], "reservedFor": users})
    agent = kubernetes("--config", str(config)).ready()
    series = 'dra_agent_claim_pod_info{claim="train",namespace="default",pod="train-0"} 1.0'

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error
            assert series in agent.get("/metrics")[1]
            assert await unprepare(driver, claim) == ""
            assert series not in agent.get("/metrics")[1]

    asyncio.run(scenario())


def test_a_pod_can_request_the_notice_file(
    kubernetes: Callable[..., AgentProcess], fake_api: FakeApi, kubelet_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[reclaim]\npod_notices = true\n")
    claim = allocate(fake_api, "train")
    annotations = {f"{DRIVER}/reclaim-notice": "true"}
    metadata = {"namespace": "default", "name": "train-0", "annotations": annotations}
    pod = fake_api.put("pods", {"metadata": metadata, "spec": {}})
    (stored,) = fake_api.objects("resourceclaims")
    users = [{"resource": "pods", "name": "train-0", "uid": pod["metadata"]["uid"]}]
    fake_api.set_status("resourceclaims", "default", "train", {**stored["status"], "reservedFor": users})
    kubernetes("--config", str(config)).ready()

    async def scenario() -> None:
        async with registered(kubelet_dir) as driver:
            assert not (await prepare(driver, claim)).error
            (spec,) = specs(tmp_path)
            assert f"DRA_AGENT_NOTICE_DIR=/run/dra-agent/notice/{claim[2]}" in spec
            # The annotation counts when the claim is prepared: its containers run.
            fake_api.put("pods", {**pod, "metadata": {**pod["metadata"], "annotations": {}}})
            assert not (await prepare(driver, claim)).error
            assert specs(tmp_path) == [spec]
            assert await unprepare(driver, claim) == ""
            assert not (await prepare(driver, claim)).error
            assert "DRA_AGENT_NOTICE_DIR" not in specs(tmp_path)[0]

    asyncio.run(scenario())
