"""What the fields of a job come to for its judges."""

from longshore.api.reward import Judge, JudgePlacement, RewardFunction, RewardKind
from longshore_runtime.rewards.kinds.judge import memory_limit


def judge(name: str, gpu_memory: str, **options: object) -> RewardFunction:
    fields = {"model_path": "judge", "gpu_memory": gpu_memory, **options}
    return RewardFunction(name=name, kind=RewardKind.JUDGE, judge=Judge.model_validate(fields))


def test_judges_beside_an_engine_share_a_process_and_so_the_sum_of_what_they_reserve() -> None:
    """One GiB on top is what CUDA itself takes of a GPU for a process."""
    functions = [judge("taste", "4Gi"), judge("style", "1536Mi"), RewardFunction(name="sum", kind=RewardKind.MATHS)]
    assert memory_limit(functions) == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6656M"}


def test_judges_elsewhere_reserve_nothing_beside_the_engine() -> None:
    remote = judge("far", "8Gi", placement=JudgePlacement.REMOTE, model_path=None, url="http://judge/v1")
    assert memory_limit([judge("near", "2Gi"), remote]) == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M"}
