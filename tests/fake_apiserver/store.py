"""The storage of the fake API server: objects by kind, versions, history for watches, and the rules of each write."""

from __future__ import annotations

import copy
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fake_apiserver.apply import merge_applied

Object = dict[str, Any]

IMMUTABLE = {"resourceslices": ("driver", "nodeName"), "resourceclaims": None}
"""Immutable fields of a spec; None is the whole spec."""


@dataclass
class RefusedError(Exception):
    """A response with a status of 400 or more."""

    code: int
    reason: str
    message: str
    name: str = ""
    """Name of the object, in the details of the response."""


@dataclass
class Store:
    """Thread-safe. `drop` is applied to every written object, as disabled feature gates are."""

    drop: Callable[[str, Object], None] | None = None
    objects: dict[str, dict[tuple[str, str], Object]] = field(default_factory=dict)
    history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    """(version, plural, type, object)"""
    version: int = 100
    oldest: int = 100
    """A watch from an older version gets 410."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    _applied: dict[tuple[str, str, str, str, str | None], Object] = field(default_factory=dict)

    def get(self, plural: str, namespace: str, name: str) -> Object:
        with self.changed:
            found = self.objects.get(plural, {}).get((namespace, name))
            if found is None:
                raise RefusedError(404, "NotFound", f'{plural} "{name}" not found', name)
            return copy.deepcopy(found)

    def select(self, plural: str, chosen: Callable[[Object], bool]) -> tuple[list[Object], int]:
        with self.changed:
            found = [copy.deepcopy(o) for _, o in sorted(self.objects.get(plural, {}).items()) if chosen(o)]
            return found, self.version

    def at_half_of_history(self, plural: str, chosen: Callable[[Object], bool]) -> tuple[list[Object], int]:
        """Return the objects of a kind as they were half of the stored history ago, and that version."""
        with self.changed:
            own = [entry for entry in self.history if entry[1] == plural]
            then = own[len(own) // 2][0] if own else self.version
            newer = {_key(document) for at, _, _, document in own if at > then}
            kept = {key: found for key, found in self.objects.get(plural, {}).items() if key not in newer}
            for at, _, type_, document in own:
                if at > then or _key(document) not in newer:
                    continue
                if type_ == "DELETED":
                    kept.pop(_key(document), None)
                else:
                    kept[_key(document)] = document
            return [copy.deepcopy(found) for _, found in sorted(kept.items()) if chosen(found)], then

    def was_selected(self, at: int, plural: str, document: Object, chosen: Callable[[Object], bool]) -> bool:
        """Return whether `chosen` selected the version of an object before the one that was stored at `at`."""
        with self.changed:
            key = _key(document)
            before = [entry for entry in self.history if entry[0] < at and entry[1] == plural]
            last = next((entry for entry in reversed(before) if _key(entry[3]) == key), None)
            return last is not None and chosen(last[3])

    def create(self, plural: str, namespace: str, given: Object, dry: bool = False) -> Object:
        with self.changed:
            made = copy.deepcopy(given)
            metadata = made.setdefault("metadata", {})
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    raise RefusedError(422, "Invalid", "metadata.name: Required value: a name or generateName")
                metadata["name"] = metadata["generateName"] + "".join(
                    random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
                )
            key = (namespace, metadata["name"])
            if key in self.objects.get(plural, {}):
                raise RefusedError(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
            if namespace:
                metadata["namespace"] = namespace
            metadata["uid"] = metadata.get("uid") or str(uuid.uuid4())
            metadata["generation"] = 1
            metadata["creationTimestamp"] = _now()
            if plural in ("resourceclaims", "pods"):
                made.setdefault("status", {})
            self._clean(plural, made)
            if dry:
                return made
            self._store(plural, key, "ADDED", made)
            return copy.deepcopy(made)

    def replace(
        self,
        plural: str,
        namespace: str,
        name: str,
        given: Object,
        subresource: str | None = None,
        dry: bool = False,
    ) -> Object:
        with self.changed:
            before = self.get(plural, namespace, name)
            after = copy.deepcopy(given)
            version = after.get("metadata", {}).get("resourceVersion")
            if version and version != before["metadata"]["resourceVersion"]:
                raise RefusedError(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": modified')
            if after["metadata"].get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
                raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition differs")
            if subresource == "status":
                after = {**before, "status": after.get("status", {})}
            elif plural in ("resourceclaims", "pods"):
                after["status"] = before.get("status", {})
            for kept in ("uid", "creationTimestamp", "generation"):
                after["metadata"][kept] = before["metadata"].get(kept)
            immutable = IMMUTABLE.get(plural, ())
            for key in immutable if immutable is not None else list(before.get("spec", {})):
                if before.get("spec", {}).get(key) != after.get("spec", {}).get(key):
                    raise RefusedError(422, "Invalid", f"spec.{key}: Invalid value: field is immutable")
            self._clean(plural, after)
            if _content(before) == _content(after):
                return before
            if before.get("spec") != after.get("spec"):
                after["metadata"]["generation"] = before["metadata"]["generation"] + 1
            if dry:
                return after
            self._store(plural, (namespace, name), "MODIFIED", after)
            return copy.deepcopy(after)

    def apply(
        self, plural: str, namespace: str, name: str, body: Object, manager: str, subresource: str | None
    ) -> Object:
        with self.changed:
            key = (plural, namespace, name, manager, subresource)
            if (namespace, name) not in self.objects.get(plural, {}):
                if subresource:
                    raise RefusedError(404, "NotFound", f'{plural} "{name}" not found', name)
                self._applied[key] = copy.deepcopy(body)
                return self.create(plural, namespace, body)
            before = self.get(plural, namespace, name)
            uid = body.get("metadata", {}).get("uid")
            if uid and uid != before["metadata"]["uid"]:
                raise RefusedError(409, "Conflict", "Precondition failed: UID in precondition differs")
            after = merge_applied(before, body, self._applied.get(key, {}))
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            stored = self.replace(plural, namespace, name, after, subresource)
            self._applied[key] = copy.deepcopy(body)
            return stored

    def delete(self, plural: str, namespace: str, name: str, preconditions: Object | None = None) -> Object:
        with self.changed:
            before = self.get(plural, namespace, name)
            for key, wanted in (preconditions or {}).items():
                if before["metadata"][key] != wanted:
                    raise RefusedError(409, "Conflict", f"Precondition failed: {key} in precondition: {wanted}")
            del self.objects[plural][(namespace, name)]
            self._record(plural, "DELETED", before)
            return before

    def compact(self) -> None:
        """Drop the history: watches from older versions get 410."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()

    def _store(self, plural: str, key: tuple[str, str], type_: str, made: Object) -> None:
        self.objects.setdefault(plural, {})[key] = made
        self._record(plural, type_, made)

    def _record(self, plural: str, type_: str, document: Object) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, plural, type_, copy.deepcopy(document)))
        self.changed.notify_all()

    def _clean(self, plural: str, written: Object) -> None:
        if self.drop is not None:
            self.drop(plural, written)
        if plural == "resourceslices":
            for device in written.get("spec", {}).get("devices") or ():
                for taint in device.get("taints") or ():
                    taint.setdefault("timeAdded", _now())


def _content(document: Object) -> Object:
    metadata = {k: v for k, v in document["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {**document, "metadata": metadata}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _key(document: Object) -> tuple[str, str]:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]
