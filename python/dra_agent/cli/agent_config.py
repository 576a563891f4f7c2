"""`dra-agent config check|show|keys`: the agent's own configuration, its problems, its values and its keys."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_agent.agent.config import LoadedConfig
    from dra_agent.agent.config_problems import ConfigProblem


def check(args: argparse.Namespace) -> int:
    """Check a configuration as `dra-agent run` does; exit code 1 for problems, 2 for a file that cannot be read."""
    from dra_agent.agent.config import DEFAULT_FILE, load
    from dra_agent.agent.config_problems import ConfigError
    from dra_agent.cli.output import emit

    if args.file is not None:
        args.config = Path("/dev/stdin") if str(args.file) == "-" else args.file
    problems: tuple[ConfigProblem, ...] = ()
    ignored: tuple[ConfigProblem, ...] = ()
    file = args.config
    try:
        loaded = load(args, needs_node=True)
        file, ignored = loaded.file, loaded.ignored
    except ConfigError as error:
        if any(problem.is_unreadable for problem in error.problems):
            raise
        problems = error.problems
    named = str(file or DEFAULT_FILE)
    if args.output != "table":
        found = {
            "file": named,
            "valid": not problems,
            "problems": [_as_json(one) for one in problems],
            "ignored": [_as_json(one) for one in ignored],
        }
        emit(found, args.output)
        return 1 if problems else 0
    for problem in (*problems, *ignored):
        print(problem)
    if not problems:
        print(f"{named}: no problems" if file is not None else "no file; flags and variables: no problems")
    return 1 if problems else 0


def _as_json(problem: ConfigProblem) -> dict[str, Any]:
    return {
        "file": problem.origin,
        "line": problem.line,
        "key": problem.key or None,
        "message": problem.message,
        "todo": problem.hint,
    }


def show(args: argparse.Namespace) -> int:
    """Print each value and its origin."""
    from dra_agent.agent.config import load
    from dra_agent.cli.output import emit
    from dra_agent.cli.table import table

    rows = listing(load(args), every=args.all)
    if args.output == "table":
        shown = ([row["key"], row["origin"], row["change"], _text(row["value"])] for row in rows)
        table(["key", "from", "change", "value"], shown, optional=("change",), prose=("value",))
    else:
        emit(rows, args.output)
    return 0


def listing(loaded: LoadedConfig, *, every: bool = True) -> list[dict[str, Any]]:
    """Return each key with its value, its origin, and how a change takes effect; `every` includes default values."""
    from dra_agent.agent.config_keys import DEPRECATED, config_keys, values_of

    values = values_of(loaded.config)
    rows = [
        {"key": key.name, "value": values[key.name], "origin": loaded.origin(key.name), "change": key.change}
        for key in config_keys()
    ]
    return [row for row in rows if (every and row["key"] not in DEPRECATED) or row["origin"] != "default"]


def keys(args: argparse.Namespace) -> int:
    """Print every key of the file that is not deprecated."""
    from dra_agent.agent.config_keys import DEPRECATED, config_keys
    from dra_agent.cli.output import emit
    from dra_agent.cli.table import table

    found = [key for key in config_keys() if key.name not in DEPRECATED]
    if args.output == "table":
        rows = ([key.name, key.kind, key.change, _text(key.default)] for key in found)
        table(["key", "values", "change", "default"], rows, optional=("default",), prose=("values", "default"))
    else:
        emit(found, args.output)
    return 0


def _text(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
