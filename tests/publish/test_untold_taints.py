"""Taints of effect None: published where the API server knows the effect, and in nobody's way where it does not."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Device
from dra_agent.publish import Publisher
from dra_agent.publish.feature_gates import dropped_fields, refused_effects
from eventually import eventually_async
from fake_apiserver.store import RefusedError
from publish.node import DRIVER, Node, device, devices, quiet, settled

BEGAN = "2026-01-31T12:00:00Z"
UNMONITORED = Taint(f"{DRIVER}/unmonitored", "None", time_added=BEGAN)
SICK = Taint(f"{DRIVER}/xid-95", "NoSchedule", time_added=BEGAN)


def unmonitored(found: Device, *others: Taint) -> Device:
    return msgspec.structs.replace(found, taints=(*others, UNMONITORED))


def effects(node: Node) -> dict[str, list[str]]:
    """The effects of the taints of every device that has any."""
    found = [entry for item in node.slices() for entry in item["spec"].get("devices", ())]
    return {entry["name"]: [taint["effect"] for taint in entry["taints"]] for entry in found if entry.get("taints")}


def questions(node: Node) -> list[Any]:
    """The requests that only ask what would be stored."""
    return [seen for seen in node.api.requests if "dryRun" in seen.query]


def kubernetes_1_34(plural: str, written: dict[str, Any]) -> None:
    """Refuse effect None with that version's words (validateDeviceTaint; ErrorList.ToAggregate)."""
    if plural != "resourceslices":
        return
    wrong = [
        f'spec.devices[{at}].taints[{number}].effect: Unsupported value: "None": '
        'supported values: "NoExecute", "NoSchedule"'
        for at, entry in enumerate(written["spec"].get("devices", ()))
        for number, taint in enumerate(entry.get("taints", ()))
        if taint["effect"] not in ("NoExecute", "NoSchedule")
    ]
    if wrong:
        said = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
        raise RefusedError(422, "Invalid", f'ResourceSlice.resource.k8s.io "n1" is invalid: {said}')


def taking(*, none: bool) -> Any:
    """A server that takes lists of taints, and in silence drops those of effect None or all."""

    def drop(plural: str, written: dict[str, Any]) -> None:
        for entry in written["spec"].get("devices", ()) if plural == "resourceslices" else ():
            kept = [taint for taint in entry.get("taints", ()) if not none and taint["effect"] != "None"]
            entry.pop("taints", None)
            if kept:
                entry["taints"] = kept

    return drop


def test_a_device_that_is_not_monitored_for_a_while_is_written_twice(node: Node) -> None:
    node.has(device(1), device(2))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await quiet(node, publisher)
        node.has(device(1), unmonitored(device(2)))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["None"]})
        await settled(publisher)
        assert node.writes() == ["PUT"] and not questions(node), "and the server was not asked first"
        await quiet(node, publisher)
        node.has(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {})
        await settled(publisher)
        assert node.writes() == ["PUT"]
        assert publisher.reading().problems == () and not publisher.reading().errors

    node.run(story)


def test_a_successor_keeps_the_taint_and_its_time(node: Node) -> None:
    node.has(unmonitored(device(1)))
    node.run(lambda publisher: quiet(node, publisher))
    (entry,) = node.slices()[0]["spec"]["devices"]
    assert entry["taints"] == [{"key": UNMONITORED.key, "effect": "None", "timeAdded": BEGAN}]
    node.forget()
    # It does not know since when.
    node.has(msgspec.structs.replace(device(1), taints=(msgspec.structs.replace(UNMONITORED, time_added=None),)))
    node.run(lambda publisher: quiet(node, publisher))
    assert node.slices()[0]["spec"]["devices"] == [entry] and node.writes() == []


def test_where_the_effect_is_not_known_everything_else_is_published_at_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.has(device(1), unmonitored(device(2)), device(3, "nic"))
    caplog.set_level(logging.WARNING)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2, within=30)
        await settled(publisher)
        assert node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"] and effects(node) == {}
        assert node.writes().count("POST") == 3, "one more than there are slices"
        assert publisher.reading().errors == {"untold_taints": 1}
        (problem,) = publisher.reading().problems
        assert "gpu-0000-02-00-0" in problem and "Kubernetes 1.35" in problem
        await quiet(node, publisher)

        # What keeps claims away passes as ever.
        node.has(device(1), unmonitored(device(2), SICK), device(3, "nic"))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]})
        node.has(unmonitored(device(1)), unmonitored(device(2)), unmonitored(device(3, "nic")))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {})
        await quiet(node, publisher)
        assert publisher.reading().errors == {"untold_taints": 1}

    node.run(story)
    assert len([record for record in caplog.records if "slices" in record.message]) == 1


def test_a_question_about_taints_that_is_refused_for_the_effect_is_asked_without(node: Node) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.has(device(1), unmonitored(device(2), SICK))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]}, within=30)
        await settled(publisher)
        assert len(questions(node)) == 2 and node.writes() == ["POST"]

    node.run(story)


def test_a_pool_of_several_slices_stays_whole_where_the_effect_is_not_known(node: Node) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.has(*devices(70))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 70)
        await quiet(node, publisher)
        node.has(*map(unmonitored, devices(70)))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().errors.get("untold_taints") == 1)
        await settled(publisher)
        assert node.writes() == ["PUT"], "the one that was refused"
        assert len(node.names()) == 70 and len(node.slices()) == 2

    node.run(story)


def test_a_pool_of_several_slices_keeps_its_shape_where_the_effect_is_known(node: Node) -> None:
    node.has(*devices(130))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 130)
        order = node.names()
        await quiet(node, publisher)
        node.has(*map(unmonitored, devices(130)))
        publisher.devices_changed()
        await eventually_async(lambda: len(effects(node)) == 130 and len(node.names()) == 130)
        await settled(publisher)
        assert node.names() == order and node.writes() == ["PUT", "PUT", "PUT"]

    node.run(story)


@pytest.mark.parametrize("refuses", [kubernetes_1_34, taking(none=True)])
def test_a_newer_server_gets_the_taints_without_a_restart_of_the_agent(node: Node, refuses: Any) -> None:
    node.api.drop_fields(refuses)
    node.has(unmonitored(device(1)))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await settled(publisher)
        assert effects(node) == {} and publisher.reading().problems
        node.api.stop()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.drop_fields(None)
        node.api.start()
        await eventually_async(lambda: effects(node) == {"gpu-0000-01-00-0": ["None"]})
        await settled(publisher)
        assert publisher.reading().problems == ()
        await quiet(node, publisher)

    node.run(story)


def test_the_same_server_is_tried_once_more_after_each_break_and_says_it_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.has(unmonitored(device(1)))
    caplog.set_level(logging.WARNING)

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await quiet(node, publisher)
        node.api.stop()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.start()
        await eventually_async(lambda: publisher.reading().errors["untold_taints"] == 2)
        await settled(publisher)
        assert node.writes() == ["PUT"]
        await quiet(node, publisher)

    node.run(story)
    assert len([record for record in caplog.records if "prevent nothing" in record.message]) == 1


def test_dropped_taints_of_this_effect_say_nothing_of_those_that_keep_claims_away(node: Node) -> None:
    node.api.drop_fields(taking(none=False))
    node.has(device(1), unmonitored(device(2)))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await quiet(node, publisher)
        node.has(device(1), unmonitored(device(2), SICK))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]})
        await quiet(node, publisher)
        assert not any("DRADeviceTaints" in problem and "drops" in problem for problem in publisher.reading().problems)

    node.run(story)


def test_where_all_taints_are_dropped_a_device_that_is_only_not_monitored_stays(node: Node) -> None:
    node.api.drop_fields(taking(none=True))
    node.has(device(1), unmonitored(device(2)), device(3))

    async def story(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 3)
        await quiet(node, publisher)
        node.has(device(1), unmonitored(device(2)), unmonitored(device(3), SICK))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"])
        await quiet(node, publisher)
        assert any("drops devices[gpu-0000-03-00-0].taints;" in problem for problem in publisher.reading().problems)

    node.run(story)


def spec(*taints: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"driver": "d", "devices": [{"name": "a", **({"taints": list(taints)} if taints else {})}]}}


TOLD = {"key": "t", "effect": "None"}
BAD = {"key": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("sent", "stored", "missing"),
    [
        (spec(BAD, TOLD), spec(BAD, TOLD), []),
        (spec(BAD, TOLD), spec(BAD), ["devices[a].taints[1].effect"]),
        (spec(TOLD), spec(), ["devices[a].taints[0].effect"]),
        (spec(TOLD), spec({**TOLD, "effect": "NoSchedule"}), ["devices[a].taints[0].effect"]),
        (spec(BAD, TOLD), spec(TOLD), ["devices[a].taints"]),
        (spec(BAD, TOLD), spec(), ["devices[a].taints"]),
        # One that keeps claims away was changed: that is no matter of effect None.
        (spec(BAD, TOLD), spec({**BAD, "effect": "None"}, TOLD), ["devices[a].taints"]),
    ],
)
def test_what_is_missing_of_taints_is_named(sent: Any, stored: Any, missing: list[str]) -> None:
    assert dropped_fields(sent, stored) == missing


def test_only_a_refusal_of_this_effect_counts() -> None:
    sent = spec(BAD, TOLD)
    wrong = 'spec.devices[0].taints[{}].effect: Unsupported value: "None"'
    assert refused_effects(sent, wrong.format(1)) == ["devices[a].taints[1].effect"]
    assert refused_effects(sent, wrong.format(0)) == [], "that one is NoSchedule"
    assert refused_effects(sent, wrong.format(7)) == []
    assert refused_effects(sent, "spec.devices[0].taints[1].key: Invalid value") == []
