"""Measure bytes and seconds of a publication of weights, from a real trainer rank to a real vLLM engine on the CPU.

The engine holds its matrices in bfloat16, and the trainer holds float32. Weights reach the engine from a rank in its
pod (`memory`) or in another pod (`broadcast`, by gloo), both in float32 and in bfloat16, which is what Longshore sends;
and as float32 through Ray's object store, from either pod (`store, near` and `store, far`). The ways take turns, and
every publication ends with the engine's checksum. All figures are for each gigabyte of weights in float32; `cpu_s` is
processor time of all pods.
"""

import argparse
import gc
import os
import queue
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from benchmarks.local_pods import ray_head, run_pods
from benchmarks.process_tree import cpu_s
from benchmarks.report import ratios_to, report, spreads
from longshore.api.names import Component
from longshore.api.spec import RLJobSpec
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.backends.tiny_model import build_tiny_model
from longshore_runtime.backends.trainer_spec import TrainerSpec
from longshore_runtime.places import Place
from longshore_runtime.process.logs import configure_logging
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.published import Delivered, Outcome, PublishedWeights, StoredWeights
from longshore_runtime.rollout.remote_engine import EngineHandle
from longshore_runtime.sandbox.linux import adopt_orphans
from longshore_runtime.trainer.direct_weights import Delivery, DirectWeights
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.sending import Sending

MODEL: Final = "model"
SPEC: Final = RLJobSpec.model_validate(
    {
        "model": {"path": MODEL, "maxContextTokens": 64},
        "data": {"builtin": "Counting"},
        "algorithm": {"steps": 1, "promptsPerStep": 1, "responsesPerPrompt": 2, "maxResponseTokens": 32},
        "rollout": {"engine": {"dtype": "bfloat16", "enforceEager": True, "maxNumSeqs": 8, "kvCache": "64Mi"}},
        "reward": {"pods": 0},
        "storage": {"claimName": "bench"},
        "placement": "Disaggregated",
        "workers": {"replicas": 1, "gpusPerPod": 0},
        "trainerWorkers": {"replicas": 1, "gpusPerPod": 0},
    }
)
BASELINES: Final = {
    "broadcast, bfloat16": "broadcast, float32",
    "memory, bfloat16": "memory, float32",
    "store, far": "broadcast, float32",
    "store, near": "memory, float32",
}
FIGURES: Final = ("gb_per_gb", "s_per_gb", "cpu_s_per_gb")


class InFloat32(Sending):
    """Send what the ranks hold, whatever the engines hold."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, False if name == "in_bfloat16" else value)


class Float32Trainers(TrainerGroup):
    """Trainers that can send matrices in float32 to engines that hold them in bfloat16."""

    sends_float32 = False

    def begin_sending(self, readers: Collection[int], policy_version: int, **options: Any) -> Sending:
        sending = super().begin_sending(readers, policy_version, **options)
        if self.sends_float32:
            sending.__class__ = InFloat32
        return sending


@dataclass
class Counted:
    """Implement `PublishedWeights`, and keep the bytes that were delivered."""

    weights: PublishedWeights
    num_bytes: int = 0

    @property
    def policy_version(self) -> int:
        return self.weights.policy_version

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        outcomes = self.weights.deliver(engines, delivered)
        self.num_bytes = delivered.num_bytes
        assert delivered.num_confirmed == len(engines), outcomes
        return outcomes

    def stored(self) -> StoredWeights:
        return self.weights.stored()


def measure(given: argparse.Namespace) -> None:
    """Publish in every way in turn; the first turn, in which memory is allocated, does not count."""
    configure_logging()
    with ray_head() as settings, ExitStack() as stack:
        if given.model is None:
            build_tiny_model(settings.storage / MODEL, seed=0)
        else:
            shutil.copytree(given.model, settings.storage / MODEL)
        trainer = TrainerSpec.of(SPEC.algorithm, SPEC.trainer, 1, is_colocated=False)
        groups = {}
        for side, place in (("near", Place(0, ())), ("far", Place(0, (), Component.TRAINER))):
            groups[side] = Float32Trainers([place], trainer, MODEL, "output", Delivery(is_direct=True))
            stack.callback(groups[side].stop)
        engine = EngineSpec(SPEC.rollout.engine, SPEC.model.max_context_tokens)
        pool = EnginePool(SPEC.workers, engine, MODEL, "output", queue.SimpleQueue())
        stack.callback(pool.stop)
        pool.wait_for_all()
        ways = ways_of(groups["near"], groups["far"])
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for number in range(given.alternations + 1):
            for way, weights in ways.items():
                run = publication(pool, weights)
                print(way, run, file=sys.stderr, flush=True)
                if number:
                    runs[way].append({"way": way, **run})
    gigabytes = runs["store, near"][0]["gb"]
    for run in (one for of_way in runs.values() for one in of_way):
        run |= {f"{key}_per_gb": run[key] / gigabytes for key in ("gb", "s", "cpu_s")}
    ratios = ratios_to(BASELINES, runs, FIGURES)
    name = given.model.name if given.model else "tiny"
    settings_of_runs = {"model": name, "gigabytes": round(gigabytes, 3), "alternations": given.alternations}
    figures = spreads({f"{way}/{key}": [run[key] for run in of] for way, of in runs.items() for key in FIGURES})
    report("publication", ratios, settings_of_runs, [run for of in runs.values() for run in of], figures=figures)


def ways_of(near: Float32Trainers, far: Float32Trainers) -> dict[str, Callable[[], PublishedWeights]]:
    """Return what begins a publication, by its name."""
    ways: dict[str, Callable[[], PublishedWeights]] = {}
    for name, trainers in (("memory", near), ("broadcast", far)):
        for dtype in ("float32", "bfloat16"):
            ways[f"{name}, {dtype}"] = lambda trainers=trainers, dtype=dtype: direct(trainers, dtype)  # type: ignore[misc]
    ways["store, near"] = lambda: near.begin_copies(0)()
    ways["store, far"] = lambda: far.begin_copies(0)()
    return ways


def direct(trainers: Float32Trainers, dtype: str) -> PublishedWeights:
    """Return the weights of trainers on their direct way, with matrices of a type."""
    trainers.sends_float32 = dtype == "float32"
    return DirectWeights(trainers, 0)


def publication(pool: EnginePool, begin: Callable[[], PublishedWeights]) -> dict[str, float]:
    """Publish once; return seconds, processor time and gigabytes."""
    gc.collect()  # Objects of the store go with their references.
    pods = os.getppid()
    started_cpu_s, started_s = cpu_s(pods), time.monotonic()
    weights = Counted(begin())
    pool.publish(weights)
    took = {"s": time.monotonic() - started_s, "cpu_s": cpu_s(pods) - started_cpu_s}
    if isinstance(weights.weights, StoredWeights):
        buckets = (ray.get(bucket) for bucket in weights.weights.buckets)
        weights.num_bytes = sum(values.nbytes for bucket in buckets for values in bucket.values())
    return took | {"gb": weights.num_bytes / 1e9}


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Hugging Face directory; unset: the built-in tiny model")
    parser.add_argument("--alternations", type=int, default=5)
    adopt_orphans()  # so that the processor time of Ray's actors is found
    return run_pods("publication", parser, measure, SPEC)


if __name__ == "__main__":
    raise SystemExit(main())
