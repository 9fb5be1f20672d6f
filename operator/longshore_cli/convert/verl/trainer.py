"""verl's GPUs and trainer."""

from typing import Final

from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, entry
from longshore_cli.convert.verl.sections import ACTOR, MEGATRON
from longshore_cli.convert.verl.task import lengths

_SIZES: Final = {"tensor_model": "tensorParallelSize", "context": "contextParallelSize",
                 "pipeline_model": "pipelineParallelSize"}  # fmt: skip


@entry(
    ["trainer.nnodes", "trainer.n_gpus_per_node"],
    ["spec.workers.replicas", "spec.workers.gpusPerPod"],
    "a pod for every node",
    trainer__nnodes=1,
    trainer__n_gpus_per_node=8,
)
def workers(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({
        "spec.workers.replicas": settings.wanted("trainer.nnodes", "a job needs nodes"),
        "spec.workers.gpusPerPod": settings.wanted("trainer.n_gpus_per_node", "a node needs GPUs"),
    })  # fmt: skip


COMPOSED: Final = "files that are composed are not read: convert what `--cfg job --resolve` of verl prints"
_CONFIG: Final = "--config-name"
_OF_VERL: Final = (None, "ppo_trainer", "ppo_megatron_trainer")
"""Configurations that verl comes with."""
_MEGATRON: Final = "megatron"


def uses_megatron(settings: ForeignSettings) -> bool:
    """Return whether verl trains with Megatron.

    Only its configurations for Megatron, which have the word in their names, have sizes of Megatron.
    """
    if _MEGATRON in (settings[f"{ACTOR}.strategy"], settings["model_engine"]) or _MEGATRON in (_config(settings) or ""):
        return True
    is_open = settings.given.get(f"{ACTOR}.strategy") is None and settings["model_engine"] is None
    return is_open and any((settings.count(f"{MEGATRON}.{name}_parallel_size") or 1) > 1 for name in _SIZES)


def _config(settings: ForeignSettings) -> str | None:
    return (settings.text(_CONFIG) or "").removesuffix(".yaml") or None


@entry(
    [f"{ACTOR}.strategy", "model_engine", _CONFIG, f"{ACTOR}.fsdp_config.fsdp_size",
     *(f"{MEGATRON}.{name}_parallel_size" for name in _SIZES)],
    ["spec.trainer.backend", "spec.trainer.fsdpSize", "spec.trainer.tensorParallelSize",
     "spec.trainer.pipelineParallelSize", "spec.trainer.contextParallelSize"],
    "Megatron also for sizes above 1 and `*megatron*` configurations, else Torch. Unset, "
    "FSDP over all GPUs becomes FSDP over those of a pod",
    actor_rollout_ref__actor__strategy="fsdp",
    actor_rollout_ref__actor__fsdp_config__fsdp_size=-1,
)  # fmt: skip
def trainer(settings: ForeignSettings) -> EntryOutcome:
    sizes = {f"{MEGATRON}.{name}_parallel_size": ours for name, ours in _SIZES.items()}
    lost = {} if _config(settings) in _OF_VERL else {_CONFIG: COMPOSED}
    if uses_megatron(settings):
        fields = {f"spec.trainer.{ours}": settings.count(key) or 1 for key, ours in sizes.items()}
        return EntryOutcome({"spec.trainer.backend": "Megatron"} | fields, lost)
    lost |= {key: "the trainer is Torch: set model_engine=megatron" for key in sizes if (settings.count(key) or 1) > 1}
    if settings[f"{ACTOR}.strategy"] not in ("fsdp", "fsdp2") or settings["model_engine"] not in (None, "dp"):
        key = f"{ACTOR}.strategy" if settings["model_engine"] in (None, "dp") else "model_engine"
        raise Refused(key, f"{settings[key]} is not available; choose fsdp or megatron")
    key, per_pod = f"{ACTOR}.fsdp_config.fsdp_size", workers.convert(settings).fields["spec.workers.gpusPerPod"]
    size = settings.count(key) or per_pod
    return EntryOutcome({"spec.trainer.backend": "Torch", "spec.trainer.fsdpSize": size}, lost)


@entry(
    [f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu"],
    ["spec.trainer.maxTokensPerMicroBatch"],
    "`ppo_max_token_len_per_gpu`, or the tokens of that many of the longest responses with their prompts",
    actor_rollout_ref__actor__ppo_max_token_len_per_gpu=16384,
)
def micro_batch(settings: ForeignSettings) -> EntryOutcome:
    key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    if settings.flag(f"{ACTOR}.use_dynamic_bsz"):
        tokens = settings.count(f"{ACTOR}.ppo_max_token_len_per_gpu")
    elif samples := settings.count(key):
        tokens = samples * lengths.convert(settings).fields["spec.model.maxContextTokens"]
    else:
        tokens = None
    return EntryOutcome({} if tokens is None else {"spec.trainer.maxTokensPerMicroBatch": tokens})


ENTRIES: Final[tuple[MappingEntry, ...]] = (workers, trainer, micro_batch)
