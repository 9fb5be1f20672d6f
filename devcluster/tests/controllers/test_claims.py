"""Claims get the volume that fits them best."""

from pathlib import Path

from devcluster.tests.builders import Json, pod

from longshore_devcluster.controllers.claims import matching_volume, new_volume, users_of


def claim(size: str = "1Gi", modes: tuple[str, ...] = ("ReadWriteOnce",), **spec: object) -> Json:
    return {
        "metadata": {"name": "data", "namespace": "default", "uid": "0123456789abcdef"},
        "spec": {"resources": {"requests": {"storage": size}}, "accessModes": list(modes), **spec},
    }


def volume(name: str, size: str = "1Gi", **spec: object) -> Json:
    base = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"]}
    return {"metadata": {"name": name}, "spec": {**base, "storageClassName": "standard", **spec}}


def chosen(wanting: Json, *volumes: Json) -> str | None:
    found = matching_volume(wanting, volumes)
    return None if found is None else str(found["metadata"]["name"])


def test_smallest_sufficient_volume_wins() -> None:
    volumes = (volume("small", "500Mi"), volume("large", "1Ti"), volume("fitting", "2Gi"))

    assert chosen(claim("1Gi"), *volumes) == "fitting"


def test_volume_reserved_for_the_claim_wins_over_all() -> None:
    reserved = volume("mine", "10Ti", claimRef={"namespace": "default", "name": "data"})

    assert chosen(claim(), volume("fitting"), reserved) == "mine"


def test_volumes_of_other_claims_classes_and_modes_do_not_fit() -> None:
    others = volume("theirs", claimRef={"namespace": "default", "name": "other", "uid": "x"})

    assert chosen(claim(), others) is None
    assert chosen(claim(), volume("manual", storageClassName="manual")) is None
    assert chosen(claim(modes=("ReadWriteOncePod",)), volume("v")) is None
    assert chosen(claim(storageClassName=""), volume("v")) is None


def test_named_volume_and_selector_are_respected() -> None:
    labelled = volume("fast")
    labelled["metadata"]["labels"] = {"disk": "fast"}

    assert chosen(claim(volumeName="b"), volume("a"), volume("b")) == "b"
    assert chosen(claim(selector={"matchLabels": {"disk": "fast"}}), volume("slow"), labelled) == "fast"


def test_new_volume_is_a_directory_that_its_claim_names() -> None:
    made = new_volume(claim("3Gi"), Path("/root-dir"))

    assert made["spec"]["hostPath"]["path"] == "/root-dir/default-data-01234567"
    assert made["spec"]["capacity"] == {"storage": "3Gi"}
    assert made["spec"]["claimRef"]["uid"] == "0123456789abcdef"
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


def test_only_bound_pods_that_have_not_ended_use_a_claim() -> None:
    mounts = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    pods = [
        pod("running", nodeName="n", volumes=mounts),
        pod("ended", nodeName="n", volumes=mounts, status={"phase": "Succeeded"}),
        pod("unbound", volumes=mounts),
        pod("other", nodeName="n"),
    ]

    assert [entry["metadata"]["name"] for entry in users_of(claim(), pods)] == ["running"]
