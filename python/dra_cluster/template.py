"""The slices that every node of one kind has, without what identifies a node, and how those of a real node differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dra_agent.api_object import Object
from dra_agent.slices.desired import Slice
from dra_cluster import amount

IDENTITIES = frozenset(
    {
        *("uuid", "parentUUID", "serial", "serialNumber", "mac", "ibPortGUID", "fabricDomain", "fabricClique"),
        *("ibSubnetPrefix", "rack", "leaf", "spine", "core"),
    }
)
"""Attributes, without their domain, that differ between nodes of one kind: of a device, or of the fabric of a rack."""
LOCATIONS = frozenset(
    {
        *("pciBusID", "pcieRoot", "pcieSwitch", "iommuGroup", "numaNode", "ifName", "rdmaDevice", "rail"),
        "interconnectGroup",
    }
)
"""Attributes, without their domain, that differ between equal devices of one node."""
_ABSENT = "none"


class Template(NamedTuple):
    """The slices of a node of one kind."""

    slices: list[Slice]
    left_out: list[str]
    """Attributes that were removed, with their domain, sorted; `taints` if a device had one."""


class Difference(NamedTuple):
    """A field that differs between a template and a node."""

    pool: str
    """The part of the pool's name after that of the node: `gpu`."""
    subject: str
    """`device gpu-0`, or `counter set gpu-0`."""
    field: str
    """Such as `attribute driverVersion`; empty where only one side has the device or counter set."""
    template: str
    node: str


def make_template(slices: Iterable[Slice]) -> Template:
    """Remove from each device its taints and the attributes that differ between nodes of one kind."""
    left_out: set[str] = set()

    def shared(device: Object) -> Object:
        attributes = device.get("attributes") or {}
        removed = {name for name in attributes if _is_in(name, IDENTITIES)}
        left_out.update(removed, ["taints"] if device.get("taints") else ())
        kept = {name: value for name, value in attributes.items() if name not in removed}
        rest = {key: value for key, value in device.items() if key not in {"attributes", "taints"}}
        return {"name": rest.pop("name"), **({"attributes": kept} if kept else {}), **rest}

    changed = [
        {**entry, "spec": {**entry["spec"], "devices": [shared(device) for device in entry["spec"]["devices"]]}}
        if entry["spec"].get("devices")
        else entry
        for entry in slices
    ]
    return Template(changed, sorted(left_out))


def differences(template: Sequence[Slice], node: Sequence[Slice]) -> list[Difference]:
    """Compare the devices and counter sets of a template with those of a node; each argument is of one node.

    Identities of devices, taints, and how devices are spread over slices are not compared.
    """
    expected, found = dict(_parts(template)), dict(_parts(node))
    result: list[Difference] = []
    for key in [*expected, *(key for key in found if key not in expected)]:
        pool, subject = key
        if key not in expected or key not in found:
            result.append(
                Difference(pool, subject, "", *("present" if key in side else _ABSENT for side in (expected, found)))
            )
            continue
        here, there = expected[key], found[key]
        for field in [*here, *(field for field in there if field not in here)]:
            one, other = here.get(field, _ABSENT), there.get(field, _ABSENT)
            if one != other:
                result.append(Difference(pool, subject, field, one, other))
    return result


def unlike_devices(slices: Sequence[Slice]) -> dict[str, list[str]]:
    """Return for each pool with different devices, or different counter sets, the fields that differ.

    Cluster Autoscaler expects the devices of a pool to be identical, and of a pool with shared counters the counter
    sets (kubernetes/autoscaler, cluster-autoscaler/docs/dra_support.md, Limitations, at 55c37cd5eb55). Addresses,
    NUMA nodes and names of interfaces are not compared here: they differ between any two devices.
    """
    pools: dict[str, dict[str, list[dict[str, str]]]] = {}
    for (pool, subject), fields in _parts(slices):
        kind = subject.partition(" ")[0]
        pools.setdefault(pool, {}).setdefault(kind, []).append(
            {field: value for field, value in fields.items() if not _is_in(field.rpartition(" ")[2], LOCATIONS)}
        )
    result = {}
    for pool, kinds in pools.items():
        members = kinds.get("counter") or kinds.get("device") or []
        names = sorted({field for member in members for field in member})
        if unlike := [name for name in names if len({member.get(name) for member in members}) > 1]:
            result[pool] = unlike
    return result


def _is_in(name: str, names: frozenset[str]) -> bool:
    return name.rpartition("/")[2] in names


def _parts(slices: Sequence[Slice]) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """Yield each device and counter set with its fields as text."""
    for entry in slices:
        spec = entry["spec"]
        pool = _pool(spec)
        for device in spec.get("devices") or ():
            yield (pool, f"device {device.get('name')}"), dict(_device_fields(device))
        for counters in spec.get("sharedCounters") or ():
            yield (pool, f"counter set {counters.get('name')}"), dict(_counters(counters, "counter"))


def _pool(spec: Object) -> str:
    name, node = str((spec.get("pool") or {}).get("name")), str(spec.get("nodeName") or "")
    return name.removeprefix(f"{node}/") if node else name


def _device_fields(device: Object) -> Iterator[tuple[str, str]]:
    for name, value in (device.get("attributes") or {}).items():
        if not _is_in(name, IDENTITIES):
            yield f"attribute {name}", _attribute_text(value)
    for name, value in (device.get("capacity") or {}).items():
        yield f"capacity {name}", _quantity_text(value)
        if isinstance(value, dict) and (policy := value.get("requestPolicy")):
            yield f"request policy of capacity {name}", str(_with_quantities(policy))
    for consumed in device.get("consumesCounters") or ():
        yield from _counters(consumed, f"consumed counter of {consumed.get('counterSet')}")
    for name, value in device.items():
        if name not in {"name", "attributes", "capacity", "consumesCounters", "taints"}:
            yield name, str(value)


def _counters(holder: Object, label: str) -> Iterator[tuple[str, str]]:
    for name, value in (holder.get("counters") or {}).items():
        yield f"{label} {name}", _quantity_text(value)


def _attribute_text(value: Any) -> str:
    """Return the value without its type; as it is where a newer cluster has another form."""
    if not isinstance(value, dict) or len(value) != 1:
        return str(value)
    (content,) = value.values()
    return str(content).lower() if isinstance(content, bool) else str(content)


def _quantity_text(value: Any) -> str:
    """Return the quantity in a form that depends on the amount only, so that 81559Mi equals 85520809984."""
    written = value.get("value") if isinstance(value, dict) else value
    number = amount.amount(written)
    return str(written) if number is None else amount.text(number)


def _with_quantities(policy: Any) -> Any:
    """Return a request policy with its quantities in that form."""
    if isinstance(policy, dict):
        return {key: _with_quantities(value) for key, value in sorted(policy.items())}
    return [_with_quantities(value) for value in policy] if isinstance(policy, list) else _quantity_text(policy)
