"""verl's engines."""

from typing import Final

from longshore.checks.engine_arguments import refusal
from longshore_cli.convert.mapping import EntryOutcome, ForeignSettings, MappingEntry, direct, entry
from longshore_cli.convert.verl.sections import CORRECTION, ENGINE, ROLLOUT

_EXTRA: Final = f"{ENGINE}.extraArgs"
_VLLM: Final = f"{ROLLOUT}.engine_kwargs.vllm"
_TYPE: Final = f"{ROLLOUT}.dtype"
_QUANTIZATION: Final = f"{ROLLOUT}.quantization"


@entry([_QUANTIZATION], [f"{ENGINE}.quantization"], "fp8, with importance weights of the rollout")
def quantization(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text(_QUANTIZATION)
    if name is None:
        return EntryOutcome()
    if name != "fp8":
        return EntryOutcome(lost={_QUANTIZATION: f"engines cannot round weights to {name}"})
    if settings[f"{CORRECTION}.rollout_is"] is None:
        return EntryOutcome(lost={_QUANTIZATION: "it needs importance weights: set rollout_correction.rollout_is"})
    return EntryOutcome({f"{ENGINE}.quantization": "FP8"})


@entry([_TYPE], [f"{ENGINE}.dtype"], "trainers compute in bfloat16, unless `trainer.dtype` says otherwise")
def number_format(settings: ForeignSettings) -> EntryOutcome:
    name = settings.text(_TYPE)
    if name is None:
        return EntryOutcome()
    look = (f"Look at {ENGINE}.dtype: engines compute in {name}, and trainers in bfloat16, so their log-probabilities "
            "differ more than with bfloat16 in both.")  # fmt: skip
    return EntryOutcome({f"{ENGINE}.dtype": name}, to_do=() if name in ("auto", "bfloat16") else (look,))


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
    [f"{ENGINE}.sleepLevel"],
    "false: 0, engines stay awake",
)
def sleeping(settings: ForeignSettings) -> EntryOutcome:
    return EntryOutcome({f"{ENGINE}.sleepLevel": 0} if settings[f"{ROLLOUT}.free_cache_engine"] is False else {})


ENTRIES: Final[tuple[MappingEntry, ...]] = (
    direct(f"{ROLLOUT}.tensor_model_parallel_size", f"{ENGINE}.tensorParallelSize", default=2),
    direct(f"{ROLLOUT}.gpu_memory_utilization", f"{ENGINE}.gpuMemoryUtilization", default=0.5),
    direct(f"{ROLLOUT}.max_num_seqs", f"{ENGINE}.maxNumSeqs"),
    number_format,
    quantization,
    direct(f"{ROLLOUT}.enforce_eager", f"{ENGINE}.enforceEager"),
    engine_arguments,
    sleeping,
)
