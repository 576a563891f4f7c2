"""Taints of effect None are published where the API server knows the effect, and left out where it does not."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import tiers
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Device
from dra_agent.publish import Publisher
from dra_agent.publish.feature_gates import dropped_fields, refused_effects
from eventually import eventually_async
from fake_apiserver.store import RefusedError
from publish.node import DRIVER, Node, assert_no_more_writes, device, devices, wait_until_published

BEGAN = "2026-01-31T12:00:00Z"
UNMONITORED = Taint(f"{DRIVER}/unmonitored", "None", time_added=BEGAN)
SICK = Taint(f"{DRIVER}/xid-95", "NoSchedule", time_added=BEGAN)


def unmonitored(device_: Device, *others: Taint) -> Device:
    return msgspec.structs.replace(device_, taints=(*others, UNMONITORED))


def effects(node: Node) -> dict[str, list[str]]:
    """Return the effects of the taints of each tainted device."""
    entries = [entry for item in node.slices() for entry in item["spec"].get("devices", ())]
    return {entry["name"]: [taint["effect"] for taint in entry["taints"]] for entry in entries if entry.get("taints")}


def dry_runs(node: Node) -> list[Any]:
    """Return the dry-run requests."""
    return [request for request in node.api.requests if "dryRun" in request.query]


def kubernetes_1_34(plural: str, written: dict[str, Any]) -> None:
    """Refuse effect None with the error of Kubernetes 1.34 (validateDeviceTaint; ErrorList.ToAggregate)."""
    if plural != "resourceslices":
        return
    errors = [
        f'spec.devices[{index}].taints[{number}].effect: Unsupported value: "None": '
        'supported values: "NoExecute", "NoSchedule"'
        for index, entry in enumerate(written["spec"].get("devices", ()))
        for number, taint in enumerate(entry.get("taints", ()))
        if taint["effect"] not in ("NoExecute", "NoSchedule")
    ]
    if errors:
        message = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise RefusedError(422, "Invalid", f'ResourceSlice.resource.k8s.io "n1" is invalid: {message}')


def dropping(*, none: bool) -> Any:
    """Return a server rule that silently drops taints of effect None, or all taints."""

    def drop(plural: str, written: dict[str, Any]) -> None:
        for entry in written["spec"].get("devices", ()) if plural == "resourceslices" else ():
            remaining = [taint for taint in entry.get("taints", ()) if not none and taint["effect"] != "None"]
            entry.pop("taints", None)
            if remaining:
                entry["taints"] = remaining

    return drop


def test_a_temporarily_unmonitored_device_is_written_twice(node: Node) -> None:
    node.set_devices(device(1), device(2))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        node.set_devices(device(1), unmonitored(device(2)))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["None"]})
        await wait_until_published(publisher)
        assert node.writes() == ["PUT"] and not dry_runs(node), "without a dry run"
        await assert_no_more_writes(node, publisher)
        node.set_devices(device(1), device(2))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {})
        await wait_until_published(publisher)
        assert node.writes() == ["PUT"]
        assert publisher.reading().problems == () and not publisher.reading().errors

    node.run(scenario)


def test_a_restarted_agent_keeps_the_taint_and_its_time(node: Node) -> None:
    node.set_devices(unmonitored(device(1)))
    node.run(lambda publisher: assert_no_more_writes(node, publisher))
    (entry,) = node.slices()[0]["spec"]["devices"]
    assert entry["taints"] == [{"key": UNMONITORED.key, "effect": "None", "timeAdded": BEGAN}]
    node.clear_requests()
    # The restarted agent does not know the time.
    node.set_devices(
        msgspec.structs.replace(device(1), taints=(msgspec.structs.replace(UNMONITORED, time_added=None),))
    )
    node.run(lambda publisher: assert_no_more_writes(node, publisher))
    assert node.slices()[0]["spec"]["devices"] == [entry] and node.writes() == []


def test_an_unknown_effect_does_not_delay_the_rest(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.set_devices(device(1), unmonitored(device(2)), device(3, "nic"))
    caplog.set_level(logging.WARNING)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.slices()) == 2, within=30)
        await wait_until_published(publisher)
        assert node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"] and effects(node) == {}
        assert node.writes().count("POST") == 3, "one more than the number of slices"
        assert publisher.reading().errors == {"untold_taints": 1}
        (problem,) = publisher.reading().problems
        assert "gpu-0000-02-00-0" in problem and "Kubernetes 1.35" in problem
        await assert_no_more_writes(node, publisher)

        # Taints that prevent allocation are published as before.
        node.set_devices(device(1), unmonitored(device(2), SICK), device(3, "nic"))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]})
        node.set_devices(unmonitored(device(1)), unmonitored(device(2)), unmonitored(device(3, "nic")))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {})
        await assert_no_more_writes(node, publisher)
        assert publisher.reading().errors == {"untold_taints": 1}

    node.run(scenario)
    assert len([record for record in caplog.records if "slices" in record.message]) == 1


def test_a_dry_run_refused_for_the_effect_is_repeated_without_it(node: Node) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.set_devices(device(1), unmonitored(device(2), SICK))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]}, within=30)
        await wait_until_published(publisher)
        assert len(dry_runs(node)) == 2 and node.writes() == ["POST"]

    node.run(scenario)


def test_a_pool_stays_complete_where_the_effect_is_unknown(node: Node) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.set_devices(*devices(70))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 70)
        await assert_no_more_writes(node, publisher)
        node.set_devices(*map(unmonitored, devices(70)))
        publisher.devices_changed()
        await eventually_async(lambda: publisher.reading().errors.get("untold_taints") == 1)
        await wait_until_published(publisher)
        assert node.writes() == ["PUT"], "the refused write"
        assert len(node.names()) == 70 and len(node.slices()) == 2

    node.run(scenario)


def test_a_pool_keeps_its_order_where_the_effect_is_known(node: Node) -> None:
    node.set_devices(*devices(130))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 130)
        order = node.names()
        await assert_no_more_writes(node, publisher)
        node.set_devices(*map(unmonitored, devices(130)))
        publisher.devices_changed()
        await eventually_async(lambda: len(effects(node)) == 130 and len(node.names()) == 130)
        await wait_until_published(publisher)
        assert node.names() == order and node.writes() == ["PUT", "PUT", "PUT"]

    node.run(scenario)


@pytest.mark.parametrize("refuses", [kubernetes_1_34, dropping(none=True)])
def test_an_upgraded_server_gets_the_taints_without_a_restart(node: Node, refuses: Any) -> None:
    node.api.drop_fields(refuses)
    node.set_devices(unmonitored(device(1)))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await wait_until_published(publisher)
        assert effects(node) == {} and publisher.reading().problems
        node.api.stop()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.drop_fields(None)
        node.api.start()
        await eventually_async(lambda: effects(node) == {"gpu-0000-01-00-0": ["None"]})
        await wait_until_published(publisher)
        assert publisher.reading().problems == ()
        await assert_no_more_writes(node, publisher)

    node.run(scenario)


@tiers.PATIENCE
def test_an_old_server_is_retried_after_a_break_and_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.api.drop_fields(kubernetes_1_34)
    node.set_devices(unmonitored(device(1)))
    caplog.set_level(logging.WARNING)

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 1)
        await assert_no_more_writes(node, publisher)
        node.api.stop()
        await eventually_async(lambda: publisher.reading().lag_s > 0)
        node.api.start()
        await eventually_async(lambda: publisher.reading().errors["untold_taints"] == 2)
        await wait_until_published(publisher)
        assert node.writes() == ["PUT"]
        await assert_no_more_writes(node, publisher)

    node.run(scenario)
    assert len([record for record in caplog.records if "prevent nothing" in record.message]) == 1


def test_dropping_effect_none_does_not_affect_other_taints(node: Node) -> None:
    node.api.drop_fields(dropping(none=False))
    node.set_devices(device(1), unmonitored(device(2)))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 2)
        await assert_no_more_writes(node, publisher)
        node.set_devices(device(1), unmonitored(device(2), SICK))
        publisher.devices_changed()
        await eventually_async(lambda: effects(node) == {"gpu-0000-02-00-0": ["NoSchedule"]})
        await assert_no_more_writes(node, publisher)
        assert not any("DRADeviceTaints" in problem and "drops" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def test_an_unmonitored_device_stays_where_taints_are_dropped(node: Node) -> None:
    node.api.drop_fields(dropping(none=True))
    node.set_devices(device(1), unmonitored(device(2)), device(3))

    async def scenario(publisher: Publisher) -> None:
        await eventually_async(lambda: len(node.names()) == 3)
        await assert_no_more_writes(node, publisher)
        node.set_devices(device(1), unmonitored(device(2)), unmonitored(device(3), SICK))
        publisher.devices_changed()
        await eventually_async(lambda: node.names() == ["gpu-0000-01-00-0", "gpu-0000-02-00-0"])
        await assert_no_more_writes(node, publisher)
        assert any("drops devices[gpu-0000-03-00-0].taints;" in problem for problem in publisher.reading().problems)

    node.run(scenario)


def spec(*taints: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"driver": "d", "devices": [{"name": "a", **({"taints": list(taints)} if taints else {})}]}}


UNMONITORED_TAINT = {"key": "t", "effect": "None"}
SICK_TAINT = {"key": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("sent", "stored", "missing"),
    [
        (spec(SICK_TAINT, UNMONITORED_TAINT), spec(SICK_TAINT, UNMONITORED_TAINT), []),
        (spec(SICK_TAINT, UNMONITORED_TAINT), spec(SICK_TAINT), ["devices[a].taints[1].effect"]),
        (spec(UNMONITORED_TAINT), spec(), ["devices[a].taints[0].effect"]),
        (spec(UNMONITORED_TAINT), spec({**UNMONITORED_TAINT, "effect": "NoSchedule"}), ["devices[a].taints[0].effect"]),
        (spec(SICK_TAINT, UNMONITORED_TAINT), spec(UNMONITORED_TAINT), ["devices[a].taints"]),
        (spec(SICK_TAINT, UNMONITORED_TAINT), spec(), ["devices[a].taints"]),
        # A taint that prevents allocation changed: that does not concern effect None.
        (
            spec(SICK_TAINT, UNMONITORED_TAINT),
            spec({**SICK_TAINT, "effect": "None"}, UNMONITORED_TAINT),
            ["devices[a].taints"],
        ),
    ],
)
def test_a_dropped_taint_is_reported_by_its_path(sent: Any, stored: Any, missing: list[str]) -> None:
    assert dropped_fields(sent, stored) == missing


def test_only_refusals_of_effect_none_are_recognized() -> None:
    sent = spec(SICK_TAINT, UNMONITORED_TAINT)
    error = 'spec.devices[0].taints[{}].effect: Unsupported value: "None"'
    assert refused_effects(sent, error.format(1)) == ["devices[a].taints[1].effect"]
    assert refused_effects(sent, error.format(0)) == [], "that taint has effect NoSchedule"
    assert refused_effects(sent, error.format(7)) == []
    assert refused_effects(sent, "spec.devices[0].taints[1].key: Invalid value") == []
