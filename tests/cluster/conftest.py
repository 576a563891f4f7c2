"""Fixtures of the scenarios on a real cluster (`make test-cluster`).

A scenario requests the fixtures that it needs:

`cluster`
    The running cluster, one for the whole session: `cluster.api` (the API server as an administrator),
    `cluster.kubectl(...)`, `cluster.node("node-a")` with `.kubelet`, `.containerd`, `.restart_kubelet()`, `.cdi_dir`,
    `.cdi_files()`, `.ctr(...)`, and `cluster.control_plane` with `.apiserver`, `.scheduler`, `.controllers`, `.tokens`,
    `.kubeconfig(user)`. After each test, stopped processes are started again and both nodes are Ready.

`start_agent(node, profile, *flags, **how)`
    Starts an agent on "node-a" or "node-b" with a simulated machine and waits until its slices are published and
    `/readyz` succeeds (`ready=False`: does not wait). The agent is stopped after the test; each test starts with an
    empty state directory. `driver` is the driver name; `instance` distinguishes two agents of one driver on one node.
    The credentials are those of the chart: the token of a pod on that node; `user` selects others (a key of
    `control_plane.tokens`: "node:node-a", "admin"), `kubeconfig` a file. Returns the `Agent`: `.slices()`,
    `.devices()`, `.kill()`, `.end()`, `.restart()`, `.simulate("unplug", "0000:1b:00.0")`, `.wait_for_log(pattern)`,
    `.get("/metrics")`.

`agents`
    One agent per node for all tests of a module, for scenarios that only create pods and claims: `agents["node-a"]`. A
    module sets the hardware: `HARDWARE = {"node-a": "dgx-h100", "node-b": "mixed"}`, and can set the configuration file
    of the agents, `AGENT_CONFIG = '[reclaim]\nevict = "auto"'`, and permissions, `CHART_VALUES =
    ("podEviction=evict",)`: values of the chart.

`namespace`
    An empty namespace, with the DeviceClasses of `examples/classes`; after the test its pods and claims are deleted and
    prepared claims are unprepared. From a claim to the environment of its pod:

        def test_one_gpu(agents, namespace):
            namespace.claim("one", request("gpu", "gpu"))
            namespace.pod("user", claim="one")
            namespace.running("user")
            device = namespace.results("one")[0]["device"]
            assert namespace.environment("user")["DRA_AGENT_REQUEST_GPU"] == device
            namespace.delete_pod("user")
            namespace.wait_until_deleted("user")

    `request`, `first_available`, `match`, `opaque`, `container` and `pod_spec` of `cluster.kube.workload` build the
    rest. `namespace.ended(pod)` waits until the command of a pod ends and returns its log; `namespace.claim_of(pod)` is
    the claim created from a template; `namespace.events(name)` returns the Events of an object.
    `cluster.kubectl("apply", "-f", ...)` accepts YAML.

When a scenario fails, the last log lines of the agents, the kubelets, the containerds and the control plane are
printed, with the Events, pods and claims of its namespace.
"""

from __future__ import annotations

import json
import os
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
from cluster.kube.process import LONG_TIMEOUT_S
from cluster.kube.workload import Namespace
from leftovers import adopt_processes
from permissions import permissions_of_root

__all__ = ["permissions_of_root"]

ROOT = Path(__file__).resolve().parents[2]
SCENARIO_TIMEOUT_S = 3600
"""Seconds; shorter deadlines within a scenario fail first, with a message."""
EXTENDED = {
    "test_alpha_gates",
    "test_alpha_gates_scheduled",
    "test_apiserver_down",
    "test_binding_conditions",
    "test_chart_api_versions",
    "test_claim_pods",
    "test_compatibility_groups",
    "test_crashes",
    "test_credentials",
    "test_device_metadata",
    "test_every_profile",
    "test_fatal_errors",
    "test_gang_topology",
    "test_gangs",
    "test_lost_claims",
    "test_mig_health",
    "test_health_unmonitored",
    "test_hung_driver",
    "test_jobset",
    "test_cluster_autoscaler",
    "test_karpenter",
    "test_kueue_topology",
    "test_kueue",
    "test_kubelet_down_while_a_pod_is_deleted",
    "test_conflicts",
    "test_nic_configuration",
    "test_optional_node_operations",
    "test_passthrough",
    "test_played_load",
    "test_pool_status",
    "test_prepare_fails_then_works",
    "test_prepare_too_slow_then_works",
    "test_reclaim_apiserver_down",
    "test_reclaim_policies",
    "test_reclaim_gate_off",
    "test_reclaim_grace",
    "test_reclaim_killed",
    "test_reclaim_retry_after",
    "test_reclaim_stopped",
    "test_rolling_update_hung",
    "test_rolling_update_stalled",
    "test_mig_killed",
    "test_status",
    "test_top",
    "test_ui",
    "test_virtual_functions",
    "test_volcano",
    "test_volcano_topology",
    "test_the_hook_keeps_an_invalid_configuration_out_of_the_cluster",
}
"""Modules and tests outside the core set (`-m 'not extended'`). They take half the time of all scenarios, and most of
it is waiting for timeouts of Kubernetes."""
SINCE = {
    # Kubernetes 1.34 never releases the claim of a pod with an extended resource, nor its device: the claim stays
    # reserved for the pod that was deleted, and the namespace terminates forever.
    "test_extended_resource": "1.35",
    "test_extended_resource_name_replaces_a_device_plugin": "1.35",
    "test_a_quota_counts_extended_resources_and_claims_together": "1.35",
    "test_extended_resource_exists_for_any_class": "1.35",
    "test_extended_resource_without_free_devices_is_named": "1.35",
    "test_a_job_that_was_written_for_a_device_plugin": "1.35",
    "test_claims_with_device_plugin": "1.35",
    "test_extended_resource_of_dra_is_not_a_device_plugin": "1.35",
    "test_reclaim_policies": "1.35",
    "test_reclaim_killed": "1.35",
    # Kubernetes 1.34 evicts pods whose claims tolerate the taint, because the allocation has no tolerations
    # (https://github.com/kubernetes/kubernetes/issues/134434).
    "test_toleration_of_a_reclaim": "1.35",
    "test_a_cancelled_notice_evicts_no_pod_with_a_toleration": "1.35",
    "test_a_new_claim_is_not_prepared_on_a_reclaimed_host": "1.35",
    "test_fatal_xid_evicts_the_pod_also_over_an_agent_restart": "1.35",
    "test_reclaim_apiserver_down": "1.35",
    "test_reclaim_grace": "1.35",
    "test_reclaim_notice_file": "1.35",
    "test_reclaim_stopped": "1.35",
    # Before, kube-scheduler had no preference for nodes of an earlier alternative.
    "test_first_available_alternative_is_allocated": "1.35",
    # The control plane of this benchmark has the default gates.
    "test_capacity_is_what_the_scheduler_binds": "1.36",
    # With 1.35.4, a pod that is created before its template stayed without an allocation, in two runs of two.
    "test_admin_access": "1.36",
    # Before, a kubelet did not repeat a notification of a registration that failed.
    "test_driver_is_registered_after_a_notification_error": "1.36",
    # The gate ResourceHealthStatus of the kubelet is on since 1.36.
    "test_xid_sets_taint_and_pod_status_until_recovery": "1.36",
    # Before, a pool that is not valid ends the attempt for all nodes, or its devices may not select nodes.
    "test_fatal_errors": "1.36",
    # The gate DRAResourceClaimGranularStatusAuthorization does not exist before.
    "test_status_permissions": "1.36",
    "test_allocations_and_reservations_cannot_be_changed": "1.36",
    # It emulates 1.36.
    "test_extended_resource_gate": "1.36",
    "test_device_status_is_written_for_the_own_node_only": "1.36",
    # Objects and fields of the API in the version of 1.37.
    "test_alpha_gates": "1.37",
    "test_alpha_gates_scheduled": "1.37",
    "test_compatibility_groups": "1.37",
    "test_derived_attributes": "1.37",
    "test_extended_resource_names": "1.37",
    "test_gang_topology": "1.37",
    "test_gangs": "1.37",
    "test_optional_node_operations": "1.37",
    "test_overhead_of_cpu": "1.37",
    "test_partition_types": "1.37",
    "test_workload_groups": "1.37",
    "test_pool_status": "1.37",
    "test_claims_tolerate_the_taints_of_agent_and_rule": "1.37",
    "test_untolerated_taint_is_named": "1.37",
    # The permissions and objects of these autoscalers were tried with this version only.
    "test_cluster_autoscaler": "1.37",
    "test_karpenter": "1.37",
}
"""Modules and tests that use what an earlier version of Kubernetes does not have; others run with each version."""
GATED = {
    "test_mig",
    "test_partitions_are_published_with_their_counters",
    "test_slices_are_owned_by_the_node_and_adopted_unchanged",
    "test_no_field_of_a_slice_affects_another_node",
    "test_apiserver_accepts_the_kustomizations",
    "test_extended_resource_without_free_devices_is_named",
    "test_extended_resource_name_replaces_a_device_plugin",
    "test_extended_resource_exists_for_any_class",
    "test_extended_resource_of_dra_is_not_a_device_plugin",
    "test_extended_resource",
    "test_a_quota_counts_extended_resources_and_claims_together",
    "test_a_job_that_was_written_for_a_device_plugin",
    "test_claims_with_device_plugin",
    "test_shares",
    "test_shares_mps",
    "test_played_shares",
    "test_binding_conditions",
}
"""Modules and tests that need the gates of `build.GATES_SINCE_1_36`, which `DRA_AGENT_TEST_GATES=on` turns on."""
USES_TAINTS = re.compile("reclaim|taint|evict|drain")
"""Modules and tests with such a word in their name need the gate DRADeviceTaints, which is one of these."""
USES_PARTITIONS = re.compile("mig|partition")
"""Modules and tests with such a word in their name need Kubernetes 1.35: an API server of 1.34 drops the counters of
devices in other slices than their counter sets, so the agent publishes no partitions."""
GATED_CLASSES = {"nvidia-share"}
"""Classes whose selector an API server without these gates refuses."""
HARDWARE = {"node-a": "dgx-h100", "node-b": "dgx-h100"}

StartAgent = Callable[..., Agent]
_started_agents: list[Agent] = []
_session_clusters: list[Cluster] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit each scenario to SCENARIO_TIMEOUT_S, because it waits for other processes, and mark those of `EXTENDED`."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_S))
        names = {item.path.stem, item.name.partition("[")[0]}
        if EXTENDED & names:
            item.add_marker(pytest.mark.extended)
        since = max((SINCE[name] for name in SINCE.keys() & names), default="")
        if any(map(USES_PARTITIONS.search, names)):
            since = max(since, "1.35")
        if _is_newer(since):
            item.add_marker(pytest.mark.skip(f"needs Kubernetes {since}; {build.KUBERNETES} is an earlier one"))
        elif not _has_gates() and (GATED & names or any(map(USES_TAINTS.search, names))):
            item.add_marker(pytest.mark.skip(f"needs gates that are on since Kubernetes 1.36: {build.GATES}=on"))


def _is_newer(version: str) -> bool:
    """Return whether a version of Kubernetes is newer than the one of this run."""
    return version > (os.environ.get(build.KUBERNETES) or version)


def _has_gates() -> bool:
    """Return whether the gates of `build.GATES_SINCE_1_36` are on."""
    return bool(build.gates()) or not _is_newer("1.36")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the logs of all components of a failed scenario."""
    report = yield
    fixtures: dict[str, Any] = getattr(item, "funcargs", {})
    cluster: Cluster | None = fixtures.get("cluster")
    if report.failed and cluster is not None:
        namespace = fixtures.get("namespace")
        if isinstance(namespace, Namespace):  # not a parameter of the same name
            output = cluster.kubectl(
                "get", "events,pods,resourceclaims", "-o", "wide", "-n", namespace.name, check=False
            )
            report.sections.append((f"namespace {namespace.name}", output))
        for agent in _started_agents:
            report.sections.append((agent.name, agent.process.tail(80)))
        report.sections.append(("cluster", cluster.logs(60)))
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Processes that a scenario restarts outlive it: `session_cluster` stops them and checks that none is left."""
    yield
    adopt_processes()


@pytest.fixture(scope="module", autouse=True)
def no_policy_left_behind() -> Iterator[None]:
    """Agents have to refuse invalid configuration themselves: a policy would answer in their place."""
    yield
    for cluster in _session_clusters:
        assert cluster.configuration_policies() == [], "left by a scenario of this module"


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    """The cluster of this session; tests request `cluster`."""
    try:
        build.programs()
    except prerequisites.MissingError as missing:
        pytest.fail(str(missing), pytrace=False)
    with running(gates=build.gates(), runtime_config=build.runtime_config()) as cluster:
        apply_classes(cluster)
        _session_clusters.append(cluster)
        yield cluster


def apply_classes(cluster: Cluster) -> None:
    """Apply the example classes that the cluster's API server accepts."""
    for file in sorted((ROOT / "examples" / "classes").glob("*.yaml")):
        if file.stem not in GATED_CLASSES or _has_gates():
            cluster.kubectl("apply", "-f", str(file))


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with every component running; components that a scenario stopped are started again after it."""
    yield session_cluster
    _restart_stopped_processes(session_cluster)
    for node in session_cluster.nodes:
        session_cluster.api.patch(NODES, node.name, {"spec": {"unschedulable": None}})
        node.ready()


def _restart_stopped_processes(cluster: Cluster) -> None:
    """Start the processes that a scenario stopped, and ensure a Node object for each kubelet."""
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
            node.restart_kubelet()  # creates the Node
        cluster.api.wait(partial(cluster.api.get, NODES, node.name), f"there is a Node {node.name}")


def _restart_stopped_agents() -> None:
    """Start the agents that a scenario stopped: without an agent the kubelet cannot terminate a pod with a claim."""
    running = {agent.state_dir for agent in _started_agents if agent.process.running}
    for agent in _started_agents:
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
    _started_agents.append(agent)
    agent.start()
    return agent.ready() if ready else agent


def _end(started: list[Agent]) -> None:
    for agent in started:
        agent.end()
        _started_agents.remove(agent)
    # The kubelet removes them after 30 s; until then the scheduler can allocate these devices to pods of the next test.
    for agent in started:
        with suppress(OSError):  # the scenario may have stopped the API server; it is restarted later
            for item in agent.slices():
                agent.node.api.delete(SLICES, item["metadata"]["name"])


@pytest.fixture
def start_agent(cluster: Cluster) -> Iterator[StartAgent]:
    """Start agents for one test; see the module docstring."""
    started: list[Agent] = []

    def start(node: str, profile: str | None, *flags: str, **options: Any) -> Agent:
        return _start(cluster, started, node, profile, *flags, **options)

    yield start
    _end(started)


@pytest.fixture(scope="module")
def agents(session_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Agent]]:
    """One agent per node for the module, by node name; HARDWARE of the module sets the hardware."""
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
    # Requesting start_agent stops its agents after the namespace is empty: without them no pod can terminate.
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:50].strip("-")
    created = Namespace(cluster, f"{name}-{len(cluster.namespaces)}")
    cluster.namespaces.append(created.name)
    yield created
    # Also after a scenario that failed.
    _restart_stopped_processes(cluster)
    if created.api.list(PODS, created.name):
        _restart_stopped_agents()
    created.remove()


@pytest.fixture
def agent_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a `dra-agent` command and return its result: `agent_command("explain", "claim", "x")`."""

    def command(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "dra_agent", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG_TIMEOUT_S,
        )
        assert not check or done.returncode == 0, f"dra-agent {' '.join(arguments)}: {done.stderr}"
        return done

    return command


Explain = Callable[[str], dict[str, Any]]


@pytest.fixture
def explain(
    cluster: Cluster, namespace: Namespace, agent_command: Callable[..., subprocess.CompletedProcess[str]]
) -> Explain:
    """Explain an object of the namespace, as `podgroup/ring`; the exit code is 0 exactly if it fits."""

    def run(subject: str) -> dict[str, Any]:
        where = ("-n", namespace.name, "--kubeconfig", str(cluster.kubeconfig))
        result = agent_command("explain", subject, *where, "-o", "json", check=False)
        assert result.returncode in (0, 1) and result.stdout, result.stderr
        answer: dict[str, Any] = json.loads(result.stdout)
        assert (result.returncode == 0) == answer["fits"], answer["summary"]
        return answer

    return run
