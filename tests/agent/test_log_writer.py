"""A reader of standard error that stalls loses lines of the log, and stops nothing else."""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import preloaded
from dra_agent.agent import log_writer, logs
from dra_agent.agent.log_writer import MAX_QUEUE_BYTES, LogWriter
from dra_agent.agent.logs import JsonFormatter, TextFormatter
from dra_agent.supervisor import supervisor
from eventually import DEADLINE_S, eventually

LINE_BYTES = 1000


class Pipe:
    """Standard error of a process; nothing reads it until `lines`."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def lines(self, count: int) -> list[str]:
        """Read until so many lines came."""
        data = b""
        while data.count(b"\n") < count:
            data += os.read(self.reader, 1 << 16)
        return data.decode().splitlines()

    def discard(self) -> None:
        """Read until the end of the process."""
        while os.read(self.reader, 1 << 16):
            pass


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reader)


@pytest.fixture
def log(pipe: Pipe) -> Iterator[tuple[logging.Logger, LogWriter]]:
    writer, logger = LogWriter(pipe.writer), logging.Logger("test")
    writer.setFormatter(TextFormatter())
    logger.addHandler(writer)
    yield logger, writer
    logger.removeHandler(writer)


Log = tuple[logging.Logger, LogWriter]


def test_lines_are_written_in_their_order(pipe: Pipe, log: Log) -> None:
    logger, writer = log
    for number in range(500):
        logger.info("line", extra={"n": number})
    writer.flush()
    assert [line.rpartition("=")[2] for line in pipe.lines(500)] == [str(number) for number in range(500)]


def test_a_stalled_reader_stops_no_thread_that_logs(pipe: Pipe, log: Log) -> None:
    logger, writer = log

    def log_much() -> None:
        for number in range(3 * MAX_QUEUE_BYTES // LINE_BYTES):
            logger.info("x" * LINE_BYTES, extra={"n": number})

    threads = [threading.Thread(target=log_much, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert writer.dropped


def test_dropped_lines_are_reported_where_they_are_missing(pipe: Pipe, log: Log) -> None:
    logger, writer = log
    sent = 0
    while not writer.dropped:
        logger.info("x" * LINE_BYTES, extra={"n": sent})
        sent += 1
    logger.info("x" * LINE_BYTES, extra={"n": sent})
    lines = pipe.lines(sent)  # those that were kept, and the report
    logger.info("y")
    lines += pipe.lines(1)
    assert [line.rpartition("=")[2] for line in lines[: sent - 1]] == [str(number) for number in range(sent - 1)]
    assert lines[sent - 1].endswith("nothing read standard error lines=2") and lines[sent].endswith("info y")
    assert writer.dropped == 2


def test_flush_waits_for_a_limited_time(pipe: Pipe, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_TIMEOUT_S", 0.01)
    logger, writer = log
    for _ in range(MAX_QUEUE_BYTES // LINE_BYTES):
        logger.info("x" * LINE_BYTES)
    writer.flush()  # returns


def test_lines_without_a_reader_are_counted(pipe: Pipe, log: Log) -> None:
    logger, writer = log
    reader, pipe.reader = pipe.reader, os.open(os.devnull, os.O_RDONLY)
    os.close(reader)
    logger.info("one")
    writer.flush()
    assert eventually(lambda: writer.dropped) == 1


def test_a_descriptor_that_does_not_block_is_waited_for(pipe: Pipe, log: Log) -> None:
    os.set_blocking(pipe.writer, False)
    logger, _ = log
    for number in range(300):
        logger.info("x" * LINE_BYTES, extra={"n": number})
    assert len(pipe.lines(300)) == 300


class Garbage:
    """Logs when it is collected."""

    def __init__(self, logger: logging.Logger) -> None:
        self.me, self.logger = self, logger

    def __del__(self) -> None:
        self.logger.info("collected")


class CollectingFormatter(TextFormatter):
    """Garbage is collected while a record is formatted."""

    def format(self, record: logging.LogRecord) -> str:
        """Collect, and write one event."""
        gc.collect()
        return super().format(record)


def test_a_finalizer_that_logs_while_dropped_lines_are_reported_stops_nothing(pipe: Pipe, log: Log) -> None:
    logger, writer = log
    while not writer.dropped:
        logger.info("x" * LINE_BYTES)
    Garbage(logger)
    reading = threading.Thread(target=pipe.discard, daemon=True)
    writer.setFormatter(CollectingFormatter())
    reading.start()

    def log_on() -> None:
        for _ in range(5):
            Garbage(logger)
            logger.info("y")
        writer.flush()

    logging_thread = threading.Thread(target=log_on, daemon=True)
    logging_thread.start()
    logging_thread.join(DEADLINE_S)
    assert not logging_thread.is_alive()


def test_a_failure_of_the_thread_that_writes_loses_a_batch_and_is_counted(
    pipe: Pipe, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, writer = log
    failures = [MemoryError()]
    write = os.write

    def fail_once(descriptor: int, data: bytes) -> int:
        if descriptor == pipe.writer and failures:
            raise failures.pop()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", fail_once)
    before = supervisor().failures["log"]
    logger.info("lost")
    eventually(lambda: writer.dropped == 1)
    logger.info("kept")
    assert pipe.lines(1)[0].endswith("kept")
    assert supervisor().failures["log"] == before + 1


def test_a_change_of_format_and_level_keeps_the_thread(own_root_logger: None) -> None:
    logs.set_up("info", "text")
    writer = logging.getLogger().handlers[0]
    logs.set_up("debug", "json")
    assert logging.getLogger().handlers == [writer]
    assert isinstance(writer.formatter, JsonFormatter)


@pytest.fixture
def own_root_logger() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("dra_agent")
    before = root.handlers[:], root.level, own.level, logging.raiseExceptions
    yield
    root.handlers[:], root.level, own.level, logging.raiseExceptions = before
    logging.captureWarnings(False)


def test_an_agent_whose_log_nothing_reads_handles_a_notice(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    state_dir, notice = tmp_path / "s", tmp_path / "notice.json"
    config = tmp_path / "config.toml"
    config.write_text(f'[reclaim]\ncloud = "none"\nlogind = "off"\nfile = "{notice}"\n')
    words = ["run", "--config", str(config), "--standalone", "--state-dir", str(state_dir), "--log-level", "debug"]
    words += ["--cdi-dir", str(tmp_path / "cdi"), "--simulate", "vm-1gpu", "--node-name", "n"]
    os.write(writer, b"\n" * 4096)  # the pipe is full from the start
    agent = preloaded.Command(words, stdout=writer, stderr=writer)
    os.close(writer)
    try:

        def status() -> dict[str, object]:
            result = preloaded.run(["reclaim", "status", "-o", "json", "--state-dir", str(state_dir)])
            return json.loads(result.stdout) if result.returncode == 0 else {}

        eventually(lambda: status().get("phase") == "none")
        notice.touch()
        eventually(lambda: status().get("phase") == "notice")
        agent.terminate()
        assert agent.wait(DEADLINE_S) == 0
    finally:
        agent.kill()
        os.close(reader)
