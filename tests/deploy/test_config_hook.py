"""The optional hook that checks the configuration before Helm changes the release."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import Objects, RefusedError, Render, objects_by_name, only_object

HOOK = {"configCheck": {"hook": True}}
GOOD = '[inventory]\nhost_uplink = "exclude"\n'
BAD = "# é \"quoted\" <&>\n[inventory]\nexclude = ['device.nonsense(']\n"
"""A rule that does not compile, which Helm cannot find."""
POOL: dict[str, Any] = {
    "name": "gpu",
    "nodeSelector": {"example.com/pool": "gpu"},
    "config": BAD,
    "image": {"tag": "other"},
    "privileged": True,
    "resources": {"limits": {"memory": "1Gi"}},
}


def job(objects: Objects) -> dict[str, Any]:
    return only_object(objects, "Job")


def files(template: dict[str, Any]) -> dict[str, str]:
    """Return the files of the volume, as the kubelet writes them."""
    (volume,) = template["spec"]["volumes"]
    found = {}
    for item in volume["downwardAPI"]["items"]:
        path = re.fullmatch(r"metadata\.annotations\['(.+)'\]", item["fieldRef"]["fieldPath"])
        assert path is not None
        found[item["path"]] = template["metadata"]["annotations"][path[1]]
    return found


def test_the_chart_has_no_hook_by_default(render: Render) -> None:
    assert not [found for found in render({"pools": [POOL]}) if found["kind"] == "Job"]


def test_helm_runs_the_hook_before_it_changes_objects_and_removes_it(render: Render) -> None:
    found = job(render(HOOK, namespace="infra"))
    assert found["metadata"]["namespace"] == "infra"
    assert found["metadata"]["annotations"] == {
        "helm.sh/hook": "pre-install,pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
        "helm.sh/hook-output-log-policy": "hook-failed",
    }
    spec = found["spec"]
    assert spec["backoffLimit"] == 0 and spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] < 300, "Helm's default --timeout"
    assert spec["ttlSecondsAfterFinished"] > 0, "a failed Job is removed, too"


def test_the_hook_has_no_permissions(render: Render) -> None:
    values = {"privileged": True, "hostPID": True, "hostNetwork": True, "runtimeClassName": "nvidia", "pools": [POOL]}
    pod = job(render({**HOOK, **values}))["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostPID", "hostNetwork", "hostIPC", "runtimeClassName", "priorityClassName", "initContainers"} & set(
        pod
    )
    assert all(set(volume) == {"name", "downwardAPI"} for volume in pod["volumes"])
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_hook_checks_the_file_of_each_pool_with_its_image(render: Render, tmp_path: Path) -> None:
    values = {"config": GOOD, "pools": [POOL], "driverName": "gpu.example.com"}
    objects = render({**HOOK, **values})
    template = job(objects)["spec"]["template"]
    maps = objects_by_name(objects, "ConfigMap")
    found = files(template)
    assert {path: text.strip() for path, text in found.items()} == {
        "config.toml": maps["dra-agent"]["data"]["config.toml"].strip(),
        "pool-gpu/config.toml": maps["dra-agent-gpu"]["data"]["config.toml"].strip(),
    }
    daemonsets = objects_by_name(objects, "DaemonSet")
    results = {}
    for container, daemonset in (("config-check", "dra-agent"), ("pool-gpu", "dra-agent-gpu")):
        (check,) = [one for one in template["spec"]["containers"] if one["name"] == container]
        (init,) = daemonsets[daemonset]["spec"]["template"]["spec"]["initContainers"]
        assert {**check, "name": init["name"], "args": init["args"]} == init
        path = check["args"][-1].removeprefix(check["volumeMounts"][0]["mountPath"] + "/")
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(found[path])
        command = [sys.executable, "-m", "dra_agent", *check["args"][:-1], str(file)]
        results[container] = subprocess.run(command, capture_output=True, check=False).returncode
    assert results == {"config-check": 0, "pool-gpu": 1}


def test_no_object_of_the_chart_selects_the_pod_of_the_hook(render: Render) -> None:
    objects = render({**HOOK, "pools": [POOL]})
    labels = job(objects)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["spec"].get("selector") or found["spec"]["podSelector"]
        for found in objects
        if found["kind"] in ("DaemonSet", "Deployment", "NetworkPolicy", "Service")
    ]
    assert len(selectors) >= 3
    for selector in selectors:
        expected = selector.get("matchLabels", selector).items()
        ranges = selector.get("matchExpressions", [])
        assert not (expected <= labels.items() and all(labels.get(one["key"]) in one["values"] for one in ranges))


def test_nodes_of_the_hook_and_long_names(render: Render) -> None:
    values = {"hook": True, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "c", "operator": "Exists"}]}
    found = job(render({"configCheck": values, "fullnameOverride": "a" * 63, "nameOverride": "b" * 63}))
    pod = found["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "a": "b"}
    assert pod["tolerations"] == [{"key": "c", "operator": "Exists"}]
    assert "tolerations" not in job(render(HOOK))["spec"]["template"]["spec"], "a node that does not respond has taints"
    assert len(found["metadata"]["name"]) <= 63
    assert all(len(value) <= 63 for value in found["spec"]["template"]["metadata"]["labels"].values())


def test_values_of_the_hook_are_checked(render: Render) -> None:
    with pytest.raises(RefusedError, match="'/configCheck/hook'"):
        render({"configCheck": {"hook": "yes"}})
    assert yaml.safe_dump(render({"configCheck": {"hook": False}})) == yaml.safe_dump(render())
