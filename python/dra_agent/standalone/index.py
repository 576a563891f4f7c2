"""The claims of the store with an index in memory: the claims that a step must handle are found without reading all."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dra_agent import garbage_collection
from dra_agent.api_object import Object, identity_of
from dra_agent.claim import ClaimRef
from dra_agent.errors import NoSuchObjectError
from dra_agent.standalone.claim import FAILED
from dra_agent.standalone.groups import digest_of
from dra_agent.standalone.store import Store
from dra_agent.standalone.stored_form import CLAIM, CLASS, check, load
from dra_agent.standalone.waiting import WaitingClaims


class KnownClaim(ClaimRef, frozen=True):
    """One claim of the store."""

    position: int
    """Its place in the order of arrival; not that in the store."""
    digest: bytes
    created: str
    """RFC 3339, UTC."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


class ClaimIndex:
    """Every claim is in the store, and in at least one of `waiting`, `allocated`, `deleting` and `failed`.

    Not safe for threads: the queue holds its lock.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_key: dict[tuple[str, str], KnownClaim] = {}
        self._by_uid: dict[str, KnownClaim] = {}
        self._in_order: list[KnownClaim] = []
        self._last = 0
        self.waiting = WaitingClaims()
        self.allocated: dict[str, Object] = {}
        """Claims with an allocation, whole, by uid: bounded by the devices of the host."""
        self.deleting: dict[str, KnownClaim] = {}
        self.failed: dict[str, str] = {}
        """Why a claim can never be prepared, by uid."""
        self._classes: list[Object] | None = None
        with garbage_collection.paused():
            load(store, CLASS)
            load(store, CLAIM, lambda claim, position: self._index(claim, position, digest_of(claim["spec"])))

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, namespace: str, name: str) -> KnownClaim | None:
        """Find a claim by its name."""
        return self._by_key.get((namespace, name))

    def require(self, namespace: str, name: str) -> KnownClaim:
        """Find a claim by its name; raises NoSuchObjectError."""
        known = self.find(namespace, name)
        if known is None:
            raise NoSuchObjectError(f"there is no claim {name} in namespace {namespace}")
        return known

    def of_uid(self, uid: str) -> KnownClaim | None:
        """Find a claim by its uid."""
        return self._by_uid.get(uid)

    def each(self) -> Iterator[KnownClaim]:
        """Go through all claims."""
        return iter(self._by_key.values())

    def read(self, known: KnownClaim) -> Object:
        """Read a whole claim."""
        value = self._store.get(CLAIM, *known.key)
        assert value is not None, "the index and the store have the same claims"
        return value

    def after(self, position: int, limit: int) -> list[KnownClaim]:
        """Return the claims that came after a position, in order."""
        first = bisect_right(self._in_order, position, key=_position)
        return self._in_order[first : first + limit]

    def read_many(self, known: Sequence[KnownClaim], *, max_bytes: int | None = None) -> list[Object]:
        """Read whole claims together; with `max_bytes` the first of them, until they have so many bytes."""
        values = self._store.get_many(CLAIM, [one.key for one in known], max_bytes=max_bytes)
        read = known if max_bytes is None else known[: len(values)]
        return [values[one.key] for one in read]

    def classes(self) -> list[Object]:
        """Return every DeviceClass: the same list until one changes."""
        if self._classes is None:
            self._classes = [stored.value for stored in self._store.list(CLASS)]
        return self._classes

    def put(self, claims: Iterable[Object]) -> None:
        """Keep claims, all or none; raises PermanentError for one not in the stored form."""
        claims = list(claims)
        self.write(claims)
        self.add((claim, digest_of(claim["spec"])) for claim in claims)

    def write(self, claims: Sequence[Object], classes: Mapping[str, Object] | None = None) -> None:
        """Write claims, and classes by name, all or none; `add` and `class_changed` have to follow.

        Safe without the lock of the queue. Raises PermanentError for an object that is not in the stored form.
        """
        classes = classes or {}
        for value in (*classes.values(), *claims):
            check(value)
        self._store.put_all(
            [
                *((CLASS, "", name, value) for name, value in classes.items()),
                *((CLAIM, *identity_of(claim), claim) for claim in claims),
            ]
        )

    def add(self, claims: Iterable[tuple[Object, bytes]]) -> None:
        """Add written claims, each with the digest of its spec, or replace them."""
        for claim, digest in claims:
            known = self.find(*identity_of(claim))
            if known is None:
                self._last += 1
            self._index(claim, self._last if known is None else known.position, digest)

    def delete(self, known: KnownClaim) -> None:
        """Remove a claim."""
        self._store.delete(CLAIM, *known.key)
        self._unindex(known.uid)
        del self._by_key[known.key], self._by_uid[known.uid]
        del self._in_order[bisect_left(self._in_order, known.position, key=_position)]

    def delete_class(self, name: str) -> bool:
        """Remove a class; return False if it does not exist."""
        found = self._store.delete(CLASS, "", name)
        if found:
            self.class_changed(name)
        return found

    def class_changed(self, name: str) -> None:
        """Have the waiting claims that name a class tried with what is stored now."""
        self._classes = None
        self.waiting.class_changed(name)

    def _index(self, claim: Object, position: int, digest: bytes) -> None:
        namespace, name = identity_of(claim)
        metadata = claim["metadata"]
        uid = metadata["uid"]
        self._unindex(uid)
        known = self._by_uid.get(uid)
        if known is None:
            # Claims of one request have the same time, which is kept once.
            created = sys.intern(metadata["creationTimestamp"])
            known = KnownClaim(uid, namespace, name, position, digest, created)
            self._by_key[known.key] = self._by_uid[uid] = known
            self._in_order.append(known)
            self._last = max(self._last, position)
        if "deletionTimestamp" in metadata:
            self.deleting[uid] = known
        failed = metadata.get("annotations", {}).get(FAILED)
        if failed is not None:
            self.failed[uid] = failed
        if "allocation" in claim.get("status", {}):
            self.allocated[uid] = claim
        elif uid not in self.deleting and failed is None:
            self.waiting.add(uid, position, known.digest, claim["spec"])

    def _unindex(self, uid: str) -> None:
        self.waiting.discard(uid)
        self.allocated.pop(uid, None)
        self.deleting.pop(uid, None)
        self.failed.pop(uid, None)


def _position(known: KnownClaim) -> int:
    return known.position
