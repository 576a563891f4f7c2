"""A query from files: claims of a user, and the classes, slices, claims and nodes that a cluster printed.

Objects of the user are checked against every limit of the API; objects that a cluster printed are not, because it
may be newer than this agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_agent.errors import UsageError
from dra_agent.explain.printed_object import API_VERSION, checked
from dra_agent.manifests import LoadedObject, load_manifests


@dataclass
class QueryInputs:
    """The objects of a query."""

    claims: list[dict[str, Any]] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    slices: list[dict[str, Any]] = field(default_factory=list)
    allocated: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)

    def node(self, name: str) -> str | dict[str, Any]:
        """The Node object of this name, with its labels, where a file has one; else the name."""
        return next((node for node in self.nodes if node.get("metadata", {}).get("name") == name), name)


def read_inputs(
    users: Sequence[LoadedObject],
    *,
    classes: Sequence[str] = (),
    slices: Sequence[str] = (),
    allocated: Sequence[str] = (),
) -> QueryInputs:
    """Check the objects of the user, and read the files, which may hold classes, slices, claims and nodes in any order.

    Raises UsageError naming file, line and field of the error.
    """
    inputs = QueryInputs()
    if problems := [problem for loaded in users for problem in loaded.diagnostics()]:
        raise UsageError("\n".join(problems))
    for loaded in users:
        _add_users(inputs, loaded)
    if not inputs.claims:
        raise UsageError(
            "there is no ResourceClaim to explain", where=", ".join(dict.fromkeys(loaded.file for loaded in users))
        )
    for path in (*classes, *slices, *allocated):
        for loaded in load_manifests(path, strict=False, allow_empty_list=True):
            _add_printed(inputs, loaded)
    return inputs


def _add_users(inputs: QueryInputs, loaded: LoadedObject) -> None:
    match loaded.kind:
        case "ResourceClaim":
            inputs.claims.append(loaded.value)
        case "ResourceClaimTemplate":
            inputs.claims.append(claim_of_template(loaded.value))
        case "DeviceClass":
            inputs.classes.append(loaded.value)
        case kind:
            raise UsageError(
                f"a {kind or 'nameless kind'} cannot be explained",
                where=loaded.where("kind"),
                hint="give ResourceClaims, ResourceClaimTemplates and DeviceClasses here",
            )


def claim_of_template(template: dict[str, Any]) -> dict[str, Any]:
    """The claim that a pod would get from the template."""
    metadata = template.get("metadata", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {key: metadata[key] for key in ("name", "namespace") if key in metadata},
        "spec": (template.get("spec") or {}).get("spec") or {},
    }


def _add_printed(inputs: QueryInputs, loaded: LoadedObject) -> None:
    lists = {
        "DeviceClass": inputs.classes,
        "ResourceSlice": inputs.slices,
        "ResourceClaim": inputs.allocated,
        "Node": inputs.nodes,
    }
    target = lists.get(loaded.kind)
    if target is None:
        raise UsageError(
            f"a {loaded.kind or 'nameless kind'} is of no use here",
            where=loaded.where("kind"),
            hint="give DeviceClasses, ResourceSlices, ResourceClaims or Nodes, as `kubectl get -o yaml` prints them",
        )
    target.append(checked(loaded))
