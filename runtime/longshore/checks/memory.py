"""How much memory of a GPU an engine and a trainer need, estimated from the model's files before there is a GPU.

The formulas are in `docs/reference/memory-estimate.md`. They leave out what depends on kernels and fragmentation, so a
job that fits narrowly may still run out of memory.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.api.objectives.imitation import Imitation
from longshore.api.quantity import parse_bytes
from longshore.api.rollout import EngineBackend, EngineDtype, EngineSettings
from longshore.api.spec import Placement, RLJobSpec
from longshore.api.training import DEFAULT_MICRO_BATCH_TOKENS, Lora, Recompute, TrainerBackend, TrainerDtype
from longshore.checks.memory_remedies import engine_remedy, trainer_remedy
from longshore.checks.model_limits import experts_per_token, language_part, num_experts

_CONTEXT_BYTES: Final = 1 << 30
"""CUDA context, communication buffers and graphs of a process."""
_FP8_BYTES: Final = 1
_PREFILL_TOKENS: Final = 8192
"""Tokens that vLLM computes at once at most, by default."""
_LOGIT_BYTES: Final = 8
"""Per logit of a request that samples: 32-bit logits and their softmax."""
_WEIGHT_BYTES: Final = 4
_GRADIENT_BYTES: Final = 4
_MOMENT_BYTES: Final = 8
_CAST_BYTES: Final = 2
"""Size of the bfloat16 copy of a weight while layers compute."""
_WHOLE_BYTES: Final = 8
"""Size of a weight that FSDP has put together, and of its gradient until that is cut up."""
_NEXT_LAYER_BYTES: Final = 6
"""Size of a weight of the layer that FSDP fetches meanwhile, and of the gradient that it cuts up."""
_ACTIVATION_BYTES: Final = 4
_HIDDEN_VALUES: Final = 10.5
"""Values that a layer of transformers keeps per token for the backward pass, in units of the hidden size; the next two
in units of the MLP's size and of the width of queries and keys. Models without norms of queries and keys keep less."""
_MLP_VALUES: Final = 4
_ATTENTION_VALUES: Final = 4
_SCORE_VALUES: Final = 4
"""Values that a layer computes with for each head and pair of tokens, in a model that keeps scores."""
_KEPT_SCORE_VALUES: Final = {Recompute.NONE: 2, Recompute.SELECTIVE: 1, Recompute.FULL: 0}
"""Values that each layer keeps of them for the backward pass."""
_SAFE_SHARE: Final = 0.8
"""Share of a GPU that a trainer which recomputes less than it could may need by the estimate."""
_CHUNK_LOGITS: Final = 1 << 26
"""Logits that a trainer computes at a time, at most."""
_LARGEST_CHUNK_TOKENS: Final = 2048
TRAINED_LOGIT_BYTES: Final = 20
"""Size of what is computed of one of these logits: logit, log-softmax, entropy, and their gradients."""
TOP_TOKEN_BYTES: Final = 40
"""Size of what is computed of one of a teacher's most likely tokens: its id, its log-probabilities under both models,
the terms of the divergence, and their gradients."""

_SHOWN_BYTES: Final = 1 << 26
_SIZES: Final = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")


@dataclass(frozen=True)
class ModelSize:
    """What of a model takes memory."""

    num_parameters: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_kv_heads: int
    head_size: int
    is_tied: bool
    """Whether the output layer is the embedding."""
    num_heads: int | None = None
    """Attention heads; None: as many as fill the hidden size."""
    keeps_scores: bool = False
    """Whether training keeps the scores of all pairs of tokens, as no kernel computes soft caps or sinks."""
    experts_per_token: int = 0
    """Experts that a token passes through in a layer of a mixture."""
    num_experts: int = 0
    """Experts of a layer of a mixture."""
    expert_channels: int = 0
    """Size of the MLP of one of them."""

    @property
    def query_heads(self) -> int:
        """Number of attention heads."""
        return self.num_heads or self.hidden_size // self.head_size

    @property
    def attention_width(self) -> int:
        """Values of all queries and keys of a token in one layer."""
        return (self.query_heads + self.num_kv_heads) * self.head_size

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; an output layer that is not tied has as many."""
        return self.vocab_size * self.hidden_size

    @property
    def outside_layers(self) -> int:
        """Parameters that no layer has."""
        return self.embedding * (1 if self.is_tied else 2)

    @property
    def layer(self) -> float:
        """Parameters of a layer, on average."""
        return max(0, self.num_parameters - self.outside_layers) / self.num_layers

    @property
    def dense_layer(self) -> int:
        """Parameters of the largest layer without the experts, about."""
        return self.hidden_size * (2 * self.attention_width + 3 * self.intermediate_size)

    @property
    def experts(self) -> int:
        """Parameters of the experts of a layer."""
        return 3 * self.num_experts * self.hidden_size * self.expert_channels

    def adapter_parameters(self, lora: Lora) -> int:
        """Return the parameters of an adapter; a name that is not one of the usual layers counts as the largest."""
        heads = (self.num_heads or self.hidden_size // self.head_size) * self.head_size
        keys, hidden, channels = self.num_kv_heads * self.head_size, self.hidden_size, self.intermediate_size
        sides = {
            "q_proj": hidden + heads,
            "k_proj": hidden + keys,
            "v_proj": hidden + keys,
            "o_proj": hidden + heads,
            "gate_proj": hidden + channels,
            "up_proj": hidden + channels,
            "down_proj": hidden + channels,
        }
        experts = 3 * self.num_experts * (hidden + self.expert_channels)
        names = list(sides) if lora.target_modules is None else lora.target_modules
        width = sum(sides.get(name.rpartition(".")[2], hidden + channels) for name in names)
        return lora.rank * self.num_layers * (width + (experts if lora.experts else 0))

    @classmethod
    def of(cls, config: Mapping[str, Any], num_parameters: int) -> "ModelSize | None":
        """Return the sizes in `config.json`; None if it does not have them."""
        text = language_part(config)
        sizes = [text[name] for name in _SIZES if isinstance(text.get(name), int) and text[name] > 0]
        if len(sizes) < len(_SIZES):
            return None
        layers, hidden, intermediate, vocab, heads = sizes
        kv_heads, head_size = text.get("num_key_value_heads") or heads, text.get("head_dim") or hidden // heads
        is_tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
        # A token of a mixture of experts passes through several small ones.
        per_token = experts_per_token(config)
        of_expert = text.get("moe_intermediate_size") or intermediate
        channels = max(intermediate, per_token * of_expert)
        keeps_scores = bool(text.get("attn_logit_softcapping")) or text.get("model_type") == "gpt_oss"
        return cls(
            num_parameters, layers, hidden, channels, vocab, kv_heads, head_size, is_tied, heads, keeps_scores,
            per_token, num_experts(config), of_expert,
        )  # fmt: skip


def logit_chunk_tokens(vocab_size: int) -> int:
    """Return the number of tokens whose log-probabilities a trainer computes at a time.

    With all tokens of a micro-batch at once, logits would dominate the memory: 20 GiB for 4,096 tokens and the 262,144
    entries of Gemma's vocabulary.
    """
    return max(1, min(_LARGEST_CHUNK_TOKENS, _CHUNK_LOGITS // vocab_size))


@dataclass(frozen=True)
class Need:
    """Memory of a GPU or a pod, by what takes it."""

    parts: Mapping[str, float]

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in self.parts.items() if size >= _SHOWN_BYTES)
        return f"{gib(self.total_bytes)} GiB ({parts})"


def memory_mistakes(spec: RLJobSpec, model: ModelSize, gpu_bytes: float) -> list[str]:
    """Return why the job does not fit GPUs with so much memory; empty where it is expected to fit."""
    return [*_engine_mistakes(spec, model, gpu_bytes), *_trainer_mistakes(spec, model, gpu_bytes)]


def engine_need(spec: RLJobSpec, model: ModelSize) -> Need:
    """Return the memory need of an engine that can run one request of the longest context."""
    engine = spec.rollout.engine
    value_bytes = 4 if engine.dtype is EngineDtype.FLOAT32 else 2
    tp_size = engine.tensor_parallel_size
    if engine.kv_cache is not None:
        kv_bytes = parse_bytes(engine.kv_cache) / tp_size
    else:
        kv_heads = max(1.0, model.num_kv_heads / tp_size)
        kv_bytes = 2 * model.num_layers * kv_heads * model.head_size * value_bytes * spec.model.max_context_tokens
    layer = _PREFILL_TOKENS * (4 * model.hidden_size + 2 * model.intermediate_size / tp_size) * value_bytes
    logits = engine.max_num_seqs * model.vocab_size * _LOGIT_BYTES
    return Need(
        {
            "weights": _engine_weight_bytes(engine, model, value_bytes) / tp_size,
            "KV cache": kv_bytes,
            "activations": layer + logits,
            "context": _CONTEXT_BYTES,
        }
    )


def _engine_weight_bytes(engine: EngineSettings, model: ModelSize, value_bytes: int) -> float:
    if engine.quantization is None:
        return model.num_parameters * value_bytes
    return model.outside_layers * value_bytes + model.layer * model.num_layers * _FP8_BYTES


def trainings(spec: RLJobSpec) -> tuple[RLJobSpec, ...]:
    """Return jobs whose trainers need what those of this job need, one after the other: as many as differ.

    Those of a warm start need no more than those of the rounds, unless these train an adapter.
    """
    algorithm, trainer = spec.algorithm, spec.trainer
    if algorithm.warm_start is None or trainer.lora is None:
        return (spec,)
    imitating = algorithm.model_copy(update={"objective": Imitation(), "kl_coefficient": 0.0, "warm_start": None})
    return spec, spec.model_copy(update={"algorithm": imitating}).with_trainer(lora=None)


def trainer_need(spec: RLJobSpec, model: ModelSize) -> Need:
    """Return the largest memory need of the trainer: of a forward and backward pass, or of an optimizer step."""
    return max((_training_need(one, model) for one in trainings(spec)), key=lambda need: need.total_bytes)


def _training_need(spec: RLJobSpec, model: ModelSize) -> Need:
    trainer = spec.trainer
    shards = trainer.fsdp_size * trainer.tensor_parallel_size * trainer.pipeline_parallel_size
    own = model.num_parameters / shards
    lora, with_critic = trainer.lora, spec.algorithm.objective.has_critic
    # Without its adapter, a model is its own reference; a teacher is another one.
    is_own_reference = lora is not None and spec.algorithm.teacher is None
    has_reference = spec.algorithm.has_reference and not trainer.offload_reference and not is_own_reference
    trained = own if lora is None else model.adapter_parameters(lora) / shards
    state = {
        "frozen weights": 0.0 if lora is None else own * _computed_bytes(spec),
        "weights": trained * _WEIGHT_BYTES,
        "gradients": trained * _GRADIENT_BYTES,
        "reference": own * _WEIGHT_BYTES if has_reference else 0.0,
        "critic": own * (_WEIGHT_BYTES + _GRADIENT_BYTES) if with_critic else 0.0,
    }
    moments = {"moments": trained * _MOMENT_BYTES / _moment_shards(spec) * (2 if with_critic else 1)}
    passing = {
        **state,
        **(moments if _moments_stay(spec) else {}),
        **_copies(spec, model, own),
        "gradient of the embedding": embedding_gradient_bytes(spec, model),
        "activations": _activation_bytes(spec, model),
        "context": _CONTEXT_BYTES,
    }
    stepping = {**state, **moments, "context": _CONTEXT_BYTES}
    return max(Need(passing), Need(stepping), key=lambda need: need.total_bytes)


def recompute_needs(spec: RLJobSpec, model: ModelSize) -> dict[Recompute, float]:
    """Return how many bytes a GPU must have for each way to recompute, with room for what the estimate leaves out."""
    engine = spec.rollout.engine
    is_colocated = spec.placement is Placement.COLOCATED
    share = _SAFE_SHARE - (engine.gpu_memory_utilization if is_colocated and engine.sleep_level == 0 else 0.0)
    beside = _CONTEXT_BYTES if is_colocated else 0
    ways = {way: spec.with_trainer(recompute=way) for way in Recompute}
    return {
        way: (trainer_need(changed, model).total_bytes + beside) / share if share > 0 else math.inf
        for way, changed in ways.items()
    }


def recompute_on(gpu_bytes: float, spec: RLJobSpec, model: ModelSize) -> Recompute:
    """Return what a trainer computes again on GPUs with so much memory."""
    return spec.trainer.recompute or least_recompute(gpu_bytes, recompute_needs(spec, model))


def least_recompute(gpu_bytes: float, needs: Mapping[Recompute, float]) -> Recompute:
    """Return the fastest way whose need a GPU meets; everything is computed again where none is known to."""
    return next((way for way in Recompute if needs.get(way, math.inf) <= gpu_bytes), Recompute.FULL)


def values_per_token(spec: RLJobSpec, model: ModelSize, recompute: Recompute) -> float:
    """Return what a rank keeps of a token for the backward pass, and what one layer computes with meanwhile."""
    trainer, tensor = spec.trainer, spec.trainer.tensor_parallel_size
    hidden, channels, width = model.hidden_size, model.intermediate_size, model.attention_width
    routed = model.experts_per_token * hidden  # What experts are given, and what they return.
    num_routed = 4 if trainer.expert_parallel else 2  # Each of them on the rank of the token and on that of the expert.
    everything = _HIDDEN_VALUES * hidden + _MLP_VALUES * channels + _ATTENTION_VALUES * width + num_routed * routed
    everything /= tensor
    if recompute is Recompute.NONE:
        kept = everything
    elif recompute is Recompute.FULL:
        kept = hidden
    elif trainer.backend is TrainerBackend.MEGATRON:
        kept = everything - _MLP_VALUES * channels / tensor
    else:  # The input, and what products and attention return.
        kept = (3 * hidden + 2 * channels + 2 * width + routed) / tensor
    # Of a token, in a sequence of the longest context.
    pairs = model.query_heads * spec.model.max_context_tokens if model.keeps_scores else 0
    kept += _KEPT_SCORE_VALUES[recompute] * pairs
    return kept * model.num_layers / trainer.pipeline_parallel_size + everything + _SCORE_VALUES * pairs


def gib(num_bytes: float) -> str:
    """Return a number of bytes in GiB, with one decimal."""
    return f"{num_bytes / (1 << 30):.1f}"


def _engine_mistakes(spec: RLJobSpec, model: ModelSize, gpu_bytes: float) -> Iterator[str]:
    engine = spec.rollout.engine
    if engine.backend is not EngineBackend.VLLM:
        return
    need, share = engine_need(spec, model), engine.gpu_memory_utilization

    def fits(changed: RLJobSpec) -> bool:
        return engine_need(changed, model).total_bytes <= share * gpu_bytes

    if not fits(spec):
        yield (
            f"rollout.engine.gpuMemoryUtilization: {share:g} of a GPU's {gib(gpu_bytes)} GiB are "
            f"{gib(share * gpu_bytes)} GiB, and an engine needs about {need}; "
            + engine_remedy(spec, need.total_bytes, gpu_bytes, fits)
        )


def _trainer_mistakes(spec: RLJobSpec, model: ModelSize, gpu_bytes: float) -> Iterator[str]:
    trainer, engine = spec.trainer, spec.rollout.engine
    if trainer.backend is TrainerBackend.FAKE:
        return
    free = gpu_bytes
    if spec.placement is Placement.COLOCATED:
        # A sleeping engine keeps its process; one that does not sleep keeps everything.
        free -= engine.gpu_memory_utilization * gpu_bytes if engine.sleep_level == 0 else _CONTEXT_BYTES

    def fits(changed: RLJobSpec) -> bool:
        return trainer_need(changed, model).total_bytes <= free

    if not fits(spec):
        need, has = trainer_need(spec, model), gib(max(0.0, free))
        yield f"trainer: a GPU has {has} GiB for it, and it needs about {need}; {trainer_remedy(spec, fits)}"


def _moments_stay(spec: RLJobSpec) -> bool:
    """Return whether Adam's moments are on the GPU also during a pass: only sleep moves them away."""
    return spec.placement is not Placement.COLOCATED or not spec.algorithm.makes_one_update


def _moment_shards(spec: RLJobSpec) -> int:
    """Return over how many parts the optimizer's moments are spread: with Megatron, over the replicas as well."""
    if spec.trainer.backend is not TrainerBackend.MEGATRON:
        return 1
    replicas = spec.trainer.data_parallel_size or spec.max_trainer_replicas
    return max(1, replicas * spec.trainer.context_parallel_size)


def _computed_bytes(spec: RLJobSpec) -> int:
    """Return the size of a weight as layers on GPUs compute with it."""
    return _WEIGHT_BYTES if spec.trainer.dtype is TrainerDtype.FLOAT32 else _CAST_BYTES


def _copies(spec: RLJobSpec, model: ModelSize, own: float) -> dict[str, float]:
    """Return what a pass adds to the weights: copies in bfloat16, and with FSDP what is put together from shards."""
    is_frozen = spec.trainer.lora is not None
    if spec.trainer.fsdp_size == 1:
        return {} if is_frozen or _computed_bytes(spec) != _CAST_BYTES else {"copies": own * _CAST_BYTES}
    # What no layer has stays whole for the whole pass. A layer is whole while it computes, and the next one comes.
    # Frozen weights are in bfloat16 already, and have no gradient. Spread experts are never put together.
    whole = _CAST_BYTES if is_frozen else _WHOLE_BYTES + _CAST_BYTES
    experts = model.experts if spec.trainer.expert_parallel else 0
    # Their copies wait for the backward pass, unless they are made again.
    num_copies = model.num_layers if spec.trainer.recompute is Recompute.NONE else 1
    copy_bytes = _CAST_BYTES if _computed_bytes(spec) == _CAST_BYTES else 0
    of_own = 0 if is_frozen else num_copies * copy_bytes + _GRADIENT_BYTES
    layer = min(model.layer, model.dense_layer) if spec.trainer.expert_parallel else model.layer
    return {
        "whole embeddings": model.outside_layers * whole,
        "whole layers": layer * (whole + (_CAST_BYTES if is_frozen else _NEXT_LAYER_BYTES)),
        "own experts": experts / spec.trainer.fsdp_size * of_own,
    }


def num_top_tokens(spec: RLJobSpec, model: ModelSize) -> int:
    """Return the number of likely tokens at which a model is compared with its teacher, for each response token."""
    return min(spec.algorithm.objective.num_top_tokens, model.vocab_size)


def embedding_gradient_bytes(spec: RLJobSpec, model: ModelSize) -> float:
    """Return the memory of what is added to the gradient: of the output layer and, where that is tied, of the input."""
    if spec.trainer.lora is not None:
        return 0.0
    return model.embedding * _GRADIENT_BYTES * (2 if model.is_tied else 1) / spec.trainer.tensor_parallel_size


def _activation_bytes(spec: RLJobSpec, model: ModelSize) -> float:
    """Return the memory of a step: what layers keep, one that computes, and the logits of some tokens."""
    trainer = spec.trainer
    longest = max(trainer.max_tokens_per_micro_batch or DEFAULT_MICRO_BATCH_TOKENS, spec.model.max_context_tokens)
    tokens, tensor = longest / trainer.context_parallel_size, trainer.tensor_parallel_size
    # Where the job leaves it open, everything is computed again before the job does not fit.
    values = values_per_token(spec, model, trainer.recompute or Recompute.FULL)
    logits = min(tokens, logit_chunk_tokens(model.vocab_size)) * model.vocab_size / tensor * TRAINED_LOGIT_BYTES
    return tokens * values * _ACTIVATION_BYTES + logits + tokens * num_top_tokens(spec, model) * TOP_TOKEN_BYTES
