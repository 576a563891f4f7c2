"""The relaxed form of a spec: without selectors, which only narrow the choice of devices.

If a claim with the relaxed spec does not fit, neither does one with the spec itself. Thousands of specs have the same
relaxed form, so one query refuses all of them while their devices are held.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_agent.api_object import Object

MAX_QUERY_S = 1.0
"""A relaxed spec has more candidates, so the search may take longer than those for the specs themselves."""


def relaxed(spec: Object) -> Object:
    """Return the relaxed form of the spec of a claim.

    It keeps all that can make a claim fit which does not fit without it: tolerations, admin access, and the amounts of
    capacity that replace defaults. It keeps names and constraints, for specs with one form to have similar results.
    Configuration belongs to drivers, and has no effect on the choice of devices.
    """
    devices = spec.get("devices") or {}
    requests = [_relaxed_request(request) for request in devices.get("requests") or ()]
    return {**spec, "devices": {**_without(devices, "config"), "requests": requests}}


class RelaxedTries:
    """Tries relaxed specs. Not safe for threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._undecided: set[bytes] = set()
        """Forms with a query that took long, or ended with an error."""

    def forget(self) -> None:
        """Forget which forms take long."""
        self._undecided.clear()

    def may_fit(
        self, claim: Object, digest: bytes, results: dict[bytes, bool], evaluate: Callable[[Object], Object]
    ) -> bool:
        """Return False if a claim does not fit, because its relaxed form does not.

        Arguments:
            claim: The claim.
            digest: That of its relaxed form.
            results: The results for the devices that are held now, by form; this one is added.
            evaluate: Returns the result of the allocator for a claim.
        """
        if digest in self._undecided:
            return True
        if digest not in results:
            began = self._clock()
            result = evaluate({**claim, "spec": relaxed(claim["spec"])})
            if result.get("error") or self._clock() - began > MAX_QUERY_S:
                self._undecided.add(digest)
            results[digest] = bool(result["allocated"] or result.get("error"))
        return results[digest]


def _relaxed_request(request: Object) -> Object:
    form = dict(request)
    if exactly := request.get("exactly"):
        form["exactly"] = _relaxed_choice(exactly)
    if alternatives := request.get("firstAvailable"):
        form["firstAvailable"] = [_relaxed_choice(one) for one in alternatives]
    return form


def _relaxed_choice(choice: Object) -> Object:
    # A request for all devices needs more of them without its selectors.
    return choice if choice.get("allocationMode") == "All" else _without(choice, "selectors")


def _without(value: Object, omitted: str) -> Object:
    return {name: member for name, member in value.items() if name != omitted}
