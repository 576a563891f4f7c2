"""Admission reviews: errors with their fields, and objects that the webhook allows unchecked."""

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


def resource(kind: str, *config: dict[str, Any], version: str = "v1", **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"config": list(config)}
    if kind != "DeviceClass":
        spec = {"devices": spec}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    metadata = {"name": "x", **metadata}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def admission_review(value: object, operation: str = "CREATE", old: object = None) -> bytes:
    request = {"uid": "u-1", "operation": operation, "namespace": "default", "name": "x", "object": value}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, "oldObject": old}}
    return msgspec.json.encode(review)


def response_of(verdict: ReviewResult) -> dict[str, Any]:
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
def test_an_invalid_parameter_is_refused_with_its_field(kind: str, version: str) -> None:
    valid = resource(kind, entry(parameters()), version=version)
    assert response_of(review(admission_review(valid), DRIVER, SETUPS)) == {"uid": "u-1", "allowed": True}
    invalid = [entry(parameters("Shrt")), entry(parameters(odd=1))]
    verdict = review(
        admission_review(resource(kind, entry({}, "other.example"), *invalid, version=version)), DRIVER, SETUPS
    )
    assert verdict.subject == f"{kind} default/x"
    refused = response_of(verdict)
    assert refused["allowed"] is False and refused["status"].items() >= {"code": 422, "reason": "Invalid"}.items()
    assert refused["status"]["message"] == (
        f"{PATHS[kind]}[1].opaque.parameters.timeSlicing.interval: invalid enum value 'Shrt'; correct the settings; "
        f"{PATHS[kind]}[2].opaque.parameters.odd: no such field; correct the settings"
    )


@pytest.mark.parametrize(
    "value",
    [
        resource("ResourceClaim", entry({"kind": "Odd"}, "other.example")),
        resource("ResourceClaim"),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"config": [entry({})]}},
        resource("ResourceClaim", entry(parameters("Shrt")), deletionTimestamp="2026-01-01T00:00:00Z"),
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": None}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "spec": {"config": [{}, None, {"opaque": 1}]}},
        {"apiVersion": 1, "kind": None},
        None,
    ],
)
def test_objects_without_parameters_of_this_driver_are_allowed(value: object) -> None:
    assert response_of(review(admission_review(value), DRIVER, SETUPS))["allowed"] is True


def test_only_parameters_of_the_configured_driver_are_checked() -> None:
    invalid = resource("ResourceClaim", entry(parameters("Shrt"), "gpus.example"))
    assert response_of(review(admission_review(invalid), DRIVER, SETUPS))["allowed"] is True
    assert response_of(review(admission_review(invalid), "gpus.example", SETUPS))["allowed"] is False


def test_an_update_is_refused_only_for_new_errors() -> None:
    old = resource("DeviceClass", entry(parameters("Shrt")))
    labeled = resource("DeviceClass", entry(parameters("Shrt")), labels={"a": "b"})
    worse = resource("DeviceClass", entry(parameters("Shrt")), entry(parameters("Lng")))
    assert response_of(review(admission_review(labeled, "UPDATE", old), DRIVER, SETUPS))["allowed"] is True
    refused = response_of(review(admission_review(worse, "UPDATE", old), DRIVER, SETUPS))
    assert refused["allowed"] is False and "Lng" in refused["status"]["message"]
    assert "Shrt" not in refused["status"]["message"]
    assert response_of(review(admission_review(None, "DELETE", old), DRIVER, SETUPS))["allowed"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "Pod", "request": {"uid": "u"}}',
        admission_review(["a list"]),
        b"[" * 100_000,
        admission_review({"metadata": "\0"}).replace(b'"\\u0000"', b"[" * 100_000),
    ],
    ids=["empty", "torn", "list", "no request", "old", "other kind", "no object", "deep", "deep inside"],
)
def test_a_malformed_review_raises_an_error(body: bytes) -> None:
    with pytest.raises(MalformedReviewError):
        review(body, DRIVER, SETUPS)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(kind=st.sampled_from(list(PATHS)), value=VALUES, deep=st.booleans())
def test_any_object_gets_a_response(kind: str, value: object, deep: bool) -> None:
    config = resource(kind, entry(value)) if deep else {**resource(kind), "spec": value}
    response = response_of(review(admission_review(config), DRIVER, SETUPS))
    assert response["allowed"] is not deep, (
        "parameters of an unknown kind are refused; the API server validates the rest"
    )
