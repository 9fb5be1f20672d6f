"""TRL's model, data, engines and GPUs."""

from typing import Any, Final

from longshore_cli.convert import places
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, Refused, direct, entry
from longshore_cli.convert.trl.algorithm import num_processes, num_updates, updates_per_step
from longshore_cli.convert.trl.rewards import rewards

_ENGINE: Final = "spec.rollout.engine"
_MAIN: Final = "main"
"""TRL's default for a revision."""


@entry(["model_name_or_path", "model", "model_revision"], ["spec.model.hub", "spec.model.revision", "spec.model.path"],
       "`hub` for a name of the Hub, else `path` below `models/` of the storage")  # fmt: skip
def model(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text("model_name_or_path") or settings.text("model")
    if name is None:
        raise Refused("model_name_or_path", "it is unset, and a job needs a model")
    found, revision = places.model(name), settings.text("model_revision")
    if revision is None:
        return found
    if "spec.model.hub" in found.fields:
        return EntryOutcome(found.fields | {"spec.model.revision": revision})
    lost = {} if revision == _MAIN else {"model_revision": "the model is a directory, which has no revisions"}
    return EntryOutcome(found.fields, lost, found.to_do)


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


_PROMPT_TOKENS: Final = 1024


@entry(["max_prompt_length", "vllm_max_model_length"], ["spec.data.maxPromptTokens", "spec.model.maxContextTokens"],
       "the context is `vllm_max_model_length`, or else holds prompt and response. `max_prompt_length` is of older "
       "versions; without it prompts may fill what the longest response leaves of the context")  # fmt: skip
def lengths(settings: ForeignSettings) -> EntryOutcome:
    key = "vllm_max_model_length"
    prompt, context = settings.count("max_prompt_length"), settings.count(key)
    response = settings.wanted("max_completion_length", "responses need a limit")
    to_do: tuple[str, ...] = ()
    if prompt is None and context is not None:
        if context <= response:
            raise Refused(key, f"a context of {context} tokens has no room for a prompt and {response} tokens more")
        prompt = context - response
    elif prompt is None:
        prompt = _PROMPT_TOKENS
        to_do = (f"Look at spec.data.maxPromptTokens, {prompt}: longer prompts are left out, and TRL has no limit.",)
    fields = {"spec.data.maxPromptTokens": prompt, "spec.model.maxContextTokens": context or prompt + response}
    return EntryOutcome(fields, to_do=to_do)


@entry(["num_processes", "vllm_tensor_parallel_size", "vllm_mode"],
       ["spec.workers.replicas", "spec.workers.gpusPerPod", f"{_ENGINE}.tensorParallelSize"],
       "`num_processes` of accelerate: pods of up to 8 GPUs", vllm_tensor_parallel_size=1)  # fmt: skip
def workers(settings: ForeignSettings) -> EntryOutcome:
    gpus = num_processes(settings)
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


@entry(["vllm_enable_sleep_mode"], [f"{_ENGINE}.sleepLevel"], "false: 0, engines stay awake; unset: 1")
def sleeping(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({f"{_ENGINE}.sleepLevel": 0} if settings["vllm_enable_sleep_mode"] is False else {})


_TEMPLATE: Final = "chat_template_kwargs"


@entry([_TEMPLATE, f"{_TEMPLATE}.*"], ["spec.data.chat"], "`templateArguments`")
def chat(settings: ForeignSettings) -> EntryOutcome:
    found = settings.mapping(_TEMPLATE)
    return EntryOutcome({"spec.data.chat.templateArguments": found} if found else {})


@entry(["save_strategy", "save_steps", "save_total_limit"], ["spec.checkpoint.everySteps", "spec.checkpoint.keep"],
       "in generations; a job always writes checkpoints", save_steps=500)  # fmt: skip
def checkpoints(settings: ForeignSettings) -> EntryOutcome:
    is_counted = settings["save_strategy"] in (None, "steps")
    every = _steps_between(settings, settings.number("save_steps") or 500) if is_counted else 0
    keep = settings.count("save_total_limit")
    lost = {} if is_counted else {"save_strategy": "checkpoints are written at an interval of steps"}
    fields = {"spec.checkpoint.everySteps": every} if is_counted else {}
    return EntryOutcome(fields | ({"spec.checkpoint.keep": keep} if keep else {}), lost)


def _steps_between(settings: ForeignSettings, interval: float) -> int:
    """Return an interval in generations; TRL's is in updates, or below 1 a share of all of them."""
    return max(1, round(num_updates(settings, interval) / updates_per_step(settings)))


@entry(["eval_strategy", "eval_steps", "num_generations_eval", "num_generations", "temperature"],
       ["spec.evaluation.everySteps", "spec.evaluation.responsesPerPrompt", "spec.evaluation.temperature"],
       "in generations; sampled as in training", logging_steps=10, num_generations=8, temperature=1.0)  # fmt: skip
def evaluation(settings: ForeignSettings) -> EntryOutcome:
    strategy, given = settings["eval_strategy"], settings.count("num_generations_eval")
    sampling = {
        "spec.evaluation.responsesPerPrompt": given or settings.wanted("num_generations", "a prompt needs responses"),
        "spec.evaluation.temperature": settings.number("temperature"),
    }
    if strategy == "steps":
        every = settings.number("eval_steps") or settings.number("logging_steps") or 0
        return EntryOutcome({"spec.evaluation.everySteps": _steps_between(settings, every)} | sampling)
    if strategy in (None, "no"):
        return EntryOutcome(sampling if given else {})
    return EntryOutcome(sampling, {"eval_strategy": "the job evaluates every evaluation.everySteps steps: set it"})


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    model,
    data,
    lengths,
    chat,
    rewards,
    workers,
    direct("vllm_gpu_memory_utilization", f"{_ENGINE}.gpuMemoryUtilization", default=0.3),
    sleeping,
    checkpoints,
    evaluation,
)
