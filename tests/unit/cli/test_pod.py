"""The helper pod."""

from longshore_client.transfer.pod import HelperOptions, archive_command, helper_pod, trouble
from tests.unit.cli.samples import rljob

OPTIONS = HelperOptions("image", {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}, ("registry",))


def test_it_satisfies_restricted_pod_security() -> None:
    spec = helper_pod("claim", OPTIONS, read_only=True, job=None)["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_where_the_cluster_assigns_users_it_names_none() -> None:
    spec = helper_pod("claim", HelperOptions("image", {}), read_only=True, job=None)["spec"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()
    assert "imagePullSecrets" not in spec


def test_a_fetch_cannot_write() -> None:
    spec = helper_pod("claim", OPTIONS, read_only=True, job=None)["spec"]
    assert spec["volumes"] == [{"name": "storage", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}}]
    assert spec["containers"][0]["volumeMounts"][0]["readOnly"] is True


def test_it_ends_by_itself_and_goes_with_its_job() -> None:
    pod = helper_pod("claim", OPTIONS, read_only=False, job=rljob())
    assert pod["spec"]["activeDeadlineSeconds"] > 0
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RLJob", "demo", "uid-1")
    assert "controller" not in owner, "the operator must not take it for one of its own"
    assert "longshore.dev/job" not in pod["metadata"]["labels"]


def test_its_commands_are_short_enough_for_an_address() -> None:
    assert len(" ".join(archive_command("receive", "x" * 1024, "force"))) < 2048


def test_its_program_is_no_variable_to_kubernetes() -> None:
    (container,) = helper_pod("claim", OPTIONS, read_only=True, job=None)["spec"]["containers"]
    assert "$(" not in container["env"][0]["value"]


def test_trouble_is_reported_in_the_words_of_the_cluster() -> None:
    unschedulable = {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    ]}  # fmt: skip
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]}
    assert trouble({"status": unschedulable}) == "Unschedulable: 0/1 nodes are available"
    assert trouble({"status": waiting}) == "ErrImagePull: no such image"
    assert trouble({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}) == "it ended: DeadlineExceeded"
    assert trouble({"status": {"phase": "Running"}}) == ""
