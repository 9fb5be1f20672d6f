"""Rewards by a language model: from the fields of the job to a judge."""

import os
from pathlib import Path

from longshore.api.reward import JudgePlacement, RewardFunction
from longshore_runtime.errors import UserError
from longshore_runtime.judge.options import JudgeOptions, RemoteJudgeOptions, StreamedJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.judge.score import ScorePattern
from longshore_runtime.judge.template import PromptTemplate
from longshore_runtime.quantity import parse_bytes
from longshore_runtime.storage import JobStorage


def judge_scorer(function: RewardFunction, token: Path | None, output: str) -> JudgeReward:
    """The judge of a reward function, where this process runs; raises RewardSetupError."""
    judge = function.judge
    assert judge is not None, "validation asks for it"
    is_remote = judge.placement is JudgePlacement.REMOTE
    return JudgeReward(
        JudgeOptions(
            name=function.name,
            model=_remote(function, token) if is_remote else streamed_options(function, output),
            template=judge.prompt_template,
            score_pattern=judge.score_pattern,
            score_min=judge.min_score,
            score_max=judge.max_score,
            max_reply_tokens=judge.max_tokens,
        )
    )


def check_judge(function: RewardFunction) -> None:
    """Raises UserError, naming the field, for a template or pattern that cannot be used."""
    judge = function.judge
    if judge is None:
        return
    try:
        PromptTemplate(judge.prompt_template)
        ScorePattern(judge.score_pattern, judge.min_score, judge.max_score)
    except ValueError as error:
        raise UserError(f"reward.functions[{function.name}].{error}") from error


def _remote(function: RewardFunction, token: Path | None) -> RemoteJudgeOptions:
    judge = function.judge
    assert judge is not None and judge.url is not None, "validation asks for it"
    # The reward queue tries again, so that a hanging endpoint holds one worker for one time limit only.
    return RemoteJudgeOptions(judge.url, judge.model_name, token, timeout_s=function.limit_s, num_tries=1)


def streamed_options(function: RewardFunction, output: str) -> StreamedJudgeOptions:
    """The model of a colocated judge, where this process runs."""
    judge = function.judge
    assert judge is not None and judge.model_path is not None, "validation asks for it"
    return StreamedJudgeOptions(
        model=JobStorage.from_env(output).resolve(judge.model_path),
        accelerator=bool(os.environ.get("CUDA_VISIBLE_DEVICES")),
        reserved_bytes=parse_bytes(judge.gpu_memory),
    )
