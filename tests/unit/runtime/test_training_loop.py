"""The loop as a whole: whenever the trainers are lost, no round is run again and the same weights come out."""

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.model import Evaluation
from longshore.api.objectives.distillation import Distillation, Teacher, TeacherEndpoint
from longshore.api.objectives.tppo import Tppo
from longshore.api.rollout import Handover, OnFinish, Strategy
from longshore.api.runtime_status import JobSize, ProgressUnit
from longshore.api.status import Assignment, Baseline
from longshore.api.training import CheckpointSettings
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason, Request
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.checkpoints.model_export import ModelExport
from longshore_runtime.checkpoints.store import Checkpoint, CheckpointStore
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import Interrupted, SizeChanged, TrainerLost, UserError
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.judge.teacher import RemoteTeacher
from longshore_runtime.process.durable import sync_tree
from longshore_runtime.rollout.events import EngineOutput
from longshore_runtime.stop import Stop
from tests.contract.judge.teacher_server import TeacherServer
from tests.properties import examples
from tests.unit.runtime.elastic_parts import Known
from tests.unit.runtime.scripted_loop import (
    ALGORITHM,
    DECOUPLED,
    NUM_GPUS,
    NUM_STEPS,
    PROMPTS,
    Engines,
    Scorer,
    Trainers,
    plain_run,
    run,
)

UNDISTURBED = plain_run()
HELD_OUT = 100
"""First token of held-out prompts."""


def test_a_run_that_nothing_disturbs_samples_every_round_from_the_weights_before_it() -> None:
    assert [row["policy_versions"] for row in UNDISTURBED.ledger] == [[step] for step in range(len(UNDISTURBED.ledger))]
    assert len(UNDISTURBED.ledger) >= NUM_STEPS


def test_long_rounds_make_several_updates_and_the_next_samples_from_the_last_weights() -> None:
    ledger = run(algorithm=ALGORITHM.model_copy(update={"steps": 6})).ledger
    assert [row["kind"] for row in ledger] == [*["Short"] * 4, "Long", "Short", "Long"]
    assert [row["num_updates"] for row in ledger] == [1, 1, 1, 1, 4, 1, 1]
    assert [row["policy_versions"] for row in ledger] == [[0], [1], [2], [3], [4], [8], [9]]


def test_draws_put_off_are_as_long_as_they_were_while_the_policy_is_the_same(tmp_path: Path) -> None:
    """Lengths of these engines follow from the seeds alone: others would let long responses end sooner."""
    ledger = run(algorithm=ALGORITHM.model_copy(update={"steps": 6}), root=tmp_path).ledger
    rows = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()]
    again = {row["step"]: row["selection/shorter_again"] for row in rows if "selection/shorter_again" in row}
    assert again == {row["step"]: 0.0 for row in ledger if row["kind"] == "Long"}


def test_evaluations_and_checkpoints_are_activities_that_say_how_far_they_are() -> None:
    outcome = run(held_out=PROMPTS.train[:20], every=2)
    reports = outcome.reports
    activities = [str(one) for one, _ in itertools.groupby(report.activity for report in reports)]
    assert activities[:5] == ["Publish", "Evaluate", "Checkpoint", "Rollout", "Train"]
    assert activities[-3:] == ["Evaluate", "Checkpoint", "Done"]
    checkpoints = [report.checkpoint_step for report in reports if report.activity == "Checkpoint"]
    assert set(checkpoints) >= {0, 2, 4}
    evaluated = [report.progress for report in reports if report.activity == "Evaluate" and report.progress]
    assert evaluated[0].total == 20 * Evaluation().responses_per_prompt
    assert len(evaluated) <= 2 * 11, "two evaluations, each reported in tenths"
    assert max(progress.done for progress in evaluated) <= evaluated[0].total
    assert reports[-1].progress is None


def test_a_checkpoint_that_takes_long_says_how_many_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, measure = threading.Semaphore(0), CheckpointStore.progress

    def measured(store: CheckpointStore, step: int) -> tuple[int, int]:
        asked.release()
        return measure(store, step)

    class Slow(Trainers):
        def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
            """Last until its progress was asked for a second time, and so reported once."""
            write = super().begin_save(directory, **limit)

            def wait() -> None:
                write()
                while asked.acquire(blocking=False):
                    pass
                assert asked.acquire(timeout=60) and asked.acquire(timeout=60)

            return wait

    monkeypatch.setattr("longshore_runtime.step.checkpointing.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr(CheckpointStore, "progress", measured)
    reported = [
        one.progress for one in run(kinds=(Slow, Engines)).reports if one.activity == "Checkpoint" and one.progress
    ]
    assert {progress.unit for progress in reported} == {ProgressUnit.BYTES}
    assert any(progress.done > 0 == progress.total for progress in reported), "how large the first will be is not known"
    assert any(progress.done > 0 and progress.total > 0 for progress in reported)


def test_slow_steps_are_saved_by_time_although_fewer_steps_are_due() -> None:
    """Each step takes longer than `everySeconds` by the clock of the test."""

    def saved(every_seconds: int) -> set[int]:
        settings = CheckpointSettings(every_steps=1000, every_seconds=every_seconds)
        return {one.checkpoint_step or 0 for one in run(checkpoint=settings).reports}

    assert saved(1) > saved(1_000_000)
    assert saved(1) >= set(range(1, NUM_STEPS + 1))


def test_the_copy_of_the_final_model_says_how_many_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)

    progress = ModelExport.progress

    def measured(export: ModelExport, newest: Checkpoint, target: Path) -> tuple[int, int]:
        asked.release()
        return progress(export, newest, target)

    def slow(copied: Path) -> None:
        """Lasts until the progress was asked for twice after the files were there, and so reported once."""
        sync_tree(copied)
        if copied.parent.name == "output":
            while asked.acquire(blocking=False):
                pass
            assert all(asked.acquire(timeout=60) for _ in range(3))

    monkeypatch.setattr("longshore_runtime.step.checkpointing.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr(ModelExport, "progress", measured)
    monkeypatch.setattr("longshore_runtime.checkpoints.model_export.sync_tree", slow)
    reports = run().reports
    reported = [one.progress for one in reports if one.progress and one.progress.detail == "the final model"]
    (num_bytes,) = {progress.total for progress in reported}
    assert {progress.unit for progress in reported} == {ProgressUnit.BYTES}
    assert max(progress.done for progress in reported) == num_bytes > 0
    assert (reports[-1].activity, reports[-1].progress) == ("Done", None)


def test_a_run_that_continues_restores_its_checkpoint_first(tmp_path: Path) -> None:
    run(root=tmp_path)
    again = run(root=tmp_path).reports
    activities = [str(one) for one, _ in itertools.groupby(report.activity for report in again)]
    assert activities[:2] == ["Restore", "Publish"]
    assert all(report.activity != "Restore" for report in UNDISTURBED.reports)


def test_partial_responses_need_room_in_a_job_that_goes_on_with_shorter_ones(tmp_path: Path) -> None:
    job: dict[str, Any] = {"strategy": Strategy.PARTIAL_ROLLOUT, "on_finish": OnFinish.LEAVE, "every": 1}
    run(root=tmp_path, algorithm=ALGORITHM.model_copy(update={"steps": 2}), **job)
    newest = CheckpointStore(tmp_path / "output" / "checkpoints", keep=2).newest()
    assert newest is not None
    kept = newest.kept().values()
    longest = max(one.num_tokens for one in kept if one.finish_reason is FinishReason.ABORT)
    shorter = ALGORITHM.model_copy(update={"max_response_tokens": longest})
    error = run(root=tmp_path, algorithm=shorter, **job).error
    assert error == (
        f"algorithm.maxResponseTokens: {longest} is too few for a partial response that already has {longest} tokens; "
        "restore it, or start a new job with another storage.output"
    )
    assert not run(
        root=tmp_path, algorithm=shorter.model_copy(update={"max_response_tokens": longest + 1}), **job
    ).error


def test_tokens_of_a_truncated_response_are_trained_on_by_the_weights_behind_them() -> None:
    trained: list[Sample] = []

    class Watched(Trainers):
        def _train(self, samples: Sequence[Sample], max_mismatch: float | None = None) -> TrainResult:
            trained.extend(samples)
            assert {one.trajectory.runs[-1].policy_version for one in samples if not one.is_finished} <= {
                self._trainer.policy_version
            }
            return super()._train(samples, max_mismatch)

    truncated = ALGORITHM.model_copy(update={"objective": Tppo(), "steps": 6})
    outcome = run(strategy=Strategy.PARTIAL_ROLLOUT, algorithm=truncated, kinds=(Watched, Engines))
    assert not outcome.error
    in_loss = [(one.key, place) for one in trained for place in np.flatnonzero(one.in_loss)]
    finished = [(one.key, place) for one in trained if one.is_finished for place in range(len(one.trajectory))]
    assert len(in_loss) == len(set(in_loss))
    assert set(finished) <= set(in_loss)
    assert any(not one.is_finished for one in trained)
    assert all((one.returns is None) is not one.is_finished for one in trained)


def test_an_evaluation_that_was_interrupted_is_made_up_for(tmp_path: Path) -> None:
    class Stopped(Engines):
        def add(self, engine: int, requests: Sequence[Request]) -> None:
            """End when the second evaluation begins."""
            super().add(engine, requests)
            if self.versions[-1] == 2 and requests[0].prompt_tokens[0] == HELD_OUT:
                raise Interrupted("the pod stops")

    def scores(root: Path) -> list[tuple[int, float]]:
        rows = map(json.loads, (root / "output" / "metrics.jsonl").read_text().splitlines())
        return [(row["step"], row["val/reward/mean"]) for row in rows if "val/reward/mean" in row]

    stopped, undisturbed = tmp_path / "stopped", tmp_path / "undisturbed"
    stopped.mkdir()
    undisturbed.mkdir()
    held_out = tuple(PromptRecord(index, "", (HELD_OUT, index), "answer") for index in range(4))
    job: dict[str, Any] = {"held_out": held_out, "evaluation": Evaluation(every_steps=2), "every": 3}
    run(root=undisturbed, **job)
    assert run(root=stopped, kinds=(Trainers, Stopped), **job).error == "the pod stops"
    assert [step for step, _ in scores(stopped)] == [0]
    run(root=stopped, **job)
    assert scores(stopped) == scores(undisturbed)
    assert [step for step, _ in scores(stopped)][:2] == [0, 2]


def test_a_job_asked_to_stop_while_it_trains_saves_that_step_and_publishes_no_more(tmp_path: Path) -> None:
    """Its trainers finish the update; engines would not sample with the new weights any more."""
    trained: list[int] = []
    stop = Stop()

    class Updating(Trainers):
        def train(self, *arguments: Any) -> Any:
            return self._count(super().train(*arguments))

        def finish(self, *arguments: Any) -> Any:
            return self._count(super().finish(*arguments))

        def _count(self, result: Any) -> Any:
            trained.append(1)
            if len(trained) == 3:
                stop.ask()
            return result

    class Stopping(Engines):
        def publish(self, weights: Any) -> None:
            assert len(trained) < 3, "published after the request to stop"
            super().publish(weights)

    stopped = run(root=tmp_path, kinds=(Updating, Stopping), stop=stop, every=100)
    assert stopped.error == "the pod was asked to stop"
    assert stopped.reports[-1].checkpoint_step == 3
    assert run(root=tmp_path).model == plain_run().model


def test_a_gpu_error_in_the_last_checkpoint_does_not_hide_why_the_job_stops() -> None:
    has_stopped = threading.Event()

    class WithoutMemory(Trainers):
        def begin_save(self, directory: str, **limit: float) -> Callable[[], None]:
            if has_stopped.is_set():
                raise RuntimeError("CUDA out of memory")
            return super().begin_save(directory)

    class Stopped(Engines):
        def add(self, engine: int, requests: Sequence[Request]) -> None:
            super().add(engine, requests)
            if self.versions[-1] == 2:
                has_stopped.set()
                raise Interrupted("the pod stops")

    outcome = run(kinds=(WithoutMemory, Stopped), every=100)
    assert (outcome.error, len(outcome.ledger)) == ("the pod stops", 2)
    assert outcome.reports[-1].checkpoint_step == 0


def test_a_restore_says_how_many_bytes_the_trainers_have_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)

    class Slow(Trainers):
        def loaded_share(self) -> float:
            asked.release()
            return super().loaded_share()

        def load(self, directory: str) -> None:
            """Last until the progress was asked for a second time, half of the way."""
            with self.meter.loading():
                self.meter.loaded(1, 2)
                while asked.acquire(blocking=False):  # Who asked before may have got the share of before.
                    pass
                assert asked.acquire(timeout=60) and asked.acquire(timeout=60)
                super().load(directory)

    run(root=tmp_path)
    monkeypatch.setattr("longshore_runtime.step.checkpointing.PROGRESS_EVERY_S", 0.001)
    reports = run(root=tmp_path, kinds=(Slow, Engines)).reports
    seen = [one.progress for one in reports if one.activity == "Restore" and one.progress]
    assert {progress.unit for progress in seen} == {ProgressUnit.BYTES}
    assert seen[0].total // 2 in {progress.done for progress in seen}


@pytest.mark.parametrize("call", range(1, UNDISTURBED.num_calls + 1))
def test_whenever_the_trainers_are_lost_nothing_is_sampled_again(call: int) -> None:
    outcome = run([call])
    assert outcome.num_calls > UNDISTURBED.num_calls
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)
    assert outcome.ledger == UNDISTURBED.ledger


@settings(deadline=None, max_examples=examples(20))
@given(st.sets(st.integers(1, 2 * UNDISTURBED.num_calls), max_size=3), st.integers(1, 5), st.booleans())
def test_nor_when_they_are_lost_again_while_they_come_back(losses: set[int], every: int, regroups: bool) -> None:
    outcome = run(losses, every=every, regroups=regroups)
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)


@pytest.mark.parametrize("handover", [Handover.AFTER_ROUND, Handover.PIPELINED])
def test_a_teacher_is_asked_once_about_a_response_although_trainers_are_lost(handover: Handover) -> None:
    class Taught(Trainers):
        def _train(self, samples: Sequence[Sample], max_mismatch: float | None = None) -> TrainResult:
            for one in samples:
                assert one.teacher_log_probs is not None
                tokens = [*one.prompt_tokens.tolist(), *one.trajectory.tokens.tolist()]
                assert one.teacher_log_probs.tolist() == [-token for token in tokens][len(one.prompt_tokens) :]
                responses.add((one.draw, one.index))
            return super()._train(samples, max_mismatch)

    responses = set[tuple[Draw, int]]()
    server = TeacherServer(lambda tokens: [-token for token in tokens])
    teacher = RemoteTeacher(RemoteJudgeOptions(server.url, "large"))
    endpoint = TeacherEndpoint(url=server.url, model_name="large")
    algorithm = ALGORITHM.model_copy(update={"objective": Distillation(teacher=Teacher(endpoint=endpoint))})
    try:
        outcome = run([9], teacher=teacher, algorithm=algorithm, kinds=(Taught, Engines), handover=handover)
    finally:
        teacher.close()
        server.close()
    assert not outcome.error
    assert len(server.received) == len(responses) == 4 * 2 * len(outcome.ledger)


def asked_for(num_workers: int, epoch: int = 1) -> Known:
    """The operator wants the job to run with so many worker pods."""
    size = JobSize(epoch=epoch, workers=num_workers, held=num_workers)
    return Known(Assignment(epoch=epoch, baseline=Baseline(tp_size=1), size=size))


class AskedLater(Known):
    """Another number of worker pods is asked for when some steps are done."""

    def __init__(self, root: Path, step: int) -> None:
        super().__init__(asked_for(1).assignment)
        self._metrics, self._step = root / "output" / "ledger.jsonl", step

    def newest(self) -> Assignment:
        is_time = len(self._metrics.read_text().splitlines()) >= self._step
        return asked_for(2, epoch=2).assignment if is_time else self.assignment


@pytest.mark.parametrize("step", range(NUM_STEPS))
def test_with_other_worker_pods_from_any_step_on_a_job_learns_the_same(tmp_path: Path, step: int) -> None:
    with pytest.raises(SizeChanged) as change:
        run(root=tmp_path, every=1_000, num_workers=1, assignments=AskedLater(tmp_path, step))
    assert change.value.num_workers == 2
    assert CheckpointStore(tmp_path / "output" / "checkpoints", keep=1).newest().step == step  # type: ignore[union-attr]
    rest = run(root=tmp_path, num_workers=2, assignments=asked_for(2, epoch=2))
    assert (rest.ledger, rest.model) == (UNDISTURBED.ledger, UNDISTURBED.model)
    assert rest.sampled == UNDISTURBED.sampled[-len(rest.sampled) :], "nothing is sampled twice"
    assert rest.reports[-1].size == JobSize(epoch=2, workers=2, held=2)


def test_a_size_that_the_job_has_is_acknowledged_without_an_interruption() -> None:
    outcome = run(num_workers=3, assignments=asked_for(3, epoch=7))
    assert outcome.reports[-1].size == JobSize(epoch=7, workers=3, held=3)
    assert (outcome.sampled, outcome.model) == (UNDISTURBED.sampled, UNDISTURBED.model)


def test_trainers_that_are_lost_again_and_again_are_given_up() -> None:
    with pytest.raises(TrainerLost):
        run(range(1, 100))


def test_several_updates_on_one_rollout_survive_the_loss_of_trainers_at_any_moment() -> None:
    undisturbed = run(algorithm=DECOUPLED)
    for loss in range(3, undisturbed.num_calls, 5):
        recovered = run([loss], algorithm=DECOUPLED)
        assert recovered.error == ""
        assert recovered.model == undisturbed.model, loss
        assert recovered.ledger == undisturbed.ledger


def test_figures_of_a_step_count_its_batch_once_and_throughput_is_per_gpu(tmp_path: Path) -> None:
    run(algorithm=DECOUPLED, root=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "perf/throughput" in row]
    assert len(steps) >= NUM_STEPS
    for row in steps:
        num_samples = ALGORITHM.prompts_per_step * ALGORITHM.responses_per_prompt
        mean_tokens = row["response_length/mean"] + row["prompt_length/mean"]
        assert row["actor/num_updates"] == 2 * ALGORITHM.prompts_per_step // 2
        assert row["perf/total_num_tokens"] == pytest.approx(num_samples * mean_tokens)
        assert row["perf/throughput"] * row["perf/time_per_step"] * NUM_GPUS == pytest.approx(num_samples * mean_tokens)
        assert row["timing_s/old_log_prob"] == 1.0


def test_a_stop_while_lost_trainers_catch_up_saves_nothing_of_theirs(tmp_path: Path) -> None:
    """They have the weights of the newest checkpoint then, and the run is a step further."""
    stop = Stop()

    class StoppedWhileLoading(Trainers):
        def wake(self) -> None:
            if self.generation == 0 and self._trainer.policy_version == 3:
                self._is_lost = True
            super().wake()

        def load(self, directory: str) -> None:
            super().load(directory)
            if self.generation == 1 and not stop.is_asked:
                stop.ask()
                stop.require_none()  # As the driver does while it waits for the ranks.

    stopped = run(root=tmp_path, every=2, kinds=(StoppedWhileLoading, Engines), stop=stop)
    assert stopped.error
    assert max((tmp_path / "output" / "checkpoints").iterdir()).name == "step-000002"
    resumed = run(root=tmp_path, every=2)
    assert (resumed.model, resumed.ledger) == (UNDISTURBED.model, UNDISTURBED.ledger)


@pytest.mark.parametrize("every", [1, 3])
def test_an_evaluation_of_the_final_weights_is_not_repeated(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the last step wrote a checkpoint before it."""

    def killed(*_: Any) -> None:
        raise Interrupted("killed while the final model is copied")

    job: dict[str, Any] = {"held_out": PROMPTS.train[:4], "evaluation": Evaluation(every_steps=2), "every": every}
    with monkeypatch.context() as patched:
        patched.setattr(ModelExport, "write", killed)
        assert run(root=tmp_path, **job).error
    assert run(root=tmp_path, **job).error == ""
    rows = [json.loads(line) for line in (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row["step"] for row in rows if "val/reward/mean" in row]
    assert evaluated == sorted(set(evaluated)) and evaluated[-1] == max(row["step"] for row in rows)


def test_a_job_that_has_lost_its_output_records_no_further_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job has cut the files back to the steps of its checkpoint."""
    calls = itertools.count()

    def lost() -> None:
        if next(calls) >= 3:
            raise UserError("storage.output: another job has begun to write here")

    monkeypatch.setattr("tests.unit.runtime.scripted_loop.CheckpointStore", partial(CheckpointStore, require_own=lost))
    failed = run(root=tmp_path, every=10)
    assert "another job" in failed.error
    assert 0 < len(failed.ledger) < len(UNDISTURBED.ledger)


class Learning(Scorer):
    """Learns of every response, as a reward pool does of time limits."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(engines)
        self.learned: list[str] = []

    def finished(self, response: ResponseId, completion: Completion) -> None:
        super().finished(response, completion)
        self.learned.append(str(response))

    def export_state(self) -> dict[str, Any]:
        return {"learned": list(self.learned)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.learned = list(state["learned"])


class StoppedInARound(Engines):
    """The pod is asked to stop when the third message with responses of the third round comes."""

    num_messages = 0

    def get(self, *arguments: Any, **options: Any) -> Any:
        event = super().get(*arguments, **options)
        if self.versions and self.versions[-1] == 2 and isinstance(event, EngineOutput):
            self.num_messages += 1
            if self.num_messages == 3:
                raise Interrupted("the pod was asked to stop")
        return event


def test_what_an_interrupted_round_has_taught_about_rewards_is_not_kept(tmp_path: Path) -> None:
    two_steps = ALGORITHM.model_copy(update={"steps": 2})
    states = []
    jobs: list[dict[str, Any]] = [
        {"algorithm": two_steps, "on_finish": OnFinish.LEAVE},
        {"kinds": (Trainers, StoppedInARound)},
    ]
    for number, job in enumerate(jobs):
        root = tmp_path / str(number)
        root.mkdir()
        run(root=root, every=100, scorer=Learning, **job)
        checkpoint = max((root / "output" / "checkpoints").iterdir())
        assert checkpoint.name == "step-000002"
        states.append(json.loads((checkpoint / "state.json").read_text())["rewards"])
    assert states[0] == states[1]
    assert states[0]["learned"]
