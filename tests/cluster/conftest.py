"""Fixtures of the scenarios on a real cluster (`make test-cluster`).

A scenario asks for what it needs:

`cluster`
    The running cluster, one for the whole session: `cluster.api` (the API server as an administrator),
    `cluster.kubectl(...)`, `cluster.node("node-a")` with `.kubelet`, `.containerd`, `.restart_kubelet()`, `.cdi_dir`,
    `.cdi_files()`, `.ctr(...)`, and `cluster.control_plane` with `.apiserver`, `.scheduler`, `.controllers`, `.tokens`,
    `.kubeconfig(user)`. After each test, what it left ended is started again and both nodes are Ready.

`start_agent(node, profile, *flags, **how)`
    Starts an agent on "node-a" or "node-b" with a simulated machine and waits until its slices are published and it
    says that it is ready (`ready=False`: does not wait). It is ended after the test, and its state is new in each test.
    `driver` names its driver; `instance` tells two agents of one driver on one node apart. Its credentials are those of
    the chart: the token of a pod on that node; `user` names others (a key of `control_plane.tokens`: "node:node-a",
    "admin"), `kubeconfig` a file. It gives the `Agent`: `.slices()`, `.devices()`, `.kill()`, `.end()`, `.restart()`,
    `.simulate("unplug", "0000:1b:00.0")`, `.wait_for_log(pattern)`, `.get("/metrics")`.

`agents`
    One agent per node for all tests of a module, for scenarios that only make pods and claims: `agents["node-a"]`. A
    module chooses the hardware: `HARDWARE = {"node-a": "dgx-h100", "node-b": "mixed"}`, and may choose the agents'
    configuration file, `AGENT_CONFIG = '[reclaim]\nevict = "auto"'`, and rights, `CHART_VALUES =
    ("podEviction=evict",)`: values of the chart.

`namespace`
    An empty namespace with the DeviceClasses of `examples/classes` at hand; in the end its pods and claims are gone,
    and prepared claims are unprepared. A pod with a claim, from here to its environment:

        def test_one_gpu(agents, namespace):
            namespace.claim("one", request("gpu", "gpu"))
            namespace.pod("user", claim="one")
            namespace.running("user")
            device = namespace.results("one")[0]["device"]
            assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == device
            namespace.delete_pod("user")
            namespace.gone("user")

    `request`, `first_available`, `match`, `opaque`, `container` and `pod_spec` of `cluster.kube.workload` write the
    rest. A pod whose command ends is awaited with `namespace.ended(pod)`, which gives its log;
    `namespace.claim_of(pod)` is the claim that was made from a template; `namespace.events(name)` is what was said
    about an object. `cluster.kubectl("apply", "-f", ...)` takes YAML.

Where a scenario fails, the ends of the logs of the agents, the kubelets, the containerds and the control plane are
printed, with the events, pods and claims of its namespace.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import build, prerequisites
from cluster.kube.agent import DRIVER, Agent
from cluster.kube.api import NODES, PODS, SLICES
from cluster.kube.cluster import Cluster, running
from cluster.kube.process import LONG
from cluster.kube.workload import Namespace
from leftovers import adopt_processes

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 3600
"""Seconds; the deadlines within a scenario come first, and say what did not happen."""
EXTENDED = {
    "test_api_away",
    "test_crashes",
    "test_credentials",
    "test_device_metadata",
    "test_gone_claims",
    "test_health_of_slices",
    "test_health_unmonitored",
    "test_hung_driver",
    "test_kubelet_down_while_a_pod_is_deleted",
    "test_neighbours",
    "test_nic_configuration",
    "test_passthrough",
    "test_prepare_fails_then_works",
    "test_prepare_too_slow_then_works",
    "test_reclaim_away",
    "test_reclaim_choices",
    "test_reclaim_gate_off",
    "test_reclaim_grace",
    "test_reclaim_killed",
    "test_reclaim_stopped",
    "test_rolling_update_stalled",
    "test_slices_of_a_gpu_killed",
    "test_status",
}
"""Modules and tests outside the core set (`-m 'not extended'`). They take half the time of all scenarios, and most of
it is waiting for timeouts of Kubernetes."""
HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}

StartAgent = Callable[..., Agent]
_living: list[Agent] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit each scenario to LONGEST seconds, because it waits for other programs, and mark those of `EXTENDED`."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONGEST))
        if EXTENDED & {item.path.stem, item.name.partition("[")[0]}:
            item.add_marker(pytest.mark.extended)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the logs of everybody who took part in what failed."""
    report = yield
    fixtures: dict[str, Any] = getattr(item, "funcargs", {})
    cluster: Cluster | None = fixtures.get("cluster")
    if report.failed and cluster is not None:
        namespace: Namespace | None = fixtures.get("namespace")
        if namespace is not None:
            said = cluster.kubectl("get", "events,pods,resourceclaims", "-o", "wide", "-n", namespace.name, check=False)
            report.sections.append((f"namespace {namespace.name}", said))
        for agent in _living:
            report.sections.append((agent.name, agent.process.tail(80)))
        report.sections.append(("cluster", cluster.logs(60)))
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Processes of a cluster that a scenario starts again outlive it: `session_cluster` ends them and sees to that."""
    yield
    adopt_processes()


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    """The cluster of this session; `cluster` is what a test asks for."""
    try:
        build.programs()
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    with running() as cluster:
        for file in sorted((ROOT / "examples" / "classes").glob("*.yaml")):
            cluster.kubectl("apply", "-f", str(file))
        yield cluster


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with everything running; what a scenario left ended is started again after it."""
    yield session_cluster
    _start_again(session_cluster)
    for node in session_cluster.nodes:
        session_cluster.api.patch(NODES, node.name, {"spec": {"unschedulable": None}})
        node.ready()


def _start_again(cluster: Cluster) -> None:
    """Start what a scenario has ended, and have a Node for each kubelet."""
    for process in cluster.control_plane.processes:
        if not process.running:
            process.start()
    cluster.control_plane.ready()
    for node in cluster.nodes:
        if not node.containerd.running:
            node.containerd.start()
        if not node.kubelet.running:
            node.kubelet.start()
        elif cluster.api.find(NODES, node.name) is None:
            node.restart_kubelet()  # which makes it
        cluster.api.wait(partial(cluster.api.get, NODES, node.name), f"there is a Node {node.name}")


def _start_agents_again() -> None:
    """Start the agents that a scenario has ended where others may wait for them: without them no pod can go."""
    running = {agent.state_dir for agent in _living if agent.process.running}
    for agent in _living:
        if agent.state_dir not in running:
            running.add(agent.state_dir)
            agent.start()


def _start(
    cluster: Cluster,
    started: list[Agent],
    node: str,
    profile: str | None,
    *flags: str,
    driver: str = DRIVER,
    user: str | None = None,
    ready: bool = True,
    environment: dict[str, str] | None = None,
    instance: str = "",
    kubeconfig: Path | None = None,
) -> Agent:
    if kubeconfig is None:
        named = cluster.control_plane.kubeconfig(user) if user else None
        kubeconfig = named or cluster.identity(driver).kubeconfig(node)
    agent = Agent(
        cluster.node(node),
        profile,
        kubeconfig,
        driver=driver,
        flags=flags,
        environment=environment,
        instance=instance,
    )
    if not any(other.state_dir == agent.state_dir for other in started):
        shutil.rmtree(agent.state_dir, ignore_errors=True)
        agent.process.log.unlink(missing_ok=True)
    started.append(agent)
    _living.append(agent)
    agent.start()
    return agent.ready() if ready else agent


def _end(started: list[Agent]) -> None:
    for agent in started:
        agent.end()
        _living.remove(agent)
    # The kubelet would remove them after half a minute; until then the next test's pods could be given these devices.
    for agent in started:
        with suppress(OSError):  # a scenario may have ended the API server, which is started again after this
            for item in agent.slices():
                agent.node.api.delete(SLICES, item["metadata"]["name"])


@pytest.fixture
def start_agent(cluster: Cluster) -> Iterator[StartAgent]:
    """Start agents for one test; see the head of this file."""
    started: list[Agent] = []

    def start(node: str, profile: str | None, *flags: str, **how: Any) -> Agent:
        return _start(cluster, started, node, profile, *flags, **how)

    yield start
    _end(started)


@pytest.fixture(scope="module")
def agents(session_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Agent]]:
    """An agent per node for the module, by node: hardware as its HARDWARE says."""
    started: list[Agent] = []
    hardware: dict[str, str] = getattr(request.module, "HARDWARE", HARDWARE)
    text: str = getattr(request.module, "AGENT_CONFIG", "")
    identity = session_cluster.identity(DRIVER, *getattr(request.module, "CHART_VALUES", ()))
    try:
        for node, profile in hardware.items():
            flags: tuple[str, ...] = ()
            if text:
                config = session_cluster.node(node).directory / "config.toml"
                config.write_text(text)
                flags = ("--config", str(config))
            kubeconfig = identity.kubeconfig(node)
            _start(session_cluster, started, node, profile, *flags, kubeconfig=kubeconfig, ready=False)
        for agent in started:
            agent.ready()
        yield {agent.node.name: agent for agent in started}
    finally:
        _end(started)


@pytest.fixture
def namespace(cluster: Cluster, start_agent: StartAgent, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """An empty namespace named after the test."""
    # start_agent is asked for so that its agents are ended after the namespace is empty: without them no pod can go.
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:50].strip("-")
    made = Namespace(cluster, f"{name}-{len(cluster.namespaces)}")
    cluster.namespaces.append(made.name)
    yield made
    # After a scenario that failed half-way, too.
    _start_again(cluster)
    if made.api.list(PODS, made.name):
        _start_agents_again()
    made.remove()


@pytest.fixture
def agent_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a `dra-agent` command to its end: `agent_command("explain", "claim", "x")`."""

    def command(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "dra_agent", *arguments], capture_output=True, text=True, check=False, timeout=LONG
        )
        assert not check or done.returncode == 0, f"dra-agent {' '.join(arguments)}: {done.stderr}"
        return done

    return command
