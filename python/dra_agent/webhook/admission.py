"""One AdmissionReview (admission.k8s.io/v1): its object is validated, and allowed or refused with the field.

It allows objects that it does not validate: other kinds, other drivers' configuration, objects that are being deleted,
and an update that brings in no new mistake, so that labels and finalizers of an old object can still be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from dra_agent.json_decode import decode_json
from dra_agent.prepare.config import validate_object
from dra_agent.prepare.setup import DeviceSetup, Kind
from dra_agent.printable import printable

VERSION = "admission.k8s.io/v1"
MAX_PROBLEM_CHARS = 1024
"""Maximum characters of one problem, which quotes user input."""
MAX_MESSAGE_CHARS = 4096
"""Characters of all that kubectl shows."""
_MAX_KIND_CHARS = 63


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    operation: str = ""
    namespace: str = ""
    name: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


class ReviewResult(msgspec.Struct, frozen=True):
    """The response and its subject."""

    body: bytes
    """The AdmissionReview to send back."""
    subject: str
    """"ResourceClaim default/notebook"."""
    problems: tuple[str, ...]
    """Why it is refused; empty where it is allowed."""


class MalformedReviewError(Exception):
    """The body is not an AdmissionReview of a known version."""


def review(body: bytes, driver: str, setups: Mapping[Kind, DeviceSetup]) -> ReviewResult:
    """Return the response to a review; raises MalformedReviewError."""
    try:
        found = decode_json(body, type=_Review)
    except msgspec.DecodeError as error:
        raise MalformedReviewError(f"not an AdmissionReview: {error}") from error
    if (found.api_version, found.kind) != (VERSION, "AdmissionReview"):
        raise MalformedReviewError(f"{found.kind} of {found.api_version} is not AdmissionReview of {VERSION}")
    problems = _problems(found.request, driver, setups)
    response: dict[str, Any] = {"uid": found.request.uid, "allowed": not problems}
    if problems:
        message = printable("; ".join(problems), longest=MAX_MESSAGE_CHARS)
        response["status"] = {"code": HTTPStatus.UNPROCESSABLE_ENTITY, "reason": "Invalid", "message": message}
    document = {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}
    return ReviewResult(msgspec.json.encode(document), _name(found.request), problems)


def _problems(request: _Request, driver: str, setups: Mapping[Kind, DeviceSetup]) -> tuple[str, ...]:
    if request.object is None or request.operation not in ("CREATE", "UPDATE"):
        return ()
    metadata = request.object.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("deletionTimestamp"):
        return ()
    problems = [_cut(error) for error in validate_object(request.object, driver, setups)[1]]
    known = (
        {_cut(error) for error in validate_object(request.old_object, driver, setups)[1]}
        if request.old_object
        else set()
    )
    return tuple(problem for problem in problems if problem not in known)


def _cut(error: Exception) -> str:
    return printable(str(error), longest=MAX_PROBLEM_CHARS)


def _name(request: _Request) -> str:
    kind = str((request.object or {}).get("kind") or "object")
    kind = printable(kind, line=True, longest=_MAX_KIND_CHARS)
    return f"{kind} {request.namespace + '/' if request.namespace else ''}{request.name or '(unnamed)'}"
