"""The chart mounts the root of NVIDIA's driver where it is set, and changes nothing elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.rendering import RefusedError, Render, container, objects_by_name, only_object

OPERATOR = "/run/nvidia/driver"


def values(root: str, **others: Any) -> dict[str, Any]:
    return {"nvidia": {"driverRoot": root}, "privileged": True, **others}


def environment(found: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in found["env"]}


@pytest.mark.parametrize(
    ("root", "mounted"),
    [
        (OPERATOR, "/run/nvidia"),
        ("auto", "/run/nvidia"),
        ("/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/nvidia"),
        ("/usr/local/glibc", "/usr/local/glibc"),
        ("/run/driver", "/run/driver"),
    ],
)
def test_a_root_is_mounted_at_its_own_path(render: Render, root: str, mounted: str) -> None:
    manifests = render(values(root))
    agent = container(manifests)
    assert environment(agent)["DRA_AGENT_NVIDIA_DRIVER_ROOT"] == root
    (mount,) = [one for one in agent["volumeMounts"] if one["name"] == "nvidia-driver"]
    assert mount["mountPath"] == mounted and mount["readOnly"] is True
    assert mount["mountPropagation"] == "HostToContainer" and "recursiveReadOnly" not in mount
    volumes = only_object(manifests, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    (volume,) = [one for one in volumes if one["name"] == "nvidia-driver"]
    assert volume["hostPath"] == {"path": mounted, "type": "DirectoryOrCreate"}


def test_without_a_root_nothing_is_mounted(render: Render) -> None:
    agent = container(render({}))
    assert "DRA_AGENT_NVIDIA_DRIVER_ROOT" not in environment(agent)
    assert not [one for one in agent["volumeMounts"] if "nvidia" in one["name"]]


def test_a_container_that_cannot_open_the_nodes_is_refused(render: Render) -> None:
    with pytest.raises(RefusedError, match=r"nvidia\.driverRoot: requires privileged: true"):
        render(values(OPERATOR, privileged=False))
    assert container(render(values(OPERATOR, privileged=False, runtimeClassName="nvidia")))


def pool(name: str, **others: Any) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"example.com/pool": name}, **others}


def test_each_pool_has_its_own_driver_root_runtime_class_and_mig(render: Render) -> None:
    pools = [
        pool("operator", runtimeClassName="", privileged=True, nvidia={"driverRoot": "auto"}),
        pool("gke", nvidia={"driverRoot": "/home/kubernetes/bin/nvidia"}),
        pool("mig", mig="read"),
    ]
    objects = render({"runtimeClassName": "nvidia", "nvidia": {"driverRoot": ""}, "pools": pools})
    expected = {
        "dra-agent": ("nvidia", None, None, None),
        "dra-agent-operator": (None, "auto", "/run/nvidia", None),
        "dra-agent-gke": ("nvidia", "/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/nvidia", None),
        "dra-agent-mig": ("nvidia", None, None, "all"),
    }
    found = {}
    for name, daemonset in objects_by_name(objects, "DaemonSet").items():
        spec = daemonset["spec"]["template"]["spec"]
        (agent,) = spec["containers"]
        variables = environment(agent)
        mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
        found[name] = (
            spec.get("runtimeClassName"),
            variables.get("DRA_AGENT_NVIDIA_DRIVER_ROOT"),
            mounts.get("nvidia-driver"),
            variables.get("NVIDIA_MIG_MONITOR_DEVICES"),
        )
        assert ("SYS_ADMIN" in agent["securityContext"].get("capabilities", {}).get("add", [])) == (name[-3:] == "mig")
    assert found == expected


def test_a_pool_can_have_no_driver_root(render: Render) -> None:
    objects = render(values("auto", pools=[pool("cpu", privileged=False, nvidia={"driverRoot": ""})]))
    found = objects_by_name(objects, "DaemonSet")
    (agent,) = found["dra-agent-cpu"]["spec"]["template"]["spec"]["containers"]
    assert "DRA_AGENT_NVIDIA_DRIVER_ROOT" not in environment(agent)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"nvidia": {"driverRoot": "auto"}}, 'pool "a": nvidia.driverRoot: requires privileged'),
        ({"nvidia": {"driverRoot": "run"}}, "'/pools/0/nvidia/driverRoot'"),
        ({"nvidia": {"root": "/run/nvidia/driver"}}, "'/pools/0/nvidia'"),
        ({"runtimeClassName": "NVIDIA"}, "'/pools/0/runtimeClassName'"),
        ({"mig": "all"}, "'/pools/0/mig'"),
    ],
)
def test_invalid_driver_values_of_a_pool_are_refused(render: Render, others: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        render({"pools": [pool("a", **others)]})
    assert message in str(error.value)


@pytest.mark.parametrize("root", ["run/nvidia/driver", "/", "/run/nvidia/../driver", "/run/nvidia/driver/", "Auto"])
def test_an_invalid_root_is_refused_by_name(render: Render, root: str) -> None:
    with pytest.raises(RefusedError, match="driverRoot"):
        render(values(root))
