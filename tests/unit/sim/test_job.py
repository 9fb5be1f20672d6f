"""From a manifest to a job to simulate."""

from longshore.api.algorithm import Algorithm
from longshore.api.model import BuiltinTask, Data, Model
from longshore.api.pods import Storage, Workers
from longshore.api.rollout import Rollout, Strategy
from longshore.api.spec import RLJobSpec
from longshore.api.training import Trainer
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import job_of
from longshore.sim.simulate import simulate
from tests.unit.sim.jobs import LENGTHS


def test_a_manifest_becomes_a_job_of_the_same_shape() -> None:
    spec = RLJobSpec(
        model=Model(path="models/qwen", max_context_tokens=8192),
        data=Data(builtin=BuiltinTask.COUNTING),
        algorithm=Algorithm(steps=10, prompts_per_step=4, responses_per_prompt=2, max_response_tokens=4096),
        rollout=Rollout(strategy=Strategy.TAIL_BATCHING),
        trainer=Trainer(data_parallel_size=2),
        workers=Workers(replicas=2, gpus_per_pod=4),
        storage=Storage(claim_name="data"),
    )
    job = job_of(spec, MODELS["Qwen3-8B"], GPUS["H100"], LENGTHS)
    assert job.gpus.pods() == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert job.trainer.gpus_per_replica == 4
    assert job.groups_per_update == 4
    assert simulate(job, 1).steps[0].num_trained_samples == 8
