"""The objects that the chart renders for values of real sites, and the values that it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import CHART, Objects, RefusedError, Render, container, objects_by_name, only_object
from dra_agent.agent.config import HELP, Config
from dra_agent.agent.fabric_labels import NAMES
from dra_agent.inventory.settings import DEFAULT_DRIVER
from dra_agent.kubelet_plugin.pod_resources import SOCKET
from dra_agent.reclaim.settings import ReclaimSettings


def variables(objects: Objects) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in container(objects)["env"]}


def test_daemonset_has_probes_priority_and_update_strategy(render: Render) -> None:
    daemonset = only_object(render(), "DaemonSet")["spec"]
    pod = daemonset["template"]["spec"]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    # During a reclaim a terminating agent still releases claims. The longest notice is AWS's.
    assert pod["terminationGracePeriodSeconds"] > 120
    assert "lifecycle" not in container(render()), "the agent handles SIGTERM itself"
    found = variables(render())
    assert found["DRA_AGENT_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert found["DRA_AGENT_NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    agent = container(render())
    assert agent["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert found["DRA_AGENT_HEALTH_ADDRESS"]["value"] == ":9418" != found["DRA_AGENT_METRICS_ADDRESS"]["value"]
    policy = only_object(render(), "NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in policy for port in rule["ports"]] == ["metrics"], "probes bypass policies"
    assert agent["resources"]["requests"]["memory"]
    # With 20m on a busy node the kubelet's GetInfo timed out after its second: docs/explanation/numbers.md.
    share = agent["resources"]["requests"]["cpu"]
    assert share.endswith("m") and int(share.removesuffix("m")) >= 100
    assert "cpu" not in agent["resources"]["limits"], "a quota would throttle it during a kubelet call"


def test_agent_container_has_minimal_privileges(render: Render) -> None:
    pod = only_object(render(), "DaemonSet")["spec"]["template"]["spec"]
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
        assert mounts[name]["recursiveReadOnly"] == "IfPossible", "cgroups and debugfs are mounted below"
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    moved = {name for name, path in paths.items() if mounts[name]["mountPath"] != path}
    assert moved == {"net"}, "the kubelet and the container runtime use these paths"
    inside = agent["terminationMessagePath"]
    assert not any(inside.startswith(f"{path}/") for path in paths.values()), (
        "the runtime would create a file on the node"
    )


def test_the_dbus_of_the_node_is_mounted_only_on_request(render: Render) -> None:
    def dbus_mounts(objects: Objects) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        pod = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]
        mounts = [mount for mount in container(objects)["volumeMounts"] if "dbus" in mount["mountPath"]]
        return [volume for volume in pod["volumes"] if "dbus" in str(volume)], mounts

    assert dbus_mounts(render()) == ([], []), "root on the bus controls the node"
    (volume,), (mount,) = dbus_mounts(render({"logind": True}))
    # The default path of the agent; the directory, so that a new socket of a restarted daemon is visible.
    directory = Path(ReclaimSettings().dbus_address.removeprefix("unix:path=")).parent
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == (volume["name"], str(directory), True)
    assert volume["hostPath"] == {"path": str(directory), "type": "DirectoryOrCreate"}


def test_the_kubelets_list_of_containers_is_mounted_only_on_request(render: Render) -> None:
    def mounts(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in container(render(values))["volumeMounts"] if one["name"] == "pod-resources"]

    assert mounts({}) == []
    (mount,) = mounts({"podResources": True, "kubeletDir": "/var/data/kubelet"})
    assert mount["mountPath"] == str(Path("/var/data/kubelet") / SOCKET).rpartition("/")[0] and mount["readOnly"]


def test_every_variable_is_known_to_the_agent(render: Render) -> None:
    known = {f"DRA_AGENT_{name.upper()}" for name in HELP} | {"DRA_AGENT_CONFIG"}
    variables_of_agent = set(variables(render({"simulate": "dgx-h100"})))
    assert variables_of_agent <= known, f"unknown: {variables_of_agent - known}"


def test_paths_and_driver_name_come_from_the_values(render: Render) -> None:
    values = {
        "driverName": "gpu.example.com",
        "kubeletDir": "/var/data/kubelet",
        "cdiDir": "/run/cdi",
        "stateDir": "/mnt/dra",
    }
    objects = render(values)
    variables_of_agent = {name: entry.get("value") for name, entry in variables(objects).items()}
    assert variables_of_agent["DRA_AGENT_DRIVER_NAME"] == "gpu.example.com"
    assert variables_of_agent["DRA_AGENT_KUBELET_DIR"] == "/var/data/kubelet"
    mounts = {mount["mountPath"] for mount in container(objects)["volumeMounts"]}
    assert {
        "/var/data/kubelet/plugins/gpu.example.com",
        "/var/data/kubelet/plugins_registry",
        "/run/cdi",
        "/mnt/dra",
    } <= mounts
    text = yaml.safe_dump_all(objects)
    assert re.findall(rf"{re.escape(DEFAULT_DRIVER)}(?!/manager|/config-sha256|/v1\b)", text) == []
    assert "/var/lib/kubelet" not in text


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
def test_policies_bindings_and_pods_use_one_service_account(
    render: Render, values: dict[str, Any], release: str, namespace: str
) -> None:
    objects = render(values, release=release, namespace=namespace)
    account = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
    policies = objects_by_name(objects, "ValidatingAdmissionPolicy")
    of_agents = {name: policy for name, policy in policies.items() if not name.endswith("-configuration")}
    assert len(of_agents) == 4, "slices, claims, nodes and Events"
    for policy in of_agents.values():
        (condition,) = policy["spec"]["matchConditions"]
        account_condition, _, kubelet = condition["expression"].partition(" || ")
        assert account_condition == f'request.userInfo.username == "system:serviceaccount:{namespace}:{account}"'
        # Kubelets write slices, too; Kubernetes itself restricts their access to claims and Nodes.
        slices = policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["resourceslices"]
        assert ("system:node:" in kubelet) == slices
    bindings = objects_by_name(objects, "ValidatingAdmissionPolicyBinding")
    assert {name: found["spec"] for name, found in bindings.items()} == {
        name: {"policyName": name, "validationActions": ["Deny"]} for name in policies
    }
    (subject,) = only_object(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    assert (
        only_object(objects, "ClusterRoleBinding")["roleRef"]["name"]
        == only_object(objects, "ClusterRole")["metadata"]["name"]
    )
    service_accounts = [found["metadata"]["name"] for found in objects if found["kind"] == "ServiceAccount"]
    assert service_accounts == ([] if values.get("serviceAccount", {}).get("create") is False else [account])


def test_privileged_agent_has_a_writable_sys_and_host_pids(render: Render) -> None:
    def pod(values: dict[str, Any]) -> dict[str, Any]:
        spec: dict[str, Any] = only_object(render(values), "DaemonSet")["spec"]["template"]["spec"]
        return spec

    def sys_of(values: dict[str, Any]) -> dict[str, Any]:
        return next(m for m in pod(values)["containers"][0]["volumeMounts"] if m["name"] == "sys")

    assert sys_of({})["readOnly"] is True and "hostPID" not in pod({})
    assert "readOnly" not in sys_of({"privileged": True}) and "hostPID" not in pod({"privileged": True})
    assert pod({"privileged": True, "hostPID": True})["hostPID"] is True


def test_two_releases_share_no_cluster_scoped_object(render: Render) -> None:
    without_classes = {"deviceClasses": {"create": False}}
    first = render(without_classes, release="dra-agent", namespace="one")
    second = render(without_classes, release="dra-agent", namespace="two")
    kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind in kinds:
        assert (
            objects_by_name(first, kind)
            and not objects_by_name(first, kind).keys() & objects_by_name(second, kind).keys()
        )


def test_device_plugin_nodes_are_excluded_with_user_affinity(render: Render) -> None:
    def terms(values: dict[str, Any]) -> list[dict[str, Any]] | None:
        affinity = only_object(render(values), "DaemonSet")["spec"]["template"]["spec"].get("affinity", {})
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


def test_without_claim_status_the_agent_cannot_write_claims(render: Render) -> None:
    def resources(values: dict[str, Any]) -> set[str]:
        return {name for rule in only_object(render(values), "ClusterRole")["rules"] for name in rule["resources"]}

    assert {"resourceclaims/status", "resourceclaims/driver"} <= resources({})
    expected = {"resourceslices", "resourceclaims", "nodes", "nodes/status", "events"}
    assert resources({"claimStatus": False}) == resources({"claimStatus": "off"}) == expected
    both = resources({"claimStatus": "off", "bindingConditions": True})
    assert both == expected | {"resourceclaims/status", "resourceclaims/driver", "pods"}


@pytest.mark.parametrize("driver", ["dra-agent.internal", "gpu.example.com"])
def test_claim_status_permission_is_limited_to_own_devices(render: Render, driver: str) -> None:
    policies = objects_by_name(render({"driverName": driver}), "ValidatingAdmissionPolicy")
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
    assert not [item for item in without if item["metadata"]["name"] == "dra-agent-claims"], "no permission, no policy"
    with_binding = render({"claimStatus": False, "bindingConditions": True})
    assert [item for item in with_binding if item["metadata"]["name"] == "dra-agent-claims"]


def test_eviction_permission_is_optional_and_limited(render: Render) -> None:
    def pod_permissions(values: dict[str, Any]) -> set[tuple[str, str]]:
        return {
            (name, verb)
            for rule in only_object(render(values), "ClusterRole")["rules"]
            for name in rule["resources"]
            for verb in rule["verbs"]
            if name.startswith("pods")
        }

    assert pod_permissions({}) == set()
    assert pod_permissions({"podEviction": "delete"}) == {("pods", "get"), ("pods", "delete")}
    assert pod_permissions({"podEviction": "evict"}) == {
        ("pods", "get"),
        ("pods", "delete"),
        ("pods/eviction", "create"),
    }
    assert pod_permissions({"podNotices": True}) == {("pods", "get")}
    assert pod_permissions({"podNotices": True, "podEviction": "delete"}) == {("pods", "get"), ("pods", "delete")}
    assert pod_permissions({"bindingConditions": True}) == {("pods", "list"), ("pods", "watch")}
    objects = render({"podEviction": "delete"})
    policies = objects_by_name(objects, "ValidatingAdmissionPolicy")
    bound = {
        item["spec"]["policyName"] for item in objects_by_name(objects, "ValidatingAdmissionPolicyBinding").values()
    }
    names = ("", "-claims", "-configuration", "-events", "-nodes", "-pods")
    assert set(policies) == bound == {f"dra-agent{name}" for name in names}
    (rule,) = policies["dra-agent-pods"]["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["DELETE"])
    (validation,) = policies["dra-agent-pods"]["spec"]["validations"]
    assert "oldObject.spec.?nodeName" in validation["expression"]


def test_node_permissions_are_optional_and_limited(render: Render) -> None:
    def verbs(values: dict[str, Any], resource: str) -> list[str]:
        rules = [
            rule for rule in only_object(render(values), "ClusterRole")["rules"] if rule["resources"] == [resource]
        ]
        return sorted(verb for rule in rules for verb in rule["verbs"])

    disabled = {"cordon": False, "nodeCondition": False}
    assert verbs({}, "nodes") == ["get", "list", "patch", "watch"] and verbs({}, "nodes/status") == ["patch"]
    assert verbs(disabled, "nodes") == ["get", "list", "watch"] and verbs(disabled, "nodes/status") == []
    assert verbs({"cordon": False}, "nodes/status") == ["patch"]
    assert verbs({"nodeCondition": False}, "nodes") == ["get", "list", "patch", "watch"]
    for values in ({}, {"cordon": False}, {"nodeCondition": False}):
        item = objects_by_name(render(values), "ValidatingAdmissionPolicy")["dra-agent-nodes"]
        assert item["spec"]["matchConstraints"]["resourceRules"][0]["resources"] == ["nodes", "nodes/status"]
    assert not [item for item in render(disabled) if item["metadata"]["name"] == "dra-agent-nodes"]


def test_labels_of_the_node_need_a_permission_or_a_directory_and_neither_by_default(render: Render) -> None:
    alone = {"cordon": False, "nodeCondition": False}
    features = "/etc/kubernetes/node-feature-discovery/features.d"

    def permits(values: dict[str, Any]) -> bool:
        rules = only_object(render(values), "ClusterRole")["rules"]
        return any(rule["resources"] == ["nodes"] and rule["verbs"] == ["patch"] for rule in rules)

    def policy(values: dict[str, Any]) -> str:
        (found,) = [
            item
            for name, item in objects_by_name(render(values), "ValidatingAdmissionPolicy").items()
            if name.endswith("-nodes")
        ]
        spec = found["spec"]
        return " ".join(one["expression"] for one in (*spec["variables"], *spec["validations"]))

    def mounts(values: dict[str, Any]) -> list[str]:
        return [mount["mountPath"] for mount in container(render(values))["volumeMounts"]]

    assert not permits(alone) and features not in mounts({})
    assert permits({**alone, "nodeLabels": "node"}) and features not in mounts({"nodeLabels": "node"})
    assert not permits({**alone, "nodeLabels": "nfd"}) and features in mounts({"nodeLabels": "nfd"})
    # Without the option, labels of an earlier run can only be removed.
    removed, written = 'f in variables.labels || f.startsWith("fabric.gpu.example.com/")', "f in variables.fabricLabels"
    named = {"driverName": "gpu.example.com"}
    assert policy(named).count(removed) == 1 and written not in policy(named)
    permitted = policy({**named, **alone, "nodeLabels": "node"})
    assert permitted.count(removed) == 1 and permitted.count(written) == 1
    names = ", ".join(f'"{name}"' for name in NAMES)
    assert f'[{names}].map(name, "fabric.gpu.example.com/" + name)' in permitted


def test_node_condition_uses_the_driver_name(render: Render) -> None:
    from dra_agent.reclaim.announcements import condition_type

    text = str(render({"driverName": "gpu.example.com"}))
    assert condition_type("gpu.example.com") in text and condition_type("dra-agent.internal") not in text


def test_host_network_has_no_network_policy_and_local_probes(render: Render) -> None:
    objects = render({"hostNetwork": True})
    assert not [found for found in objects if found["kind"] == "NetworkPolicy"], "it would have no effect"
    # Without a policy the probes are still unreachable for other hosts.
    assert variables(objects)["DRA_AGENT_HEALTH_ADDRESS"]["value"] == "127.0.0.1:9418"
    assert container(objects)["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"


def test_agent_that_moves_interfaces_uses_host_network_and_pids(render: Render) -> None:
    objects = render({"hostNetwork": True, "hostPID": True, "privileged": True})
    pod = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True and pod["hostPID"] is True
    # With a net root it would treat its own network namespace as another one, and change nothing in it.
    assert "DRA_AGENT_NET_ROOT" not in variables(objects)
    assert "net" not in {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount for mount in container(objects)["volumeMounts"]}
    assert "net" not in mounts and not mounts["sys"].get("readOnly"), "an MTU is written below /sys/class/net"


def test_network_policy_allows_the_configured_apiserver_port(render: Render) -> None:
    def ports(values: dict[str, Any]) -> list[int]:
        rule, *metadata = only_object(render(values), "NetworkPolicy")["spec"]["egress"]
        assert [entry["to"] for entry in metadata] == [[{"ipBlock": {"cidr": "169.254.169.254/32"}}]]
        return [port["port"] for port in rule["ports"]]

    assert {443, 6443} <= set(ports({}))
    objects = render({"apiServer": {"host": "10.0.0.1", "port": 7443}})
    assert ports({"apiServer": {"host": "10.0.0.1", "port": 7443}}) == [7443]
    variables_of_agent = variables(objects)
    assert (
        variables_of_agent["KUBERNETES_SERVICE_HOST"]["value"] == "10.0.0.1"
        and variables_of_agent["KUBERNETES_SERVICE_PORT"]["value"] == "7443"
    )
    closed = only_object(render({"networkPolicy": {"metadataService": False}}), "NetworkPolicy")["spec"]["egress"]
    assert len(closed) == 1
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    (ingress,) = only_object(render({"networkPolicy": {"metricsFrom": peers}}), "NetworkPolicy")["spec"]["ingress"]
    assert ingress == {"ports": [{"protocol": "TCP", "port": "metrics"}], "from": peers}


def test_network_policy_allows_name_resolution_only_for_a_named_apiserver(render: Render) -> None:
    def dns(host: str, **values: object) -> list[dict[str, Any]]:
        values = {"apiServer": {"host": host}, "networkPolicy": {"metadataService": False, **values}}
        _, *rules = only_object(render(values), "NetworkPolicy")["spec"]["egress"]
        return list(rules)

    for address in ("", "192.0.2.1", "2001:db8::a", "fd00::1"):
        assert dns(address) == [], address
    for name in ("api.example.com", "bad.cafe", "k8s"):
        (rule,) = dns(name)
        assert rule == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}]
    (rule,) = dns("api.example.com", dns={"ports": [5353], "to": peers})
    assert rule == {"ports": [{"protocol": "UDP", "port": 5353}, {"protocol": "TCP", "port": 5353}], "to": peers}


def test_network_policy_allows_known_apiserver_addresses(render: Render) -> None:
    def rule(**values: object) -> dict[str, Any]:
        first: dict[str, Any] = only_object(render({"networkPolicy": values}), "NetworkPolicy")["spec"]["egress"][0]
        return first

    assert "to" not in rule(), "unknown addresses cannot be listed"
    known = rule(apiServerCidrs=["192.0.2.10/32", "2001:db8::/64"], apiServerPorts=[6443])
    assert known == {
        "to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}, {"ipBlock": {"cidr": "2001:db8::/64"}}],
        "ports": [{"protocol": "TCP", "port": 6443}],
    }
    for wrong in ("192.0.2.10", "192.0.2.10/33", "kubernetes.default/32", "2001:db8::/129", ""):
        with pytest.raises(RefusedError, match="apiServerCidrs"):
            rule(apiServerCidrs=[wrong])


def test_images_are_referenced_by_tag_or_digest(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example.com/dra-agent", "tag": "1.2", "digest": digest, "pullPolicy": "Never"}
    assert container(render({"image": image}))["image"] == f"registry.example.com/dra-agent@{digest}"
    agent = container(render({"image": {**image, "digest": ""}}))
    assert (agent["image"], agent["imagePullPolicy"]) == ("registry.example.com/dra-agent:1.2", "Never")


def test_all_optional_values_together(render: Render) -> None:
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
    pod = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]
    agent = container(objects)
    assert pod["imagePullSecrets"] == [{"name": "mine"}] and pod["runtimeClassName"] == "nvidia"
    assert agent["securityContext"]["privileged"] is True and "capabilities" not in agent["securityContext"]
    assert agent["args"] == ["run", "--log-level=debug"] and variables(objects)["X"]["value"] == "z"
    assert {"name": "v", "mountPath": "/v"} in agent["volumeMounts"] and {"name": "v", "emptyDir": {}} in pod["volumes"]
    assert "/etc/cdi" not in {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert only_object(objects, "ResourceQuota")["spec"]["hard"] == {"pods": "10000"}


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
        ({"nodeLabels": "all"}, "'/nodeLabels'"),
        ({"image": {"digest": "sha256:12"}}, "'/image/digest'"),
        ({"claimStatus": "yes"}, "'/claimStatus'"),
        ({"apiServer": {"port": "https"}}, "'/apiServer/port'"),
        ({"logLevel": "loud"}, "'/logLevel'"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"hostPID": True}, "hostPID: requires privileged"),
    ],
)
def test_invalid_values_are_refused_by_name(render: Render, values: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError) as error:
        render(values)
    assert named in str(error.value)


def test_schema_covers_every_value_and_the_agents_options() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check_schema(variables_of_agent: dict[str, Any], properties: dict[str, Any], where: str = "") -> None:
        for name, value in variables_of_agent.items():
            assert name in properties, f"{where}{name} has no schema"
            if isinstance(value, dict) and properties[name].get("properties"):
                check_schema(value, properties[name]["properties"], f"{where}{name}.")

    check_schema(values, schema["properties"])
    assert set(values) | {"global"} == set(schema["properties"])
    assert values["driverName"] == DEFAULT_DRIVER
    fields = Config.__annotations__
    words = {"logLevel": "log_level", "logFormat": "log_format", "secondManager": "second_manager"}
    for value, field in (words | {"nodeLabels": "node_labels"}).items():
        assert all(f"'{word}'" in fields[field] for word in schema["properties"][value]["enum"])


def test_helm_lint_passes(helm: Path) -> None:
    result = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
