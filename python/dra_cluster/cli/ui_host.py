"""What `dra-agent ui` shows of this host: devices, claims, values and reclaim, as other commands read them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dra_agent.errors import AgentError, RetryableError
from dra_cluster.page.views import DeviceView, HostView, ReclaimView, ReleaseView

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.cli.agent_view import DeviceHolders
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory.api import Taint
    from dra_agent.inventory.model import Device, Inventory
    from dra_agent.telemetry.control import CurrentValues, DeviceValues
    from dra_agent.topology.svg_card import DeviceMark


class HostReader:
    """Reads the host repeatedly, one call at a time; `close` removes a temporary simulated host."""

    def __init__(self, args: argparse.Namespace) -> None:
        """`args` has the flags of a command that reads a host."""
        self._args = args
        self._opened = ExitStack()
        self._host: Host | None = None
        self._of: tuple[Config, bool] | None = None

    def read(self) -> HostView:
        """Read the devices of the host, and the state of its agent if one responds."""
        from dra_agent.cli.agent_view import by_device, published
        from dra_agent.cli.shown_host import shown_host
        from dra_agent.cli.topology import picture_facts, picture_title
        from dra_agent.inventory.model import FAMILIES
        from dra_agent.topology import scan, svg

        shown = shown_host(self._args)
        host = self._open(shown)
        topology = scan(host, distances=False)
        inventory = published(shown, host, topology)
        claims = by_device(shown)
        holders, names = picture_facts(shown, inventory.devices, claims)
        values, telemetry = _telemetry(shown)
        return HostView(
            name=shown.config.host_label,
            agent=_agent(shown),
            note=_note(shown),
            devices=tuple(
                _device(device, claims, values.get(device.name))
                for device in sorted(inventory.devices, key=lambda device: FAMILIES.index(device.family))
            ),
            telemetry=telemetry,
            reclaim=_reclaim(shown),
            picture=svg.draw(
                topology,
                title=picture_title(shown.config),
                holders=holders,
                names=names,
                marks=device_marks(inventory, values),
            ),
            problems=(
                *(f"{note[:1].upper()}{note[1:]}" for note in claims.notes),
                *(f"{one.name}: not published ({one.code}): {one.reason}" for one in inventory.excluded_by_reason()),
                *map(str, inventory.problems),
                *map(str, topology.problems),
            ),
        )

    def close(self) -> None:
        """Remove what was made for reading."""
        self._opened.close()

    def _open(self, shown: ShownHost) -> Host:
        """Return the host; a simulated one without an agent is built once."""
        from dra_agent.agent.setup_registry import command_host

        of = (shown.config, shown.is_agents)
        if self._host is None or of != self._of:
            self._opened.close()
            self._host, self._of = self._opened.enter_context(command_host(shown.config)), of
        return self._host


def _agent(shown: ShownHost) -> str | None:
    if shown.agent is None:
        return None
    simulated = "" if shown.config.simulate is None else f", on a simulated {shown.config.simulate}"
    return f"Agent {shown.agent.version} with pid {shown.agent.pid}{simulated}"


def _note(shown: ShownHost) -> str:
    from dra_agent.agent.about import RunningAgent

    if not isinstance(shown.answer, RunningAgent):
        return f"{shown.answer.reason}."
    return "" if shown.is_agents else "It manages another host, so its claims are not shown."


def _device(device: Device, holders: DeviceHolders, values: DeviceValues | None) -> DeviceView:
    from dra_agent.cli.top_tables import power_of
    from dra_agent.telemetry.model import DeviceSample

    sample = DeviceSample() if values is None else values.values
    kind, product = device.attributes.get("type"), device.attributes.get("productName")
    reason = f" ({device.health_reason})" if device.health_reason else ""
    claims = holders.of(device.name)
    return DeviceView(
        name=device.name,
        type=str(kind.value) if kind is not None else device.family,
        product="" if product is None else str(product.value),
        health=device.health if device.health == "healthy" else f"{device.health}{reason}",
        taints=_taint_names(device.taints),
        claims=None if claims is None else tuple(claims),
        utilization_ratio=sample.gpu_utilization_ratio,
        memory_used_bytes=sample.memory_used_bytes,
        memory_limit_bytes=sample.memory_limit_bytes,
        power_watts=power_of(sample),
        temperature_celsius=sample.temperature_celsius,
    )


def device_marks(inventory: Inventory, values: Mapping[str, DeviceValues]) -> dict[str, DeviceMark]:
    """Return what the picture shows of each PCI function: its utilization, and the taints that exclude it or a part."""
    from dra_agent.topology.svg_card import DeviceMark

    ratios: dict[str, float] = {}
    taints: dict[str, dict[str, None]] = {}
    for device in inventory.devices:
        kind, sampled = device.attributes.get("type"), values.get(device.name)
        is_whole = kind is None or kind.value == device.family
        # The utilization of a partition is a part of the partition, not of the GPU.
        if is_whole and sampled is not None and sampled.values.gpu_utilization_ratio is not None:
            ratios[device.pci_address] = sampled.values.gpu_utilization_ratio
        excluding = [taint for taint in device.taints if taint.effect != "None"]
        taints.setdefault(device.pci_address, {}).update(dict.fromkeys(_taint_names(excluding)))
    return {address: DeviceMark(ratios.get(address), tuple(found)) for address, found in taints.items()}


def _taint_names(taints: Sequence[Taint]) -> tuple[str, ...]:
    return tuple(f"{taint.key}:{taint.effect}" for taint in taints)


def _telemetry(shown: ShownHost) -> tuple[dict[str, DeviceValues], str]:
    """Return the values of devices by name, and how old they are or why there are none."""
    from dra_agent.telemetry.control import query

    if not shown.is_agents or shown.agent is None:
        return {}, ""
    if not shown.agent.config.telemetry.interval:
        return {}, "Telemetry is off: utilization is not known. Set `interval` in the section [telemetry]."
    try:
        current: CurrentValues = query(shown.config.state_dir)
    except RetryableError as error:
        return {}, f"⚠ The agent does not report its telemetry: {error}."
    every = f"every {current.interval_seconds:g} s"
    if current.age_seconds is None:
        return {}, f"There is no current sample; the agent samples {every}."
    return (
        {one.device: one for one in current.devices},
        f"Values were sampled {max(0.0, current.age_seconds):.0f} s ago, {every}.",
    )


def _reclaim(shown: ShownHost) -> ReclaimView | None:
    from dra_agent.reclaim.control import Status, send_request

    if not shown.is_agents:
        return None
    try:
        status: dict[str, Any] = send_request(shown.config.state_dir, Status())
    except AgentError:
        return None  # the agent is stopping; the next reading reports it
    return ReclaimView(
        phase=status["phase"],
        seconds_left=status["seconds_left"],
        reasons=tuple(f"{event['source']}: {event['what'] or event['event']}" for event in status["events"]),
        claims=tuple(
            ReleaseView(
                claim=f"{one['namespace']}/{one['name']}",
                state=one["state"],
                pods=tuple(one["pods"]),
                why=one["why"],
            )
            for one in status["claims"]
        ),
    )
