"""Kueue's objects that decide about quota: queues, flavors, cohorts, and what it counts for DeviceClasses.

Sources: kubernetes-sigs/kueue, apis/kueue/v1beta1, apis/kueue/v1beta2 and apis/config/v1beta2 at 8eab68778fc1
(v0.19.2); the ConfigMap is that of config/components/manager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_agent.api_object import Object
from dra_agent.errors import UsageError
from dra_agent.explain.printed_object import KUEUE_CONFIGURATION, first_misfit
from dra_agent.kube_client import ApiClient, ForbiddenError, InvalidObjectError, Kind, NotFoundError
from dra_agent.manifests import parse_objects

GROUP = "kueue.x-k8s.io"
CONFIGURATION_GROUP = "config.kueue.x-k8s.io"
KINDS = ("LocalQueue", "ClusterQueue", "ResourceFlavor", "Cohort")
MAX_OBJECTS = 5000
"""Objects of one kind that are read from an API server."""
READ_TIMEOUT_S = 30.0
"""Seconds for all of them."""
_VERSIONS = ("v1beta2", "v1beta1")
_PLURALS = {kind: f"{kind.lower()}s" for kind in KINDS}
_CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap", namespaced=True)
_CONFIG_MAP, _NAMESPACE, _KEY = "kueue-manager-config", "kueue-system", "controller_manager_config.yaml"


class CountedClass(NamedTuple):
    """What Kueue counts for the devices of a DeviceClass."""

    resource: str
    """The resource of quotas."""
    has_sources: bool
    """It counts counters or capacity of the devices, and not their number."""


class Counting(NamedTuple):
    """What a configuration of Kueue counts."""

    classes: Mapping[str, CountedClass]
    """By DeviceClass."""
    ignores_undeclared: bool = False
    """Resources that a ClusterQueue does not cover need no quota in it."""


@dataclass
class KueueObjects:
    """The objects of one moment, nearly; None where they are not known, and then a note has the reason."""

    local_queues: list[Object] | None = None
    """Of the namespace."""
    cluster_queues: list[Object] | None = None
    flavors: list[Object] | None = None
    cohorts: list[Object] | None = None
    counting: Counting | None = None
    unreadable: set[tuple[str, str]] = field(default_factory=set)
    """Kinds and names of objects that exist and have a field of a wrong type."""
    notes: list[str] = field(default_factory=list)


async def read_kueue(api: ApiClient, namespace: str) -> KueueObjects | None:
    """Read the objects; None if the server has no Kueue. Raises RetryableError if the server does not respond."""
    found = KueueObjects()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            for version in _VERSIONS:
                try:
                    await _read_queues(api, namespace, version, found)
                except NotFoundError:
                    continue
                found.counting = await _read_counting(api, found.notes)
                return found
    except TimeoutError:
        found.notes.append(f"the API server did not return Kueue's objects within {READ_TIMEOUT_S:.0f} s")
        return found
    return None


async def _read_queues(api: ApiClient, namespace: str, version: str, found: KueueObjects) -> None:
    """Read the objects in a version of the API; raises NotFoundError if the server does not have it."""

    async def listed(kind: str, within: str | None = None) -> list[Object] | None:
        about = Kind(GROUP, version, _PLURALS[kind], kind, namespaced=within is not None)
        try:
            objects = (await api.list(about, namespace=within, max_items=MAX_OBJECTS)).items
        except (ForbiddenError, InvalidObjectError) as error:
            found.notes.append(f"{about.plural} cannot be listed: {error.message}")
            return None
        return _readable(kind, objects, found)

    found.local_queues = await listed("LocalQueue", namespace)
    found.cluster_queues, found.flavors = await asyncio.gather(listed("ClusterQueue"), listed("ResourceFlavor"))
    try:
        found.cohorts = await listed("Cohort")
    except NotFoundError:
        found.cohorts = []  # Older versions of Kueue have no such objects.


def _readable(kind: str, objects: Iterable[Object], found: KueueObjects) -> list[Object]:
    """Return the objects whose fields have the types of the API, and add a note for each other one."""
    kept = []
    for one in objects:
        metadata = one.get("metadata")
        name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
        if misfit := first_misfit(kind, one):
            found.notes.append(f"{kind} {name} cannot be read: {misfit[0]} is not {misfit[1]}")
            found.unreadable.add((kind, name))
        elif name:
            kept.append(one)
    return kept


async def _read_counting(api: ApiClient, notes: list[str]) -> Counting | None:
    where = f"ConfigMap {_NAMESPACE}/{_CONFIG_MAP}"
    try:
        if counting := counting_of_config_map(await api.get(_CONFIG_MAPS, _CONFIG_MAP, _NAMESPACE), where):
            return counting
        notes.append(f"deviceClassMappings are not known: {where} has no configuration of Kueue")
    except UsageError as error:
        notes.append(f"deviceClassMappings are not known: {error}")
    except (ForbiddenError, NotFoundError, InvalidObjectError) as error:
        notes.append(f"deviceClassMappings are not known: cannot get {where}: {error.message}")
    return None


def counting_of_config_map(config_map: Object, where: str) -> Counting | None:
    """Return what a ConfigMap of Kueue's manager defines; None if it is another ConfigMap.

    Raises:
        UsageError: Its text is not a configuration.
    """
    data = config_map.get("data")
    content = data.get(_KEY) if isinstance(data, dict) else None
    if not isinstance(content, str):
        return None
    values = [one.value for one in parse_objects(content, f"{where}: {_KEY}", strict=False)]
    return next((counting_of(value, where) for value in values if is_configuration(value)), None)


def is_configuration(value: Object) -> bool:
    """Return whether an object is a configuration of Kueue."""
    return value.get("kind") == "Configuration" and str(value.get("apiVersion")).startswith(f"{CONFIGURATION_GROUP}/")


def counting_of(configuration: Object, where: str) -> Counting:
    """Return what a configuration counts.

    Raises:
        UsageError: A field has a wrong type.
    """
    if misfit := first_misfit(KUEUE_CONFIGURATION, configuration):
        raise UsageError(f"{misfit[0]} is not {misfit[1]}", where=where)
    found: dict[str, CountedClass] = {}
    resources = configuration.get("resources") or {}
    for mapping in resources.get("deviceClassMappings") or ():
        counted = CountedClass(str(mapping.get("name") or ""), bool(mapping.get("sources")))
        for name in mapping.get("deviceClassNames") or ():
            found.setdefault(str(name), counted)
    return Counting(found, resources.get("quotaCheckStrategy") == "IgnoreUndeclared")


def objects_of_dump(
    namespace: str, objects: Mapping[str, Sequence[Object]], counting: Counting | None
) -> KueueObjects | None:
    """Return the objects of files by their kinds; None if there are no queues among them."""
    if not objects["LocalQueue"] and not objects["ClusterQueue"]:
        return None
    found = KueueObjects(
        local_queues=[one for one in objects["LocalQueue"] if one["metadata"]["namespace"] == namespace],
        cluster_queues=list(objects["ClusterQueue"]) or None,
        flavors=list(objects["ResourceFlavor"]) or None,
        cohorts=list(objects["Cohort"]),
        counting=counting,
    )
    for kind in ("ClusterQueue", "ResourceFlavor"):
        if not objects[kind]:
            found.notes.append(f"the files have no {kind}")
    if counting is None:
        found.notes.append(f"deviceClassMappings are not known: the files have no ConfigMap {_CONFIG_MAP}")
    return found
