"""The chart mounts the root of NVIDIA's driver where it is set, and changes nothing elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.rendering import RefusedError, Render, container, only_object

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


@pytest.mark.parametrize("root", ["run/nvidia/driver", "/", "/run/nvidia/../driver", "/run/nvidia/driver/", "Auto"])
def test_an_invalid_root_is_refused_by_name(render: Render, root: str) -> None:
    with pytest.raises(RefusedError, match="driverRoot"):
        render(values(root))
