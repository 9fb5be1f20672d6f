"""`longshore top` and `longshore queue`: what is shown of many jobs."""

from datetime import UTC, datetime
from typing import Any

from longshore_cli.fleet.rows import (
    JOB_HEADER,
    NAMESPACE_HEADER,
    job_rows,
    namespace_rows,
    queue_rows,
)
from tests.unit.cli.samples import at_step, condition, rljob

NOW = datetime(2026, 1, 1, 2, 3, tzinfo=UTC)
Json = dict[str, Any]


def named(name: str, job: Json, namespace: str = "team", **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**job, "metadata": metadata, "spec": {**job["spec"], **spec}}


def running(name: str, namespace: str = "team", idle: float = 0.1, rollout: int = 8, trainer: int = 0) -> Json:
    report = at_step(4, stepSeconds=120.0, tokensPerSecond=1234.5, bubbleShare=idle)
    return named(name, rljob(report, gpus={"rollout": rollout, "trainer": trainer, "judge": 1}), namespace)


def queued(name: str, position: int = 0, queue: str = "", why: str = "wait", **spec: Any) -> Json:
    admission = {"admitted": False, "position": position, "queue": queue}
    message = (condition("Admitted", "False", "QuotaPending", why),)
    return named(name, rljob(phase="Queued", conditions=message, admission=admission), **spec)


def column(header: tuple[str, ...], rows: list[tuple[str, ...]], name: str) -> list[str]:
    return [row[header.index(name)] for row in rows]


def test_a_job_that_runs_shows_its_speed_and_what_its_gpus_do() -> None:
    [row] = job_rows([running("demo", rollout=6, trainer=2)])
    assert row == ("team", "demo", "Running", "–", "4/10", "30.0", "1,234", "6", "2", "1", "10.0 %", "–")


def test_a_job_that_waits_shows_its_place_and_no_speed() -> None:
    [row] = job_rows([queued("demo", position=3)])
    assert row == ("team", "demo", "Queued", "3", "0/10", "–", "–", "0", "0", "0", "–", "–")


def test_a_job_that_failed_shows_why_in_at_most_80_characters() -> None:
    def why(message: str) -> str:
        conditions = (condition("Failed", "True", "UserError", message),)
        [row] = job_rows([named("demo", rljob(at_step(2), phase="Failed", conditions=conditions))])
        return row[-1]

    assert why("data.path: no such file") == "UserError: data.path: no such file"
    long = why("data.path: the row 17 has no field answer; " * 20)
    assert long.startswith("UserError: data.path: the row 17") and long.endswith(" …") and len(long) <= 80


def test_jobs_that_hold_gpus_come_first() -> None:
    done, new = named("done", rljob(phase="Succeeded")), named("new", rljob(phase=None))
    jobs = [done, queued("later"), new, running("now")]
    assert column(JOB_HEADER, job_rows(jobs), "JOB") == ["now", "new", "later", "done"]


def test_namespaces_are_summed_up_and_idle_gpus_weigh_by_their_number() -> None:
    jobs = [
        running("a", "one", idle=0.1, rollout=30), running("b", "one", idle=0.5, rollout=10),
        running("c", "two", idle=0.0), queued("d"), named("e", rljob(phase="Succeeded"), "three"),
    ]  # fmt: skip
    rows = namespace_rows(jobs)
    assert column(NAMESPACE_HEADER, rows, "NAMESPACE") == ["one", "team", "two", "all"]
    assert column(NAMESPACE_HEADER, rows, "ROLLOUT") == ["40", "0", "8", "48"]
    assert column(NAMESPACE_HEADER, rows, "QUEUED") == ["0", "1", "0", "1"]
    assert column(NAMESPACE_HEADER, rows, "IDLE") == ["20.0 %", "–", "0.0 %", "16.7 %"]


def test_the_queue_is_in_the_order_in_which_jobs_are_admitted() -> None:
    jobs = [
        queued("third", 3),
        queued("of-kueue", queue="team-a"),
        queued("first", 1),
        queued("too-large"),
        running("r"),
    ]
    rows = queue_rows(jobs, NOW)
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "first", "–"), ("3", "third", "–"), ("–", "too-large", "–"), ("–", "of-kueue", "team-a")
    ]  # fmt: skip


def test_a_job_in_the_queue_shows_all_its_gpus_how_long_it_waits_and_why() -> None:
    pool = {"judge": {"pool": {"replicas": 2, "gpusPerPod": 1}}}
    job = queued(
        "demo", 1, why="the job needs 16 nvidia.com/gpu, and 8 are free",
        workers={"replicas": 2, "gpusPerPod": 4}, trainerWorkers={"replicas": 1, "gpusPerPod": 6},
        reward={"functions": [{"name": "plain"}, pool]},
    )  # fmt: skip
    [row] = queue_rows([job], NOW)
    assert row == ("1", "team", "demo", "–", "16", "2h03m", "the job needs 16 nvidia.com/gpu, and 8 are free")
