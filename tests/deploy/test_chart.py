"""What the chart renders, for values that sites have, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import CHART, ROOT, Objects, RefusedError, Render, container, one, several
from dra_agent.agent.config import HELP, Config
from dra_agent.inventory.settings import DEFAULT_DRIVER
from dra_agent.reclaim.settings import ReclaimSettings


def variables(objects: Objects) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in container(objects)["env"]}


def test_the_daemonset_is_as_the_node_needs_it(render: Render) -> None:
    daemonset = one(render(), "DaemonSet")["spec"]
    pod = daemonset["template"]["spec"]
    assert daemonset["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    # While a node is taken, claims are given back through an agent that was told to stop. The longest notice is AWS's.
    assert pod["terminationGracePeriodSeconds"] > 120
    assert "lifecycle" not in container(render()), "SIGTERM is what the agent waits for by itself"
    found = variables(render())
    assert found["DRA_AGENT_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert found["DRA_AGENT_NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    agent = container(render())
    assert agent["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert found["DRA_AGENT_HEALTH_ADDRESS"]["value"] == ":9418" != found["DRA_AGENT_METRICS_ADDRESS"]["value"]
    policy = one(render(), "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in policy for port in rule["ports"]] == ["metrics"], "probes pass every policy"
    assert agent["resources"]["requests"]["memory"]
    # With 20m on a busy node the kubelet's GetInfo was not answered in its second: docs/numbers.md.
    share = agent["resources"]["requests"]["cpu"]
    assert share.endswith("m") and int(share.removesuffix("m")) >= 100
    assert "cpu" not in agent["resources"]["limits"], "a quota would stop it in the midst of a kubelet's call"


def test_the_agent_gets_no_more_than_it_needs(render: Render) -> None:
    pod = one(render(), "DaemonSet")["spec"]["template"]["spec"]
    agent = container(render())
    assert agent["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["hostNetwork"] is False and "hostPID" not in pod and "hostIPC" not in pod
    mounts = {mount["name"]: mount for mount in agent["volumeMounts"]}
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"tmp", "plugin", "registry", "cdi", "state", "run"}
    for name in ("sys", "dev"):
        assert mounts[name]["recursiveReadOnly"] == "IfPossible", "cgroups and debugfs lie below"
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    moved = {name for name, path in paths.items() if mounts[name]["mountPath"] != path}
    assert moved == {"net"}, "the kubelet and the container runtime are told these paths"
    inside = agent["terminationMessagePath"]
    assert not any(inside.startswith(f"{path}/") for path in paths.values()), (
        "the runtime would make a file on the node"
    )


def test_the_bus_of_the_node_is_there_only_if_it_is_asked_for(render: Render) -> None:
    def of_the_bus(objects: Objects) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
        mounts = [mount for mount in container(objects)["volumeMounts"] if "dbus" in mount["mountPath"]]
        return [volume for volume in pod["volumes"] if "dbus" in str(volume)], mounts

    assert of_the_bus(render()) == ([], []), "whoever is root on it has the node"
    (volume,), (mount,) = of_the_bus(render({"logind": True}))
    # Where the agent looks for it by itself; the directory, so that a new socket of a new daemon is seen.
    directory = Path(ReclaimSettings().dbus_address.removeprefix("unix:path=")).parent
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], str(directory), True)
    assert volume["hostPath"] == {"path": str(directory), "type": "DirectoryOrCreate"}


def test_every_variable_is_one_that_the_agent_knows(render: Render) -> None:
    known = {f"DRA_AGENT_{name.upper()}" for name in HELP} | {"DRA_AGENT_CONFIG"}
    given = set(variables(render({"simulate": "dgx-h100"})))
    assert given <= known, f"unknown: {given - known}"


def test_paths_and_names_are_values(render: Render) -> None:
    values = {
        "driverName": "gpu.example.com",
        "kubeletDir": "/var/data/kubelet",
        "cdiDir": "/run/cdi",
        "stateDir": "/mnt/dra",
    }
    objects = render(values)
    given = {name: entry.get("value") for name, entry in variables(objects).items()}
    assert given["DRA_AGENT_DRIVER_NAME"] == "gpu.example.com"
    assert given["DRA_AGENT_KUBELET_DIR"] == "/var/data/kubelet"
    mounts = {mount["mountPath"] for mount in container(objects)["volumeMounts"]}
    assert {
        "/var/data/kubelet/plugins/gpu.example.com",
        "/var/data/kubelet/plugins_registry",
        "/run/cdi",
        "/mnt/dra",
    } <= mounts
    text = yaml.safe_dump_all(objects)
    assert re.findall(rf"{re.escape(DEFAULT_DRIVER)}(?!/manager|/config-sha256)", text) == []
    assert "/var/lib/kubelet" not in text


def test_the_classes_are_those_of_the_examples(render: Render) -> None:
    rendered = {found["metadata"]["name"]: found["spec"] for found in render() if found["kind"] == "DeviceClass"}
    examples = [
        found for path in (ROOT / "examples/classes").glob("*.yaml") for found in yaml.safe_load_all(path.read_text())
    ]
    assert len(examples) >= 8
    assert rendered == {found["metadata"]["name"]: found["spec"] for found in examples}
    objects = render({"deviceClasses": {"extendedResourceNames": {"gpu": "nvidia.com/gpu"}}})
    named = {
        o["metadata"]["name"]: o["spec"].get("extendedResourceName") for o in objects if o["kind"] == "DeviceClass"
    }
    assert named.pop("gpu") == "nvidia.com/gpu" and set(named.values()) == {None}
    assert not [o for o in render({"deviceClasses": {"create": False}}) if o["kind"] == "DeviceClass"]


@pytest.mark.parametrize(
    ("values", "release", "namespace"),
    [
        ({}, "dra-agent", "dra-agent"),
        ({}, "blue", "kube-system"),
        ({"serviceAccount": {"name": "agents"}}, "dra-agent", "accelerators"),
        ({"serviceAccount": {"create": False, "name": "given"}}, "x", "y"),
        ({"fullnameOverride": "gpus"}, "dra-agent", "dra-agent"),
        ({"nameOverride": "agent"}, "dra", "ns"),
    ],
)
def test_policy_binding_and_pods_mean_the_same_account(
    render: Render, values: dict[str, Any], release: str, namespace: str
) -> None:
    objects = render(values, release=release, namespace=namespace)
    account = one(objects, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    policies = several(objects, "ValidatingAdmissionPolicy")
    assert len(policies) == 4, "slices, claims, nodes and Events"
    for policy in policies.values():
        (condition,) = policy["spec"]["matchConditions"]
        asks, _, kubelet = condition["expression"].partition(" || ")
        assert asks == f'request.userInfo.username == "system:serviceaccount:{namespace}:{account}"'
        # Kubelets write slices, too; what they do to claims and Nodes is Kubernetes' own to narrow.
        slices = policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["resourceslices"]
        assert ("system:node:" in kubelet) == slices
    bindings = several(objects, "ValidatingAdmissionPolicyBinding")
    assert {name: found["spec"] for name, found in bindings.items()} == {
        name: {"policyName": name, "validationActions": ["Deny"]} for name in policies
    }
    (subject,) = one(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    assert one(objects, "ClusterRoleBinding")["roleRef"]["name"] == one(objects, "ClusterRole")["metadata"]["name"]
    made = [found["metadata"]["name"] for found in objects if found["kind"] == "ServiceAccount"]
    assert made == ([] if values.get("serviceAccount", {}).get("create") is False else [account])


def test_an_agent_that_changes_devices_writes_the_nodes_sys_and_sees_its_processes(render: Render) -> None:
    def pod(values: dict[str, Any]) -> dict[str, Any]:
        spec: dict[str, Any] = one(render(values), "DaemonSet")["spec"]["template"]["spec"]
        return spec

    def sys_of(values: dict[str, Any]) -> dict[str, Any]:
        return next(m for m in pod(values)["containers"][0]["volumeMounts"] if m["name"] == "sys")

    assert sys_of({})["readOnly"] is True and "hostPID" not in pod({})
    assert "readOnly" not in sys_of({"privileged": True}) and "hostPID" not in pod({"privileged": True})
    assert pod({"privileged": True, "hostPID": True})["hostPID"] is True


def test_two_releases_share_no_object_of_the_cluster(render: Render) -> None:
    without_classes = {"deviceClasses": {"create": False}}
    first = render(without_classes, release="dra-agent", namespace="one")
    second = render(without_classes, release="dra-agent", namespace="two")
    kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind in kinds:
        assert several(first, kind) and not several(first, kind).keys() & several(second, kind).keys()


def test_nodes_of_a_device_plugin_are_left_alone_beside_the_users_affinity(render: Render) -> None:
    def terms(values: dict[str, Any]) -> list[dict[str, Any]] | None:
        affinity = one(render(values), "DaemonSet")["spec"]["template"]["spec"].get("affinity", {})
        required = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        found: list[dict[str, Any]] | None = required.get("nodeSelectorTerms")
        return found

    avoid = {"key": "dra-agent.internal/manager", "operator": "NotIn", "values": ["device-plugin"]}
    assert terms({}) == [{"matchExpressions": [avoid]}]
    zones = [{"key": "zone", "operator": "In", "values": [zone]} for zone in ("a", "b")]
    own = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in zones]}
    values = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": own}}}
    assert terms(values) == [{"matchExpressions": [zone, avoid]} for zone in zones]
    assert terms({"avoidNodeLabels": {"dra-agent.internal/manager": None}}) is None


def test_without_claim_status_the_agent_may_write_no_claim(render: Render) -> None:
    def resources(values: dict[str, Any]) -> set[str]:
        return {name for rule in one(render(values), "ClusterRole")["rules"] for name in rule["resources"]}

    assert {"resourceclaims/status", "resourceclaims/driver"} <= resources({})
    expected = {"resourceslices", "resourceclaims", "nodes", "nodes/status", "events"}
    assert resources({"claimStatus": False}) == resources({"claimStatus": "off"}) == expected


@pytest.mark.parametrize("driver", ["dra-agent.internal", "gpu.example.com"])
def test_the_right_to_the_status_of_claims_is_narrowed_to_the_drivers_devices(render: Render, driver: str) -> None:
    policies = several(render({"driverName": driver}), "ValidatingAdmissionPolicy")
    spec = policies["dra-agent-claims"]["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == (["resource.k8s.io"], ["resourceclaims/status"])
    assert (rule["apiVersions"], rule["operations"]) == (["*"], ["UPDATE"])
    variables = {item["name"]: item["expression"] for item in spec["variables"]}
    for name in ("others", "oldOthers"):
        assert f'd.driver != "{driver}"' in variables[name]
    assert {item["reason"] for item in spec["validations"]} == {"Forbidden"}
    without = render({"claimStatus": False})
    assert not [item for item in without if item["metadata"]["name"] == "dra-agent-claims"], (
        "no right, nothing to narrow"
    )


def test_the_right_to_move_pods_is_given_only_where_it_is_asked_for_and_narrowed(render: Render) -> None:
    def rights(values: dict[str, Any]) -> set[tuple[str, str]]:
        return {
            (name, verb)
            for rule in one(render(values), "ClusterRole")["rules"]
            for name in rule["resources"]
            for verb in rule["verbs"]
            if name.startswith("pods")
        }

    assert rights({}) == set()
    assert rights({"podEviction": "delete"}) == {("pods", "get"), ("pods", "delete")}
    assert rights({"podEviction": "evict"}) == {("pods", "get"), ("pods", "delete"), ("pods/eviction", "create")}
    objects = render({"podEviction": "delete"})
    policies = several(objects, "ValidatingAdmissionPolicy")
    bound = {item["spec"]["policyName"] for item in several(objects, "ValidatingAdmissionPolicyBinding").values()}
    assert set(policies) == bound == {f"dra-agent{name}" for name in ("", "-claims", "-events", "-nodes", "-pods")}
    (rule,) = policies["dra-agent-pods"]["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["DELETE"])
    (validation,) = policies["dra-agent-pods"]["spec"]["validations"]
    assert "oldObject.spec.?nodeName" in validation["expression"]


def test_rights_to_the_node_are_those_that_are_wanted_and_narrowed(render: Render) -> None:
    def verbs(values: dict[str, Any], resource: str) -> list[str]:
        rules = [rule for rule in one(render(values), "ClusterRole")["rules"] if rule["resources"] == [resource]]
        return sorted(verb for rule in rules for verb in rule["verbs"])

    neither = {"cordon": False, "nodeCondition": False}
    assert verbs({}, "nodes") == ["get", "list", "patch", "watch"] and verbs({}, "nodes/status") == ["patch"]
    assert verbs(neither, "nodes") == ["get", "list", "watch"] and verbs(neither, "nodes/status") == []
    assert verbs({"cordon": False}, "nodes/status") == ["patch"]
    assert verbs({"nodeCondition": False}, "nodes") == ["get", "list", "patch", "watch"]
    for values in ({}, {"cordon": False}, {"nodeCondition": False}):
        item = several(render(values), "ValidatingAdmissionPolicy")["dra-agent-nodes"]
        assert item["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["nodes", "nodes/status"]
    assert not [item for item in render(neither) if item["metadata"]["name"] == "dra-agent-nodes"]


def test_the_condition_is_that_of_the_drivers_name(render: Render) -> None:
    from dra_agent.reclaim.announcements import condition_type

    text = str(render({"driverName": "gpu.example.com"}))
    assert condition_type("gpu.example.com") in text and condition_type("dra-agent.internal") not in text


def test_in_the_nodes_network_an_update_does_not_wait_for_a_port(render: Render) -> None:
    objects = render({"hostNetwork": True})
    assert one(objects, "DaemonSet")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert not [found for found in objects if found["kind"] == "NetworkPolicy"], "it would do nothing"
    # Without a policy the probes are out of reach of other hosts all the same.
    assert variables(objects)["DRA_AGENT_HEALTH_ADDRESS"]["value"] == "127.0.0.1:9418"
    assert container(objects)["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"


def test_an_agent_that_moves_interfaces_is_in_the_nodes_network_and_sees_its_processes(render: Render) -> None:
    objects = render({"hostNetwork": True, "hostPID": True, "privileged": True})
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True and pod["hostPID"] is True
    # Told where the node's routes are, it would take its own network for another one, and change nothing in it.
    assert "DRA_AGENT_NET_ROOT" not in variables(objects)
    assert "net" not in {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container(objects)["volumeMounts"]}
    assert "net" not in mounts and not mounts["sys"].get("readOnly"), "an MTU is written below /sys/class/net"


def test_the_network_policy_lets_the_agent_reach_the_api_server_that_it_is_told(render: Render) -> None:
    def ports(values: dict[str, Any]) -> list[int]:
        rule, *metadata = one(render(values), "NetworkPolicy")["spec"]["egress"]
        assert [entry["to"] for entry in metadata] == [[{"ipBlock": {"cidr": "169.254.169.254/32"}}]]
        return [port["port"] for port in rule["ports"]]

    assert {443, 6443} <= set(ports({}))
    objects = render({"apiServer": {"host": "10.0.0.1", "port": 7443}})
    assert ports({"apiServer": {"host": "10.0.0.1", "port": 7443}}) == [7443]
    given = variables(objects)
    assert (
        given["KUBERNETES_SERVICE_HOST"]["value"] == "10.0.0.1" and given["KUBERNETES_SERVICE_PORT"]["value"] == "7443"
    )
    closed = one(render({"networkPolicy": {"metadataService": False}}), "NetworkPolicy")["spec"]["egress"]
    assert len(closed) == 1
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    (ingress,) = one(render({"networkPolicy": {"metricsFrom": peers}}), "NetworkPolicy")["spec"]["ingress"]
    assert ingress == {"ports": [{"protocol": "TCP", "port": "metrics"}], "from": peers}


def test_the_agent_reaches_api_servers_by_address_where_that_is_known(render: Render) -> None:
    def rule(**values: object) -> dict[str, Any]:
        first: dict[str, Any] = one(render({"networkPolicy": values}), "NetworkPolicy")["spec"]["egress"][0]
        return first

    assert "to" not in rule(), "addresses that are not known cannot be named"
    known = rule(apiServerCidrs=["192.0.2.10/32", "2001:db8::/64"], apiServerPorts=[6443])
    assert known == {
        "to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}, {"ipBlock": {"cidr": "2001:db8::/64"}}],
        "ports": [{"protocol": "TCP", "port": 6443}],
    }
    for wrong in ("192.0.2.10", "192.0.2.10/33", "kubernetes.default/32", "2001:db8::/129", ""):
        with pytest.raises(RefusedError, match="apiServerCidrs"):
            rule(apiServerCidrs=[wrong])


def test_the_configuration_reaches_the_agent_and_a_change_restarts_it(render: Render) -> None:
    config = '[inventory]\nexclude = [\'device.attributes["dra-agent.internal"].type == "nic"\']\n'
    objects = render({"config": config})
    text = one(objects, "ConfigMap")["data"]["config.toml"]
    assert tomllib.loads(text) == tomllib.loads(config)
    sums = [
        one(found, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["dra-agent.internal/config-sha256"]
        for found in (objects, render())
    ]
    assert sums[0] != sums[1]


def test_a_new_version_of_the_chart_alone_restarts_no_agent(render: Render) -> None:
    labels = one(render(), "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert set(labels) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_images_by_tag_and_by_digest(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example.com/dra-agent", "tag": "1.2", "digest": digest, "pullPolicy": "Never"}
    assert container(render({"image": image}))["image"] == f"registry.example.com/dra-agent@{digest}"
    agent = container(render({"image": {**image, "digest": ""}}))
    assert (agent["image"], agent["imagePullPolicy"]) == ("registry.example.com/dra-agent:1.2", "Never")


def test_everything_optional_at_once(render: Render) -> None:
    objects = render(
        {
            "imagePullSecrets": [{"name": "mine"}],
            "runtimeClassName": "nvidia",
            "privileged": True,
            "seLinuxOptions": {"type": "spc_t"},
            "criticalPodsQuota": {"create": True},
            "serviceAccount": {"annotations": {"a": "b"}},
            "podLabels": {"c": "d"},
            "podAnnotations": {"e": "f"},
            "extraArgs": ["--log-level=debug"],
            "extraEnv": [{"name": "X", "value": "z"}],
            "extraVolumes": [{"name": "v", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
            "staticCdiDir": "",
        }
    )
    pod = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    agent = container(objects)
    assert pod["imagePullSecrets"] == [{"name": "mine"}] and pod["runtimeClassName"] == "nvidia"
    assert agent["securityContext"]["privileged"] is True and "capabilities" not in agent["securityContext"]
    assert agent["args"] == ["run", "--log-level=debug"] and variables(objects)["X"]["value"] == "z"
    assert {"name": "v", "mountPath": "/v"} in agent["volumeMounts"] and {"name": "v", "emptyDir": {}} in pod["volumes"]
    assert "/etc/cdi" not in {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert one(objects, "ResourceQuota")["spec"]["hard"] == {"pods": "10000"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kubletDir": "/var/lib/kubelet"}, "'kubletDir'"),
        ({"kubeletDir": "var/lib/kubelet"}, "'/kubeletDir'"),
        ({"stateDir": "/"}, "'/stateDir'"),
        ({"driverName": "GPU_driver"}, "'/driverName'"),
        ({"driverName": "a" * 64}, "'/driverName'"),
        ({"metrics": {"port": 70000}}, "'/metrics/port'"),
        ({"metrics": {"address": "localhost"}}, "'/metrics/address'"),
        ({"secondManager": "ignore"}, "'/secondManager'"),
        ({"image": {"digest": "sha256:12"}}, "'/image/digest'"),
        ({"claimStatus": "yes"}, "'/claimStatus'"),
        ({"apiServer": {"port": "https"}}, "'/apiServer/port'"),
        ({"logLevel": "loud"}, "'/logLevel'"),
        ({"deviceClasses": {"extendedResourceNames": {"gpu": "gpu"}}}, "extendedResourceNames/gpu'"),
        ({"deviceClasses": {"extendedResourceNames": {"gpus": "nvidia.com/gpu"}}}, 'unknown class "gpus"'),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"hostPID": True}, "hostPID: requires privileged"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_name(
    render: Render, values: dict[str, Any], named: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        render(values)
    assert named in str(refused.value)


def test_the_schema_knows_every_value_and_what_the_agent_takes() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(given: dict[str, Any], properties: dict[str, Any], where: str = "") -> None:
        for name, value in given.items():
            assert name in properties, f"{where}{name} has no schema"
            if isinstance(value, dict) and properties[name].get("properties"):
                compare(value, properties[name]["properties"], f"{where}{name}.")

    compare(values, schema["properties"])
    assert set(values) | {"global"} == set(schema["properties"])
    assert values["driverName"] == DEFAULT_DRIVER
    fields = Config.__annotations__
    for value, field in (("logLevel", "log_level"), ("logFormat", "log_format"), ("secondManager", "second_manager")):
        assert all(f"'{word}'" in fields[field] for word in schema["properties"][value]["enum"])


def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
