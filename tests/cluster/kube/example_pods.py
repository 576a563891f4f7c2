"""The workloads of `examples/pods`, with the image that the nodes of the test cluster have."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from . import image
from .api import Object

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/pods"


def objects(name: str) -> list[Object]:
    """Return the objects of an example, with the local image in place of each public one."""
    found: list[Object] = [value for value in yaml.safe_load_all((EXAMPLES / name).read_text()) if value]
    return [_with_local_image(one) for one in found]


def manifest(name: str) -> str:
    """Return these objects as one manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(name)})


def _with_local_image(value: Object) -> Object:
    spec = value["spec"]["template"]["spec"] if "template" in value["spec"] else value["spec"]
    for container in spec.get("containers", []):
        assert container["image"] == "busybox:1.37"
        container |= {"image": image.NAME, "imagePullPolicy": "Never"}
    return value
