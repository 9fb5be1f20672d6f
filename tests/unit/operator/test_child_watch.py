"""Children that somebody deletes are applied again, and only those."""

from longshore_kube.access import Access
from longshore_operator.child_watch import ChildWatch, _child
from longshore_operator.children import children
from longshore_operator.job_memory import JobMemory
from longshore_operator.kube import KubeClient, Object
from longshore_operator.plan import Apply, CreateOnce
from tests.unit.operator.model import CONFIG, Cluster, make_job

KEY = ("team", "demo")


class Watched:
    """A job whose children have all been applied."""

    def __init__(self) -> None:
        self.woken: list[tuple[str, str]] = []
        self.manifests = [child.manifest for child in children(make_job(), CONFIG)]
        applied = {(one["kind"], one["metadata"]["name"]): "f" for one in self.manifests}
        self.memory = JobMemory("job-uid", applied=applied, applied_for=(1, 2))
        kube = KubeClient(Access("http://nowhere.invalid"))
        self.watch = ChildWatch(kube, None, {KEY: self.memory}, self.woken.append, network_policies=True)

    def found(self, kind: str) -> Object:
        return next(one for one in self.manifests if one["kind"] == kind)


def test_a_child_that_is_deleted_is_applied_again() -> None:
    job = Watched()
    child = _child(job.found("RoleBinding"))
    assert child is not None
    job.watch.forget("RoleBinding", child)
    assert ("RoleBinding", "demo-coordinator") not in job.memory.applied
    assert (job.memory.applied_for, job.memory.num_lost, job.woken) == ((0, 2), 1, [KEY])


def test_a_child_that_a_list_lacks_is_applied_again() -> None:
    job = Watched()
    job.watch.compare("Service", [])
    assert job.woken == [KEY]
    child = _child(job.found("ServiceAccount"))
    assert child is not None
    job.watch.compare("ServiceAccount", [child])
    assert job.woken == [KEY]


def test_children_of_an_earlier_job_of_the_name_wake_nobody() -> None:
    job = Watched()
    child = _child(job.found("Role"))
    assert child is not None
    job.watch.forget("Role", child._replace(owner_uid="earlier"))
    assert (job.memory.num_lost, job.woken) == (0, [])


def test_objects_that_no_rljob_controls_are_ignored() -> None:
    assert _child({"metadata": {"name": "a", "namespace": "team", "labels": {"longshore.dev/job": "demo"}}}) is None


def test_each_later_attempt_makes_what_is_not_watched_again(running: Cluster) -> None:
    running.delete("demo-coordinator")
    running.kubelet()
    actions = running.plan(applied_for=(1, 1)).actions
    made = [action.key[1] for action in actions if isinstance(action, Apply | CreateOnce)]
    assert made == ["demo-config", "demo-ray-token-job-uid", "demo-reward-token-job-uid"]


def test_a_secret_that_is_lost_while_pods_run_begins_an_attempt_with_new_ones(running: Cluster) -> None:
    secret = ("Secret", "demo-ray-token-job-uid")
    del running.children[secret]
    plan = running.plan(lost_secrets=(secret[1],))
    assert secret in [action.key for action in plan.actions if isinstance(action, CreateOnce)]
    running.apply(plan)
    assert (running.status.attempt, running.status.failures) == (2, 0)
    assert running.condition("Ready")[1] == "SecretDeleted"
    running.reconcile_until_stable()
    assert len(running.pods) == 4
    assert {pod.attempt for pod in running.pods.values()} == {2}
