"""Which jobs hear of their Workloads."""

from longshore_kube.access import Access
from longshore_kube.reflector import Changed, Listed
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.desk import KueueDesk
from longshore_operator.plan import OperatorConfig

A, B, C = ("team", "a"), ("team", "b"), ("team", "c")


def test_a_workload_that_goes_while_nobody_follows_is_noticed_in_the_next_list() -> None:
    desk = KueueDesk(KubeClient(Access("http://nowhere")), OperatorConfig(runtime_image="unused"), None, lambda _: None)
    assert desk._concerned(Listed([A, B], 1)) == [A, B]
    assert desk._concerned(Changed("ADDED", C)) == [C]
    assert desk._concerned(Listed([A], 9)) == [A, B, C]
    assert desk._concerned(Listed([A], 12)) == [A]
