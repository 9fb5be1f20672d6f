"""Rewards by a language model: from the fields of the job to a judge."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from longshore.api import contract
from longshore.api.quantity import parse_bytes
from longshore.api.reward import JudgePlacement, RewardFunction
from longshore_runtime.errors import UserError
from longshore_runtime.judge import addresses
from longshore_runtime.judge.mps import PINNED_MEMORY_VARIABLE
from longshore_runtime.judge.options import JudgeOptions, PoolJudgeOptions, RemoteJudgeOptions, StreamedJudgeOptions
from longshore_runtime.judge.reward import JudgeReward
from longshore_runtime.judge.score import ScorePattern
from longshore_runtime.judge.template import PromptTemplate
from longshore_runtime.rewards.kinds.kind import Kind, WorkerSide
from longshore_runtime.storage import JobStorage

_CUDA_CONTEXT_MEGABYTES: Final = 1024
"""Megabytes of GPU memory that a process needs besides its tensors."""


class JudgeKind(Kind):
    """Asks a language model for a score."""

    def scorer(self, function: RewardFunction, side: WorkerSide) -> JudgeReward:
        """Start the judge of a function, or connect to it."""
        judge = function.judge
        assert judge is not None, "validation asks for it"
        return JudgeReward(
            JudgeOptions(
                name=function.name,
                model=_model_options(function, side.token, side.output),
                template=judge.prompt_template,
                score_pattern=judge.score_pattern,
                score_min=judge.min_score,
                score_max=judge.max_score,
                max_reply_tokens=judge.max_tokens,
            )
        )

    def check(self, function: RewardFunction) -> None:
        """Check the template and the pattern."""
        judge = function.judge
        assert judge is not None, "validation asks for it"
        try:
            PromptTemplate(judge.prompt_template)
            ScorePattern(judge.score_pattern, judge.min_score, judge.max_score)
        except ValueError as error:
            raise UserError(f"reward.functions[{function.name}].{error}") from error


def memory_limit(functions: Sequence[RewardFunction]) -> dict[str, str]:
    """Return the environment in which MPS holds a process with all colocated judges to what they reserve together."""
    judges = [function.judge for function in functions if function.judge is not None and function.is_colocated]
    megabytes = sum(parse_bytes(judge.gpu_memory) for judge in judges) >> 20
    return {PINNED_MEMORY_VARIABLE: f"0={megabytes + _CUDA_CONTEXT_MEGABYTES}M"}


def _model_options(
    function: RewardFunction, token: Path | None, output: str
) -> StreamedJudgeOptions | RemoteJudgeOptions | PoolJudgeOptions:
    assert function.judge is not None, "validation asks for it"
    match function.judge.placement:
        case JudgePlacement.COLOCATED:
            return streamed_options(function, output)
        case JudgePlacement.REMOTE:
            return _remote(function, token)
        case JudgePlacement.POOL:
            return _pool(function, token, output)


def _remote(function: RewardFunction, token: Path | None) -> RemoteJudgeOptions:
    judge = function.judge
    assert judge is not None and judge.url is not None, "validation asks for it"
    # The reward queue tries again, so that a hanging endpoint holds one worker for one time limit only.
    return RemoteJudgeOptions(judge.url, judge.model_name, token, timeout_s=function.limit_s, num_tries=1)


def _pool(function: RewardFunction, token: Path | None, output: str) -> PoolJudgeOptions:
    assert function.judge is not None and function.pool is not None, "validation asks for it"
    return PoolJudgeOptions(
        directory=addresses.directory(JobStorage.from_env(output).output_dir, function.name),
        num_replicas=function.pool.replicas,
        attempt=int(os.environ[contract.ENV_ATTEMPT]),
        model=function.judge.model_name,
        token_file=token,
        timeout_s=function.limit_s,
    )


def streamed_options(function: RewardFunction, output: str) -> StreamedJudgeOptions:
    """Return the model of a colocated judge, where this process runs."""
    judge = function.judge
    assert judge is not None and judge.model_path is not None, "validation asks for it"
    return StreamedJudgeOptions(
        model=JobStorage.from_env(output).resolve(judge.model_path),
        accelerator=bool(os.environ.get("CUDA_VISIBLE_DEVICES")),
        reserved_bytes=parse_bytes(judge.gpu_memory),
        timeout_s=function.limit_s,
    )
