"""`dra-agent claim delete`: releases claims, and deletes DeviceClasses, by name or as files describe them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dra_agent.api_object import DEFAULT_NAMESPACE
from dra_agent.cli.claim import key_of
from dra_agent.cli.object_names import CLAIM, CLASS, ObjectName, parse

if TYPE_CHECKING:
    from dra_agent.standalone.protocol import Client

_API_KINDS = {CLAIM: "ResourceClaim", CLASS: "DeviceClass"}


def run(args: argparse.Namespace) -> int:
    """Delete the named objects; exit code 1 if one does not exist, or is still being released after the timeout.

    An object that does not exist does not keep the others from being deleted.
    """
    from dra_agent.cli.connection import connect
    from dra_agent.cli.terminal import progress
    from dra_agent.errors import AgentError, NoSuchObjectError

    targets = _targets(args)
    # Claims first: the messages of claims name their classes.
    targets.sort(key=lambda target: target.kind == CLASS)
    outcomes: list[dict[str, Any]] = []
    missing: list[str] = []
    try:
        with connect(args) as agent, progress("releasing"):
            for target in targets:
                try:
                    outcomes += _delete(agent, args, target)
                except NoSuchObjectError as error:
                    missing.append(str(error))
    except AgentError:
        if outcomes:
            _print(args, outcomes)
        raise
    if outcomes or not missing:
        _print(args, outcomes)
    sys.stdout.flush()
    for message in missing:
        print(f"dra-agent: {message}", file=sys.stderr)
    return 0 if not missing and all(outcome["deleted"] for outcome in outcomes) else 1


def _print(args: argparse.Namespace, outcomes: list[dict[str, Any]]) -> None:
    from dra_agent.cli.output import emit, prints_names

    if args.output != "table":
        emit(outcomes, args.output)
    else:
        for outcome in outcomes:
            name = f"{outcome['kind'].lower()}/{outcome['name']}"
            done = "deleted" if outcome["deleted"] else "is still being released"
            print(name if prints_names() else f"{name} {done}{' (dry run)' if args.dry_run else ''}")


def _targets(args: argparse.Namespace) -> list[ObjectName]:
    from dra_agent.cli.files import load_files
    from dra_agent.errors import UsageError

    kinds = (CLASS, CLAIM) if args.is_class else (CLAIM, CLASS)
    targets = [parse(word, kinds=kinds) for word in args.name]
    for loaded in load_files(args) if args.filename else ():
        kind = next((kind for kind, name in _API_KINDS.items() if name == loaded.kind), None)
        if kind is None:
            hint = "remove the kinds that the agent does not store"
            raise UsageError(f"a {loaded.kind} cannot be deleted here", where=loaded.where("kind"), hint=hint)
        namespace = loaded.value["metadata"].get("namespace") or args.namespace or DEFAULT_NAMESPACE
        targets.append(ObjectName(kind, namespace, loaded.name))
    if not targets:
        raise UsageError("nothing to delete", hint="give names, or a file with -f")
    return targets


def _delete(agent: Client, args: argparse.Namespace, target: ObjectName) -> list[dict[str, Any]]:
    """Delete one object, or look it up for a dry run; empty where it does not exist and that is ignored."""
    from dra_agent.errors import NoSuchObjectError
    from dra_agent.standalone.protocol import Delete, Get, ListClasses

    try:
        if target.kind == CLASS:
            namespace, name = "", target.name
        else:
            namespace, name = key_of(agent, target, args.namespace)
        if not args.dry_run:
            deleted = agent.call(Delete(_API_KINDS[target.kind], name, namespace, args.timeout))
        elif target.kind == CLAIM:
            deleted = bool(agent.call(Get(namespace, name)))
        elif all(entry["metadata"]["name"] != name for entry in agent.call(ListClasses())):
            raise NoSuchObjectError(f"there is no DeviceClass {name}")
        else:
            deleted = True
    except NoSuchObjectError:
        if args.ignore_not_found:
            return []
        raise
    return [{"kind": _API_KINDS[target.kind], "name": name, "namespace": namespace, "deleted": deleted}]
