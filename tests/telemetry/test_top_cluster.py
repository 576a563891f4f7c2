"""`dra-agent top --all-nodes` and `kubectl dra top`: agents' /metrics through an API server, and directly."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allocator.cases import claim as claim_object
from allocator.cases import make_request
from dra_agent.cli import terminal
from dra_agent.cli.main import main
from dra_agent.cli.top_tables import share_rows
from dra_agent.metrics.access import EndpointAccess
from dra_agent.metrics.http_server import HttpServer
from dra_cluster.cli import kubectl_plugin, top_endpoints
from dra_simulate import inject
from eventually import DEADLINE_S
from fake_apiserver.certificates import Authority
from fake_apiserver.fake import FakeApi
from telemetry.rig import Rig, claim, held
from telemetry.test_top import rows

GPU, NIC = "gpu-0000-00-04-0", "nic-0000-00-05-0"
DRIVER = "dra-agent.internal"
TOKEN = "a-token-of-many-letters"
OFF = "# TYPE dra_agent_registered gauge\ndra_agent_registered 1.0\n"
Top = Callable[..., tuple[int, str, str]]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("DRA_AGENT_", "KUBE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def top(
    fake_api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> Top:
    """Run `kubectl dra top`."""
    monkeypatch.setenv("KUBECONFIG", str(fake_api.kubeconfig(tmp_path / "kubeconfig")))

    def run(*flags: str) -> tuple[int, str, str]:
        code = kubectl_plugin.main(["top", *flags])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def add_agent(
    api: FakeApi,
    node: str,
    text: str | None = None,
    *,
    variables: tuple[str, ...] = (),
    namespace: str = "dra-agent",
    name: str = "",
    owner: str = "DaemonSet",
    **status: Any,
) -> str:
    """Add the pod of an agent, whose /metrics return the text; return a part of their path."""
    names = {"DRA_AGENT_NODE_NAME": "", "DRA_AGENT_DRIVER_NAME": DRIVER, **dict.fromkeys(variables, "/file")}
    container = {
        "name": "dra-agent",
        "env": [{"name": name, "value": value} for name, value in names.items()],
        "ports": [{"name": "health", "containerPort": 9418}, {"name": "metrics", "containerPort": 9417}],
    }
    name = name or f"agent-{node}"
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "dra-agent", "uid": "u", "controller": True}]
    api.put(
        "pods",
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/name": "dra-agent"},
                "ownerReferences": owners if owner else [],
            },
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", **status},
        },
    )
    path = f":{name}:9417/proxy/metrics"
    if text is not None:
        api.fail(200, times=None, path=path, body=text, content_type="text/plain; version=0.0.4; charset=utf-8")
    return path


def allocate(api: FakeApi, name: str, node: str, *devices: str, driver: str = DRIVER) -> None:
    """Add a claim of namespace team-a that holds devices of a node."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    found: dict[str, Any] = claim_object(make_request(), name=name)
    found["metadata"]["namespace"] = "team-a"
    results = [
        {"request": "r", "driver": driver, "pool": f"{node}/{one.partition('-')[0]}", "device": one} for one in devices
    ]
    found["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}}
    api.put("resourceclaims", found)


@pytest.fixture
def busy(rig: Rig, root: Path) -> str:
    """What an agent of node-1 exposes: a GPU at 40 % of one claim, and a NIC of two."""
    rig.entries = [claim("train", held(GPU), held(NIC)), claim("other", held(NIC))]
    inject.load(root, "0", utilization=(40, 5), power_milliwatts=55_000, temperature=61, energy_millijoules=0)
    rig.sample()
    return rig.exposition()


@pytest.fixture
def cluster(fake_api: FakeApi, busy: str) -> FakeApi:
    """One node that is busy, one whose telemetry is off, and one whose agent does not respond."""
    add_agent(fake_api, "node-1", busy)
    add_agent(fake_api, "node-2", OFF)
    path = add_agent(fake_api, "node-3")
    fake_api.fail(503, times=None, path=path)
    allocate(fake_api, "train", "node-1", GPU, NIC)
    allocate(fake_api, "other", "node-1", NIC)
    allocate(fake_api, "foreign", "node-1", "gpu-1", driver="gpu.example.com")
    # Pods that are not agents.
    fake_api.put(
        "pods",
        {
            "metadata": {"name": "web", "namespace": "dra-agent", "labels": {"app.kubernetes.io/name": "dra-agent"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "web"}]},
        },
    )
    return fake_api


def test_nodes_devices_and_claims_of_a_cluster(cluster: FakeApi, top: Top) -> None:
    code, text, errors = top("--once")
    assert (code, errors) == (0, "")
    assert text.startswith("cluster: 2 of 3 agents responded\n")
    nodes = rows(text, "NODE   ")
    assert [row[0] for row in nodes] == ["node-1", "node-2", "node-3"]
    assert nodes[0][1:4] == ["2", "2", "40%"]
    assert nodes[1][-3:] == ["telemetry", "is", "off"]
    assert "a fault of status 503" in " ".join(nodes[2])
    devices = text[text.index("DEVICE   ") :]
    assert f"node-1   {GPU}   40%" in devices and "team-a/other, team-a/train" in devices
    claims = text[text.index("CLAIM   ", text.index("\n\n", text.index("DEVICE   "))) :]
    lines = [line.split() for line in claims.splitlines()[1:4]]
    assert [line[:3] for line in lines] == [
        ["node-1", "team-a/train", GPU],
        ["node-1", "team-a/other", NIC],
        ["node-1", "team-a/train", NIC],
    ]
    assert lines[0][3] == "40%"
    # Two claims hold the NIC: its values are those of neither.
    assert all(set(line[3:]) == {"-"} for line in lines[1:])
    assert "foreign" not in text, "a device of another driver"
    assert "no values: node-3: dra-agent/agent-node-3: " in text
    assert "telemetry is off on 1 of 2 agents" in text
    assert {request.method for request in cluster.requests} == {"GET"}


def test_json_names_nodes_without_values(cluster: FakeApi, top: Top) -> None:
    document = json.loads(top("-o", "json")[1])
    assert (document["agents"], document["responded"]) == (3, 2)
    assert [(one["node"], one["endpoint"]) for one in document["nodes"]] == [
        (f"node-{number}", f"dra-agent/agent-node-{number}") for number in (1, 2, 3)
    ]
    first, second, third = document["nodes"]
    assert (first["devices"], first["held"], first["gpu_utilization_ratio"]) == (2, 2, 0.4)
    assert "gpu_utilization_ratio" not in second and second["problem"] == "telemetry is off"
    assert "503" in third["problem"]
    gpu = next(one for one in document["devices"] if one["device"] == GPU)
    assert (gpu["node"], gpu["claims"], gpu["values"]["temperature_celsius"]) == ("node-1", ["team-a/train"], 61)
    shared = next(one for one in document["claims"] if one["name"] == "other")
    assert shared["values"] == {} and shared["node"] == "node-1"


def test_the_tables_can_be_chosen_and_sorted(cluster: FakeApi, busy: str, top: Top) -> None:
    add_agent(cluster, "node-0", busy.replace("node-1", "node-0").replace("} 0.4\n", "} 0.9\n"))
    text = top("--show", "nodes", "--sort", "utilization")[1]
    assert [row[0] for row in rows(text, "NODE   ")[:4]] == ["node-0", "node-1", "node-2", "node-3"]
    assert "DEVICE   " not in text and "CLAIM   " not in text
    assert top("--show", "claims", "-o", "name")[1].splitlines()[0] == "team-a/train"
    text = top("--node", "node-1", "--show", "devices")[1]
    assert "node-0" not in text and GPU in text
    document = json.loads(top("--show", "nodes", "-o", "json")[1])
    assert document["devices"] == [] and len(document["nodes"]) == 4


def test_claims_have_no_values_where_agents_do_not_name_them(rig: Rig, busy: str, fake_api: FakeApi, top: Top) -> None:
    rig.claim_labels = False
    add_agent(fake_api, "node-1", rig.exposition())
    allocate(fake_api, "train", "node-1", GPU)
    code, text, _ = top("--show", "claims")
    assert code == 0 and "1 of 1 agents show no values of claims" in text
    assert [set(row[3:]) for row in rows(text, "NODE   ")] == [{"-"}]
    # Without permission to list claims, devices still have their values.
    fake_api.fail(403, times=None, path="/resourceclaims")
    text = top()[1]
    assert "claims are not known: " in text and "40%" in text


def test_hostile_text_is_refused_or_escaped(fake_api: FakeApi, top: Top) -> None:
    series = 'dra_agent_device_power_watts{device="a\x1b[2J",family="gpu",pool="node-1/gpu",product="\u202e"} 2.0\n'
    add_agent(fake_api, "node-1", "# TYPE dra_agent_telemetry_failing_devices gauge\n" + series)
    add_agent(fake_api, "node-2", "dra_agent_device_power_watts \x1b]0;title\x07\n")
    path = add_agent(fake_api, "node-3")
    fake_api.fail(500, times=None, path=path, body="\x1b[2Jno", content_type="text/plain")
    code, text, errors = top("-o", "wide")
    assert code == 0 and "\x1b" not in text + errors and "\u202e" not in text
    assert "a\\x1b[2J" in text and "not the metrics of an agent" in text


def test_activity_is_in_the_wide_tables(fake_api: FakeApi, top: Top) -> None:
    ratios = {"sm_activity_ratio": 0.71, "tensor_activity_ratio": 0.52, "memory_bandwidth_ratio": 0.33}
    labels = 'device="gpu-a",family="gpu",pool="node-1/gpu",product="P"'
    series = "".join(f"dra_agent_device_{name}{{{labels}}} {ratio}\n" for name, ratio in ratios.items())
    add_agent(fake_api, "node-1", "# TYPE dra_agent_telemetry_failing_devices gauge\n" + series)
    code, text, _ = top("-o", "wide", "--show", "devices")
    assert code == 0
    lines = [line for line in text.splitlines() if "gpu-a" in line or "TENSOR" in line]
    header, row = (re.split(r" {2,}", line.strip()) for line in lines)
    shown = dict(zip(header, row, strict=True))
    assert [shown[name] for name in ("SM", "TENSOR", "MEM BW")] == ["71%", "52%", "33%"]
    assert "TENSOR" not in top("--show", "devices")[1]


def test_the_memory_of_partitions_is_that_of_their_gpu(fake_api: FakeApi, top: Top) -> None:
    sizes = {"gpu-a": 80, "gpu-a-mig-1g-10gb-0": 10, "gpu-b-mig-1g-10gb-0": 10, "gpu-ab": 40}
    series = "".join(
        f'dra_agent_device_{name}{{device="{device}",family="gpu",pool="node-1/gpu",product="P"}} {value}\n'
        for device, gib in sizes.items()
        for name, value in (("memory_limit_bytes", gib << 30), ("memory_used_bytes", 1 << 30))
    )
    add_agent(fake_api, "node-1", "# TYPE dra_agent_telemetry_failing_devices gauge\n" + series)
    (node,) = json.loads(top("-o", "json")[1])["nodes"]
    assert node["memory_limit_bytes"] == (80 + 10 + 40) << 30, "the values of gpu-b are not known"
    assert (node["memory_used_bytes"], node["devices"]) == (3 << 30, 4)


def test_an_average_power_is_shown_where_a_gpu_reports_no_power(fake_api: FakeApi, top: Top) -> None:
    series = "".join(
        f'dra_agent_device_{name}{{device="{device}",family="gpu",pool="node-1/gpu",product="P"}} {watts}\n'
        for device, name, watts in (("gpu-a", "average_power_watts", 40), ("gpu-b", "power_watts", 70))
    )
    add_agent(fake_api, "node-1", "# TYPE dra_agent_telemetry_failing_devices gauge\n" + series)
    code, text, _ = top("--sort", "power")
    assert code == 0
    rows = [line.split() for line in text.splitlines()]
    assert next(row for row in rows if row[0:1] == ["node-1"])[5] == "110W"
    assert [row[1] for row in rows if row[1:2] in (["gpu-a"], ["gpu-b"])] == ["gpu-b", "gpu-a"]
    assert "40W" in next(row for row in rows if row[1:2] == ["gpu-a"])


def test_an_endpoint_that_hangs_costs_its_own_values(
    cluster: FakeApi, top: Top, monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    monkeypatch.setattr(top_endpoints, "ENDPOINT_TIMEOUT_S", 0.2)
    path = add_agent(cluster, "node-4", "")
    cluster.faults.clear()
    cluster.hang(DEADLINE_S, times=None, path=path, when=end)
    document = json.loads(top("-o", "json")[1])
    assert next(one for one in document["nodes"] if one["node"] == "node-4")["problem"] == "no response within 0.2 s"


@pytest.fixture
def end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_all_endpoints_together_have_a_deadline(
    fake_api: FakeApi, top: Top, monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    monkeypatch.setattr(top_endpoints, "ENDPOINT_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr(top_endpoints, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(top_endpoints, "MAX_CONCURRENCY", 1)
    for number in range(4):
        fake_api.hang(DEADLINE_S, times=None, path=add_agent(fake_api, f"node-{number}"), when=end)
    code, text, _ = top("-o", "json")
    problems = [one["problem"] for one in json.loads(text)["nodes"]]
    # The first one is not requested at all if this process was stopped for a second before.
    first, late = "no response within ", "not read within 1 s"
    assert code == 1 and problems[0].startswith((first, late)) and problems[1:] == [late] * 3


def test_a_response_is_bounded(fake_api: FakeApi, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_endpoints, "MAX_BYTES", 1 << 20)
    add_agent(fake_api, "node-1", "#" * (2 << 20))
    code, text, _ = top("-o", "json")
    assert code == 1 and json.loads(text)["nodes"][0]["problem"] == "the response is larger than 1 MiB"


def test_a_token_needs_a_direct_connection(fake_api: FakeApi, top: Top) -> None:
    add_agent(fake_api, "node-1", variables=("DRA_AGENT_METRICS_TLS_CERT", "DRA_AGENT_METRICS_TOKEN_FILE"))
    text = top("-o", "json")[1]
    assert "use --direct" in json.loads(text)["nodes"][0]["problem"]
    assert not any("proxy" in request.path for request in fake_api.requests), "it is not tried"


def test_tls_of_a_pod_is_used_through_the_proxy(fake_api: FakeApi, busy: str, top: Top) -> None:
    add_agent(fake_api, "node-1", busy, variables=("DRA_AGENT_METRICS_TLS_CERT",))
    assert top()[0] == 0
    assert any("/pods/https:agent-node-1:9417/proxy/metrics" in request.path for request in fake_api.requests)


@pytest.fixture
def endpoint(rig: Rig, busy: str, tmp_path: Path) -> Iterator[tuple[HttpServer, Path, Path]]:
    """An agent's own server with TLS and a token; the authority's certificate and the token's file."""
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("node-1")
    tokens = tmp_path / "token"
    tokens.write_text(f"{TOKEN}\n")
    server = HttpServer(
        ("127.0.0.1", 0),
        healthy=list,
        ready=list,
        render=lambda accept: (busy.encode(), "text/plain"),
        access=EndpointAccess(certificate, key, tokens),
    )
    server.start()
    yield server, authority.certificate, tokens
    server.close()


def test_an_endpoint_with_tls_and_a_token_is_read_directly(
    endpoint: tuple[HttpServer, Path, Path],
    fake_api: FakeApi,
    top: Top,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    server, authority, tokens = endpoint
    url = f"node-1=https://127.0.0.1:{server.port}"
    flags = ["--metrics-ca", str(authority), "--metrics-token-file", str(tokens)]
    # Without any API server.
    code = main(["top", "--endpoint", url, *flags, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["nodes"][0]["node"] == "node-1"
    train = next(one for one in document["claims"] if one["device"] == GPU)
    assert (train["name"], train["values"]["gpu_utilization_ratio"]) == ("train", 0.4)
    # With its claims.
    allocate(fake_api, "other", "node-1", NIC)
    assert "team-a/other" in top("--endpoint", url, *flags)[1]
    refused = json.loads(top("--endpoint", url, "--metrics-ca", str(authority), "-o", "json")[1])
    assert "a bearer token is required" in refused["nodes"][0]["problem"]
    unknown = json.loads(top("--endpoint", url, "-o", "json")[1])
    assert "its certificate is not accepted" in unknown["nodes"][0]["problem"]


def test_addresses_of_pods_are_read_directly(
    endpoint: tuple[HttpServer, Path, Path], fake_api: FakeApi, top: Top
) -> None:
    server, authority, tokens = endpoint
    add_agent(fake_api, "node-1", variables=("DRA_AGENT_METRICS_TLS_CERT",), podIP="127.0.0.1")
    pod = fake_api.objects("pods")[0]
    pod["spec"]["containers"][0]["ports"][1]["containerPort"] = server.port
    fake_api.put("pods", pod)
    add_agent(fake_api, "node-2", podIP="192.0.2.1")
    flags = ("--direct", "--metrics-ca", str(authority), "--metrics-token-file", str(tokens))
    document = json.loads(top(*flags, "-o", "json")[1])
    first, second = document["nodes"]
    assert first["gpu_utilization_ratio"] == 0.4
    assert second["problem"] == "the token would be sent unencrypted: the agent has no TLS"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--endpoint", "ftp://node-1"), "not the URL of an agent's metrics"),
        (("--endpoint", "https://user@node-1"), "not the URL of an agent's metrics"),
        (("--endpoint", "http://node-1:port"), "not a URL"),
        (("--metrics-server-name", "x"), "is used for direct connections only"),
        (("--direct", "--metrics-ca", "/missing"), "the certificates cannot be read: no such file"),
        (("--direct", "--metrics-token-file", "/missing"), "the token cannot be read"),
    ],
)
def test_wrong_flags_are_refused(top: Top, flags: tuple[str, ...], message: str) -> None:
    code, text, errors = top(*flags)
    assert (code, text) == (2, "") and message in errors


def test_a_token_is_not_sent_unencrypted(top: Top, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    flags = ("--metrics-token-file", str(tmp_path / "token"))
    code, _, errors = top("--endpoint", "http://node-1:9417", *flags)
    assert code == 2 and "the token would be sent unencrypted" in errors


def test_flags_of_a_cluster_need_one(clean: None, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--node", "n"], ["--direct"], ["--kubeconfig", "f"]):
        assert main(["top", *flags]) == 2
        assert "needs --all-nodes or --endpoint" in capsys.readouterr().err


def test_a_cluster_without_agents_shows_what_was_searched(fake_api: FakeApi, top: Top) -> None:
    code, text, errors = top("--agent-namespace", "system")
    assert (code, text) == (1, "") and "no pod of an agent was found" in errors and "namespace system" in errors
    assert "in namespace dra-agent" in top()[2]


POWER = "\n".join(
    [
        "# TYPE dra_agent_telemetry_failing_devices gauge",
        "# TYPE dra_agent_claim_idle_seconds counter",
        'dra_agent_device_power_watts{{device="gpu-a",family="gpu",pool="{0}/gpu",product="P"}} {1}',
        'dra_agent_claim_power_watts{{claim="train",device="gpu-a",namespace="team-a"}} {1}',
        "",
    ]
)
"""What an agent of a node with one GPU exposes: its power, and that of a claim."""


def test_a_pod_of_another_namespace_replaces_no_values(fake_api: FakeApi, top: Top) -> None:
    """A user who may create pods can give them the labels of an agent, and a DaemonSet."""
    add_agent(fake_api, "node-1", POWER.format("node-1", 70))
    add_agent(fake_api, "node-1", POWER.format("node-1", 999), namespace="team-a", name="false")
    allocate(fake_api, "train", "node-1", "gpu-a")
    document = json.loads(top("-o", "json")[1])
    assert [one["values"]["power_watts"] for one in (*document["devices"], *document["claims"])] == [70, 70]
    assert document["agents"] == 1 and not any("/team-a/" in request.path for request in fake_api.requests)
    # As the user asks for it: reported, and not counted twice.
    document = json.loads(top("--agent-namespace", "dra-agent", "--agent-namespace", "team-a", "-o", "json")[1])
    assert [one["values"]["power_watts"] for one in (*document["devices"], *document["claims"])] == [70, 70]
    assert document["failures"] == ["not shown: node-1: team-a/false: 1 device that dra-agent/agent-node-1 reports too"]
    assert [one.get("power_watts") for one in document["nodes"]] == [70, None]


@pytest.mark.parametrize("owner", ["", "ReplicaSet"])
def test_a_pod_without_a_daemon_set_is_not_read(fake_api: FakeApi, top: Top, owner: str) -> None:
    add_agent(fake_api, "node-1", POWER.format("node-1", 70))
    add_agent(fake_api, "node-2", POWER.format("node-2", 999), owner=owner)
    document = json.loads(top("-o", "json")[1])
    assert [one["node"] for one in document["nodes"]] == ["node-1"]
    assert document["notes"] == [
        "not read, because no DaemonSet controls them: pods with the labels of agents: dra-agent/agent-node-2"
    ]
    code, _, errors = top("--node", "node-2")
    assert code == 1 and "dra-agent/agent-node-2" in errors


def test_an_agent_reports_devices_of_its_own_node_only(fake_api: FakeApi, top: Top) -> None:
    add_agent(fake_api, "node-1", POWER.format("node-2", 999), name="a-compromised-agent")
    add_agent(fake_api, "node-2", POWER.format("node-2", 70))
    allocate(fake_api, "train", "node-2", "gpu-a")
    document = json.loads(top("-o", "json")[1])
    assert [(one["node"], one["values"]["power_watts"]) for one in document["devices"]] == [("node-2", 70)]
    assert [(one["node"], one["values"]["power_watts"]) for one in document["claims"]] == [("node-2", 70)]
    assert [one.get("problem") for one in document["nodes"]] == ["1 device of other nodes", None]
    assert document["failures"] == ["not shown: node-1: dra-agent/a-compromised-agent: 1 device of other nodes"]


def test_two_agents_of_a_node_are_counted_once(fake_api: FakeApi, top: Top) -> None:
    """As in a rolling update, in which the old agent and the new one run at once."""
    for name, watts in (("agent-new", 70), ("agent-old", 71)):
        add_agent(fake_api, "node-1", POWER.format("node-1", watts), name=name)
    document = json.loads(top("-o", "json")[1])
    assert [one["values"]["power_watts"] for one in (*document["devices"], *document["claims"])] == [70, 70]
    assert document["failures"] == [
        "not shown: node-1: dra-agent/agent-old: 1 device that dra-agent/agent-new reports too"
    ]


def test_of_given_endpoints_the_one_of_the_node_is_preferred(clean: None, capsys: pytest.CaptureFixture[str]) -> None:
    with exposed(POWER.format("node-1", 999)) as other, exposed(POWER.format("node-1", 70)) as own:
        code = main(["top", "--endpoint", f"node-0={other}", "--endpoint", f"node-1={own}", "-o", "json"])
        document = json.loads(capsys.readouterr().out)
        assert code == 0
        assert [(one["node"], one["values"]["power_watts"]) for one in document["devices"]] == [("node-1", 70)]
        assert document["failures"] == [f"not shown: node-0: {other}: 1 device that {own} reports too"]
        # A URL alone has no name of a node.
        main(["top", "--endpoint", other, "-o", "json"])
        assert [one["values"]["power_watts"] for one in json.loads(capsys.readouterr().out)["devices"]] == [999]


@contextmanager
def exposed(text: str) -> Iterator[str]:
    """Serve the text as the metrics of an agent; yield their URL."""
    server = HttpServer(("127.0.0.1", 0), healthy=list, ready=list, render=lambda accept: (text.encode(), "text/plain"))
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/metrics"
    finally:
        server.close()


def test_a_thousand_nodes_fit_on_a_screen(fake_api: FakeApi, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_endpoints, "ENDPOINT_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr(top_endpoints, "READ_TIMEOUT_S", DEADLINE_S)
    for number in range(1000):
        add_agent(fake_api, node := f"node-{number:04}", POWER.format(node, 70))

    def interrupt(duration_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    code, text, _ = top("--sort", "utilization")
    assert code == 130
    screen = text.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    assert len(screen.splitlines()) < 24
    assert "cluster: 1000 of 1000 agents responded" in screen and "more rows: `dra-agent top --once`" in screen
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen).splitlines())


@pytest.mark.parametrize(
    ("counts", "screen_rows", "expected"),
    [([5, 5, 5], 30, [5, 5, 5]), ([100, 2, 100], 12, [5, 2, 5]), ([0, 50], 10, [0, 10]), ([9], 4, [4])],
)
def test_tables_share_the_rows_of_a_screen(counts: list[int], screen_rows: int, expected: list[int]) -> None:
    assert share_rows(counts, screen_rows) == expected
