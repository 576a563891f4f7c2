"""Pods that request the notice file for their claims with an annotation."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from dra_agent.kube_client.errors import ForbiddenError, NotFoundError, UnavailableError
from dra_agent.prepare import allocation, record
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.reclaim.pod_notices import CONFIGURATION, MAX_PODS, PodNotices

DRIVER = "dra-agent.internal"
UID = "0b1c7a3e-0000-4000-8000-000000000001"
OWN = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"kind": "Other"}}}


class Pods:
    """Pods by name, and the names that were read."""

    def __init__(self, **pods: dict[str, Any] | Exception) -> None:
        self.pods = pods
        self.read: list[str] = []

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        assert namespace == "team"
        self.read.append(name)
        found = self.pods.get(name, NotFoundError("no such pod"))
        if isinstance(found, Exception):
            raise found
        return found


class Ledger:
    """The entry of the one claim."""

    def __init__(self, entry: LedgerEntry | None = None) -> None:
        self.entry = entry

    def get(self, uid: str) -> LedgerEntry | None:
        assert uid == UID
        return self.entry


def pod(name: str, value: str | None = "true", *, driver: str = DRIVER, uid: str = "") -> dict[str, Any]:
    annotations = {} if value is None else {f"{driver}/reclaim-notice": value}
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}", "annotations": annotations}}


def claim(*pods: str, driver: str = DRIVER, config: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    devices: dict[str, Any] = {"results": [{"request": "r", "driver": driver, "pool": "n/gpu", "device": "gpu-0"}]}
    if config is not None:
        devices["config"] = config
    reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in pods]
    return {
        "metadata": {"namespace": "team", "name": "train", "uid": UID},
        "status": {"allocation": {"devices": devices}, "reservedFor": reserved},
    }


def apply(pods: Pods, given: dict[str, Any], entry: LedgerEntry | None = None) -> list[Any]:
    """Return the kinds of configuration of the claim."""
    found = asyncio.run(PodNotices(pods, Ledger(entry), DRIVER).apply(given))
    return [
        one["opaque"]["parameters"].get("kind") for one in found["status"]["allocation"]["devices"].get("config", ())
    ]


def prepared(given: dict[str, Any], *, requested: bool) -> LedgerEntry:
    """Return the ledger's entry of the claim, prepared with or without the file."""
    config = given["status"]["allocation"]["devices"].get("config", [])
    if requested:
        config = [*config, {"requests": [], "opaque": {"driver": DRIVER, "parameters": CONFIGURATION}}]
    found = allocation.read(
        {
            **given,
            "status": {"allocation": {"devices": {**given["status"]["allocation"]["devices"], "config": config}}},
        },
        DRIVER,
    )
    payload = msgspec.to_builtins(record.of_allocation(found, ()))
    return LedgerEntry(uid=UID, namespace="team", name="train", devices=(), state="completed", payload=payload)


def test_a_pod_with_the_annotation_requests_the_file() -> None:
    given = claim("a", "b", config=[OWN])
    assert apply(Pods(a=pod("a", None), b=pod("b")), given) == ["Other", "ReclaimNoticeConfig"]
    assert given["status"]["allocation"]["devices"]["config"] == [OWN], "the claim itself is not changed"
    assert apply(Pods(a=pod("a")), claim("a")) == ["ReclaimNoticeConfig"]


@pytest.mark.parametrize(
    "other",
    [
        pod("a", None),
        pod("a", "false"),
        pod("a", "True"),
        pod("a", driver="gpu.example.com"),
        pod("a", uid="newer"),
        {},
    ],
)
def test_other_pods_do_not(other: dict[str, Any]) -> None:
    assert apply(Pods(a=other), claim("a")) == []


def test_a_pod_that_is_gone_requests_nothing() -> None:
    assert apply(Pods(), claim("a")) == [] == apply(Pods(), claim())


def test_only_pods_of_claims_for_this_driver_are_read() -> None:
    pods = Pods(a=pod("a"))
    assert apply(pods, claim("a", driver="gpu.example.com")) == [] and pods.read == []


@pytest.mark.parametrize("requested", [True, False])
def test_a_prepared_claim_keeps_what_it_has(requested: bool) -> None:
    given = claim("a", config=[OWN])
    pods = Pods(a=pod("a", None if requested else "true"))
    found = apply(pods, given, prepared(given, requested=requested))
    assert ("ReclaimNoticeConfig" in found) is requested and pods.read == []


def test_a_claim_that_was_allocated_again_follows_its_pods() -> None:
    entry = prepared(claim("a"), requested=False)
    assert apply(Pods(a=pod("a")), claim("a", config=[OWN]), entry) == ["Other", "ReclaimNoticeConfig"]


def test_without_permission_claims_are_prepared_without_the_file(caplog: pytest.LogCaptureFixture) -> None:
    notices = PodNotices(Pods(a=ForbiddenError("pods is forbidden"), b=ForbiddenError("too")), Ledger(), DRIVER)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert asyncio.run(notices.apply(claim("a", "b"))) == claim("a", "b")
    assert caplog.text.count("annotations of pods cannot be read") == 1


def test_a_pod_that_cannot_be_read_now_is_retried_by_the_caller() -> None:
    with pytest.raises(UnavailableError):
        apply(Pods(a=UnavailableError("no response")), claim("a"))


def test_the_pods_that_are_read_are_bounded() -> None:
    names = [f"pod-{number:03}" for number in range(MAX_PODS + 20)]
    pods = Pods()
    apply(pods, claim(*names))
    assert len(pods.read) == MAX_PODS


@pytest.mark.parametrize("malformed", [{}, {"metadata": {"uid": UID, "name": "n"}}, {"metadata": 1, "status": []}])
def test_claims_of_another_form_are_left_to_their_reader(malformed: dict[str, Any]) -> None:
    notices = PodNotices(Pods(), Ledger(), DRIVER)
    assert asyncio.run(notices.apply(malformed)) is malformed
