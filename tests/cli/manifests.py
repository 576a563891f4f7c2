"""Files of claims and classes."""

from __future__ import annotations

from pathlib import Path

CLASS = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: gpu}\nspec: {}\n"


def claim(name: str, count: int = 1, namespace: str = "default") -> str:
    return (
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\n"
        "spec: {devices: {requests: [{name: r, exactly: "
        f"{{deviceClassName: gpu, count: {count}, allocationMode: ExactCount}}}}]}}}}\n"
    )


def write(path: Path, *objects: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("---\n".join(objects))
    return path
