"""One session of a job follows another, unless the pod must stop."""

import os
import queue
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from longshore.api.runtime_status import JobSize, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment
from longshore_runtime import coordinator
from longshore_runtime.errors import CannotContinue, Interrupted, JobUnknown, SizeChanged, TrainerLost, UserError
from longshore_runtime.stop import Stop

SPEC = RLJobSpec.model_validate(
    {
        "model": {"builtin": "Tiny"},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 1, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 32},
        "reward": {"functions": [{"name": "task", "kind": "Task"}]},
        "workers": {"replicas": 2, "minReplicas": 1},
        "storage": {"claimName": "shared"},
    }
)


def asked_for(num_workers: int, epoch: int) -> Assignment:
    return Assignment(epoch=epoch, size=JobSize(epoch=epoch, workers=num_workers, held=num_workers))


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Story:
    """Sessions that end as the test says; the last one is done."""

    ends: list[Callable[[], None]]
    events: list[Any] = field(default_factory=list)
    """Queue of each session that has begun."""
    answers: list[Assignment] = field(default_factory=lambda: [asked_for(2, epoch=1)] * 2)
    said_later: Assignment | None = None
    limits_s: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Worker pods of each session."""
    stop: Stop = field(init=False)
    """What a session asks whether the pod is to stop."""

    def session(self, *parts: Any) -> "Story":
        self.events.append(next(part for part in parts if isinstance(part, queue.SimpleQueue)))
        self.sizes += [part.workers.replicas for part in parts if isinstance(part, RLJobSpec)]
        (self.stop,) = (part for part in parts if isinstance(part, Stop))
        return self

    def watch(self, *_: Any) -> "Story":
        return self

    def first(self, limit_s: float) -> Assignment:
        """What the API server says now, if it answers in this session."""
        self.limits_s.append(limit_s)
        return self.answers[len(self.limits_s) - 1] if len(self.limits_s) <= len(self.answers) else Assignment()

    def newest(self) -> Assignment:
        """What it said last in this session."""
        return self.said_later or self.answers[min(len(self.limits_s), len(self.answers)) - 1]

    def __enter__(self) -> "Story":
        return self

    def __exit__(self, *_: Any) -> None: ...

    num_saved = 0
    made_progress = True
    resumes = True
    status = RuntimeStatus()
    """Last report of each session."""

    def build(self) -> None: ...

    def save_if_possible(self) -> None:
        self.num_saved += 1

    def run(self, parts: Any) -> bool:
        if not self.ends:
            return True
        self.ends.pop(0)()
        return False

    def tell(self, monkeypatch: pytest.MonkeyPatch, attempt: int = 1) -> None:
        monkeypatch.setattr(coordinator, "Session", self.session)
        monkeypatch.setattr(coordinator, "JobWatch", self.watch)
        nothing: Any = None
        settings: Any = type("Settings", (), {"namespace": "team", "job": "demo", "job_uid": "u", "attempt": attempt})
        coordinator._until_done(
            settings, SPEC, nothing, nothing, nothing, RuntimeStatus(), coordinator._StopSignal(Stop())
        )


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def resized() -> None:
    raise SizeChanged(1)


def lost() -> None:
    raise TrainerLost("a trainer replica is gone")


def test_a_job_that_is_done_ends_so_although_it_is_asked_to_stop_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is drained while the session ends must not cost an attempt that has nothing to do."""

    class Drained(Story):
        def __exit__(self, *_: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    Drained([]).tell(monkeypatch)


@pytest.mark.parametrize("end", [resized, lost, lambda: None])
def test_another_session_follows_one_that_is_resized_or_lost_or_has_measured(
    end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story([end])
    story.tell(monkeypatch)
    assert len(story.events) == 2


@pytest.mark.parametrize("end", [resized, lost, lambda: None])
def test_none_follows_when_the_pod_was_asked_to_stop_before_the_session_ended(
    end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends without another look at its events: engines would start that the grace period kills."""

    def both() -> None:
        terminated()
        end()

    story = Story([both])
    with pytest.raises(Interrupted, match="asked to stop"):
        story.tell(monkeypatch)
    assert len(story.events) == 1
    assert not story.events[0].empty(), "the signal was an event of the session"


def test_a_session_can_look_whether_the_pod_was_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it waits for what may never come, such as pods that end with it, and reads no events."""

    class Waiting(Story):
        said: list[bool]

        def run(self, parts: Any) -> bool:
            self.said = [self.stop.is_asked]
            terminated()
            self.said.append(self.stop.is_asked)
            return True

    story = Waiting([])
    story.tell(monkeypatch)
    assert story.said == [False, True]


def test_a_job_that_is_done_is_done_although_the_pod_was_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(Story):
        def run(self, parts: Any) -> bool:
            terminated()
            return True

    Last([]).tell(monkeypatch)


def test_a_session_begins_with_the_last_requested_size_though_the_api_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story([resized], answers=[asked_for(2, epoch=1)], said_later=asked_for(1, epoch=2))
    story.tell(monkeypatch)
    assert story.sizes == [2, 1]
    assert story.limits_s[1] < story.limits_s[0]


def test_a_job_of_which_the_api_server_never_said_anything_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story([], answers=[Assignment()])
    with pytest.raises(JobUnknown, match=r"said nothing about this job for 600 s.*jobNetworkPolicies\.apiServerPorts"):
        story.tell(monkeypatch)
    assert story.sizes == []


@pytest.mark.parametrize(
    ("attempt", "resumes", "made_progress", "kind"),
    [
        (2, True, False, CannotContinue),
        (1, True, False, UserError),
        (2, False, False, UserError),
        (2, True, True, UserError),
    ],
)
def test_a_mistake_ends_no_job_that_trained_before_and_cannot_continue(
    attempt: int, resumes: bool, made_progress: bool, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken() -> None:
        raise UserError("algorithm.seed: it is 2 now and was 1")

    story = Story([mistaken])
    story.resumes, story.made_progress = resumes, made_progress
    with pytest.raises(UserError, match=r"^algorithm\.seed") as caught:
        story.tell(monkeypatch, attempt=attempt)
    assert type(caught.value) is kind


def test_a_mistake_in_a_later_session_ends_no_job_whose_first_session_has_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away() -> None:
        story.made_progress = False
        raise UserError("algorithm.objective.teacher.endpoint: it cannot be reached")

    story = Story([resized, away])
    with pytest.raises(CannotContinue, match=r"^algorithm\.objective\.teacher"):
        story.tell(monkeypatch)
    assert len(story.sizes) == 2


def test_a_job_that_cannot_continue_in_the_middle_keeps_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered() -> None:
        raise CannotContinue("algorithm.objective.teacher.endpoint: it cannot be reached")

    story = Story([unanswered])
    with pytest.raises(CannotContinue):
        story.tell(monkeypatch)
    assert story.num_saved == 1
