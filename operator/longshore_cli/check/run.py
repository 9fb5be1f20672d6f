"""Make the checks. Those that need packages of the runtime, which take long to import, run in a separate process."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore.api.environment import EnvironmentKind
from longshore.api.objectives.custom import Custom
from longshore.api.pods import Workers
from longshore.api.spec import RLJobSpec
from longshore.checks.job import file_checks
from longshore.checks.result import Check, CheckOutcome, CheckResult, not_checked
from longshore.sim.hardware import GPUS, gpu_described, gpu_named
from longshore_cli.check.labels import label_mistakes
from longshore_cli.check.operator_rules import refused
from longshore_cli.simulate.errors import BadInput, BadSpec
from longshore_cli.simulate.inputs import read_job
from longshore_kube.quantities import parse_quantity

_GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
"""Node labels that name the GPU."""
_LEAST_GPU_BYTES: Final = 1 << 30
_LIMIT_S: Final = 3600.0
"""Tokenising a large data set takes minutes."""


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command line."""

    model: Path | None = None
    """Copy of the job's model on this machine; so is `data`."""
    data: Path | None = None
    warm_start_data: Path | None = None
    """Copy of the rows of the job's warm start."""
    gpu_type: str | None = None
    gpu_memory: str | None = None
    skipped: frozenset[Check] = frozenset()
    python: str | None = None
    """Python of this machine that has `verifiers`."""


def named(names: Iterable[str]) -> frozenset[Check]:
    """Return the checks of these names.

    Raises:
        BadInput: there is none of that name.
    """
    try:
        return frozenset(map(Check, names))
    except ValueError as error:
        raise BadInput(f"--skip: {error}; choose one of {', '.join(Check)}") from error


def checked(file: Path, options: CheckOptions) -> list[CheckResult]:
    """Return every check of a manifest that was not left out, in the order in which mistakes are best corrected.

    Raises:
        BadInput: the manifest cannot be read, or an option is wrong.
    """
    try:
        job = read_job(file, "checked")
    except BadSpec as error:
        return [CheckResult(Check.SPEC, error.mistakes)]
    spec = job.spec
    for option, path in (
        ("--model", options.model),
        ("--data", options.data),
        ("--warm-start-data", options.warm_start_data),
    ):
        if path is not None and not path.exists():
            raise BadInput(f"{option}: {path} does not exist on this machine; name the copy that is to be checked")
    memory = gpu_bytes(spec.training_pods, options.gpu_type, options.gpu_memory)
    results = [
        CheckResult(Check.SPEC, tuple(label_mistakes(job)), "fields and rules are right"),
        CheckResult(Check.OPERATOR_RULES, tuple(refused(job)), "nothing that the chart's defaults refuse"),
    ]
    results += file_checks(spec, options.model, options.data, memory)
    is_whole = all(one.outcome is not CheckOutcome.FAILED for one in results if one.name is Check.MODEL_FILES)
    if options.python is not None:
        spec = _with_python(spec, options.python)
    more = list(_runtime_checks(spec, options.model if is_whole else None, options))
    made = {result.name for result in more}
    results = [result for result in results if result.name not in made] + more
    return sorted((result for result in results if result.name not in options.skipped), key=_place)


def _with_python(spec: RLJobSpec, python: str) -> RLJobSpec:
    """Return the spec with the Python of this machine for environments of verifiers."""
    changed = [
        one
        if one.verifiers is None
        else one.model_copy(update={"verifiers": one.verifiers.model_copy(update={"python": python})})
        for one in spec.environments
    ]
    return spec.model_copy(update={"environments": changed})


def _place(result: CheckResult) -> int:
    return list(Check).index(result.name)


def gpu_bytes(workers: Workers, gpu_type: str | None, gpu_memory: str | None) -> float | None:
    """Return the memory of a GPU of the job's nodes; None: nothing tells.

    Raises:
        BadInput: an option names no GPU, or no amount of memory.
    """
    if gpu_memory is not None:
        try:
            amount = parse_quantity(gpu_memory)
        except ValueError as error:
            raise BadInput(f"--gpu-memory: {error}") from error
        if amount < _LEAST_GPU_BYTES:
            raise BadInput(f"--gpu-memory: {gpu_memory!r} is less than 1Gi; give an amount with its unit, such as 80Gi")
        return float(amount)
    if gpu_type is not None:
        try:
            return gpu_named(gpu_type).memory_bytes
        except ValueError as error:
            raise BadInput(f"--gpu-type: {error}") from error
    label = next((workers.node_selector[label] for label in _GPU_LABELS if label in workers.node_selector), "")
    gpu = gpu_described(label)
    return gpu.memory_bytes if gpu.name in GPUS else None


def _runtime_checks(spec: RLJobSpec, model: Path | None, options: CheckOptions) -> Iterator[CheckResult]:
    data = options.data if options.data is not None and options.data.exists() else None
    has_code = (
        any(one.import_path is not None for one in spec.reward.functions)
        or any(one.kind is not EnvironmentKind.TASK for one in spec.environments)
        or isinstance(spec.algorithm.objective, Custom)
    )
    if model is None and data is None and options.warm_start_data is None and not has_code:
        return
    request = {
        "spec": spec.model_dump(mode="json"),
        "model": None if model is None else str(model.resolve()),
        "data": None if data is None else str(data.resolve()),
        "warm_start_data": None if options.warm_start_data is None else str(options.warm_start_data.resolve()),
        "skipped": sorted(options.skipped),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "longshore_runtime.check"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield not_checked(Check.TOKENIZER, f"it was not done after {_LIMIT_S:.0f} s")
        return
    for line in done.stdout.splitlines():
        found = json.loads(line)
        yield CheckResult(**(found | {"name": Check(found["name"]), "mistakes": tuple(found["mistakes"])}))
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["no message"]
        yield not_checked(Check.TOKENIZER, f"the check failed ({last}); please report it")
