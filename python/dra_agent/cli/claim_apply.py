"""`dra-agent claim apply`: creates or changes DeviceClasses and ResourceClaims, after everything in them is checked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import identity_of
from dra_agent.cli.claim import explain_command
from dra_agent.standalone.claim import UNDER_WAY

if TYPE_CHECKING:
    from dra_agent.manifests import LoadedObject


def run(args: argparse.Namespace) -> int:
    """Apply the objects of the files; exit code 1 where a claim can never be satisfied or prepared."""
    from dra_agent.agent.config import load_config
    from dra_agent.cli.connection import connect
    from dra_agent.cli.files import load_files
    from dra_agent.cli.output import ID_FORMATS

    objects = load_files(args)
    check(objects, load_config(args).driver_name)
    if args.dry_run:
        return _dry_run(args, objects)
    with connect(args, wait_s=args.wait_for_agent) as agent:
        whole = args.output != "table" and args.output not in ID_FORMATS
        applied = agent.apply([loaded.value for loaded in objects], whole=whole)
    _print(applied, args.output)
    claims = [done["claim"] for done in applied if done.get("claim")]
    return 1 if any(map(is_refused, claims)) else 0


def is_refused(claim: dict[str, Any]) -> bool:
    """True if the claim failed: it can never fit here, or its devices could not be prepared."""
    if claim["phase"] == "Allocated":
        return bool(claim["message"] != UNDER_WAY)
    return bool(not claim["fits_empty_host"] or claim["phase"] == "Failed")


def check(objects: list[LoadedObject], driver: str) -> None:
    """Check kinds and configuration; raises UsageError with file and line for those that the agent does not accept."""
    from dra_agent.errors import UsageError

    for loaded in objects:
        if loaded.kind == "ResourceClaimTemplate":
            raise UsageError(
                "a ResourceClaimTemplate is for pods of a cluster",
                where=loaded.where("kind"),
                hint="write a ResourceClaim with the template's spec.spec as its spec",
            )
        if loaded.kind not in ("ResourceClaim", "DeviceClass"):
            raise UsageError(
                f"a {loaded.kind or 'nameless kind'} is a kind that the agent does not store",
                where=loaded.where("kind"),
                hint="apply DeviceClasses and ResourceClaims",
            )
    if problems := _problems([loaded for loaded in objects if _has_configuration(loaded.value)], driver):
        raise UsageError("\n".join(problems))


def _has_configuration(value: dict[str, Any]) -> bool:
    spec = value.get("spec") or {}
    return bool(spec.get("config") or (spec.get("devices") or {}).get("config"))


def _problems(objects: list[LoadedObject], driver: str) -> list[str]:
    if not objects:
        return []
    # The set-ups import the inventory and the vendor libraries, which most claims do not need.
    from dra_agent.agent.setup_registry import known_setups
    from dra_agent.prepare.config import validate_object

    setups = known_setups()
    problems: list[str] = []
    for loaded in objects:
        for error in validate_object(loaded.value, driver, setups)[1]:
            hint = f"; {error.hint}" if error.hint else ""
            problems.append(f"{loaded.where(error.field)}: {error.field}: {error.reason}{hint}")
    return problems


def _print(applied: list[dict[str, Any]], output: str) -> None:
    from dra_agent.cli.output import ID_FORMATS, emit, emit_ids, prints_names

    if output in ID_FORMATS:
        claims = (done.get("claim") or {} for done in applied)
        emit_ids((name for claim in claims for name in claim.get("cdi_device_ids", ())), output)
    elif output != "table":
        emit(applied, output)
    elif prints_names():
        for done in applied:
            print(_name(done))
    else:
        for done in applied:
            print(_sentence(done))


def _name(done: dict[str, Any]) -> str:
    return f"{'deviceclass' if done.get('claim') is None else 'resourceclaim'}/{done['name']}"


def _sentence(done: dict[str, Any]) -> str:
    claim = done.get("claim")
    if claim is None:
        return f"{_name(done)} {done['action']}"
    text = f"{_name(done)} {done['action']}: {claim['phase'].lower()}"
    if claim["message"]:
        text += f": {claim['message']}"
    if claim["phase"] == "Pending":
        text += f"\n  why: {explain_command(claim)}"
    for device in claim["devices"]:
        text += f"\n  {', '.join(device['requests'])}: {device['device']}  {'  '.join(device['cdi_device_ids'])}"
    return text


def _dry_run(args: argparse.Namespace, objects: list[LoadedObject]) -> int:
    """Print the result that each object would have; exit code 1 where a claim can never be satisfied.

    The agent checks the objects as it does before it stores them. Devices are those that are free now.
    """
    from dra_agent.cli.connection import connect
    from dra_agent.cli.output import ID_FORMATS, emit, prints_names
    from dra_agent.standalone.protocol import Plan, State

    with connect(args, wait_s=args.wait_for_agent) as agent:
        results = agent.call(Plan([loaded.value for loaded in objects]))
        state = agent.call(State())
    own = [loaded.value for loaded in objects if loaded.kind == "DeviceClass"]
    names = {entry["metadata"]["name"] for entry in own}
    state["classes"] = own + [entry for entry in state["classes"] if entry["metadata"]["name"] not in names]
    held = {identity_of(claim) for claim in state["allocated"]}
    done: list[dict[str, Any]] = []
    for loaded, result in zip(objects, results, strict=True):
        entry = {key: result[key] for key in ("kind", "name", "namespace", "action")}
        if loaded.kind == "ResourceClaim" and (entry["namespace"], entry["name"]) not in held:
            entry |= _fit(loaded.value, state)
        done.append(entry)
    if args.output in ("json", "yaml"):
        emit(done, args.output)
    elif args.output not in ID_FORMATS:  # nothing is prepared, so there are no ids
        for entry in done:
            name = f"{entry['kind'].lower()}/{entry['name']}"
            summary = f": {entry['summary']}" if "summary" in entry else ""
            print(name if prints_names() else f"{name} {entry['action']} (dry run){summary}")
    return 0 if all(entry.get("fits_empty_host", True) for entry in done) else 1


def _fit(claim: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return whether a claim fits now, and whether it would if no other claim held a device."""
    from dra_agent.explain import explain
    from dra_agent.standalone.allocator import GATES

    def query(allocated: list[dict[str, Any]]) -> dict[str, Any]:
        return explain(
            node=state["node"],
            classes=state["classes"],
            slices=state["slices"],
            allocated=allocated,
            claims=[claim],
            gates=GATES,
        )

    now = query(state["allocated"])
    fits_empty_host = now["fits"] or query([])["fits"]
    return {"fits": now["fits"], "fits_empty_host": fits_empty_host, "summary": now["summary"]}
