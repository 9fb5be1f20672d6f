"""TRL's GRPOConfig, and the further arguments of its script and trainer."""

import math
from typing import Any, Final

from longshore_cli.convert import places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, System, direct, entry
from longshore_cli.convert.trl_ignored import IGNORED

_TO: Final = "spec.algorithm"
_ENGINE: Final = "spec.rollout.engine"
_CORRECTION: Final = "vllm_importance_sampling"


@entry(["model_name_or_path", "model"], ["spec.model.hub", "spec.model.path"],
       "`hub` for a name of the Hub, else `path` below `models/` of the storage")  # fmt: skip
def model(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("model_name_or_path") or settings.text("model")
    if name is None:
        raise Refused("model_name_or_path", "it is unset, and a job needs a model")
    return places.model(name)


@entry(["dataset_name", "dataset_config", "dataset_train_split"],
       ["spec.data.hub", "spec.data.config", "spec.data.split", "spec.data.path"],
       "`hub` for a name of the Hub, else `path` below `data/` of the storage",
       dataset_train_split="train")  # fmt: skip
def data(settings: ForeignSettings) -> EntryOutcome:
    name, config = settings.text("dataset_name"), settings.text("dataset_config")
    if name is None:
        raise Refused("dataset_name", "it is unset, and a job needs data")
    split: dict[str, Any] = {"spec.data.split": settings.text("dataset_train_split") or "train"}
    if not places.is_repository(name):
        found = places.data([name])
        return EntryOutcome(found.fields | split, to_do=found.to_do)
    return EntryOutcome({"spec.data.hub": name} | ({"spec.data.config": config} if config else {}) | split)


@entry(["max_prompt_length", "vllm_max_model_length"], ["spec.data.maxPromptTokens", "spec.model.maxContextTokens"],
       "`max_prompt_length` is of older versions; the context is `vllm_max_model_length`, or else holds prompt and "
       "response", max_prompt_length=1024)  # fmt: skip
def lengths(settings: ForeignSettings) -> EntryOutcome:
    prompt = settings.wanted("max_prompt_length", "prompts need a limit")
    response = settings.wanted("max_completion_length", "responses need a limit")
    context = settings.count("vllm_max_model_length") or prompt + response
    return EntryOutcome({"spec.data.maxPromptTokens": prompt, "spec.model.maxContextTokens": context})


_REWARD_MODEL: Final = "reward_model_name_or_path"
_MATHS: Final = {"accuracy_reward", "trl.rewards.accuracy_reward"}


@entry(["reward_funcs", "reward_weights", _REWARD_MODEL], ["spec.reward.functions", "spec.data.answerField"],
       "`accuracy_reward` is kind Maths with column `solution`; others kind Python with `signature: TRL`")  # fmt: skip
def rewards(settings: ForeignSettings) -> EntryOutcome:
    if settings[_REWARD_MODEL]:
        raise Refused(_REWARD_MODEL, "reward models that give a number are not available; a judge reads and grades")
    names, weights = settings.texts("reward_funcs"), settings["reward_weights"] or []
    if not names:
        raise Refused("reward_funcs", "it is unset, and a job needs rewards: name functions as module.function")
    if weights and (
        not isinstance(weights, list | tuple)
        or len(weights) != len(names)
        or not all(isinstance(one, int | float) for one in weights)
    ):
        raise Refused("reward_weights", f"{weights!r} is not a number for each of reward_funcs")
    functions, to_do = [], []
    for number, name in enumerate(names):
        module, _, function = name.replace(":", ".").rpartition(".")
        weight = {"weight": float(weights[number])} if weights else {}
        if name in _MATHS:
            functions.append({"name": "accuracy", "kind": "Maths"} | weight)
            continue
        path = f"{module or 'rewards'}:{function}"
        functions.append({"name": _label(function), "kind": "Python", "importPath": path, "signature": "TRL"} | weight)
        to_do.append(f"Submit the job with `--with {(module or 'rewards').split('.')[0]}.py`, which has {function}.")
    fields: dict[str, Any] = {"spec.reward.functions": functions}
    return EntryOutcome(
        fields | ({"spec.data.answerField": "solution"} if _MATHS & set(names) else {}), to_do=tuple(to_do)
    )


def _label(function: str) -> str:
    return function.lower().replace("_", "-").strip("-")[:63]


@entry(["num_processes", "vllm_tensor_parallel_size", "vllm_mode"],
       ["spec.workers.replicas", "spec.workers.gpusPerPod", f"{_ENGINE}.tensorParallelSize"],
       "`num_processes` of accelerate: pods of up to 8 GPUs", vllm_tensor_parallel_size=1)  # fmt: skip
def workers(settings: ForeignSettings) -> EntryOutcome:
    gpus = _num_processes(settings)
    per_pod = gpus if gpus <= 8 else 8
    if gpus % per_pod:
        raise Refused("num_processes", f"{gpus} GPUs do not fill nodes of 8")
    lost = {"vllm_mode": "engines share the GPUs of the trainers; placement: Disaggregated separates them"}
    return EntryOutcome(
        {
            "spec.workers.replicas": gpus // per_pod,
            "spec.workers.gpusPerPod": per_pod,
            f"{_ENGINE}.tensorParallelSize": settings.count("vllm_tensor_parallel_size") or 1,
        },
        lost if settings["vllm_mode"] == "server" else {},
    )


def _num_processes(settings: ForeignSettings) -> int:
    why = "the batch of TRL is per process: add num_processes=N, the number that `accelerate launch` starts"
    return settings.wanted("num_processes", why)


@entry(["per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
        "num_generations"],
       [f"{_TO}.promptsPerStep", f"{_TO}.promptsPerUpdate", f"{_TO}.responsesPerPrompt"],
       "a step is one generation batch, an update one accumulated batch; both in prompts",
       per_device_train_batch_size=8, gradient_accumulation_steps=1, num_generations=8)  # fmt: skip
def batch(settings: ForeignSettings) -> EntryOutcome:
    responses = settings.wanted("num_generations", "a prompt needs responses")
    update, generation = _batches(settings)
    for key, samples in (("gradient_accumulation_steps", update), ("generation_batch_size", generation)):
        if samples % responses:
            raise Refused(key, f"it gives {samples} responses, which are no whole groups of {responses}")
    fields = {f"{_TO}.promptsPerStep": generation // responses, f"{_TO}.responsesPerPrompt": responses}
    return EntryOutcome(fields if update == generation else fields | {f"{_TO}.promptsPerUpdate": update // responses})


def _batches(settings: ForeignSettings) -> tuple[int, int]:
    """Return the responses of an update, and of a generation."""
    per_device = settings.wanted("per_device_train_batch_size", "a process needs a batch") * _num_processes(settings)
    accumulated = settings.wanted("gradient_accumulation_steps", "an update needs a batch")
    whole, num_steps = settings.count("generation_batch_size"), settings.count("steps_per_generation")
    generation = whole or per_device * (num_steps or accumulated)
    update = per_device * accumulated
    if generation % update:
        key = "generation_batch_size" if whole else "steps_per_generation"
        raise Refused(key, f"a generation of {generation} responses is no multiple of an update of {update}")
    return update, generation


def _updates_per_step(settings: ForeignSettings) -> int:
    update, generation = _batches(settings)
    return generation // update * (settings.count("num_iterations") or 1)


@entry(["max_steps", "num_train_epochs", "num_rows"], [f"{_TO}.steps"],
       "TRL counts optimizer updates, Longshore generations. Without `max_steps`, epochs need `num_rows=N`, the size "
       "of the data", num_train_epochs=3)  # fmt: skip
def steps(settings: ForeignSettings) -> EntryOutcome:
    updates, rows = settings.count("max_steps"), settings.count("num_rows")
    if updates is not None:
        return EntryOutcome({f"{_TO}.steps": math.ceil(updates / _updates_per_step(settings))})
    epochs = settings.number("num_train_epochs") or 0
    if rows is None:
        why = f"it is unset, and {epochs:g} epochs are a number of steps only with the size of the data: add num_rows=N"
        raise Refused("max_steps", why)
    prompts = batch.convert(settings).fields[f"{_TO}.promptsPerStep"]
    return EntryOutcome({f"{_TO}.steps": math.ceil(epochs * rows / prompts)})


_LOSSES: Final = {"dapo": "GRPO", "grpo": "GRPO", "bnpo": "GRPO", "dr_grpo": "DrGRPO"}
_TOKENS: Final = "token losses are averaged over all tokens of the update, as loss_type dapo does"


@entry(["loss_type", "importance_sampling_level", "scale_rewards"], [f"{_TO}.name"],
       "`dapo` is GRPO, `dr_grpo` with `scale_rewards: none` DrGRPO, `grpo` with `importance_sampling_level: sequence` "
       "GSPO", loss_type="dapo", importance_sampling_level="token", scale_rewards="group")  # fmt: skip
def objective(settings: ForeignSettings) -> EntryOutcome:
    loss, scaling = settings.text("loss_type"), settings["scale_rewards"]
    if isinstance(scaling, bool):
        scaling = "group" if scaling else "none"
    if loss not in _LOSSES:
        raise Refused("loss_type", f"{loss} is not available; choose one of {', '.join(_LOSSES)}")
    by_sequence = settings.text("importance_sampling_level") == "sequence"
    name = "GSPO" if by_sequence and loss == "grpo" else _LOSSES[loss]
    lost = {}
    if loss in ("grpo", "bnpo") and name == "GRPO":
        lost["loss_type"] = _TOKENS
    if by_sequence and name != "GSPO":
        lost["importance_sampling_level"] = f"GSPO is loss_type grpo with this level; with {loss} ratios are of tokens"
    if scaling != (expected := "none" if name == "DrGRPO" else "group"):
        lost["scale_rewards"] = f"{name} scales rewards as {expected!r} does"
    return EntryOutcome({f"{_TO}.name": name}, lost)


@entry(["epsilon", "epsilon_high"], [f"{_TO}.clipLow", f"{_TO}.clipHigh"], "", epsilon=0.2)
def clipping(settings: ForeignSettings) -> EntryOutcome:
    low, high = settings.number("epsilon"), settings.number("epsilon_high")
    return EntryOutcome({f"{_TO}.clipLow": low, f"{_TO}.clipHigh": low if high is None else high})


@entry(["beta", "use_bias_correction_kl"], [f"{_TO}.klCoefficient"], "estimated with k3", beta=0.0,
       use_bias_correction_kl=True)  # fmt: skip
def kl_penalty(settings: ForeignSettings) -> EntryOutcome:
    weight, key = settings.number("beta") or 0.0, "use_bias_correction_kl"
    lost = {key: "the KL penalty is not multiplied by the ratio"} if weight and settings.flag(key) else {}
    return EntryOutcome({f"{_TO}.klCoefficient": weight}, lost)


_SCHEDULES: Final = {
    "constant": "Constant", "constant_with_warmup": "Constant", "linear": "Linear", "cosine": "Cosine",
    "cosine_with_min_lr": "Cosine",
}  # fmt: skip


@entry(["lr_scheduler_type", "lr_scheduler_kwargs", "lr_scheduler_kwargs.*"],
       [f"{_TO}.learningRateSchedule", f"{_TO}.minLearningRateRatio"], "", lr_scheduler_type="linear")  # fmt: skip
def schedule(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("lr_scheduler_type") or ""
    if name not in _SCHEDULES:
        raise Refused("lr_scheduler_type", f"{name} is not available; choose one of {', '.join(_SCHEDULES)}")
    fields: dict[str, Any] = {f"{_TO}.learningRateSchedule": _SCHEDULES[name]}
    known = "lr_scheduler_kwargs.min_lr_rate"
    if (ratio := settings.number(known)) is not None:
        fields[f"{_TO}.minLearningRateRatio"] = ratio
    others = [key for key in settings.given if key.startswith("lr_scheduler_kwargs") and key != known]
    return EntryOutcome(fields, {key: "only min_lr_rate has a field" for key in others if settings[key]})


@entry(["warmup_steps", "warmup_ratio"], [f"{_TO}.warmupSteps"], "optimizer updates; below 1 a share of all of them")
def warmup(settings: ForeignSettings) -> EntryOutcome:
    number, ratio = settings.number("warmup_steps") or 0, settings.number("warmup_ratio") or 0.0
    if number >= 1:
        return EntryOutcome({f"{_TO}.warmupSteps": int(number)})
    if share := number or ratio:
        updates = steps.convert(settings).fields[f"{_TO}.steps"] * _updates_per_step(settings)
        return EntryOutcome({f"{_TO}.warmupSteps": math.ceil(share * updates)})
    return EntryOutcome({f"{_TO}.warmupSteps": 0})


_MODES: Final = {
    "sequence_mask": ("Sequence", "Sequence"), "sequence_truncate": ("Sequence", "None"),
    "token_truncate": ("Token", "None"), "token_mask": ("Token", "Token"),
}  # fmt: skip


@entry([f"{_CORRECTION}_correction", f"{_CORRECTION}_mode", f"{_CORRECTION}_clip_max", f"{_CORRECTION}_cap",
        f"{_CORRECTION}_clip_min"],
       [f"{_TO}.rolloutCorrection"],
       "without the correction `{rolloutIs: None, rolloutRs: None}`: the clip compares with the trainer's own old "
       "log-probabilities, as in TRL",
       vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="sequence_mask",
       vllm_importance_sampling_clip_max=3.0)  # fmt: skip
def correction(settings: ForeignSettings) -> EntryOutcome:
    key, low = f"{_CORRECTION}_mode", settings.number(f"{_CORRECTION}_clip_min")
    if not settings.flag(f"{_CORRECTION}_correction"):
        return EntryOutcome({f"{_TO}.rolloutCorrection": {"rolloutIs": "None", "rolloutRs": "None"}})
    if settings.text(key) not in _MODES:
        raise Refused(key, f"{settings[key]} is not available; choose one of {', '.join(_MODES)}")
    weights, rejection = _MODES[str(settings[key])]
    cap = settings.number(f"{_CORRECTION}_cap") or settings.number(f"{_CORRECTION}_clip_max")
    if cap is None:
        raise Refused(f"{_CORRECTION}_clip_max", "it is unset, and weights need a largest value")
    bounds = {"rolloutIsThreshold": cap, "rolloutRsThreshold": cap}
    lost = {}
    if low is not None and rejection != "None":
        bounds["rolloutRsThresholdLower"] = low
    elif low is not None:
        lost[f"{_CORRECTION}_clip_min"] = "truncated weights have no least value"
    return EntryOutcome({f"{_TO}.rolloutCorrection": {"rolloutIs": weights, "rolloutRs": rejection} | bounds}, lost)


@entry(["vllm_enable_sleep_mode"], [f"{_ENGINE}.sleepLevel"], "false: 0, engines stay awake; unset: 1")
def sleeping(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({f"{_ENGINE}.sleepLevel": 0} if settings["vllm_enable_sleep_mode"] is False else {})


@entry(["chat_template_kwargs", "chat_template_kwargs.*"], ["spec.data.chat"], "`templateArguments`")
def chat(settings: ForeignSettings) -> EntryOutcome:
    prefix = "chat_template_kwargs."
    found = {key.removeprefix(prefix): settings[key] for key in settings.given if key.startswith(prefix)}
    return EntryOutcome({"spec.data.chat.templateArguments": found} if found else {})


@entry(["save_strategy", "save_steps", "save_total_limit"], ["spec.checkpoint.everySteps", "spec.checkpoint.keep"],
       "in generations; a job always writes checkpoints", save_steps=500)  # fmt: skip
def checkpoints(settings: ForeignSettings) -> EntryOutcome:
    is_counted = settings["save_strategy"] in (None, "steps")
    every = max(1, round((settings.number("save_steps") or 500) / _updates_per_step(settings)))
    keep = settings.count("save_total_limit")
    lost = {} if is_counted else {"save_strategy": "checkpoints are written at an interval of steps"}
    fields = {"spec.checkpoint.everySteps": every} if is_counted else {}
    return EntryOutcome(fields | ({"spec.checkpoint.keep": keep} if keep else {}), lost)


@entry(["eval_strategy", "eval_steps", "num_generations_eval"],
       ["spec.evaluation.everySteps", "spec.evaluation.responsesPerPrompt"], "in generations")  # fmt: skip
def evaluation(settings: ForeignSettings) -> EntryOutcome:
    every = settings.number("eval_steps") or settings.number("logging_steps") or 0
    fields = {"spec.evaluation.everySteps": max(1, round(every / _updates_per_step(settings)))}
    responses = settings.count("num_generations_eval")
    lost = {}
    if settings["eval_strategy"] != "steps":
        fields = {}
        if settings["eval_strategy"] not in (None, "no"):
            lost["eval_strategy"] = "the job evaluates at an interval of steps: set evaluation.everySteps"
    return EntryOutcome(fields | ({"spec.evaluation.responsesPerPrompt": responses} if responses else {}), lost)


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    model,
    data,
    lengths,
    chat,
    rewards,
    workers,
    objective,
    steps,
    batch,
    direct("num_iterations", f"{_TO}.epochsPerStep", default=1),
    direct("max_completion_length", f"{_TO}.maxResponseTokens", default=512),
    direct("temperature", f"{_TO}.temperature", default=1.0),
    direct("learning_rate", f"{_TO}.learningRate", default=1e-6),
    schedule,
    warmup,
    direct("weight_decay", f"{_TO}.weightDecay", default=0.0),
    direct("adam_beta1", f"{_TO}.adamBeta1", default=0.9),
    direct("adam_beta2", f"{_TO}.adamBeta2", default=0.999),
    direct("adam_epsilon", f"{_TO}.adamEpsilon", default=1e-8),
    direct("max_grad_norm", f"{_TO}.maxGradNorm", default=1.0),
    clipping,
    kl_penalty,
    correction,
    direct("seed", f"{_TO}.seed", default=42),
    direct("vllm_gpu_memory_utilization", f"{_ENGINE}.gpuMemoryUtilization", default=0.3),
    sleeping,
    direct("model_revision", "spec.model.revision"),
    checkpoints,
    evaluation,
)
_ALWAYS: Final = {f"{_TO}.advantageEpsilon": 1e-4, "spec.rollout.strategy": "Synchronous"}
TRL: Final = System("TRL", "1.16.0", ENTRIES, IGNORED, _ALWAYS)
