"""Estimate the memory of pods whose engines and trainers compute on the CPU, and choose micro-batches that fit.

The formulas are in `docs/reference/memory-estimate.md`; their constants were measured with the models named there. Pods
with real GPUs are not covered: what their processes keep in the memory of the host depends on drivers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from longshore.api.algorithm import Algorithm
from longshore.api.pods import DEFAULT_GPU_POD_MEMORY, Workers
from longshore.api.quantity import parse_bytes
from longshore.api.rollout import EngineBackend, EngineDtype
from longshore.api.shapes import replica_parts
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS, Recompute, TrainerBackend, TrainerSettings
from longshore.checks.memory import (
    TOP_TOKEN_BYTES,
    TRAINED_LOGIT_BYTES,
    ModelSize,
    Need,
    embedding_gradient_bytes,
    gib,
    logit_chunk_tokens,
    num_top_tokens,
    trainings,
    values_per_token,
)

_POD_BYTES: Final = 3 << 28
"""The pod's main process, its Ray node and what all of its processes have imported."""
_PROCESS_BYTES: Final = 1 << 28
"""What an engine or a rank of a trainer has of its own besides its model."""
CPU_KV_CACHE_BYTES: Final = 64 << 20
"""KV cache of an engine on the CPU where `rollout.engine.kvCache` is unset, unless one request needs more."""
CPU_BLOCK_TOKENS: Final = 32
"""Tokens of a block of the KV cache on the CPU.

vLLM's attention kernels for the CPU want a multiple of 32; smaller blocks waste less on short responses.
"""
_PREFILL_TOKENS: Final = 2048
"""Tokens that vLLM computes at once on the CPU, or one prompt if that is longer."""
_ENGINE_COPIES: Final = 2
"""vLLM keeps weights of linear layers as it was given them and in the layout of its kernels."""
_VALUE_BYTES: Final = 4
_STATE_BYTES: Final = 16
"""Weight, gradient and both moments of AdamW of a parameter."""
_KEPT_TOP_TOKEN_BYTES: Final = 8
"""Id and log-probability of one of a teacher's most likely tokens, which wait for the pass of the model."""
_MOMENT_BYTES: Final = 8
_LEAST_FILE_BYTES: Final = 1 << 26
_MOST_FILES: Final = 64
WEIGHT_FILE_BYTES: Final = 2 * 10**9
"""Size of files with weights. One may be larger by a tensor."""
_ENOUGH_TOKENS: Final = 1024
"""Tokens of a micro-batch with which processors compute about as fast as with more: less is recomputed instead."""
_ROUND_TO_TOKENS: Final = 64
_COORDINATOR_BYTES: Final = 3 << 29
"""What the coordinator needs for its own processes, Ray's head among them."""
KEPT_TOKENS: Final = 20_000_000
"""Tokens that a job of any size may keep from one checkpoint to the next."""
_STEPS_HELD: Final = 3
_HELD_TOKEN_BYTES: Final = 14
"""A token id, its log-probabilities by engine and trainer, and two bytes of compressed text."""
_HELD_RESPONSE_BYTES: Final = 3 << 10
"""What a response takes besides its tokens; measured by `make bench NAME=data_plane`."""


@dataclass(frozen=True)
class _Pods:
    """Pods of one kind, and what runs in each of them."""

    field: str
    workers: Workers
    num_engines: float
    num_ranks: int
    """Ranks of trainers."""

    @property
    def memory_bytes(self) -> int:
        return self.workers.memory_bytes(DEFAULT_GPU_POD_MEMORY)


def coordinator_memory(spec: RLJobSpec, expert_bytes: int = 0) -> str:
    """Return the memory that a coordinator needs, a quantity, with so much for the experts of a token.

    It grows with the tokens of a step. The coordinator holds those of a round, which may launch twice as many responses
    as it trains on, and of the step that is trained on; and for the loss of a trainer those since the last checkpoint,
    which comes before they are more than KEPT_TOKENS or one step, or of the one step whose checkpoint is being written.
    """
    step_tokens, algorithm = max_step_tokens(spec.algorithm), spec.algorithm
    tokens = _STEPS_HELD * step_tokens + max(KEPT_TOKENS, step_tokens)
    num_responses = (_STEPS_HELD + 1) * algorithm.prompts_per_step * algorithm.responses_per_prompt
    token_bytes = _HELD_TOKEN_BYTES
    if algorithm.teacher_endpoint is not None:
        token_bytes += _VALUE_BYTES  # A log-probability of the teacher.
    needed_bytes = _COORDINATOR_BYTES + tokens * token_bytes + num_responses * _HELD_RESPONSE_BYTES
    prompt_tokens = num_responses * (spec.model.max_context_tokens - algorithm.max_response_tokens)
    needed_bytes += (tokens + prompt_tokens) * expert_bytes
    return f"{_whole_gib(needed_bytes)}Gi"


def max_step_tokens(algorithm: Algorithm) -> int:
    """Return the response tokens of a step whose responses are all as long as they may be."""
    return algorithm.prompts_per_step * algorithm.responses_per_prompt * algorithm.max_response_tokens


def cpu_kv_cache_bytes(model: ModelSize, max_context_tokens: int, dtype: EngineDtype) -> int:
    """Return the KV cache of an engine on the CPU where the job leaves it open: it holds one request of any length."""
    value_bytes = _engine_value_bytes(dtype)
    token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_size * value_bytes
    # vLLM hands out whole blocks, and keeps one for itself.
    blocks = -(-max_context_tokens // CPU_BLOCK_TOKENS) + 1
    return max(CPU_KV_CACHE_BYTES, blocks * CPU_BLOCK_TOKENS * token_bytes)


def pod_need(spec: RLJobSpec, model: ModelSize) -> Need:
    """Return the memory that a training pod needs, of a job that `with_fitting_trainer` returned."""
    return _need(spec, model, _training_pods(spec))


def with_fitting_trainer(spec: RLJobSpec, model: ModelSize) -> RLJobSpec:
    """Return the job with what it leaves open of micro-batches and recomputation, as the memory of its pods allows.

    As little as possible is computed again, with micro-batches that hold a response of the longest context. One that
    does not fit even so is refused by `pod_memory_mistakes`. Jobs whose pods are not estimated stay as they are.
    """
    if not _is_estimated(spec):
        return spec
    ways = [spec.trainer.recompute] if spec.trainer.recompute is not None else list(Recompute)
    fitted = [_with_fitting_micro_batches(spec.with_trainer(recompute=way), model) for way in ways]
    least = min(_ENOUGH_TOKENS, spec.trainer.max_tokens_per_micro_batch or _ENOUGH_TOKENS)
    enough = (job for job in fitted if _fits(job, model) and _micro_batch_tokens(job) >= least)
    return next(enough, fitted[-1])


def trainer_choices(spec: RLJobSpec) -> str:
    """Return what `with_fitting_trainer` chose, in words."""
    return f"micro-batches of {_micro_batch_tokens(spec):,} tokens and recompute: {spec.trainer.recompute}"


def _with_fitting_micro_batches(spec: RLJobSpec, model: ModelSize) -> RLJobSpec:
    if spec.trainer.max_tokens_per_micro_batch is not None:
        return spec
    least, tokens = spec.model.max_context_tokens, DEFAULT_MICRO_BATCH_TOKENS
    if least < tokens:
        tokens = max(least, _most_tokens(spec, model, _training_pods(spec), tokens))
    return spec.with_trainer(max_tokens_per_micro_batch=tokens)


def _fits(spec: RLJobSpec, model: ModelSize) -> bool:
    pods = _training_pods(spec)
    return _need(spec, model, pods).total_bytes <= pods.memory_bytes


def pod_memory_mistakes(spec: RLJobSpec, model: ModelSize) -> list[str]:
    """Return why engines and trainers on the CPU do not fit the memory of their pods; empty where they should fit."""
    return list(_mistakes(spec, model)) if _is_estimated(spec) else []


def _is_estimated(spec: RLJobSpec) -> bool:
    return not spec.training_pods.has_accelerator and spec.trainer.backend is not TrainerBackend.FAKE


def _mistakes(spec: RLJobSpec, model: ModelSize) -> Iterator[str]:
    job = with_fitting_trainer(spec, model)
    training, tokens, context = _training_pods(job), _micro_batch_tokens(job), spec.model.max_context_tokens
    for pods in (training, _rollout_pods(job)) if job.placement is Placement.DISAGGREGATED else (training,):
        need = _need(job, model, pods)
        if need.total_bytes <= pods.memory_bytes:
            continue
        batches = f" with micro-batches of {max(tokens, context):,} tokens" if pods.num_ranks else ""
        fewer = _most_tokens(job, model, pods, tokens) if pods.num_ranks else 0
        raised = f"raise it to {_whole_gib(need.total_bytes)}Gi"
        if pods.num_ranks and _fits(with_fitting_trainer(spec.with_trainer(recompute=None), model), model):
            remedy = f"unset trainer.recompute, or {raised}"
        elif fewer >= context:
            remedy = f"set trainer.maxTokensPerMicroBatch to {fewer}, or {raised}"
        elif fewer:
            remedy = f"{raised}, or lower model.maxContextTokens to {fewer} or less"
        else:
            remedy = raised
        yield f"{pods.field}: a pod has {gib(pods.memory_bytes)} GiB and needs about {need}{batches}; {remedy}"


def _micro_batch_tokens(spec: RLJobSpec) -> int:
    return spec.trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS


def _most_tokens(spec: RLJobSpec, model: ModelSize, pods: _Pods, limit: int) -> int:
    """Return the largest micro-batch that fits, a multiple of 64 tokens; the memory grows with it. 0: none."""
    low, high = 0, limit // _ROUND_TO_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        tried = spec.with_trainer(max_tokens_per_micro_batch=middle * _ROUND_TO_TOKENS)
        fits = _need(tried, model, pods, shortest=True).total_bytes <= pods.memory_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * _ROUND_TO_TOKENS


def _training_pods(spec: RLJobSpec) -> _Pods:
    is_apart = spec.placement is Placement.DISAGGREGATED
    pods, trainer = spec.training_pods, spec.trainer
    parts = (
        part for parts in replica_parts(pods, trainer.data_parallel_size, trainer.ranks_per_replica) for part in parts
    )
    num_ranks = sum(len(part.slots) for part in parts if part.pod == 0)
    field = "trainerWorkers.resources.memory" if is_apart else "workers.resources.memory"
    return _Pods(field, pods, 0 if is_apart else _num_engines(spec), num_ranks)


def _rollout_pods(spec: RLJobSpec) -> _Pods:
    return _Pods("workers.resources.memory", spec.workers, _num_engines(spec), 0)


def _num_engines(spec: RLJobSpec) -> float:
    """Return the number of engines of a pod; less than 1 where an engine lies in several."""
    gpus, size = spec.workers.gpus_per_pod, spec.rollout.engine.tensor_parallel_size
    return gpus / size if gpus else 1.0


def _need(spec: RLJobSpec, model: ModelSize, pods: _Pods, *, shortest: bool = False) -> Need:
    """Return the memory of a pod; `shortest`: no response is longer than a micro-batch."""
    needs = (_training_need(one, model, pods, shortest=shortest) for one in trainings(spec))
    return max(needs, key=lambda need: need.total_bytes)


def _training_need(spec: RLJobSpec, model: ModelSize, pods: _Pods, *, shortest: bool) -> Need:
    trainer, tokens = spec.trainer, _micro_batch_tokens(spec)
    shards = trainer.fsdp_size * trainer.tensor_parallel_size * trainer.pipeline_parallel_size
    lora, algorithm = trainer.lora, spec.algorithm
    trained = model.num_parameters if lora is None else model.adapter_parameters(lora)
    # Weights that are not trained are there once, or a second time as the reference of those that are.
    num_others = int(lora is not None) + int(
        algorithm.has_reference and (lora is None or algorithm.teacher is not None)
    )
    num_models = 2 if algorithm.objective.has_critic else 1
    state_bytes = num_models * trained * _STATE_BYTES + num_others * model.num_parameters * _VALUE_BYTES
    longest = (tokens if shortest else max(tokens, spec.model.max_context_tokens)) / trainer.context_parallel_size
    logits = min(longest, logit_chunk_tokens(model.vocab_size)) * model.vocab_size / trainer.tensor_parallel_size
    values = values_per_token(spec, model, trainer.recompute or Recompute.NONE)
    activations = longest * values * _VALUE_BYTES + logits * TRAINED_LOGIT_BYTES
    activations += embedding_gradient_bytes(spec, model) + longest * num_top_tokens(spec, model) * TOP_TOKEN_BYTES
    kept_tokens = max_step_tokens(algorithm) / pods.workers.replicas if pods.num_ranks else 0
    # Each rank of Megatron's last stage keeps those of all samples of its replica.
    kept_tokens *= trainer.tensor_parallel_size * trainer.context_parallel_size
    num_processes = pods.num_ranks + pods.num_engines * spec.rollout.engine.tensor_parallel_size
    return Need(
        {
            "engines": pods.num_engines * _engine_bytes(spec, model),
            "trainer state": pods.num_ranks * state_bytes / shards,
            "activations": pods.num_ranks * activations,
            "teacher's tokens": kept_tokens * num_top_tokens(spec, model) * _KEPT_TOP_TOKEN_BYTES,
            "checkpoint": _checkpoint_bytes(pods.num_ranks, trainer, model, trained, shards),
            # New weights lie in Ray's object store until every engine has read them; each pod has a copy.
            "published weights": 0.0 if spec.transfers_directly else trained * _VALUE_BYTES,
            "processes": _POD_BYTES + num_processes * _PROCESS_BYTES,
        }
    )


def moment_file_bytes(num_bytes: float) -> int:
    """Return the size of the files to which a rank writes so many bytes of moments: at least 64 MiB, 64 files or fewer.

    It copies a file into host memory twice when it writes it. One may be larger by a tensor.
    """
    return max(_LEAST_FILE_BYTES, 1 + int(num_bytes) // _MOST_FILES)


def _checkpoint_bytes(num_ranks: int, trainer: TrainerSettings, model: ModelSize, trained: int, shards: int) -> float:
    """Return what writing a checkpoint takes while the next round goes on.

    Each rank copies a file of moments twice; the first rank of several, or of each of Megatron's stages, has a file of
    gathered weights.
    """
    if not num_ranks:
        return 0.0
    if trainer.backend is TrainerBackend.MEGATRON:
        tensor = trainer.tensor_parallel_size
        whole = model.embedding * _VALUE_BYTES
        moment = trained * _MOMENT_BYTES / 2 / shards  # Less with more replicas or context parallelism.
        file_bytes = min(moment, max(moment_file_bytes(moment), whole / tensor))
        weights = trained * _VALUE_BYTES / shards
        stages = min(num_ranks, trainer.pipeline_parallel_size)
        # A file may have one tensor, which is put together from parts.
        gathered = min(weights * tensor, max(WEIGHT_FILE_BYTES, whole)) + (whole if tensor > 1 else 0)
        return num_ranks * (2 * file_bytes + weights) + stages * gathered
    moments = trained * _MOMENT_BYTES / shards
    embedding = model.embedding * _VALUE_BYTES / shards if trainer.lora is None else 0
    file_bytes = min(moments, max(moment_file_bytes(moments), embedding))
    gathered = min(trained * _VALUE_BYTES, WEIGHT_FILE_BYTES) if shards > 1 else 0
    return num_ranks * 2 * file_bytes + gathered


def _engine_bytes(spec: RLJobSpec, model: ModelSize) -> float:
    engine = spec.rollout.engine
    if engine.backend is not EngineBackend.VLLM:
        return 0.0
    value_bytes, context = _engine_value_bytes(engine.dtype), spec.model.max_context_tokens
    open_bytes = cpu_kv_cache_bytes(model, context, engine.dtype)
    kv_bytes = open_bytes if engine.kv_cache is None else parse_bytes(engine.kv_cache)
    prefill = max(_PREFILL_TOKENS, context)
    layer = prefill * (4 * model.hidden_size + 2 * model.intermediate_size) * value_bytes
    logits = engine.max_num_seqs * model.vocab_size * 2 * _VALUE_BYTES
    return _ENGINE_COPIES * model.num_parameters * value_bytes + kv_bytes + layer + logits


def _engine_value_bytes(dtype: EngineDtype) -> int:
    return _VALUE_BYTES if dtype in (EngineDtype.AUTO, EngineDtype.FLOAT32) else 2


def _whole_gib(num_bytes: float) -> int:
    return -int(-num_bytes // (1 << 30))
