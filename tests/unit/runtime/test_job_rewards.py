"""Which reward functions share workers, and which of these decide the number of reward pods."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api import contract
from longshore.api.pods import Workers
from longshore.api.reward import Http, Judge, JudgePlacement, Reward, RewardFunction, RewardKind
from longshore_runtime.job_rewards import reward_pods, worker_groups
from longshore_runtime.rewards.workers import WorkerGroup

WORKERS = Workers(replicas=2, gpus_per_pod=2)
SERVICE, URL = Http(url="http://service/"), "http://judge/v1"

kinds = st.one_of(
    st.sampled_from([{"kind": RewardKind.TASK}, {"kind": RewardKind.MATHS}, {"kind": RewardKind.CODE}]),
    st.just({"kind": RewardKind.PYTHON, "import_path": "rewards:score"}),
    st.just({"kind": RewardKind.HTTP, "http": SERVICE}),
    st.sampled_from(
        [
            Judge(placement=JudgePlacement.REMOTE, url=URL),
            Judge(placement=JudgePlacement.POOL, model_path="judge", pool=Workers()),
            Judge(model_path="judge"),
        ]
    ).map(lambda judge: {"kind": RewardKind.JUDGE, "judge": judge}),
)
jobs = st.lists(kinds, min_size=1, max_size=6).map(
    lambda each: [RewardFunction.model_validate({"name": f"f{number}", **one}) for number, one in enumerate(each)]
)


@pytest.fixture(scope="module", autouse=True)
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(contract.ENV_REWARD_TOKEN, str(tmp_path_factory.mktemp("token") / "token"))
        yield


@contextmanager
def groups_of(reward: Reward) -> Iterator[list[WorkerGroup]]:
    with ExitStack() as resources:
        yield worker_groups(reward, WORKERS, reward_pods(reward, lambda index: None), resources)


def names(group: WorkerGroup) -> set[str]:
    return {function.name for function in group.functions}


@given(jobs, st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(4, 6))
def test_every_function_is_in_one_group_with_functions_that_use_their_workers_alike(
    functions: list[RewardFunction], pods: int, more_pods: int, workers_per_pod: int, requests_per_pod: int
) -> None:
    has_code = any(one.kind is RewardKind.CODE for one in functions)
    pods = max(pods, 1) if has_code else pods
    reward = Reward(
        functions=functions,
        pods=pods,
        max_pods=pods + more_pods,
        workers_per_pod=workers_per_pod,
        requests_per_pod=requests_per_pod,
    )
    expected = {True: requests_per_pod, False: workers_per_pod}
    with groups_of(reward) as groups:
        assert sorted(name for group in groups for name in names(group)) == sorted(one.name for one in functions)
        for group in groups:
            assert len({(one.waits, one.is_colocated) for one in group.functions}) == 1
            (first, *_) = group.functions
            if first.is_colocated:
                assert len(group.places) == 4, "one process for every GPU of an engine"
            else:
                num_places = (pods + more_pods + (pods == 0)) * expected[first.waits]
                assert len(group.places) == num_places
        assert len({(group.functions[0].waits, group.functions[0].is_colocated) for group in groups}) == len(groups)


@given(jobs, st.integers(1, 2), st.integers(0, 1))
def test_the_group_that_decides_the_number_of_pods_is_the_one_the_operator_counts_by(
    functions: list[RewardFunction], pods: int, more_pods: int
) -> None:
    reward = Reward(functions=functions, pods=pods, max_pods=pods + more_pods, workers_per_pod=3, requests_per_pod=5)
    with groups_of(reward) as groups:
        sized = [group for group in groups if group.is_sized]
        has_pods = any(not one.is_colocated for one in functions)
        assert len(sized) == (1 if more_pods and has_pods else 0)
        for group in sized:
            assert len(group.places) == reward.sized_per_pod * (pods + more_pods)
            computes = any(not one.waits and not one.is_colocated for one in functions)
            assert group.functions == (reward.computing if computes else reward.waiting)


def test_where_the_coordinator_scores_alone_its_own_workers_come_first() -> None:
    functions = [
        RewardFunction(name="maths", kind=RewardKind.MATHS),
        RewardFunction(name="service", kind=RewardKind.HTTP, http=SERVICE),
    ]
    reward = Reward(functions=functions, pods=0, max_pods=1, workers_per_pod=1, requests_per_pod=2)
    with groups_of(reward) as (computing, waiting):
        assert [place.name for place in computing.places] == ["this pod", "reward pod 0"]
        assert [place.name for place in waiting.places] == ["this pod"] * 2 + ["reward pod 0"] * 2
