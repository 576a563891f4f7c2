"""Gangs on small random clusters: placements are repeated from scratch, and compared with every order and choice."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from allocator.cases import claim, device, make_exact, make_request, model, partitionable, slice_of
from dra_agent.cluster import Cluster
from dra_cluster.explain.gang import gang_of_workload
from dra_cluster.explain.gang_explanation import explain_gang
from dra_cluster.explain.gang_members import Gang
from dra_cluster.explain.pending import nodes_of
from dra_cluster.explain.snapshot import Snapshot
from dra_cluster.explain.workloads import PodSet

Json = dict[str, Any]
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}
CASES = 150


def node_slices(rng: random.Random, name: str) -> list[Json]:
    if rng.random() < 0.5:
        parts = partitionable(rng.choice((2, 4)))
        for entry in parts:
            entry["metadata"]["name"] += f"-{name}"
            entry["spec"] |= {"nodeName": name, "pool": {**entry["spec"]["pool"], "name": name}}
            for one in entry["spec"].get("devices") or ():
                one["attributes"]["model"] = {"string": "P"}
        return parts
    devices = [device(f"d{i}", {"model": rng.choice("AB"), "size": 1}) for i in range(rng.randint(1, 4))]
    return [slice_of(*devices, name=name, pool=name, nodeName=name)]


def random_request(rng: random.Random) -> Json:
    relation = rng.choice(("==", ">="))
    sizes = [f'device.attributes["gpu.example.com"].size {relation} {size}' for size in (4, 2, 1)]
    expressions = [None, model("A"), model("B"), *sizes]
    if rng.random() < 0.5:
        listed = sizes[rng.randrange(2) :] if rng.random() < 0.7 else rng.sample(expressions, 2)
        alternatives = [{"name": f"s{i}", **make_exact(1, expression)} for i, expression in enumerate(listed)]
        return {"name": "main", "firstAvailable": alternatives}
    return make_request(count=rng.choice((1, 1, 2)), expression=rng.choice(expressions))


def random_case(seed: int) -> tuple[Snapshot, Gang]:
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(rng.randint(1, 3))]
    slices = [entry for name in names for entry in node_slices(rng, name)]
    kinds = rng.randint(1, 3)
    templates = [
        {
            "metadata": {"name": f"t{i}", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [random_request(rng)]}}},
        }
        for i in range(kinds)
    ]
    counts = [1] * kinds
    for _ in range(rng.randint(0, 5 - kinds)):
        counts[rng.randrange(kinds)] += 1
    share = rng.choice((0.0, 0.0, 0.7))
    sets = [
        PodSet(f"k{i}", {"spec": {"resourceClaims": uses(i, rng.random() < share)}}, n) for i, n in enumerate(counts)
    ]
    common = claim(make_request(), name="common")
    snapshot = Snapshot("default", slices, [CLASS], [common], templates, nodes=None)
    return snapshot, gang_of_workload(snapshot, "case", "case", sets)


def uses(kind: int, shares: bool) -> list[Json]:
    own = {"name": "c", "resourceClaimTemplateName": f"t{kind}"}
    return [own, *([{"name": "s", "resourceClaimName": "common"}] if shares else [])]


def claims_of(gang: Gang) -> dict[str, list[Json]]:
    return {member.name: member.claims for kind in gang.kinds for member in kind.members}


def only(asked: Json, alternative: str | None) -> Json:
    """Return a claim with one of its alternatives; None stays with all of them."""
    (request,) = asked["spec"]["devices"]["requests"]
    if alternative is None or "firstAvailable" not in request:
        return asked
    kept = [one for one in request["firstAvailable"] if one["name"] == alternative]
    return {**asked, "spec": {"devices": {"requests": [{**request, "firstAvailable": kept}]}}}


class Devices:
    """The devices that members got."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.cluster = Cluster(snapshot.slices or (), snapshot.classes or ())
        self.common: Json | None = None
        """The shared claim with its allocation."""

    def hold(self, node: str, claims: list[Json]) -> list[Json] | None:
        """Allocate devices of a node to the claims of a member; None if they do not fit."""
        asked = [self.common if self.common and one["metadata"]["name"] == "common" else one for one in claims]
        found = self.cluster.allocate(node, asked)
        if not found["allocated"]:
            return None
        held = [{**one, "status": {"allocation": result}} for one, result in zip(asked, found["results"], strict=True)]
        self.cluster.hold(held)
        self.common = next((one for one in held if one["metadata"]["name"] == "common"), self.common)
        return held

    def release(self, held: list[Json], common: Json | None) -> None:
        """Undo `hold`; `common` is the shared claim as it was before."""
        self.cluster.release([one for one in held if common is None or one["metadata"]["name"] != "common"])
        self.common = common


def repeat(snapshot: Snapshot, gang: Gang, placements: list[Json], *, restricts: bool) -> Devices:
    """Allocate the placements one after another in a new cluster; each gets the devices that it is claimed to have."""
    cluster, claims = Devices(snapshot), claims_of(gang)
    for one in placements:
        chosen = one["devices"][0]["request"].partition("/")[2] or None
        wanted = [only(own, chosen if restricts else None) for own in claims[one["member"]]]
        held = cluster.hold(one["node"], wanted)
        assert held is not None, one
        devices = [result for own in held for result in own["status"]["allocation"]["devices"]["results"]]
        assert [{key: result[key] for key in one["devices"][0]} for result in devices] == one["devices"]
    return cluster


def fits_in_any_way(snapshot: Snapshot, gang: Gang) -> bool:
    """Try every order, node and alternative of every member, without any shortcut but equal members."""
    cluster = Devices(snapshot)
    nodes = sorted(nodes_of(snapshot))

    def place(left: list[list[list[Json]]]) -> bool:
        if not any(left):
            return True
        for number, members in enumerate(left):
            if not members:
                continue
            below = [members[1:] if index == number else others for index, others in enumerate(left)]
            (request,) = members[0][0]["spec"]["devices"]["requests"]
            alternatives = [one["name"] for one in request.get("firstAvailable") or ()] or [None]
            for node, alternative in itertools.product(nodes, alternatives):
                common = cluster.common
                held = cluster.hold(node, [only(one, alternative) for one in members[0]])
                if held is None:
                    continue
                if place(below):
                    return True
                cluster.release(held, common)
        return False

    return place([[member.claims for member in kind.members] for kind in gang.kinds])


@pytest.mark.parametrize("seed", range(CASES))
def test_a_random_gang_is_explained_exactly(seed: int) -> None:
    snapshot, gang = random_case(seed)
    result = explain_gang(snapshot, gang, deadline=600)
    cluster = repeat(snapshot, gang, result["placements"], restricts=False)
    assert result["fits"] == (result["placed"] == len(gang.order))
    if result["fits"]:
        return
    failed = claims_of(gang)[result["failure"]["member"]]
    assert all(cluster.hold(name, failed) is None for name in nodes_of(snapshot))
    search = result["search"]
    if search["found"]:
        repeat(snapshot, gang, search["placements"], restricts=True)
        assert len(search["placements"]) == len(gang.order) and search["differs"]
    assert search["found"] == fits_in_any_way(snapshot, gang), "an exact search of a tiny case"
    assert not (search["found"] and (search["complete"] or search["impossible"]))


def test_the_random_cases_have_every_result() -> None:
    results = [explain_gang(*random_case(seed), deadline=600) for seed in range(CASES)]
    searches = [result["search"] for result in results if result["search"]]
    assert sum(result["fits"] for result in results) > CASES // 10
    assert any(search["impossible"] for search in searches) and any(search["complete"] for search in searches)
    differs = {part for search in searches for part in search["differs"]}
    assert differs == {"order", "choice of nodes", "choice of alternatives"}
    assert {search["upstream"] for search in searches if search["found"]} >= {"kubernetes/kubernetes#138765"}


def large_gang(members: int) -> tuple[Snapshot, Gang]:
    slices = [
        slice_of(*(device(f"d{i}") for i in range(4)), name=name, pool=name, nodeName=name)
        for name in (f"n{number:03}" for number in range(200))
    ]
    metadata = {"name": "t0", "namespace": "default"}
    template = {"metadata": metadata, "spec": {"spec": claim(make_request())["spec"]}}
    snapshot = Snapshot("default", slices, [CLASS], templates=[template], nodes=None)
    return snapshot, gang_of_workload(
        snapshot, "case", "case", [PodSet("", {"spec": {"resourceClaims": uses(0, False)}}, members)]
    )


def test_a_gang_of_hundreds_is_spread_over_hundreds_of_nodes() -> None:
    snapshot, gang = large_gang(500)
    result = explain_gang(snapshot, gang, deadline=600)
    assert result["fits"] and sorted(result["kinds"][0]["nodes"].values()) == [2] * 100 + [3] * 100
    repeat(snapshot, gang, result["placements"], restricts=False)
    result = explain_gang(*large_gang(801), deadline=600)
    assert result["placed"] == 800 and result["failure"]["member"] == "case-800"
    assert result["search"]["impossible"] == "there are devices for request main of 800 pods, and case has 801"


def test_without_time_the_search_has_no_result() -> None:
    result = explain_gang(*large_gang(2), deadline=0)
    assert not result["fits"] and result["search"] is None and result["failure"] is None
    assert result["summary"] == "0 of 2 pods can be placed; the others have no result in time"
