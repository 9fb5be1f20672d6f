"""Which addresses stand behind a Service."""

from devcluster.tests.builders import Json, pod

from longshore_devcluster.controllers.endpoints import endpoints_of, slice_of


def service(**spec: object) -> Json:
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "s"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}], **spec},
    }


def backend(name: str, ready: bool = True, phase: str = "Running") -> Json:
    ports = [{"name": "web", "containerPort": 8000}]
    return pod(
        name,
        nodeName="n",
        labels={"app": "web"},
        containers=[{"name": "main", "ports": ports}],
        status={
            "phase": phase,
            "podIP": f"127.1.1.{len(name)}",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    )


def test_ready_and_unready_pods_are_distinguished_and_named_ports_resolved() -> None:
    subsets = endpoints_of(service(), [backend("a"), backend("bb", ready=False)])["subsets"]

    assert [entry["ip"] for entry in subsets[0]["addresses"]] == ["127.1.1.1"]
    assert [entry["ip"] for entry in subsets[0]["notReadyAddresses"]] == ["127.1.1.2"]
    assert subsets[0]["ports"] == [{"name": "http", "port": 8000, "protocol": "TCP"}]


def test_services_may_ask_for_unready_addresses_too() -> None:
    subsets = endpoints_of(service(publishNotReadyAddresses=True), [backend("a", ready=False)])["subsets"]

    assert len(subsets[0]["addresses"]) == 1


def test_ended_pods_other_labels_and_other_namespaces_are_left_out() -> None:
    elsewhere = backend("cc")
    elsewhere["metadata"]["namespace"] = "other"
    stranger = pod("stranger", status={"podIP": "127.1.1.9"})

    assert endpoints_of(service(), [backend("a", phase="Failed"), elsewhere, stranger])["subsets"] == []


def test_headless_services_without_ports_have_addresses_alone() -> None:
    subsets = endpoints_of(service(clusterIP="None", ports=[]), [backend("a")])["subsets"]

    assert "ports" not in subsets[0]
    assert len(subsets[0]["addresses"]) == 1


def test_slice_says_which_endpoints_are_ready() -> None:
    endpoints = slice_of(service(), [backend("a"), backend("bb", ready=False)])["endpoints"]

    assert [(entry["addresses"], entry["conditions"]["ready"]) for entry in endpoints] == [
        (["127.1.1.1"], True),
        (["127.1.1.2"], False),
    ]
