"""Pools of nodes: one release with several agent DaemonSets, each for its nodes and with its values."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import CHART, ROOT, Objects, RefusedError, Render, objects_by_name, only_object

GPU: dict[str, Any] = {
    "name": "gpu",
    "nodeSelector": {"example.com/pool": "gpu"},
    "runtimeClassName": "nvidia",
    "config": '[inventory]\nhost_uplink = "exclude"\n',
    "resources": {"limits": {"memory": "512Mi"}},
}
NET: dict[str, Any] = {
    "name": "net",
    "nodeSelector": {"example.com/pool": "net", "example.com/nic": "fast"},
    "hostNetwork": True,
    "privileged": False,
    "tolerations": [],
}
OPERATORS = {"In", "NotIn"}


def daemonsets(render: Render, *pools: dict[str, Any], **values: Any) -> dict[str, dict[str, Any]]:
    found = objects_by_name(render({"pools": list(pools), **values}), "DaemonSet")
    return {name: item["spec"] for name, item in found.items()}


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    found = spec["template"]["spec"]
    assert isinstance(found, dict)
    return found


def admits(spec: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether the scheduler would place a pod of a DaemonSet on a node with these labels."""
    node = {"kubernetes.io/os": "linux", **labels}
    if not pod(spec)["nodeSelector"].items() <= node.items():
        return False
    required = pod(spec)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expressions = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert {one["operator"] for term in expressions for one in term} <= OPERATORS
    return any(
        all((node.get(one["key"]) in one["values"]) == (one["operator"] == "In") for one in t) for t in expressions
    )


def without_pods(objects: Objects) -> Objects:
    return [found for found in objects if found["kind"] not in ("DaemonSet", "ConfigMap", "NetworkPolicy")]


def test_each_pool_has_a_daemonset_and_a_configmap(render: Render) -> None:
    objects = render({"pools": [GPU, NET]})
    names = {"dra-agent", "dra-agent-gpu", "dra-agent-net"}
    maps = objects_by_name(objects, "ConfigMap")
    assert set(objects_by_name(objects, "DaemonSet")) == set(maps) == names
    assert "host_uplink" in maps["dra-agent-gpu"]["data"]["config.toml"]
    assert "host_uplink" not in maps["dra-agent"]["data"]["config.toml"]
    for name, spec in daemonsets(render, GPU, NET).items():
        (config,) = [volume for volume in pod(spec)["volumes"] if volume["name"] == "config"]
        assert config["configMap"] == {"name": name}
        assert pod(spec)["serviceAccountName"] == "dra-agent", "one identity, which the admission policies restrict"
    assert without_pods(objects) == without_pods(render())


def test_values_of_a_pool_replace_those_of_the_release(render: Render) -> None:
    release = {"privileged": True, "resources": {"limits": {"memory": "1Gi"}}, "nodeSelector": {"a": "b"}}
    found = daemonsets(render, GPU, NET, **release)
    gpu, net = pod(found["dra-agent-gpu"]), pod(found["dra-agent-net"])
    assert (gpu["runtimeClassName"], "runtimeClassName" in net) == ("nvidia", False)
    assert gpu["nodeSelector"] == {"kubernetes.io/os": "linux", "a": "b", "example.com/pool": "gpu"}
    assert gpu["containers"][0]["resources"]["limits"] == {"memory": "512Mi"}
    assert gpu["containers"][0]["resources"]["requests"]["cpu"], "values that the pool does not have stay"
    assert gpu["containers"][0]["securityContext"].get("privileged") is True
    assert "privileged" not in net["containers"][0]["securityContext"], "false replaces true"
    assert "tolerations" not in net and gpu["tolerations"], "an empty list replaces a list"
    assert net["hostNetwork"] is True and pod(found["dra-agent"])["hostNetwork"] is False
    assert found["dra-agent-net"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_default_daemonset_keeps_name_and_selector_when_a_pool_is_added(render: Render) -> None:
    before, after = daemonsets(render)["dra-agent"], daemonsets(render, GPU)["dra-agent"]
    assert after["selector"] == before["selector"], "it is immutable"
    assert after["template"]["metadata"] == before["template"]["metadata"]
    one, two = daemonsets(render, NET), daemonsets(render, GPU, NET)
    assert one["dra-agent-net"] == two["dra-agent-net"], "agents of other pools are not restarted"
    assert daemonsets(render, NET, GPU) == two


def test_no_daemonset_selects_pods_of_another(render: Render) -> None:
    found = daemonsets(render, GPU, NET)
    for (name, one), (other, two) in itertools.permutations(found.items(), 2):
        labels = two["template"]["metadata"]["labels"]
        assert not one["selector"]["matchLabels"].items() <= labels.items(), f"{name} selects pods of {other}"
        assert one["selector"]["matchLabels"].items() <= one["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("affinity", [False, True])
def test_every_node_has_one_agent(render: Render, affinity: bool) -> None:
    own = [{"key": "zone", "operator": "In", "values": [zone]} for zone in ("a", "b")]
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in own]}
    terms = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    found = daemonsets(render, GPU, NET, **({"affinity": terms} if affinity else {}))
    labels = {"example.com/pool": (None, "gpu", "net", "other"), "example.com/nic": (None, "fast", "slow")}
    for values in itertools.product(*labels.values()):
        node = {key: value for key, value in zip(labels, values, strict=True) if value is not None}
        expected = "gpu" if values[0] == "gpu" else "net" if values == ("net", "fast") else ""
        name = f"dra-agent-{expected}" if expected else "dra-agent"
        for zone in ("a", "b", "c") if affinity else ("a",):
            selected = [one for one, spec in found.items() if admits(spec, {**node, "zone": zone})]
            assert selected == ([] if zone == "c" else [name]), (node, zone)
    assert not [
        one for one, spec in found.items() if admits(spec, {"dra-agent.internal/manager": "device-plugin", "zone": "a"})
    ]


def test_nodes_without_accelerators_can_be_excluded(render: Render) -> None:
    label = "feature.node.kubernetes.io/pci-0302_10de.present"
    chosen = {"nodes": "accelerators"}
    found = daemonsets(render, {**GPU, "nodes": "all"}, NET, **chosen)
    for labels, expected in (
        ({}, []),
        ({label: "true"}, ["dra-agent"]),
        ({label: "false"}, []),
        ({"example.com/pool": "gpu"}, ["dra-agent-gpu"]),
        ({**NET["nodeSelector"]}, []),
        ({**NET["nodeSelector"], label: "true"}, ["dra-agent-net"]),
    ):
        assert [name for name, spec in found.items() if admits(spec, labels)] == expected, labels
    own = daemonsets(render, **chosen, acceleratorLabels=["example.com/neuron"])["dra-agent"]
    assert admits(own, {"example.com/neuron": "true"}) and not admits(own, {label: "true"})
    with pytest.raises(RefusedError, match="'/nodes'"):
        render({"nodes": "gpus"})


def notes(helm: Path, *flags: str) -> str:
    command: list[str | Path] = [helm, "install", "dra-agent", CHART, "--dry-run=client", "--namespace", "infra"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_notes_describe_the_chosen_values(helm: Path) -> None:
    text = notes(helm)
    assert "publishes their NICs" in text and "nodes: accelerators" in text and "hostNetwork" not in text
    pools = ("--set-json", f"pools={json.dumps([NET])}", "--set", "nodes=accelerators")
    text = notes(helm, *pools)
    assert "publishes their NICs" not in text
    assert "daemonset/dra-agent-net" in text and "(20%, rounded up) are NotReady" in text
    assert "No NetworkPolicy" not in text
    assert "No NetworkPolicy" in notes(helm, "--set", "hostNetwork=true")


def test_default_daemonset_is_optional(render: Render) -> None:
    assert set(daemonsets(render, GPU, defaultPool={"create": False})) == {"dra-agent-gpu"}
    with pytest.raises(RefusedError, match=r"defaultPool\.create"):
        daemonsets(render, defaultPool={"create": False})


def test_network_policy_covers_every_pool(render: Render) -> None:
    policy = only_object(render({"pools": [GPU, NET]}), "NetworkPolicy")["spec"]["podSelector"]
    (expression,) = policy["matchExpressions"]
    for spec in daemonsets(render, GPU, NET).values():
        labels = spec["template"]["metadata"]["labels"]
        assert policy["matchLabels"].items() <= labels.items() and labels[expression["key"]] in expression["values"]
    host = render({"hostNetwork": True, "pools": [{**GPU, "hostNetwork": False}]})
    assert only_object(host, "NetworkPolicy"), "the pods of the pool have the pod network"
    assert not [found for found in render({"hostNetwork": True, "pools": [NET]}) if found["kind"] == "NetworkPolicy"]


def test_quota_covers_the_priorities_of_every_pool(render: Render) -> None:
    pools = [{**GPU, "priorityClassName": "gold"}, NET]
    quota = only_object(render({"criticalPodsQuota": {"create": True}, "pools": pools}), "ResourceQuota")
    (expression,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert expression["values"] == ["gold", "system-node-critical"]


def test_long_names_keep_the_pool(render: Render) -> None:
    objects = render({"fullnameOverride": "a" * 63, "pools": [GPU, NET]})
    names = set(objects_by_name(objects, "DaemonSet"))
    assert len(names) == 3 and all(len(name) <= 63 for name in names)
    assert {name[-4:] for name in names} == {"aaaa", "-gpu", "-net"}


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([{"name": "a"}], "nodeSelector"),
        ([{"nodeSelector": {"a": "b"}}], "name"),
        ([{"name": "a", "nodeSelector": {}}], "nodeSelector"),
        ([{"name": "A", "nodeSelector": {"a": "b"}}], "'/pools/0/name'"),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "driverName": "x"}], "'driverName'"),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "claimStatus": "off"}], "'claimStatus'"),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "kubeletDir": "x"}], "'/pools/0/kubeletDir'"),
        ([{"name": "a", "nodeSelector": {"a": "b"}}, {"name": "a", "nodeSelector": {"a": "c"}}], 'the name "a"'),
        (
            [{"name": "a", "nodeSelector": {"a": "b"}}, {"name": "c", "nodeSelector": {"d": "e"}}],
            'pool "a" and in pool "c"',
        ),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "config": "x = = 1"}], 'pool "a": config: not TOML'),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "mig": "partition"}], 'pool "a": mig: partition grants'),
        ([{"name": "a", "nodeSelector": {"a": "b"}, "hostPID": True}], 'pool "a": hostPID'),
    ],
)
def test_invalid_pools_are_refused(render: Render, pools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        render({"pools": pools})
    assert message in str(error.value)


def test_the_documented_example_is_accepted(render: Render) -> None:
    page = (ROOT / "docs/how-to/install/chart.md").read_text()
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "pools:" in block]
    assert set(objects_by_name(render(yaml.safe_load(text)), "DaemonSet")) == {
        "dra-agent",
        "dra-agent-mig",
        "dra-agent-fpga",
    }
