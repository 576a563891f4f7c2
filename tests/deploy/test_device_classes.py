"""The DeviceClasses of the chart: a selection of the examples, with a prefix, labels and extended resources."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from deploy.rendering import CHART, ROOT, RefusedError, Render, objects_by_name


def examples() -> dict[str, dict[str, Any]]:
    documents = (yaml.safe_load_all(path.read_text()) for path in (ROOT / "examples/classes").glob("*.yaml"))
    return {found["metadata"]["name"]: found["spec"] for several in documents for found in several}


def classes(render: Render, **values: Any) -> dict[str, dict[str, Any]]:
    return objects_by_name(render({"deviceClasses": values}), "DeviceClass")


def test_all_examples_are_enabled_by_default(render: Render) -> None:
    assert len(examples()) >= 8
    assert {name: found["spec"] for name, found in classes(render).items()} == examples()
    enabled = yaml.safe_load((CHART / "values.yaml").read_text())["deviceClasses"]["enabled"]
    assert enabled == sorted(examples()), "the value lists every example"
    assert not classes(render, create=False)


@pytest.mark.parametrize("version", ["1.34.4", "1.35.0", "v1.35.9-gke.100"])
def test_a_class_that_an_earlier_api_server_refuses_is_left_out(render: Render, version: str) -> None:
    found = objects_by_name(render(kube_version=version), "DeviceClass")
    assert set(examples()) - set(found) == {"nvidia-share"}
    extended = {"deviceClasses": {"extendedResourceNames": {"nvidia-share": "example.com/share"}}}
    assert "nvidia-share" not in objects_by_name(render(extended, kube_version=version), "DeviceClass")
    assert "nvidia-share" in objects_by_name(render(kube_version="v1.36.0-gke.100"), "DeviceClass")


def test_classes_are_chosen_one_by_one(render: Render) -> None:
    assert set(classes(render, enabled=["mig", "gpu"])) == {"gpu", "mig"}
    assert not classes(render, enabled=[])


def test_names_have_the_prefix_and_objects_the_labels(render: Render) -> None:
    found = classes(render, enabled=["gpu"], prefix="accelerators-", labels={"team": "ml"})
    (name,) = found
    assert name == "accelerators-gpu" and found[name]["spec"] == examples()["gpu"]
    assert found[name]["metadata"]["labels"].items() >= {"team": "ml", "app.kubernetes.io/name": "dra-agent"}.items()


def test_extended_resources_are_mapped_without_the_prefix(render: Render) -> None:
    found = classes(render, prefix="x-", extendedResourceNames={"gpu": "nvidia.com/gpu"})
    named = {name: item["spec"].get("extendedResourceName") for name, item in found.items()}
    assert named.pop("x-gpu") == "nvidia.com/gpu" and set(named.values()) == {None}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"extendedResourceNames": {"gpu": "gpu"}}, "extendedResourceNames/gpu'"),
        ({"extendedResourceNames": {"gpus": "nvidia.com/gpu"}}, 'extendedResourceNames: unknown class "gpus"'),
        ({"extendedResourceNames": {"gpu": "nvidia.com/gpu"}, "enabled": ["mig"]}, "in deviceClasses.enabled are mig"),
        ({"enabled": ["gpus"]}, 'deviceClasses.enabled: unknown class "gpus"; the classes are amd'),
        ({"enabled": ["gpu", "gpu"]}, "'/deviceClasses/enabled'"),
        ({"prefix": "GPU-"}, "'/deviceClasses/prefix'"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "deviceClasses.labels: the chart sets app.kubernetes.io/name"),
    ],
)
def test_invalid_selections_are_refused(render: Render, values: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError) as error:
        classes(render, **values)
    assert message in str(error.value)
