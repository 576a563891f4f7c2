"""Parts of objects that other drivers define, and objects that cannot be decoded: everything else is read."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dra_agent.free_form import MAX_DEPTH, NOT_READ
from dra_agent.kube_client import RESOURCE_CLAIMS, ApiClient, UnavailableError, connect
from fake_apiserver.fake import FakeApi
from fake_apiserver.foreign_text import BAD, DEEP, PLACE, parameters


@pytest.fixture
def kubeconfig(fake_api: FakeApi, tmp_path: Path) -> Path:
    return fake_api.kubeconfig(tmp_path / "kubeconfig")


def claim(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


def tenants(name: str = "tenants") -> dict[str, Any]:
    """Return a claim with foreign text in each free-form part."""
    return {
        **claim(name, devices={"config": [parameters()]}),
        "status": {
            "allocation": {"devices": {"config": [parameters("a"), parameters("b")]}},
            "devices": [{"driver": "other.example.com", "data": PLACE, "conditions": [{"type": "Ready"}]}],
        },
    }


@pytest.fixture(params=list(BAD))
def listed(fake_api: FakeApi, request: pytest.FixtureRequest) -> FakeApi:
    """Two claims, one of them with text that decoders refuse."""
    fake_api.foreign = BAD[request.param]
    fake_api.put("resourceclaims", claim("other", devices={"config": [{"opaque": {"parameters": {"a": [1]}}}]}))
    fake_api.put("resourceclaims", tenants())
    return fake_api


def in_cluster(kubeconfig: Path, scenario: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(60), connect(kubeconfig) as api:
            return await scenario(api)

    return asyncio.run(main())


def test_a_list_has_every_claim_whatever_a_driver_defines(listed: FakeApi, kubeconfig: Path) -> None:
    found = in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
    by_name = {item["metadata"]["name"]: item for item in found.items}
    assert set(by_name) == {"other", "tenants"}
    assert by_name["other"]["spec"]["devices"]["config"] == [{"opaque": {"parameters": {"a": [1]}}}]
    status = by_name["tenants"]["status"]
    assert status["devices"][0] == {
        "driver": "other.example.com",
        "data": NOT_READ,
        "conditions": [{"type": "Ready"}],
    }
    assert [one["opaque"]["driver"] for one in status["allocation"]["devices"]["config"]] == ["a", "b"]
    (note,) = found.notes
    assert note.startswith("ResourceClaim team/tenants: ")
    assert "spec.devices.config[].opaque.parameters" in note and "status.devices[].data" in note


def test_one_claim_is_read_whatever_a_driver_defines(listed: FakeApi, kubeconfig: Path) -> None:
    async def scenario(api: ApiClient) -> Any:
        first = await api.get(RESOURCE_CLAIMS, "tenants", "team")
        second = api.get_on_thread(RESOURCE_CLAIMS, "tenants", "team", timeout=30.0)
        return first, second

    first, second = in_cluster(kubeconfig, scenario)
    assert second is None or first == second
    assert first["spec"]["devices"]["config"][0]["opaque"] == {"driver": "other.example.com", "parameters": NOT_READ}


def test_a_watch_delivers_every_claim_whatever_a_driver_defines(listed: FakeApi, kubeconfig: Path) -> None:
    async def scenario(api: ApiClient) -> Any:
        watch = api.watch(RESOURCE_CLAIMS, resource_version=str(listed.store.version))
        async with aclosing(watch):
            listed.put("resourceclaims", tenants("later"))
            listed.put("resourceclaims", claim("last"))
            return [(await anext(watch)).object for _ in range(2)]

    found = in_cluster(kubeconfig, scenario)
    assert [one["metadata"]["name"] for one in found] == ["later", "last"]
    assert found[0]["status"]["devices"][0]["data"] == NOT_READ


def test_what_can_be_read_is_not_changed(fake_api: FakeApi, kubeconfig: Path) -> None:
    """A claim next to one that cannot be read, and parts as deep as permitted."""
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    fake_api.foreign = DEEP
    fake_api.put("resourceclaims", tenants())
    text = 'quote " bracket ] \\ \u2028 key: "opaque"'
    given = claim("read", devices={"config": [{"opaque": {"driver": text, "parameters": {text: deep}}}]})
    fake_api.put("resourceclaims", given)
    found = in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
    assert next(one["spec"] for one in found.items if one["metadata"]["name"] == "read") == given["spec"]
    assert len(found.notes) == 1


def test_an_item_that_cannot_be_read_is_a_note(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.foreign = DEEP
    fake_api.put("resourceclaims", claim("good"))
    bad = claim("bad", devices={"requests": PLACE})
    fake_api.put("resourceclaims", {**bad, "metadata": {**bad["metadata"], "managedFields": [{"fieldsV1": PLACE}]}})
    found = in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
    assert [one["metadata"]["name"] for one in found.items] == ["good"]
    (note,) = found.notes
    assert note.startswith("ResourceClaim team/bad cannot be read: ")


@pytest.mark.parametrize("item", ["5", "null", '"text"', "[]", "{}", '{"metadata":{}}'])
def test_an_item_that_is_no_object_is_a_note(fake_api: FakeApi, kubeconfig: Path, item: str) -> None:
    good = json.dumps(claim("good"))
    for text in (f"{item},{good}", f'{good},{item},{{"metadata":{{"name":"deep"}},"spec":{DEEP.decode()}}}'):
        fake_api.fail(200, body=f'{{"metadata":{{"resourceVersion":"7"}},"items":[{text}]}}')
        found = in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
        assert [one["metadata"]["name"] for one in found.items] == ["good"]
        assert found.resource_version == "7"
        assert any("without a name" in note for note in found.notes)


def test_many_notes_are_summarized(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.foreign = DEEP
    for number in range(8):
        fake_api.put("resourceclaims", tenants(f"t{number}"))
    found = in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
    assert len(found.items) == 8 and len(found.notes) == 6
    assert found.notes[-1].startswith("ResourceClaim objects: 3 more ")


def test_an_event_that_cannot_be_read_deletes_its_object(fake_api: FakeApi, kubeconfig: Path) -> None:
    fake_api.foreign = DEEP

    async def scenario(api: ApiClient) -> Any:
        watch = api.watch(RESOURCE_CLAIMS, resource_version=str(fake_api.store.version))
        async with aclosing(watch):
            fake_api.put("resourceclaims", claim("bad", devices=PLACE))
            fake_api.put("resourceclaims", claim("good"))
            return [await anext(watch) for _ in range(2)]

    first, second = in_cluster(kubeconfig, scenario)
    assert (first.type, first.object["metadata"]["name"]) == ("DELETED", "bad")
    assert (second.type, second.object["metadata"]["name"]) == ("ADDED", "good")


@pytest.mark.parametrize("text", ["", "[", "[]", "5", '{"items":{}}', '{"items":[', '{"items":[}', "]", '"'])
def test_what_is_not_a_list_is_unavailable(fake_api: FakeApi, kubeconfig: Path, text: str) -> None:
    fake_api.fail(200, body=text)
    with pytest.raises(UnavailableError, match="not a list"):
        in_cluster(kubeconfig, lambda api: api.list(RESOURCE_CLAIMS))
