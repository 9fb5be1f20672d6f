"""The output directory of a job that never ran, for tests of its page: the same files, with the same shapes.

Some of its prompts and responses try to become part of the page that shows them.
"""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow
import pyarrow.parquet

from longshore.api.names import Component
from longshore.api.round_status import RoundKind
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.page.fleet import FleetJob, FleetMoment, FleetView
from longshore.page.view import ClusterView, ConditionView, PageEvent
from longshore.policy.draws import Draw
from longshore.policy.engine_load import EngineLoad
from longshore.policy.round import AcceptedGroup, ResponseId
from longshore.policy.round_policy import RoundEnd
from longshore.record import model
from longshore.record.build import round_record
from longshore.record.facts import LanePlace, RoundFacts, StepMarks, TrainerPass, UpdatePasses
from longshore.record.history import TimedMessage
from longshore.record.model import RecordOutcome, RoundRecord
from longshore.rounds.messages import AddRequests, EndedRequest, RequestsEnded
from longshore.rounds.protocol import RoundTotals
from longshore_runtime.telemetry.samples import SCHEMA

HOSTILE: Final = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "</script><script>window.hacked = 3</script>",
    "]]><!--<svg onload=window.hacked=4>--><iframe srcdoc='<script>parent.hacked=5</script>'>",
    "<a href='javascript:window.hacked=6' autofocus onfocus='window.hacked=7'>press</a>\u2028\u2029\x00\x1b[31m",
    "{{constructor.constructor('window.hacked=8')()}} ${window.hacked=9} \u202e desrever",
)
NUM_GPUS: Final = 4
_TOKENS_PER_S: Final = 120.0
_MAX_TOKENS: Final = 4096
_RESPONSES: Final = 4
_WANTED: Final = 12


def spec(**changes: Any) -> RLJobSpec:
    """The configuration of the job."""
    fields: dict[str, Any] = {
        "model": {"path": "models/qwen", "maxContextTokens": 8192},
        "data": {"path": "data/rows.jsonl", "domainField": "domain"},
        "reward": {
            "functions": [
                {"name": "maths", "kind": "Maths"},
                {"name": "grader", "kind": "HTTP", "http": {"url": "http://user:secret@grader.svc/score"}},
            ]
        },
        "algorithm": {"steps": 60, "promptsPerStep": 12, "responsesPerPrompt": 4, "maxResponseTokens": _MAX_TOKENS},
        "workers": {"replicas": 2, "gpusPerPod": 2, "gpuResourceName": "nvidia.com/gpu"},
        "storage": {"claimName": "shared"},
    }
    return RLJobSpec.model_validate(fields | changes)


def status(step: int) -> RuntimeStatus:
    """What its coordinator reports after a step."""
    return RuntimeStatus.model_validate(
        {
            "attempt": 1,
            "step": step,
            "steps": 60,
            "activity": RuntimeActivity.ROLLOUT,
            "reward": 0.61,
            "round": {"number": step + 1, "kind": "Short", "fractionFinished": 0.4},
            "heldOut": {"before": 0.31, "latest": 0.58},
            "responseTokens": {"mean": 512.4, "p75": 700, "max": 4096},
            "tokensPerSecond": 1843.2,
            "bubbleShare": 0.14,
            "draws": {"trained": 480, "deferred": 7},
            "checkpointStep": step - step % 5,
            "alarms": [
                {"reason": "ResponsesAllCut", "message": f"Half of the responses are cut. {HOSTILE[1]}", "step": 3}
            ],
            "notices": [{"number": 1, "reason": "EngineLost", "message": "Engine 2 was lost and starts again."}],
        }
    )


def cluster(*, is_finished: bool = False) -> ClusterView:
    """What the API server knows of it."""
    return ClusterView(
        phase="Succeeded" if is_finished else "Running",
        is_finished=is_finished,
        attempt=1,
        failures=0,
        gpus={"rollout": 4, "trainer": 0, "judge": 0},
        conditions=(
            ConditionView(
                type="Ready",
                status="True",
                reason="PodsReady",
                message="All pods are ready.",
                time="2026-11-22T10:00:00Z",
            ),
            ConditionView(
                type="TrainingAlarm",
                status="True",
                reason="ResponsesAllCut",
                message=HOSTILE[0],
                time="2026-11-22T10:05:00Z",
            ),
        ),
        events=(
            PageEvent(time="2026-11-22T10:05:00Z", type="Warning", reason="EngineLost", message=HOSTILE[2], count=2),
        ),
    )


def write_job(output: Path, num_steps: int) -> None:
    """Everything that such a job has written after so many steps."""
    for directory in ("rounds", "samples", "held-out"):
        (output / directory).mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    if num_steps:
        _write_evaluation(output, record(0, random.Random(1)))
    for step in range(1, num_steps + 1):
        write_step(output, step, chance)


def write_step(output: Path, step: int, chance: random.Random) -> None:
    """One step more."""
    done = record(step, chance)
    (output / model.DIRECTORY / model.file_name(step)).write_bytes(done.to_bytes())
    table = pyarrow.Table.from_pylist(list(_samples(done, chance)), SCHEMA)
    pyarrow.parquet.write_table(table, output / "samples" / f"step-{step:06d}.parquet")
    if step % 10 == 0:
        _write_evaluation(output, done)
    with (output / "metrics.jsonl").open("ab") as file:
        for row in _metrics(done, chance):
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _write_evaluation(output: Path, done: RoundRecord) -> None:
    changes = {"kind": "Evaluation", "outcome": "evaluated", "advantage": None}
    rows = [row | changes for row in _samples(done, random.Random(done.step))]
    table = pyarrow.Table.from_pylist(rows, SCHEMA)
    pyarrow.parquet.write_table(table, output / "held-out" / f"step-{done.step:06d}.parquet")


def record(step: int, chance: random.Random) -> RoundRecord:
    """A short round, or every fifth time a long one: four engines that end when enough groups have."""
    kind = RoundKind.LONG if step % 5 == 0 else RoundKind.SHORT
    draws = [Draw(0, step * 20 + group) for group in range(_WANTED if kind is RoundKind.LONG else _WANTED + 3)]
    tokens_of: dict[ResponseId, int] = {}
    for draw in draws:
        scale = chance.lognormvariate(6.6 if kind is RoundKind.LONG else 5.4, 0.8)
        for number in range(_RESPONSES):
            tokens = round(scale * chance.lognormvariate(0, 0.35))
            tokens_of[ResponseId(draw, number)] = max(8, min(_MAX_TOKENS, tokens))
    by_length = sorted(draws, key=lambda draw: max(tokens_of[ResponseId(draw, n)] for n in range(_RESPONSES)))
    accepted, rest = by_length[:_WANTED], by_length[_WANTED:]
    trained_on = [response for response in tokens_of if response.draw in accepted]
    sampled_s = max(_start_s(response) + tokens_of[response] / _TOKENS_PER_S for response in trained_on)
    trained_s, published_s = sampled_s + 2.0, sampled_s + 2.6
    groups = tuple(AcceptedGroup(draw, tuple(range(_RESPONSES))) for draw in accepted)
    learned = min(1.0, 0.25 + 0.5 * step / 40)
    places = tuple(LanePlace(gpu, (gpu // 2,), Component.WORKER, (gpu % 2,)) for gpu in range(NUM_GPUS))
    passes = tuple(TrainerPass(replica, sampled_s, 2.0) for replica in range(NUM_GPUS))
    return round_record(
        RoundFacts(
            step=step,
            attempt=1,
            started=1.79e9 + 30 * step,
            marks=StepMarks(0.0, 0.0, 0.0, sampled_s, sampled_s, trained_s, published_s),
            totals=RoundTotals(
                end=RoundEnd(kind, groups, deferred=tuple(rest), kept=()),
                batch_complete_s=sampled_s,
                finished_tokens=(),
                rejected={},
                num_launched=len(tokens_of),
                num_aborted=0,
                num_moved=1,
                num_given_up=0,
            ),
            messages=sorted(_messages(tokens_of, sampled_s), key=lambda timed: timed[0]),
            rewards={response: float(chance.random() < learned) for response in trained_on},
            prompt_of={},
            max_response_tokens=_MAX_TOKENS,
            bubble_share=0.14,
            num_preemptions=0,
            queue_length=len(rest) * (step % 5),
            engines=places,
            trainers=places,
            updates=(UpdatePasses(passes, 0.0),),
            repurposed_s=None,
            is_colocated=True,
        )
    )


def _start_s(response: ResponseId) -> float:
    return 0.4 + 0.05 * (response.draw.index % 20)


def _messages(tokens_of: Mapping[ResponseId, int], until_s: float) -> Iterator[TimedMessage]:
    """The driver's: what still runs in the end is stopped, and one long response moves to another engine."""
    has_moved = False
    for response, tokens in tokens_of.items():
        engine, start_s = sum(response.draw, response.index) % NUM_GPUS, _start_s(response)
        end_s = min(start_s + tokens / _TOKENS_PER_S, until_s)
        yield start_s, AddRequests(engine, (response,))
        if not has_moved and end_s - start_s > 1.0:
            half_s, has_moved = (start_s + end_s) / 2, True
            yield half_s, _ended(engine, response, tokens // 2, finished=False)
            engine = (engine + 1) % NUM_GPUS
            yield half_s, AddRequests(engine, (response,))
        is_over = start_s + tokens / _TOKENS_PER_S <= until_s
        so_far = tokens if is_over else int((until_s - start_s) * _TOKENS_PER_S)
        yield end_s, _ended(engine, response, so_far, finished=is_over)


def _ended(engine: int, response: ResponseId, num_tokens: int, *, finished: bool) -> RequestsEnded:
    load = EngineLoad(num_running=0, num_waiting=0, kv_usage=0.5, num_preemptions=0, at_s=0.0)
    return RequestsEnded(engine, [EndedRequest(response, num_tokens, finished, 1)], load)


def _samples(record: RoundRecord, chance: random.Random) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(row for row in record.responses if row.outcome is RecordOutcome.ACCEPTED):
        epoch, index, number = one.response.split("-")
        reward = one.reward or 0.0
        yield {
            "step": record.step,
            "round": record.step,
            "attempt": 1,
            "kind": record.kind.value,
            "draw": f"{epoch}-{index}",
            "epoch": int(epoch),
            "prompt_index": one.prompt,
            "response_index": int(number),
            "outcome": one.outcome.value,
            "prompt": f"What is {one.prompt} + {one.prompt}? {HOSTILE[one.prompt % 6]}",
            "prompt_tokens": 12,
            "answer": str(2 * one.prompt),
            "domain": "maths",
            "response": f"Let me think. {HOSTILE[place % 6]} The answer is {2 * one.prompt}.\n"
            * min(40, 1 + one.tokens // 100),
            "response_tokens": one.tokens,
            "finish_reason": one.finish,
            "reward": reward,
            "penalty": 0.0,
            "advantage": round(reward - 0.5, 3),
            "timed_out": False,
            "rewards": [{"function": "maths", "reward": reward}, {"function": "grader", "reward": chance.random()}],
            "versions": [{"policy_version": record.step - 1, "tokens": one.tokens}],
            "engines": [place % NUM_GPUS],
            "engine_s": one.engine_s,
        }


def _metrics(record: RoundRecord, chance: random.Random) -> Iterator[dict[str, float]]:
    """Its line, and every tenth step that of an evaluation."""
    step = record.step
    accepted = [one for one in record.responses if one.outcome is RecordOutcome.ACCEPTED]
    tokens = sorted(one.tokens for one in accepted)
    reward = sum(one.reward or 0.0 for one in accepted) / len(accepted)
    yield {
        "step": step,
        "critic/rewards/mean": reward,
        "critic/rewards/min": 0.0,
        "critic/rewards/max": 1.0,
        "actor/entropy": 1.4 - 0.01 * step,
        "actor/grad_norm": 0.4 + 0.2 * chance.random(),
        "actor/lr": 1e-6,
        "critic/grad_norm": 0.3 + 0.002 * step,
        "critic/vf_explained_var": 0.5 + 0.004 * step,
        "critic/vf_clipfrac": 0.02,
        "draws/zero_variance": float(chance.randrange(4)),
        "draws/rejected": 0.0,
        "response_length/mean": sum(tokens) / len(tokens),
        "response_length/p75": tokens[len(tokens) * 3 // 4],
        "response_length/max": tokens[-1],
        "response_length/clip_ratio": 0.02,
        "response/aborted_ratio": 0.18,
        "response/dropped_token_ratio": 0.27,
        "timing_s/step": record.duration_s,
        "timing_s/gen": record.duration_s - 2.6,
        "timing_s/update_actor": 2.0,
        "timing_s/update_weights": 0.6,
        "timing_s/reward": 0.0,
        "perf/bubble_share": record.bubble_share,
        "perf/throughput": 400 + 40 * chance.random(),
        "round/queue_length": record.queue_length,
        "reward/maths/mean": reward,
        "reward/grader/mean": 0.5,
        "reward/maths/seconds": 0.01,
        "reward/grader/seconds": 0.4,
        "reward/domain/maths/mean": reward,
        f"reward/domain/{HOSTILE[1]}/mean": 0.5,
        "reward/faults": float(step == 7),
        "episodes/failed/exception": float(step == 3),
        "rollout_corr/log_prob_mismatch_mean": 0.008 + 0.004 * chance.random(),
        "rollout_corr/log_prob_mismatch_max": 0.2 + 0.1 * chance.random(),
        "rollout_corr/off_policy_token_share": 0.0,
        "reward/max_wait_s": 0.2,
        "reward/max_queue_depth": 3.0,
    }
    if step % 10 == 0:
        yield {"step": step, "val/reward/mean": reward + 0.05, "val/reward/longest_quartile": reward - 0.1}


def fleet() -> FleetView:
    """Jobs that run, one that waits for GPUs, one that ended, and half an hour of their GPUs."""
    strategy = {"strategy": "TailBatching", "is_finished": False, "created": "2026-11-22T09:00:00Z", "demand": 8}
    nothing: dict[str, Any] = {
        "reward": None,
        "bubble_share": None,
        "gpus": {},
        "queue": "",
        "waits_for": "",
        "failure": "",
        "alarms": (),
    }
    waits = "WaitsForGPUs: 16 GPUs are needed, and 8 of 32 are free; first in the queue"
    rows: list[dict[str, Any]] = [
        {"name": "deepmath-14b", "phase": "Queued", "steps": 120, "step": 0, "demand": 16, "waits_for": waits},
        {"name": "gsm8k", "phase": "Running", "steps": 200, "step": 84, "reward": 0.71, "bubble_share": 0.12,
         "gpus": {"rollout": 8, "trainer": 0}},
        {"name": "dapo-17k", "phase": "Running", "steps": 300, "step": 31, "reward": 0.42, "bubble_share": 0.19,
         "gpus": {"rollout": 12, "trainer": 4}, "alarms": ("ResponsesAllCut",)},
        {"name": "seeds-1", "phase": "Succeeded", "steps": 60, "step": 61, "reward": 0.93, "bubble_share": 0.09,
         "is_finished": True},
    ]  # fmt: skip
    jobs = tuple(FleetJob.model_validate({"namespace": "team", **strategy, **nothing, **row}) for row in rows)
    start_s = 1.79e9
    history = tuple(
        FleetMoment(
            time_s=start_s + 60 * minute,
            gpus={"rollout": 24 - 4 * (minute > 9), "trainer": 4 * (minute > 9), "waiting": 16 * (minute > 16)},
        )
        for minute in range(30)
    )
    return FleetView(written_s=start_s + 1800, namespace="team", jobs=jobs, history=history)


def write_conversations(output: Path, step: int) -> None:
    """Give every response of a step two conversations, as an agent with a helper has them."""
    path = output / "samples" / f"step-{step:06d}.parquet"
    rows = pyarrow.parquet.read_table(path).to_pylist()
    for row in rows:
        row["turns"] = [
            {"branch": 0, "role": "system", "content": "You plan.", "tool_calls": None},
            {"branch": 0, "role": "assistant", "content": HOSTILE[0], "tool_calls": '[{"name": "look"}]'},
            {"branch": 1, "role": "user", "content": "Judge it.", "tool_calls": None},
            {"branch": 1, "role": "assistant", "content": "It is right.", "tool_calls": None},
        ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, SCHEMA), path)
