"""Names of objects on the command line: workloads are kinds where they are possible, elsewhere namespaces."""

from __future__ import annotations

import pytest

from dra_agent.cli.object_names import CLAIM, POD, WORKLOADS, parse, parse_pair
from dra_agent.errors import UsageError

EXPLAINED = (CLAIM, POD, *WORKLOADS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("job/train",), ("job", None, "train")),
        (("jobs.batch/team-a/train",), ("job", "team-a", "train")),
        (("deploy", "web"), ("deployment", None, "web")),
        (("sts", "team-a/db"), ("statefulset", "team-a", "db")),
        (("podgroups.scheduling.k8s.io", "ring"), ("podgroup", None, "ring")),
        (("wl/job-train",), ("workload", None, "job-train")),
        (("jobset.jobset.x-k8s.io/set",), ("jobset", None, "set")),
        (("job",), (CLAIM, None, "job")),
        (("team-a/job",), (CLAIM, "team-a", "job")),
        (("job.example.com/x",), (CLAIM, "job.example.com", "x")),
    ],
)
def test_workloads_are_named_as_for_kubectl(words: tuple[str, ...], expected: tuple[str, str | None, str]) -> None:
    assert parse_pair(words, kinds=EXPLAINED) == expected


def test_a_namespace_may_have_the_name_of_a_workload_kind() -> None:
    assert parse("jobs/train", kinds=(CLAIM,)) == (CLAIM, "jobs", "train")
    with pytest.raises(UsageError, match="is a node; name a claim or a pod"):
        parse("node/x", kinds=EXPLAINED)
