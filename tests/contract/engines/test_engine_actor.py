"""The actor around an engine, here without Ray: order of commands, results, and how failures come out."""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from longshore.api import contract
from longshore.api.rollout import EngineBackend, EngineSettings
from longshore_runtime.backends.engine_protocol import Completion, FinishReason, load_weights
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.backends.fake_engine import FakeEngine, FakeEngineOptions
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.rollout.engine_actor import EngineActor, EngineThread
from longshore_runtime.weights.buckets import checksums, combined_checksum
from tests.contract.engines.harness import request

WEIGHTS = {"w": np.arange(4, dtype=np.float32)}
LIMIT_S = 180.0
NEVER_ENDS = {"median_tokens": 1e9, "sigma": 0.0}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A storage with a checkpoint as far as an engine without a model looks at it."""
    monkeypatch.setenv(contract.ENV_STORAGE, str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"vocab_size": 100, "eos_token_id": 2}))
    return tmp_path


async def started(**extra_args: object) -> EngineActor:
    """An actor whose engine runs."""
    actor = EngineActor({})
    options = EngineSettings(backend=EngineBackend.FAKE, extra_args=extra_args)
    await actor.start(EngineSpec(options, max_context_tokens=256), "model", "output")
    return actor


async def next_batches(actor: EngineActor, num_completions: int) -> list[Completion]:
    """The next completions of the event stream."""
    completions: list[Completion] = []
    async for ended, stats in actor.events():
        assert stats.num_tokens >= sum(one.num_tokens for one in ended if not one.trajectory.runs[:-1])
        completions += ended
        if len(completions) >= num_completions:
            break
    return completions


async def test_responses_arrive_as_they_end(storage: Path) -> None:
    actor = await started()
    assert await actor.publish(0, [WEIGHTS], 4) == combined_checksum([checksums(WEIGHTS)])
    many = [request(seed=seed) for seed in range(20)]
    await actor.add(1, many)
    completions = await next_batches(actor, 20)
    assert {completion.request_id for completion in completions} == {wanted.request_id for wanted in many}
    steps = [completion.engine_step for completion in completions]
    assert steps == sorted(steps)
    assert (await actor.stats()).policy_version == 4


async def test_commands_that_overtake_each_other_run_in_their_order(storage: Path) -> None:
    """An abort that ran before its add would leave the response running for ever."""
    actor = await started(**NEVER_ENDS)
    wanted = request(max_tokens=1 << 30)
    abort = asyncio.create_task(actor.abort(2, [wanted.request_id]))
    add = asyncio.create_task(actor.add(1, [wanted]))
    await asyncio.sleep(0)
    await actor.publish(0, [WEIGHTS], 0)
    await asyncio.gather(add, abort)
    (aborted,) = await next_batches(actor, 1)
    assert (aborted.request_id, aborted.finish_reason) == (wanted.request_id, FinishReason.ABORT)


async def test_calls_are_answered_while_the_engine_steps(storage: Path) -> None:
    actor = await started(**NEVER_ENDS)
    await actor.publish(0, [WEIGHTS], 0)
    wanted = request(max_tokens=1 << 30)
    await actor.add(1, [wanted])
    first = (await actor.stats()).num_steps
    while (await actor.stats()).num_steps == first:
        pass
    await actor.abort(2, [wanted.request_id])


def test_a_question_is_answered_after_the_current_step_and_before_waiting_commands() -> None:
    stepping, may_step = threading.Event(), threading.Event()

    def step(step_s: float) -> None:
        stepping.set()
        assert may_step.wait(LIMIT_S)

    engine = FakeEngine(FakeEngineOptions(step_s=1), pause=step)
    thread = EngineThread(lambda: engine, lambda batch: None)
    thread.start()
    thread.call(lambda engine: load_weights(engine, [WEIGHTS], 0))
    thread.call(lambda engine: engine.add([request()]))
    assert stepping.wait(LIMIT_S)
    order: list[str] = []
    commands = [thread.call(lambda engine, name=name: order.append(name)) for name in ("first", "second")]
    question = thread.ask(lambda engine: order.append("question"))
    assert order == []
    may_step.set()
    for answer in (question, *commands):
        answer.result(LIMIT_S)
    assert order == ["question", "first", "second"]


async def test_an_engine_that_hangs_while_a_response_is_aborted_is_given_up(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is under way on a GPU ends first, or does not."""
    may_end = threading.Event()

    def hang(self: FakeEngine, request_ids: object) -> list[Completion]:
        assert may_end.wait(LIMIT_S)
        return []

    actor = await started(**NEVER_ENDS)
    await actor.publish(0, [WEIGHTS], 0)
    monkeypatch.setattr(FakeEngine, "abort", hang)
    abort = asyncio.create_task(actor.abort(1, ["any"]))
    with pytest.raises(EngineDied, match="hangs"):
        async for _ in actor.events(heartbeat_s=0.01, step_limit_s=0.05):
            pass
    may_end.set()
    await abort


async def test_weights_that_are_gone_do_not_end_the_engine(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = await started()

    def gone(self: FakeEngine, bucket: object) -> None:
        raise WeightsUnavailable("the published weights are gone")

    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "load_bucket", gone)
        with pytest.raises(WeightsUnavailable):
            await actor.publish(0, [WEIGHTS], 1)
    await actor.publish(1, [WEIGHTS], 1)
    await actor.add(2, [request()])
    assert len(await next_batches(actor, 1)) == 1


async def test_an_error_of_the_engine_ends_the_event_stream_and_every_call(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = await started()
    await actor.publish(0, [WEIGHTS], 0)

    def broken(self: FakeEngine) -> list[Completion]:
        raise RuntimeError("out of memory\nand a long trace")

    monkeypatch.setattr(FakeEngine, "step", broken)
    await actor.add(1, [request()])
    with pytest.raises(EngineDied, match=r"^the engine failed: RuntimeError: out of memory$"):
        await next_batches(actor, 1)
    with pytest.raises(EngineDied):
        await actor.publish(2, [WEIGHTS], 1)


async def test_an_engine_without_news_reports_that_it_is_well(storage: Path) -> None:
    actor = await started()
    await actor.publish(0, [WEIGHTS], 3)
    async for completions, stats in actor.events(heartbeat_s=0.01):
        assert completions == []
        assert stats.policy_version == 3
        break


async def test_a_command_that_fails_ends_the_engine(storage: Path) -> None:
    actor = await started()
    await actor.publish(0, [WEIGHTS], 0)
    whole = request(max_tokens=1)
    await actor.add(1, [whole])
    (completion,) = await next_batches(actor, 1)
    with pytest.raises(EngineDied, match="nothing to sample"):
        await actor.add(2, [request(max_tokens=1, partial=completion.trajectory)])
    with pytest.raises(EngineDied):
        await next_batches(actor, 1)


async def test_an_engine_that_cannot_start_says_why(storage: Path) -> None:
    actor = EngineActor({})
    with pytest.raises(EngineStartError, match="no Hugging Face checkpoint"):
        await actor.start(EngineSpec(EngineSettings(), max_context_tokens=256), "nothing", "output")


async def test_unknown_options_of_the_fake_engine_are_refused(storage: Path) -> None:
    with pytest.raises(EngineStartError, match="backend Fake has no option 'speed'"):
        await started(speed=3)
