"""Identify a profile: by model, accelerator, and what the job says about engines, trainers and pods."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import ray

from longshore.api.pods import ElasticWorkers, Workers
from longshore.api.spec import RLJobSpec
from longshore.checks.model_files import num_parameters
from longshore.sim.profile import CPU, Shape, Subject
from longshore_runtime.cluster.placement import placement, set_environment

_PROGRAMS: Final = ("longshore", "vllm", "torch", "megatron", "ray")
"""Programs whose versions identify a profile, by the names under which they are imported."""
_VOLATILE: Final = ("_name_or_path", "transformers_version")
"""Fields of a configuration that say nothing of the model."""
_VALUE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_PROBE_LIMIT_S: Final = 900.0
"""Seconds to wait for the answer of a worker pod, which may still be starting."""
_SMI_LIMIT_S: Final = 30.0


@dataclass(frozen=True)
class Pod:
    """Hardware of a worker pod."""

    gpu: str
    versions: Mapping[str, str]


def subject_of(spec: RLJobSpec, model: Path) -> Subject:
    """Describe a job whose worker pods are ready; `model` is the path of the checkpoint in this pod."""
    pod: Pod = ray.get(placement(0).remote(_look, spec.workers.has_accelerator), timeout=_PROBE_LIMIT_S)
    config = read_config(model)
    return Subject(
        model=spec.model.builtin or spec.model.hub or spec.model.path or "",
        model_fingerprint=model_fingerprint(config),
        gpu=pod.gpu,
        setup=setup_fingerprint(spec),
        versions=dict(pod.versions),
        shape=shape_of(config, num_parameters(model), _value_bytes(spec)),
    )


def read_config(model: Path) -> dict[str, Any]:
    """Read the configuration of a Hugging Face checkpoint."""
    config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
    return config


def shape_of(config: Mapping[str, Any], num_parameters: int, value_bytes: int) -> Shape:
    """Return the sizes of a decoder, from its configuration."""
    text: Mapping[str, Any] = config.get("text_config", config)
    num_heads = text["num_attention_heads"]
    head_size = text.get("head_dim") or text["hidden_size"] // num_heads
    num_kv_heads = text.get("num_key_value_heads") or num_heads
    return Shape(
        num_parameters=num_parameters,
        num_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        kv_bytes_per_token=2 * text["num_hidden_layers"] * num_kv_heads * head_size * value_bytes,
        bytes_per_parameter=value_bytes,
    )


def _value_bytes(spec: RLJobSpec) -> int:
    """Return the bytes of a value of weights or KV cache in the engine, which uses float32 on the CPU by default."""
    return _VALUE_BYTES.get(spec.rollout.engine.dtype, 2 if spec.workers.has_accelerator else 4)


def model_fingerprint(config: Mapping[str, Any]) -> str:
    """Hash a model's configuration."""
    return _fingerprint({name: value for name, value in config.items() if name not in _VOLATILE})


def setup_fingerprint(spec: RLJobSpec) -> str:
    """Hash those settings that a user may change in a suspended job and that a profile depends on."""
    judges = [one for one in spec.reward.functions if one.is_colocated]
    return _fingerprint(
        {
            "context": spec.model.max_context_tokens,
            "engine": spec.rollout.engine.model_dump(mode="json"),
            "trainer": spec.trainer.model_dump(mode="json"),
            "placement": spec.placement,
            "pods": [
                (_num_pods(pods), pods.gpus_per_pod, pods.gpu_resource_name)
                for pods in (spec.workers, spec.training_pods)
            ],
            "judges": [one.judge.model_dump(mode="json") for one in judges if one.judge is not None],
        }
    )


def _num_pods(pods: Workers) -> int:
    """Return how many pods there are at least: elastic ones come and go without new measurements."""
    return pods.least_replicas if isinstance(pods, ElasticWorkers) else pods.replicas


def _fingerprint(values: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=6).hexdigest()


@ray.remote(num_cpus=0, max_calls=1)
def _look(environment: Mapping[str, str], has_accelerator: bool) -> Pod:
    set_environment(environment)
    distributions = metadata.packages_distributions()
    versions = {name: metadata.version(distributions[name][0]) for name in _PROGRAMS if name in distributions}
    return Pod(_gpu_name() if has_accelerator else CPU, versions)


def _gpu_name() -> str:
    """Return the name of the first GPU, as all GPUs of a job are of one kind; `GPU` if the driver does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "GPU"
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return names[0] if done.returncode == 0 and names else "GPU"
