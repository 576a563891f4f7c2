"""What the webhook answers: mistakes with their field, and nothing about what is not its business."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_agent.agent.setup_registry import known_setups
from dra_agent.webhook.admission import MalformedReviewError, ReviewResult, review

DRIVER = "dra-agent.internal"
SETUPS = known_setups()


def parameters(interval: object = "Short", **more: Any) -> dict[str, Any]:
    return {"apiVersion": "dra-agent.internal/v1", "kind": "GpuConfig", "timeSlicing": {"interval": interval}, **more}


def entry(value: object, driver: str = DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": value}}


def thing(kind: str, *config: dict[str, Any], version: str = "v1", **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"config": list(config)}
    if kind != "DeviceClass":
        spec = {"devices": spec}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    metadata = {"name": "x", **metadata}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def asked(value: object, operation: str = "CREATE", old: object = None) -> bytes:
    request = {"uid": "u-1", "operation": operation, "namespace": "default", "name": "x", "object": value}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, "oldObject": old}}
    return msgspec.json.encode(review)


def answered(verdict: ReviewResult) -> dict[str, Any]:
    answer = msgspec.json.decode(verdict.body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "u-1"
    response: dict[str, Any] = answer["response"]
    return response


PATHS = {
    "ResourceClaim": "spec.devices.config",
    "ResourceClaimTemplate": "spec.spec.devices.config",
    "DeviceClass": "spec.config",
}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("kind", list(PATHS))
def test_a_mistake_is_refused_with_its_field(kind: str, version: str) -> None:
    right = thing(kind, entry(parameters()), version=version)
    assert answered(review(asked(right), DRIVER, SETUPS)) == {"uid": "u-1", "allowed": True}
    mistakes = [entry(parameters("Shrt")), entry(parameters(odd=1))]
    verdict = review(asked(thing(kind, entry({}, "other.example"), *mistakes, version=version)), DRIVER, SETUPS)
    assert verdict.what == f"{kind} default/x"
    refused = answered(verdict)
    assert refused["allowed"] is False and refused["status"].items() >= {"code": 422, "reason": "Invalid"}.items()
    assert refused["status"]["message"] == (
        f"{PATHS[kind]}[1].opaque.parameters.timeSlicing.interval: invalid enum value 'Shrt'; correct the settings; "
        f"{PATHS[kind]}[2].opaque.parameters.odd: no such field; correct the settings"
    )


@pytest.mark.parametrize(
    "value",
    [
        thing("ResourceClaim", entry({"kind": "Odd"}, "other.example")),
        thing("ResourceClaim"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"config": [entry({})]}},
        thing("ResourceClaim", entry(parameters("Shrt")), deletionTimestamp="2026-01-01T00:00:00Z"),
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": None}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "spec": {"config": [{}, None, {"opaque": 1}]}},
        {"apiVersion": 1, "kind": None},
        None,
    ],
)
def test_what_is_not_its_business_is_allowed(value: object) -> None:
    assert answered(review(asked(value), DRIVER, SETUPS))["allowed"] is True


def test_another_driver_name() -> None:
    wrong = thing("ResourceClaim", entry(parameters("Shrt"), "gpus.example"))
    assert answered(review(asked(wrong), DRIVER, SETUPS))["allowed"] is True
    assert answered(review(asked(wrong), "gpus.example", SETUPS))["allowed"] is False


def test_an_object_that_was_wrong_before_can_still_be_changed_otherwise() -> None:
    old = thing("DeviceClass", entry(parameters("Shrt")))
    labelled = thing("DeviceClass", entry(parameters("Shrt")), labels={"a": "b"})
    worse = thing("DeviceClass", entry(parameters("Shrt")), entry(parameters("Lng")))
    assert answered(review(asked(labelled, "UPDATE", old), DRIVER, SETUPS))["allowed"] is True
    refused = answered(review(asked(worse, "UPDATE", old), DRIVER, SETUPS))
    assert refused["allowed"] is False and "Lng" in refused["status"]["message"]
    assert "Shrt" not in refused["status"]["message"]
    assert answered(review(asked(None, "DELETE", old), DRIVER, SETUPS))["allowed"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod", "request": {"uid": "u"}}',
        asked(["a list"]),
        b"[" * 100_000,
        asked({"metadata": "\0"}).replace(b'"\\u0000"', b"[" * 100_000),
    ],
    ids=["empty", "torn", "list", "no request", "old", "other kind", "no object", "deep", "deep inside"],
)
def test_what_is_no_review(body: bytes) -> None:
    with pytest.raises(MalformedReviewError):
        review(body, DRIVER, SETUPS)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(kind=st.sampled_from(list(PATHS)), value=VALUES, deep=st.booleans())
def test_whatever_is_in_an_object_there_is_an_answer(kind: str, value: object, deep: bool) -> None:
    config = thing(kind, entry(value)) if deep else {**thing(kind), "spec": value}
    response = answered(review(asked(config), DRIVER, SETUPS))
    assert response["allowed"] is not deep, "parameters of no kind are refused; the rest is the API server's to judge"
