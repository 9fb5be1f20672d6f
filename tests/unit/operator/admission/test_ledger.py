"""What the status of a job says of its GPUs, and what the operator says to those who wait."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason, SuspendedReason
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import JobSize, RuntimeStatus
from longshore.api.status import AdmissionStatus, Condition, ConditionStatus, ConditionType, Phase, RLJobStatus
from longshore_kube.times import rfc3339
from longshore_operator.admission.demand import Extra, GpuRequest, Stage, gang
from longshore_operator.admission.ledger import Application, Ledger, application
from longshore_operator.config import AdmissionConfig, PriorityClass
from longshore_operator.context import Admission
from longshore_operator.identity import Key
from longshore_operator.pod_view import PodView
from tests.unit.operator.model import START, Cluster, make_job
from tests.unit.operator.test_judge_pools import judged

GPU = "nvidia.com/gpu"
CONFIG = AdmissionConfig(
    capacity={GPU: 8},
    priority_classes={
        "urgent": PriorityClass(value=10),
        "board": PriorityClass(value=99, namespaces=["executives"]),
    },
)
HELD = {GPU: 2}


def ledger(*requests: GpuRequest) -> Ledger:
    assert CONFIG.limits is not None
    made = Ledger(CONFIG.limits)
    for request in requests:
        made.note(request.key, Application(request))
    made.decide()
    return made


def request(name: str, gpus: int, priority: int = 0, stage: Stage = Stage.WAITING, team: str = "a") -> GpuRequest:
    return GpuRequest((team, name), {GPU: gpus}, priority, name, stage)


def reason(made: Ledger, name: str, team: str = "a") -> str:
    admission = made.state((team, name))
    assert admission is not None
    return admission.message


def pods() -> tuple[PodView, ...]:
    cluster = Cluster()
    cluster.reconcile_until_stable()
    return tuple(cluster.pods.values())


def asked(job: RLJob, *views: PodView) -> GpuRequest:
    """What a job asks for, which has to be something."""
    made = application(job, views, CONFIG, START).request
    assert made is not None
    return made


def stage(job: RLJob, *views: PodView) -> Stage | None:
    made = application(job, views, CONFIG, START).request
    return made.stage if made is not None else None


class TestGang:
    def test_it_is_every_gpu_of_workers_trainers_and_judges(self) -> None:
        job = make_job(
            **judged(),
            placement="Disaggregated",
            trainerWorkers={"replicas": 3, "gpusPerPod": 1, "gpuResourceName": "example.com/gpu"},
        )
        assert gang(job.spec) == {"amd.com/gpu": 8, "example.com/gpu": 3, GPU: 3}

    def test_a_job_without_gpus_has_none(self) -> None:
        assert gang(make_job(workers={"gpusPerPod": 0}).spec) == {}


class TestApplication:
    def test_without_limits_nobody_applies(self) -> None:
        assert application(make_job(), (), AdmissionConfig(), START) == Application()

    def test_a_job_without_gpus_that_are_limited_does_not_apply(self) -> None:
        job = make_job(workers={"gpuResourceName": "amd.com/gpu"})
        assert application(job, (), CONFIG, START) == Application()

    def test_a_new_job_waits(self) -> None:
        assert stage(make_job()) is Stage.WAITING

    def test_what_the_status_says_holds_after_a_restart_of_the_operator(self) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 5})
        made = asked(make_job(RLJobStatus(attempt=1, admission=held)))
        assert (made.stage, made.gpus) == (Stage.ADMITTED, {GPU: 5})

    def test_a_job_that_ran_before_there_were_limits_keeps_its_gpus(self) -> None:
        assert stage(make_job(RLJobStatus(attempt=1, phase=Phase.RUNNING)), *pods()) is Stage.ADMITTED

    def test_a_job_that_is_stopped_holds_its_gpus_until_its_pods_are_gone(self) -> None:
        stopped = RLJobStatus(attempt=1, phase=Phase.QUEUED, admission=AdmissionStatus(gpus=HELD))
        assert stage(make_job(stopped), *pods()) is Stage.LEAVING
        assert stage(make_job(stopped), *(replace(pod, phase="Failed") for pod in pods())) is Stage.WAITING

    def test_a_suspended_job_asks_for_nothing(self) -> None:
        held = RLJobStatus(attempt=1, phase=Phase.RUNNING, admission=AdmissionStatus(admitted=True, gpus=HELD))
        assert stage(make_job(held, suspend=True), *pods()) is Stage.LEAVING
        assert stage(make_job(held, suspend=True)) is None

    def test_a_job_that_cannot_continue_asks_for_nothing_until_it_is_resumed(self) -> None:
        condition = Condition(
            type=ConditionType.SUSPENDED,
            status=ConditionStatus.TRUE,
            reason=SuspendedReason.CANNOT_CONTINUE,
            last_transition_time=rfc3339(START),
        )
        held = RLJobStatus(attempt=2, phase=Phase.SUSPENDED, conditions=[condition], admission=AdmissionStatus())
        assert stage(make_job(held)) is None
        resumed = condition.model_copy(update={"reason": SuspendedReason.SUSPENDED})
        assert stage(make_job(held.model_copy(update={"conditions": [resumed]}))) is Stage.WAITING

    def test_a_finished_job_asks_for_nothing(self) -> None:
        done = RLJobStatus(attempt=1, phase=Phase.SUCCEEDED, admission=AdmissionStatus(admitted=True, gpus=HELD))
        assert stage(make_job(done), *pods()) is Stage.LEAVING
        assert stage(make_job(done)) is None

    def test_a_label_gives_the_priority(self) -> None:
        assert asked(labelled("urgent")).priority == 10

    @pytest.mark.parametrize("name", ["asap", "board"])
    def test_an_unknown_or_foreign_class_is_a_mistake_that_says_which_ones_are_allowed(self, name: str) -> None:
        assert application(labelled(name), (), CONFIG, START).mistake == (
            f"jobs of namespace team may not use a priority class {name}: set the label longshore.dev/priority-class "
            "to one that the operator's admission has for them (urgent), or remove it"
        )

    def test_a_class_with_namespaces_is_for_their_jobs(self) -> None:
        assert CONFIG.priorities("executives") == {"urgent": 10, "board": 99}


def labelled(name: str) -> RLJob:
    job = make_job()
    labels: dict[str, Any] = {"labels": {"longshore.dev/priority-class": name}}
    return job.model_copy(update={"metadata": job.metadata | labels})


class TestChanges:
    @pytest.mark.parametrize(("gpus", "message"), [(4, "the job may use 4 nvidia.com/gpu"), (8, "")])
    def test_an_admission_is_for_what_was_asked_for_then(self, gpus: int, message: str) -> None:
        """The decision has been made, and the next pass of the job has not written it yet."""
        made = ledger(request("a", 4))
        made.note(("a", "a"), Application(request("a", gpus)))
        assert reason(made, "a") == message


class TestMessages:
    def test_an_admitted_job(self) -> None:
        assert reason(ledger(request("one", 8)), "one") == "the job may use 8 nvidia.com/gpu"

    def test_what_is_missing_and_who_is_ahead(self) -> None:
        made = ledger(request("a", 6, stage=Stage.ADMITTED), request("b", 8), request("c", 4))
        assert reason(made, "b") == "the job needs 8 nvidia.com/gpu, and 2 are free"
        assert reason(made, "c") == "the job needs 4 nvidia.com/gpu, and 2 are free; 1 job is ahead"

    def test_a_job_that_is_ahead_is_named_in_its_own_namespace_only(self) -> None:
        made = ledger(
            request("a", 6, stage=Stage.ADMITTED), request("b", 8), request("c", 2), request("d", 2, team="b")
        )
        assert reason(made, "c") == "the job needs 2 nvidia.com/gpu, which b may need: it is ahead and waits for more"
        assert "a job of another namespace" in reason(made, "d", "b")

    def test_a_job_that_never_fits(self) -> None:
        made = ledger(request("a", 9))
        admission = made.state(("a", "a"))
        assert admission is not None
        assert admission.reason is AdmittedReason.TOO_LARGE
        assert admission.message.startswith("the job needs 9 nvidia.com/gpu and may have 8 at most: lower")

    def test_preemption(self) -> None:
        made = ledger(request("low", 8, stage=Stage.ADMITTED), request("urgent", 8, priority=1))
        assert reason(made, "low") == "a job of higher priority gets its GPUs"
        assert reason(made, "urgent") == "the job needs 8 nvidia.com/gpu; jobs of lower priority are being stopped"


class TestMemory:
    def test_a_decision_holds_until_the_status_has_it(self) -> None:
        made = ledger(request("one", 8))
        made.note(("a", "one"), Application(request("one", 8)))
        made.note(("a", "two"), Application(request("two", 8)))
        assert made.decide() == {("a", "two")}
        assert reason(made, "two") == "the job needs 8 nvidia.com/gpu, and 0 are free"

    def test_a_preemption_holds_until_the_status_has_it(self) -> None:
        low = request("low", 8, stage=Stage.ADMITTED)
        made = ledger(low, request("urgent", 8, priority=1))
        made.note(low.key, Application(low))
        assert reason(made, "low") == "a job of higher priority gets its GPUs"

    def test_a_job_suspended_before_it_learns_of_its_admission_gives_the_gpus_back(self) -> None:
        made = ledger(request("one", 8), request("two", 8))
        made.note(("a", "one"), Application())
        assert made.decide() == {("a", "two")}

    def test_gpus_of_a_deleted_job_are_in_use_until_its_pods_are_gone(self) -> None:
        made = ledger(request("one", 8, stage=Stage.ADMITTED), request("two", 8))
        assert made.leave(("a", "one"))
        assert made.decide() == set()
        assert made.forget(("a", "one"))
        assert made.decide() == {("a", "two")}

    def test_a_change_far_ahead_is_no_news_for_the_end_of_a_long_queue(self) -> None:
        waiting = [request(f"job-{number:02}", 8) for number in range(30)]
        made = ledger(request("a", 8, stage=Stage.ADMITTED), *waiting)
        made.forget(("a", "a"))
        assert len(made.decide()) <= 10


ELASTIC = {"replicas": 6, "minReplicas": 2, "gpusPerPod": 1}


def elastic_request(granted: int, held: int, stage: Stage = Stage.ADMITTED) -> GpuRequest:
    """Request of a job that needs two GPUs and takes six; `granted` and `held` are pods beyond those that it needs."""
    return GpuRequest(("a", "elastic"), {GPU: 2}, 0, "1", stage, Extra(GPU, 1, 4, granted, held))


class TestElasticJobs:
    def application(self, admission: AdmissionStatus | None, *pods: PodView, **status: Any) -> GpuRequest:
        job = make_job(RLJobStatus(attempt=1, admission=admission, **status), workers=ELASTIC)
        return asked(job, *pods)

    def extra(self, admission: AdmissionStatus, *pods: PodView, **status: Any) -> Extra:
        extra = self.application(admission, *pods, **status).extra
        assert extra is not None
        return extra

    def test_a_job_that_waits_asks_for_the_least_that_it_needs(self) -> None:
        request = asked(make_job(workers=ELASTIC))
        assert (request.gpus, request.extra) == ({GPU: 2}, Extra(GPU, 1, 4))

    def test_a_job_whose_replicas_lie_in_two_pods_each_takes_and_returns_whole_sets(self) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 6}, workers=4)
        status = RLJobStatus(attempt=1, admission=held, assignment={"size": JobSize(epoch=1, workers=4, held=5)})
        job = make_job(status, workers=ELASTIC, trainer={"fsdpSize": 2})
        assert asked(job).extra == Extra(GPU, 2, 2, num_granted=1, num_held=2, is_settled=False, pods_per_set=2)
        admission = ledger(asked(job)).state(asked(job).key)
        assert admission is not None and admission.num_extra_workers == 2

    def test_a_job_that_runs_holds_what_was_granted_and_what_has_not_gone(self) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 5}, workers=3)
        size = JobSize(epoch=1, workers=3, held=3)
        lasting = [pod for pod in pods() if pod.index == 1 and pod.component is Component.WORKER]
        extra = self.extra(held, replace(lasting[0], index=4), assignment={"size": size})
        assert (extra.num_granted, extra.num_held) == (1, 3)

    @pytest.mark.parametrize(("index", "owner_uid"), [(4999, "job-uid"), (3, "of-another"), (3, "")])
    def test_pods_of_others_with_its_labels_do_not_count(self, index: int, owner_uid: str) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 4}, workers=2)
        pod = next(pod for pod in pods() if pod.component is Component.WORKER)
        extra = self.application(
            held,
            replace(pod, index=index, owner_uid=owner_uid),
            assignment={"size": JobSize(epoch=1, workers=2, held=2)},
        ).extra
        assert extra is not None
        assert (extra.num_granted, extra.num_held) == (0, 0)

    def test_and_what_its_coordinator_may_still_use(self) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 5}, workers=3)
        size = JobSize(epoch=2, workers=3, held=5)
        extra = self.extra(held, assignment={"size": size})
        assert (extra.num_granted, extra.num_held, extra.is_settled) == (1, 3, False)
        runtime = RuntimeStatus(attempt=1, size=size)
        extra = self.extra(held, assignment={"size": size}, runtime=runtime)
        assert (extra.num_granted, extra.num_held, extra.is_settled) == (1, 1, True)

    @pytest.mark.parametrize(("attempt", "is_settled"), [(1, True), (2, False), (0, False)])
    def test_it_may_get_more_when_the_coordinator_of_the_attempt_has_answered(
        self, attempt: int, is_settled: bool
    ) -> None:
        held = AdmissionStatus(admitted=True, gpus={GPU: 3}, workers=3)
        size = JobSize(epoch=2, workers=3, held=3)
        runtime = RuntimeStatus(attempt=attempt, size=size)
        extra = self.extra(held, assignment={"size": size}, runtime=runtime)
        assert (extra.num_granted, extra.num_held, extra.is_settled) == (1, 1, is_settled)

    def test_a_job_that_ran_before_there_were_limits_has_all_its_pods(self) -> None:
        request = self.application(None, phase=Phase.RUNNING)
        assert request.held == {GPU: 6}

    @pytest.mark.parametrize(("seconds", "is_overdue"), [(599, False), (600, True)])
    def test_it_has_some_time_to_give_pods_back(self, seconds: int, is_overdue: bool) -> None:
        since = rfc3339(START - timedelta(seconds=seconds))
        held = AdmissionStatus(admitted=True, gpus={GPU: 5}, workers=3, shrinking_since=since)
        size = JobSize(epoch=2, workers=3, held=5)
        extra = self.extra(held, assignment={"size": size})
        assert extra.is_overdue is is_overdue
        answered = self.extra(held, assignment={"size": size}, runtime=RuntimeStatus(attempt=1, size=size))
        assert not answered.is_overdue, "it has given them back"

    def test_one_whose_gpus_nothing_limits_is_like_any_other(self) -> None:
        workers = ELASTIC | {"gpuResourceName": "amd.com/gpu"}
        job = make_job(RLJobStatus(admission=AdmissionStatus()), workers=workers)
        request = asked(job)
        assert (request.gpus, request.extra) == ({"amd.com/gpu": 6}, None)

    def test_what_was_decided_counts_until_it_is_written(self) -> None:
        made = ledger(elastic_request(4, 4), request("new", 4))
        assert made.state(("a", "elastic")) == Admission(
            True,
            AdmittedReason.ADMITTED,
            f"the job may use 4 {GPU}, and gives 2 {GPU} back",
            {GPU: 6},
            num_extra_workers=2,
            is_shrinking=True,
        )
        made.note(("a", "elastic"), Application(elastic_request(4, 4)))
        assert ("a", "elastic") not in made.decide()
        assert granted(made) == 2
        made.note(("a", "elastic"), Application(elastic_request(2, 2)))
        made.decide()
        admitted = made.state(("a", "new"))
        assert admitted is not None
        assert admitted.admitted
        made.note(("a", "elastic"), Application(elastic_request(3, 3)))
        assert granted(made) == 3, "what a pass reads counts again"

    def test_a_job_is_admitted_with_its_size(self) -> None:
        made = ledger(elastic_request(0, 0, Stage.WAITING))
        made.note(("a", "elastic"), Application(elastic_request(0, 0, Stage.WAITING)))
        assert granted(made) == 4

    def test_those_who_wait_learn_who_makes_room(self) -> None:
        made = ledger(elastic_request(4, 4), request("new", 4))
        assert reason(made, "new") == f"the job needs 4 {GPU}; elastic jobs are giving GPUs back"

    def test_one_that_is_stopped_because_it_did_not_answer_learns_so(self) -> None:
        late = elastic_request(2, 4)
        assert late.extra is not None
        made = ledger(replace(late, extra=replace(late.extra, is_overdue=True)), request("new", 4))
        admission = made.state(late.key)
        assert admission is not None
        assert (admission.admitted, admission.reason) == (False, AdmittedReason.PREEMPTED)
        assert admission.message == "it did not give worker pods back in time, and another job gets its GPUs"
        assert admission.gpus == {GPU: 6}


def granted(made: Ledger, key: Key = ("a", "elastic")) -> int | None:
    admission = made.state(key)
    assert admission is not None
    return admission.num_extra_workers
