"""Measure what decoding, prefill, training and publishing cost on this machine, as the profile of a simulation.

Measured as `spec.profiling` measures it, on the engines and trainers of the workload and with responses as long as
theirs, all at work at the same time.
"""

import dataclasses

from benchmarks.prediction import WorkloadLengths
from benchmarks.workload import Workload
from longshore_runtime.profiling.phase import scope_of
from longshore_runtime.profiling.profiler import Machine, Profiler
from longshore_runtime.profiling.subject import read_config
from longshore_runtime.step.parts import Parts


def profiler(parts: Parts, workload: Workload) -> Profiler:
    """Return the profiler of a workload's pods; measuring leaves trainers and engines with other weights."""
    spec = workload.spec
    assert spec.model.path is not None, "a workload has a model of its own"
    scope = scope_of(spec, read_config(parts.storage.resolve(spec.model.path)), tp_sizes=())
    trainer = dataclasses.replace(scope.trainer, lengths=WorkloadLengths(workload.lengths, ()))
    machine = Machine(parts.engines, parts.trainers, parts.events, parts.clock)
    return Profiler(machine, dataclasses.replace(scope, trainer=trainer))
