"""The responses of a step or of an evaluation as text, with their rewards: Parquet that `datasets` and pandas load."""

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.record.build import engine_seconds
from longshore.record.history import history
from longshore.record.model import RecordOutcome
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rewards.row_json import to_json
from longshore_runtime.rollout.batch import RoundResult, ScoredGroup, ScoredResponse
from longshore_runtime.telemetry.step_done import EvaluationDone, JobFacts, StepDone
from longshore_runtime.trajectories.episode import Episode, Message

_AT_ONCE: Final = 16
"""Number of responses after which other threads get their turn: the next round runs meanwhile."""
DIRECTORY: Final = "samples"
HELD_OUT_DIRECTORY: Final = "held-out"
"""Directory of samples of evaluations, so that who reads all samples of the training gets no others."""
EVALUATION: Final = "Evaluation"
"""Text in place of the kind of a round, in samples of an evaluation."""
EVALUATED: Final = "evaluated"
"""Text in place of the outcome of a response, in samples of an evaluation."""
PREFIX: Final = "step-"
SUFFIX: Final = ".parquet"
TURN: Final = pa.struct(
    [("branch", pa.int32()), ("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.string())]
)
SCHEMA: Final = pa.schema(
    [
        ("step", pa.int32()),
        ("round", pa.int32()),
        ("attempt", pa.int32()),
        ("kind", pa.string()),
        ("draw", pa.string()),
        ("epoch", pa.int32()),
        ("prompt_index", pa.int32()),
        ("response_index", pa.int32()),
        ("outcome", pa.string()),
        ("prompt", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("answer", pa.string()),
        ("domain", pa.string()),
        ("response", pa.string()),
        ("response_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("reward", pa.float64()),
        ("penalty", pa.float64()),
        ("advantage", pa.float64()),
        ("timed_out", pa.bool_()),
        ("rewards", pa.list_(pa.struct([("function", pa.string()), ("reward", pa.float64())]))),
        ("versions", pa.list_(pa.struct([("policy_version", pa.int32()), ("tokens", pa.int32())]))),
        ("engines", pa.list_(pa.int32())),
        ("engine_s", pa.float64()),
        ("turns", pa.list_(TURN)),
        ("environment_s", pa.float64()),
        ("state", pa.string()),
    ]
)
"""Schema of all sample files: the same for every job and step, so that they can be read together."""


Row = dict[str, Any]


def samples_file(done: StepDone | EvaluationDone, job: JobFacts, share: float) -> bytes | None:
    """Return the file of a step or an evaluation; None if it has no prompt whose responses are kept."""
    rows = list(_of_step(done, job, share) if isinstance(done, StepDone) else _of_evaluation(done, job, share))
    if not rows:
        return None
    out = io.BytesIO()
    with pq.ParquetWriter(out, SCHEMA, compression="zstd") as writer:
        parts = (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))
        writer.write_table(pa.concat_tables([pa.Table.from_pylist(part, SCHEMA) for part in parts]))
    return out.getvalue()


def is_kept(draw: Draw, share: float) -> bool:
    """Return whether the responses of a prompt are kept; the answer is the same in every epoch and attempt."""
    return zlib.crc32(str(draw.index).encode()) < share * 2**32


def _of_step(done: StepDone, job: JobFacts, share: float) -> Iterator[Row]:
    samples = {sample.response: sample for sample in done.trained.samples}
    step = {"step": done.step, "round": done.step, "attempt": job.attempt, "kind": done.result.end.kind.value}
    groups = [(RecordOutcome.ACCEPTED.value, group) for group in done.result.groups]
    groups += [(RecordOutcome.ZERO_VARIANCE.value, group) for group in done.result.dropped]
    return _rows(groups, done.result, step, job.prompts, samples, share)


def _of_evaluation(done: EvaluationDone, job: JobFacts, share: float) -> Iterator[Row]:
    step = {"step": done.step, "round": done.step, "attempt": job.attempt, "kind": EVALUATION}
    groups = [(EVALUATED, group) for group in done.result.groups]
    return _rows(groups, done.result, step, job.held_out, {}, share)


def _rows(
    groups: Sequence[tuple[str, ScoredGroup]],
    result: RoundResult,
    step: Mapping[str, Any],
    prompts: Sequence[PromptRecord],
    samples: Mapping[ResponseId, Sample],
    share: float,
) -> Iterator[Row]:
    """Build a row for each response of `groups`; `step`: columns of all rows, `samples`: what was trained on."""
    found = history(result.messages)
    seconds = engine_seconds(found.stays)
    engines: dict[ResponseId, list[int]] = {}
    for stay in found.stays:
        engines.setdefault(stay.response, []).append(stay.engine)
    for outcome, group in sorted(groups, key=lambda one: one[1].draw):
        if not is_kept(group.draw, share):
            continue
        of_group = {**step, **_group(group, prompts[group.draw.index]), "outcome": outcome}
        for one in group.responses:
            yield {
                **of_group,
                **_response(one, samples.get(one.response)),
                "engines": engines.get(one.response, []),
                "engine_s": seconds.get(one.response, 0.0),
            }


def _group(group: ScoredGroup, record: PromptRecord) -> Mapping[str, Any]:
    return {
        "draw": str(group.draw),
        "epoch": group.draw.epoch,
        "prompt_index": record.row,
        "prompt": record.prompt,
        "prompt_tokens": len(record.prompt_tokens),
        "answer": record.answer,
        "domain": group.domain,
    }


def _response(one: ScoredResponse, sample: Sample | None) -> Mapping[str, Any]:
    """Build the columns of one response; `sample` is None if it was not trained on."""
    completion = one.completion
    return {
        "response_index": one.response.index,
        "response": completion.text,
        "response_tokens": completion.num_total_tokens,
        "finish_reason": completion.finish_reason.value,
        "reward": one.reward,
        "penalty": 0.0 if sample is None else sample.penalty,
        "advantage": None if sample is None else sample.mean_advantage,
        "timed_out": one.timed_out,
        "rewards": [{"function": name, "reward": value} for name, value in one.parts.items()],
        "versions": [
            {"policy_version": version, "tokens": num_tokens}
            for trajectory in completion.trajectories
            for version, num_tokens in trajectory.runs
        ],
        **({} if completion.episode is None else _episode(completion.episode)),
    }


def _episode(episode: Episode) -> Mapping[str, Any]:
    """Build the columns of a response that is an episode; what the environment said first is its first turn."""
    begun = () if episode.observation is None else ({"role": "user", "content": episode.observation},)
    return {
        "prompt_tokens": len(episode.prompt_tokens),
        "turns": [
            _turn(number, one)
            for number, branch in enumerate(episode.branches)
            for one in (*(begun if branch.asked is None else branch.asked), *branch.messages)
        ],
        "environment_s": episode.environment_s,
        "state": episode.state,
    }


def _turn(branch: int, message: Message) -> Mapping[str, Any]:
    """Build an item of a conversation of an episode; calls are JSON, since each tool has its own arguments."""
    calls = message.get("tool_calls")
    return {
        "branch": branch,
        "role": message["role"],
        "content": message["content"],
        "tool_calls": None if calls is None else to_json(calls).decode(),
    }
