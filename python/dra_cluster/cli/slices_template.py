"""`dra-agent slices template`: the slices that a node of one kind would publish, for autoscalers, or a comparison."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from dra_agent.cli.template_flags import CLUSTER, CLUSTER_API, KARPENTER
from dra_agent.errors import UsageError
from dra_agent.printable import printable
from dra_agent.slices import Slice
from dra_cluster.template import Difference, Template, differences, make_template, unlike_devices

# kubernetes/autoscaler, cluster-autoscaler/cloudprovider/clusterapi/{clusterapi_utils,clusterapi_unstructured}.go at
# 55c37cd5eb55: one slice with gpu-count devices, each with the attribute `type: gpu` only.
_DRIVER_ANNOTATION = "capacity.cluster-autoscaler.kubernetes.io/dra-driver"
_COUNT_ANNOTATION = "capacity.cluster-autoscaler.kubernetes.io/gpu-count"


def show(args: argparse.Namespace, slices: Sequence[Slice]) -> int:
    """Print the template of these slices, or how a node differs from it; 1 if it does."""
    template = make_template(slices)
    if args.compare is not None:
        return _compare(args, template)
    if args.form == CLUSTER_API:
        _print(args, _annotations(template.slices))
    elif args.form == KARPENTER:
        _print(args, _instance_type(template, slices))
    else:
        _print(args, {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": template.slices})
    if template.left_out:
        print(f"left out, as they differ between nodes: {', '.join(template.left_out)}", file=sys.stderr)
    # Karpenter simulates the allocation of each device.
    unlike: dict[str, list[str]] = {} if args.form == KARPENTER else unlike_devices(template.slices)
    for pool, fields in unlike.items():
        message = f"the devices of pool {pool} are not alike ({', '.join(fields)})"
        print(f"warning: {message}; Cluster Autoscaler expects them to be", file=sys.stderr)
    return 0


def _print(args: argparse.Namespace, value: dict[str, Any]) -> None:
    from dra_agent.cli.output import emit

    emit(value, "json" if args.output == "json" else "yaml")


def _annotations(slices: Sequence[Slice]) -> dict[str, Any]:
    devices = [device for entry in slices for device in entry["spec"].get("devices") or ()]
    gpus = [one for one in devices if (one.get("attributes") or {}).get("type") == {"string": "gpu"}]
    if not gpus:
        raise UsageError("there is no GPU", where=f"--form {CLUSTER_API}", hint="the annotations describe GPUs only")
    if len(gpus) != len(devices):
        print(
            f"warning: {len(devices) - len(gpus)} devices that are not whole GPUs have no annotation", file=sys.stderr
        )
    print("warning: a node group at zero has no attributes except `type`, and no capacities", file=sys.stderr)
    return {_DRIVER_ANNOTATION: slices[0]["spec"]["driver"], _COUNT_ANNOTATION: str(len(gpus))}


def _instance_type(template: Template, slices: Sequence[Slice]) -> dict[str, Any]:
    from dra_cluster.instance_type import dynamic_resources, unsupported_fields

    if fields := unsupported_fields(template):
        print(f"warning: Karpenter has no field for {', '.join(fields)} of a device", file=sys.stderr)
    return dynamic_resources(template, slices)


def _compare(args: argparse.Namespace, template: Template) -> int:
    from dra_agent.cli.output import emit
    from dra_agent.cli.table import table
    from dra_cluster.cli.compared_node import slices_of_cluster, slices_of_file

    if not template.slices:
        raise UsageError("the template has no device", where="--compare")
    read = slices_of_cluster if args.compare is CLUSTER else slices_of_file
    node, slices = read(args, template.slices[0]["spec"]["driver"])
    found = differences(template.slices, slices)
    if args.output in ("json", "yaml"):
        emit({"node": node, "differences": [one._asdict() for one in found]}, args.output)
    elif found:
        table(("pool", "device", "field", "template", "node"), list(map(_row, found)), optional=("field",))
    else:
        print(printable(f"node {node} has the devices of the template", line=True))
    return 1 if found else 0


def _row(one: Difference) -> tuple[object, ...]:
    return one.pool, one.subject.removeprefix("device "), one.field, one.template, one.node
