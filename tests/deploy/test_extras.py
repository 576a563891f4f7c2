"""Additional labels, variables and volumes: they are added to the chart's and never repeat them."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.rendering import RefusedError, Render, container, only_object

EVERYTHING: dict[str, Any] = {
    "simulate": "dgx-h100",
    "apiServer": {"host": "192.0.2.1", "port": 6443},
    "runtimeClassName": "nvidia",
    "mig": "partition",
    "config": '[[inventory.partition]]\nmode = "mig"\nwhen = "true"\n',
    "logind": True,
    "podResources": True,
    "nvidia": {"driverRoot": "auto"},
    "metrics": {"tlsSecret": "certificate", "tokenSecret": "tokens"},
}


def refusal(render: Render, **values: Any) -> str:
    with pytest.raises(RefusedError) as error:
        render({**EVERYTHING, **values})
    return str(error.value)


def test_no_variable_of_the_chart_is_repeated(render: Render) -> None:
    names = [entry["name"] for entry in container(render(EVERYTHING))["env"]]
    assert len(names) >= 20 and len(names) == len(set(names))
    repeated = [[{"name": name, "value": "x"}] for name in (*names, "DRA_AGENT_STANDALONE", "DRA_AGENT_KUBECONFIG")]
    for extra in repeated:
        assert f"extraEnv: the chart sets {extra[0]['name']}" in refusal(render, extraEnv=extra)
    twice = [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]
    assert "extraEnv" in refusal(render, extraEnv=twice)


def test_no_volume_or_path_of_the_chart_is_repeated(render: Render) -> None:
    objects = render(EVERYTHING)
    volumes = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
    assert len(volumes) >= 12
    for volume in volumes:
        message = refusal(render, extraVolumes=[{"name": volume["name"], "emptyDir": {}}])
        assert f'extraVolumes: the chart, or an earlier entry, has a volume "{volume["name"]}"' in message
    for mount in container(objects)["volumeMounts"]:
        for path in (mount["mountPath"], mount["mountPath"] + "/"):
            message = refusal(render, extraVolumeMounts=[{"name": "x", "mountPath": path}])
            assert f"earlier entry, mounts {mount['mountPath']}" in message


@pytest.mark.parametrize("argument", ["--node-name=other", "--driver-name", "--standalone", "--pod-uid=x"])
def test_arguments_do_not_change_the_identity_of_the_agent(render: Render, argument: str) -> None:
    assert f"extraArgs: {argument} would replace" in refusal(render, extraArgs=[argument])


def test_labels_and_annotations_of_the_chart_are_not_repeated(render: Render) -> None:
    metadata = only_object(render(), "DaemonSet")["spec"]["template"]["metadata"]
    for key in metadata["labels"]:
        assert f"podLabels: the chart sets {key}" in refusal(render, podLabels={key: "x"})
    for key in metadata["annotations"]:
        assert f"podAnnotations: the chart sets {key}" in refusal(render, podAnnotations={key: "x"})


def test_extras_are_added(render: Render) -> None:
    values: dict[str, Any] = {
        "podLabels": {"c": "d"},
        "podAnnotations": {"e": "f"},
        "extraArgs": ["--device-metadata"],
        "extraEnv": [{"name": "HTTP_PROXY", "value": "z"}],
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        "imagePullSecrets": [{"name": "mine"}],
    }
    objects = render({**EVERYTHING, **values})
    template = only_object(objects, "DaemonSet")["spec"]["template"]
    agent = container(objects)
    assert template["metadata"]["labels"]["c"] == "d" and template["metadata"]["annotations"]["e"] == "f"
    assert agent["args"] == ["run", "--device-metadata"]
    assert {"name": "HTTP_PROXY", "value": "z"} in agent["env"]
    assert {"name": "v", "emptyDir": {}} in template["spec"]["volumes"]
    assert {"name": "v", "mountPath": "/v"} in agent["volumeMounts"]
    assert template["spec"]["imagePullSecrets"] == [{"name": "mine"}]
