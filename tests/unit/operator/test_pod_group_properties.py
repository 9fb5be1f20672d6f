"""Whatever happens to pods, PodGroup and API, members are created only in a PodGroup that fits, and a job settles."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from longshore.api.names import Component
from longshore.api.status import Phase
from tests.properties import examples
from tests.unit.operator.model import Cluster
from tests.unit.operator.test_reconcile_properties import BACKOFF_LIMIT, AnyHistory

MISTAKE = "the cluster serves no PodGroups"


class AnyHistoryWithAPodGroup(AnyHistory):
    """Any history, in which the PodGroup and its API come and go as well."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(spec={"backoffLimit": BACKOFF_LIMIT, "scheduling": {"podGroup": "Volcano"}})

    @rule(age=st.integers(0, 3))
    def the_operator_looks(self, age: int) -> None:
        cluster = self.cluster
        before, group, members = set(cluster.pods), cluster.pod_group, self.members()
        super().the_operator_looks(age)
        if self.members() - before:
            assert group is not None, "members follow their PodGroup"
            assert not cluster.pod_group_mistake
            if not members:
                assert group["spec"]["minMember"] == cluster.job.spec.workers.replicas + 1

    def members(self) -> set[str]:
        """Pods that belong to the PodGroup and can hold GPUs."""
        pods = self.cluster.pods.values()
        return {pod.name for pod in pods if pod.component is not Component.COORDINATOR and pod.holds_resources}

    @precondition(lambda self: self.cluster.pod_group is not None)
    @rule()
    def someone_deletes_the_group(self) -> None:
        self.cluster.pod_group = None

    @rule(is_served=st.booleans())
    def the_api_comes_or_goes(self, is_served: bool) -> None:
        self.cluster.pod_group_mistake = "" if is_served else MISTAKE
        if not is_served:
            self.cluster.pod_group = None

    def teardown(self) -> None:
        """Once the API is back, the job settles as ever, and has a PodGroup exactly while it runs."""
        self.cluster.pod_group_mistake = ""
        super().teardown()
        assert (self.cluster.pod_group is not None) == (self.cluster.status.phase is Phase.RUNNING)


TestAnyHistoryWithAPodGroup = AnyHistoryWithAPodGroup.TestCase
TestAnyHistoryWithAPodGroup.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
