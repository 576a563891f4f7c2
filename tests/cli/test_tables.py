"""Tables: one line per row in a pipe, fitting columns on a terminal, and names only."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import pytest

from dra_agent.cli import output, terminal
from dra_agent.cli.age import duration
from dra_agent.cli.flags import seconds
from dra_agent.cli.output import add_output_flag, rounded
from dra_agent.cli.table import Rows, table

ID = "dra-agent.internal/claim=5478b5d9-ddeb-4099-94aa-a5aa610ff27d-gpu-0000-43-00-0"
COLUMNS = ("device", "claim", "since", "cdi id")
ROWS: list[list[str | None]] = [["gpu-0", "team/a", "2026-01-01T00:00:00Z", f"{ID}\n{ID}"], ["gpu-1", None, "", ID]]


def render(capsys: pytest.CaptureFixture[str], *flags: str, optional: Sequence[str] = ("since", "cdi id")) -> list[str]:
    parser = argparse.ArgumentParser()
    add_output_flag(parser)
    assert parser.parse_args(flags).output == "table"
    table(COLUMNS, ROWS, optional=optional)
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def a_new_command() -> None:
    """No test prints in the layout that another one has chosen."""
    add_output_flag(argparse.ArgumentParser())


@pytest.fixture
def terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)


def test_a_pipe_gets_one_line_per_row_with_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    heading, first, second = render(capsys)
    assert heading.split() == ["DEVICE", "CLAIM", "SINCE", "CDI", "ID"]
    assert re.split(" {3,}", first) == ["gpu-0", "team/a", "2026-01-01T00:00:00Z", f"{ID}, {ID}"]
    assert second.split() == ["gpu-1", "-", "-", ID]
    assert all(line == line.rstrip() for line in (heading, first, second))


def test_a_terminal_omits_columns_until_the_rest_fits(
    capsys: pytest.CaptureFixture[str], terminal_of_80_columns: None
) -> None:
    lines = render(capsys)
    assert lines[0].split() == ["DEVICE", "CLAIM"]
    assert [line.split() for line in lines[1:3]] == [["gpu-0", "team/a"], ["gpu-1", "-"]]


@pytest.mark.parametrize("flags", [(), ("-o", "wide")])
def test_required_columns_are_never_wrapped_or_truncated(
    capsys: pytest.CaptureFixture[str], terminal_of_80_columns: None, flags: tuple[str, ...]
) -> None:
    lines = render(capsys, *flags, optional=("since",))
    assert sum(ID in line for line in lines) == 3
    assert ("2026-01-01T00:00:00Z" in "".join(lines)) == bool(flags)


def test_columns_are_as_wide_as_their_escaped_text(
    capsys: pytest.CaptureFixture[str], terminal_of_80_columns: None
) -> None:
    with terminal.guarded():
        table(("name", "state"), [["a\x1b[2J", "free"], ["b", "held"]])
    lines = capsys.readouterr().out.splitlines()
    column = len(r"a\x1b[2J") + 3
    assert [line.index(state) for line, state in zip(lines, ("STATE", "free", "held"), strict=True)] == [column] * 3


def test_output_of_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert render(capsys, "-o", "name") == ["gpu-0", "gpu-1"]
    Rows(COLUMNS, named=lambda row: "the same").write(ROWS)
    assert capsys.readouterr().out == "the same\n"
    assert render(capsys)[0].startswith("DEVICE"), "a flag applies to one command"


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("3435973836", "~3.2Gi"), ("17179869184", "16Gi"), ("16Gi", "16Gi"), ("7", "7"), ("1048577", "~1.0Mi")],
)
def test_byte_quantities_are_shown_as_capacities(quantity: str, expected: str) -> None:
    assert rounded(quantity) == expected
    assert output.FORMATS[0] == "table"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (10799, "179m"),
        (3 * 3600 + 60, "3h1m"),
        (47 * 3600, "47h"),
        (49 * 3600, "2d1h"),
        (100 * 86400, "100d"),
        (800 * 86400, "2y70d"),
    ],
)
def test_ages_are_as_short_as_those_of_kubectl(seconds: int, expected: str) -> None:
    assert duration(seconds) == expected


def test_prose_is_wrapped_on_a_terminal_and_ids_are_not(
    capsys: pytest.CaptureFixture[str], terminal_of_80_columns: None
) -> None:
    rows = [["gpu-0000-43-00-0", "waits for devices that other claims hold and for " + ID]]
    table(("device", "why"), rows, prose=("why",))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip() == ID for line in lines)
    assert all(len(line) <= 80 or ID in line for line in lines)


def test_a_table_without_rows_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows(COLUMNS, empty="no claims")
    rows.write([])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no claims\n")
    # Rows that follow, as with --watch, have headings.
    rows.write(ROWS)
    rows.write([])
    printed = capsys.readouterr()
    assert printed.out.count("DEVICE") == 1 and len(printed.out.splitlines()) == 3 and printed.err == ""


@pytest.mark.parametrize(("text", "expected"), [("90", 90), ("1.5", 1.5), ("30s", 30), ("1m30s", 90), ("1h", 3600)])
def test_durations_are_seconds_or_have_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "abc", "-1", "1d", "30s5", "m", "1h1s", "1e3"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="or a duration such as"):
        seconds(text)
