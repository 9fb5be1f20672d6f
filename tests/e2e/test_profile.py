"""A job that only measures the hardware, started from the command line."""

from pathlib import Path

import pytest
import yaml

from longshore.sim.profile import Profile
from tests.e2e.jobs import Cluster, Json, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def real_job(name: str) -> Json:
    """vLLM and the torch trainer on the tiny model; a pod of two GPUs holds two engines, or one of both."""
    return fake_job(
        name,
        model={"builtin": "Tiny", "maxContextTokens": 256},
        rollout={"engine": {"maxNumSeqs": 16, "enforceEager": True, "kvCache": "16Mi"}},
        trainer={"backend": "Torch", "maxTokensPerMicroBatch": 1024},
        workers={"replicas": 1, "gpusPerPod": 2, "gpuResourceName": "longshore.dev/pretend-gpu"},
    )


@pytest.mark.soak
def test_a_profile_has_every_size_is_fetched_and_read_by_the_simulator(cluster: Cluster, tmp_path: Path) -> None:
    manifest, out = tmp_path / "job.yaml", tmp_path / "profile.json"
    manifest.write_text(yaml.safe_dump(real_job("measured")))
    output = cluster.longshore("profile", str(manifest), "--out", str(out))

    profile = Profile.model_validate_json(out.read_bytes())
    assert profile.subject is not None
    assert (profile.subject.model, profile.subject.gpu) == ("Tiny", "CPU")
    assert profile.tp_sizes == (1, 2)
    assert all(point.step_s > 0 and point.measurements for point in profile.decode)
    assert {1, 15} <= {point.num_running for point in profile.decode}
    assert profile.kv_capacity_tokens.keys() == {1, 2}
    assert profile.prefill_of_engine(1)
    for figure in (profile.train_tokens_per_s, profile.publish_s, profile.regroup_s):
        assert figure is not None
        assert figure > 0
    assert "Milliseconds of a decode step" in output
    assert "forward and backward, per trainer GPU" in output
    assert "-profile" not in cluster.kubectl("get", "rljobs", "-o", "name"), "the job that measured is gone"

    simulated = cluster.longshore("simulate", str(manifest), "--profile", str(out), "--steps", "2")
    assert "Tiny on 2 x CPU" in simulated
