"""verl's model, data, rewards, engines and GPUs."""

from pathlib import PurePosixPath
from typing import Any, Final

from longshore.checks.engine_arguments import refusal
from longshore_cli.convert import places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry
from longshore_cli.convert.verl.algorithm import ACTOR, ROLLOUT

_MODEL: Final = "actor_rollout_ref.model"
_MEGATRON: Final = f"{ACTOR}.megatron"
_SIZES: Final = {"tensor_model": "tensorParallelSize", "context": "contextParallelSize",
                 "pipeline_model": "pipelineParallelSize"}  # fmt: skip
_ENGINE: Final = "spec.rollout.engine"
_EXTRA: Final = f"{_ENGINE}.extraArgs"
_VLLM: Final = f"{ROLLOUT}.engine_kwargs.vllm"


@entry(
    [f"{_MODEL}.path"],
    ["spec.model.hub", "spec.model.path"],
    "`hub` for a name of the Hub, else `path` below `models/` of the storage",
)
def model(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text(f"{_MODEL}.path")
    if name is None:
        raise Refused(f"{_MODEL}.path", "it is unset, and a job needs a model")
    return places.model(name)


@entry(
    ["data.max_prompt_length", f"{ROLLOUT}.prompt_length", f"{ROLLOUT}.max_model_len"],
    ["spec.data.maxPromptTokens", "spec.model.maxContextTokens"],
    "the context is `max_model_len`, or else holds the longest prompt and the longest response",
    data__max_prompt_length=512,
)
def lengths(settings: ForeignSettings) -> EntryOutcome:
    prompt = settings.wanted("data.max_prompt_length", "prompts need a limit")
    response = settings.wanted("data.max_response_length", "responses need a limit")
    context = settings.count(f"{ROLLOUT}.max_model_len") or prompt + response
    return EntryOutcome({"spec.data.maxPromptTokens": prompt, "spec.model.maxContextTokens": context})


@entry(
    ["data.train_files"],
    ["spec.data.path", "spec.data.format", "spec.data.sources"],
    "one file, or `sources` for several, below `data/` of the storage",
)
def data(settings: ForeignSettings) -> EntryOutcome:
    files = settings.texts("data.train_files")
    if not files:
        raise Refused("data.train_files", "it is unset, and a job needs data")
    return places.data(files)


@entry(
    [f"{_MODEL}.custom_chat_template", "data.apply_chat_template_kwargs", "data.apply_chat_template_kwargs.*"],
    ["spec.data.chat"],
    "`template` and `templateArguments`",
)
def chat(settings: ForeignSettings) -> EntryOutcome:
    arguments = settings.mapping("data.apply_chat_template_kwargs")
    template = settings.text(f"{_MODEL}.custom_chat_template")
    fields: dict[str, Any] = {"spec.data.chat.template": template} if template else {}
    return EntryOutcome(fields | ({"spec.data.chat.templateArguments": arguments} if arguments else {}))


_REWARDS: Final = ("reward.custom_reward_function", "custom_reward_function")
_REWARD_MODELS: Final = ("reward.reward_model.enable", "reward_model.enable")
_TURNS: Final = f"{ROLLOUT}.multi_turn.enable"


@entry([_TURNS], [], "false: a response is one turn")
def turns(settings: ForeignSettings) -> EntryOutcome:
    if settings.flag(_TURNS):
        raise Refused(_TURNS, "a response is one turn")
    return EntryOutcome()


@entry(
    [*(f"{group}.{name}" for group in _REWARDS for name in ("path", "name")), *_REWARD_MODELS],
    ["spec.reward.functions"],
    "a function of kind Python with `signature: Verl`, whose file `longshore submit --with` submits; "
    "without one, kind Maths",
)
def rewards(settings: ForeignSettings) -> EntryOutcome:
    for key in _REWARD_MODELS:
        if settings.flag(key):
            raise Refused(
                key, "reward models that give a number are not available; a judge (kind Judge) reads and grades"
            )
    for group in _REWARDS:
        if path := settings.text(f"{group}.path"):
            module = PurePosixPath(path).stem
            function = {"name": "reward", "kind": "Python", "signature": "Verl",
                        "importPath": f"{module}:{settings.text(f'{group}.name') or 'compute_score'}"}  # fmt: skip
            return EntryOutcome({"spec.reward.functions": [function]}, to_do=(f"Submit the job with `--with {path}`.",))
    message = (
        "Look at spec.reward.functions: kind Maths takes the place of verl's own functions, which it chooses by "
        "data_source. Test cases need kind Code."
    )
    return EntryOutcome({"spec.reward.functions": [{"name": "maths", "kind": "Maths"}]}, to_do=(message,))


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
_OF_VERL: Final = {None: None, "ppo_trainer": None, "ppo_megatron_trainer": "megatron"}
"""Configurations that verl comes with, and the engine that they choose."""


@entry(
    [f"{ACTOR}.strategy", "model_engine", _CONFIG, f"{ACTOR}.fsdp_config.fsdp_size",
     *(f"{_MEGATRON}.{name}_parallel_size" for name in _SIZES)],
    ["spec.trainer.backend", "spec.trainer.fsdpSize", "spec.trainer.tensorParallelSize",
     "spec.trainer.pipelineParallelSize", "spec.trainer.contextParallelSize"],
    "Torch for FSDP, Megatron for Megatron, which `ppo_megatron_trainer` chooses too. A replica lies inside one pod, "
    "so FSDP over more GPUs becomes FSDP over those of a pod",
    actor_rollout_ref__actor__strategy="fsdp",
    actor_rollout_ref__actor__fsdp_config__fsdp_size=-1,
)  # fmt: skip
def trainer(settings: ForeignSettings) -> EntryOutcome:
    sizes = {f"{_MEGATRON}.{name}_parallel_size": ours for name, ours in _SIZES.items()}
    config = (settings.text(_CONFIG) or "").removesuffix(".yaml") or None
    lost = {} if config in _OF_VERL else {_CONFIG: COMPOSED}
    if "megatron" in (settings[f"{ACTOR}.strategy"], settings["model_engine"], _OF_VERL.get(config)):
        fields = {f"spec.trainer.{ours}": settings.count(key) or 1 for key, ours in sizes.items()}
        return EntryOutcome({"spec.trainer.backend": "Megatron"} | fields, lost)
    lost |= {key: "the trainer is Torch: set model_engine=megatron" for key in sizes if (settings.count(key) or 1) > 1}
    if settings[f"{ACTOR}.strategy"] not in ("fsdp", "fsdp2") or settings["model_engine"] not in (None, "dp"):
        key = f"{ACTOR}.strategy" if settings["model_engine"] in (None, "dp") else "model_engine"
        raise Refused(key, f"{settings[key]} is not available; choose fsdp or megatron")
    key, per_pod = f"{ACTOR}.fsdp_config.fsdp_size", workers.convert(settings).fields["spec.workers.gpusPerPod"]
    size = settings.count(key) or per_pod
    if size > per_pod:
        lost[key] = f"a replica lies inside one pod: fsdpSize is {per_pod}"
    return EntryOutcome({"spec.trainer.backend": "Torch", "spec.trainer.fsdpSize": min(size, per_pod)}, lost)


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


@entry(
    [f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.enable_prefix_caching",
     _VLLM, f"{_VLLM}.*"],
    [_EXTRA],
    "arguments of vLLM under their names, but those that `longshore check` refuses",
)  # fmt: skip
def engine_arguments(settings: ForeignSettings) -> EntryOutcome:
    named = ("max_num_batched_tokens", "enable_chunked_prefill", "enable_prefix_caching")
    arguments = {name: settings[f"{ROLLOUT}.{name}"] for name in named if settings[f"{ROLLOUT}.{name}"] is not None}
    given = settings.mapping(_VLLM)
    refused = {name: why for name in given if (why := refusal(name, has_accelerator=True)) is not None}
    arguments |= {name: value for name, value in given.items() if name not in refused}
    paths = [key for key in settings.given if key.startswith(f"{_VLLM}.")]
    lost = {key: refused[name] for key in paths if (name := _argument(key)) in refused}
    return EntryOutcome({_EXTRA: arguments} if arguments else {}, lost)


def _argument(key: str) -> str:
    """Return the name of the argument that a key belongs to, which may be inside a mapping."""
    return key.removeprefix(f"{_VLLM}.").partition(".")[0]


@entry(
    [f"{ROLLOUT}.free_cache_engine"],
    [f"{_ENGINE}.sleepLevel"],
    "false: 0, engines stay awake",
)
def sleeping(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({f"{_ENGINE}.sleepLevel": 0} if settings[f"{ROLLOUT}.free_cache_engine"] is False else {})


@entry(
    ["trainer.save_freq", "trainer.max_actor_ckpt_to_keep"],
    ["spec.checkpoint.everySteps", "spec.checkpoint.keep"],
    "a job always writes checkpoints: -1 leaves the default of 10 steps",
)
def checkpoints(settings: ForeignSettings) -> EntryOutcome:
    fields = {
        "everySteps": settings.count("trainer.save_freq"),
        "keep": settings.count("trainer.max_actor_ckpt_to_keep"),
    }
    return EntryOutcome({f"spec.checkpoint.{name}": value for name, value in fields.items() if value})


@entry(
    ["trainer.test_freq", f"{ROLLOUT}.val_kwargs.n", f"{ROLLOUT}.val_kwargs.do_sample",
     f"{ROLLOUT}.val_kwargs.temperature"],
    ["spec.evaluation.everySteps", "spec.evaluation.responsesPerPrompt", "spec.evaluation.temperature"],
    "greedy unless `do_sample`, as in verl",
)  # fmt: skip
def evaluation(settings: ForeignSettings) -> EntryOutcome:
    samples = settings.flag(f"{ROLLOUT}.val_kwargs.do_sample")
    temperature = settings.number(f"{ROLLOUT}.val_kwargs.temperature") or 0.0
    return EntryOutcome({
        "spec.evaluation.everySteps": settings.count("trainer.test_freq") or 0,
        "spec.evaluation.responsesPerPrompt": settings.count(f"{ROLLOUT}.val_kwargs.n") or 1,
        "spec.evaluation.temperature": temperature if samples else 0.0,
    })  # fmt: skip


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    model,
    lengths,
    data,
    direct("data.prompt_key", "spec.data.promptField", default="prompt"),
    direct("data.reward_fn_key", "spec.data.domainField", "domains choose reward functions", default="data_source"),
    chat,
    turns,
    rewards,
    direct(f"{ROLLOUT}.tensor_model_parallel_size", f"{_ENGINE}.tensorParallelSize", default=2),
    direct(f"{ROLLOUT}.gpu_memory_utilization", f"{_ENGINE}.gpuMemoryUtilization", default=0.5),
    direct(f"{ROLLOUT}.max_num_seqs", f"{_ENGINE}.maxNumSeqs"),
    direct(f"{ROLLOUT}.dtype", f"{_ENGINE}.dtype"),
    direct(f"{ROLLOUT}.enforce_eager", f"{_ENGINE}.enforceEager"),
    engine_arguments,
    sleeping,
    workers,
    trainer,
    micro_batch,
    checkpoints,
    evaluation,
)
