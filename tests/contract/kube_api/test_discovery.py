"""Discovery, OpenAPI, health."""

from tests.contract.kube_api.api import Api

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def _resource(document: object, group: str, name: str) -> dict[str, object]:
    groups = {g["metadata"].get("name", ""): g for g in document["items"]}  # type: ignore[index]
    return next(r for r in groups[group]["versions"][0]["resources"] if r["resource"] == name)


def test_the_aggregated_form_names_itself(api: Api) -> None:
    answer = api.get("/apis", accept=f"{_AGGREGATED},application/json")
    assert answer.headers["Content-Type"] == _AGGREGATED
    deployments = _resource(answer.json, "apps", "deployments")
    assert deployments["shortNames"] == ["deploy"] and deployments["scope"] == "Namespaced"
    assert {s["subresource"] for s in deployments["subresources"]} == {"scale", "status"}  # type: ignore[attr-defined]


def test_the_older_form_lists_group_by_group(api: Api) -> None:
    groups = {g["name"]: g for g in api.get("/apis").json["groups"]}
    assert groups["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    pods = {r["name"]: r for r in api.get("/api/v1").json["resources"]}
    assert pods["pods"]["shortNames"] == ["po"] and "pods/log" in pods


def test_a_custom_resource_is_discovered(api: Api, widgets: str) -> None:
    found = {r["name"]: r for r in api.get(widgets).json["resources"]}
    assert found["widgets"]["categories"] == ["contract"] and found["widgets"]["kind"] == "Widget"
    assert set(found["widgets/status"]["verbs"]) == {"get", "patch", "update"}


def test_openapi_documents_describe_what_patches_take(api: Api) -> None:
    index = api.get("/openapi/v3").json["paths"]
    document = api.get(index["apis/apps/v1"]["serverRelativeURL"]).json
    path = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]
    assert "fieldValidation" in {p.get("name") for p in path["patch"]["parameters"]}
    schema = document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"]
    kinds = {(g["group"], g["version"], g["kind"]) for g in schema["x-kubernetes-group-version-kind"]}
    assert ("apps", "v1", "Deployment") in kinds


def test_openapi_lists_keep_their_merge_keys(api: Api) -> None:
    index = api.get("/openapi/v3").json["paths"]
    schemas = api.get(index["api/v1"]["serverRelativeURL"]).json["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]


def test_health_and_version(api: Api) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        assert api.get(path).text == "ok"
    version = api.get("/version/").json
    assert version["gitVersion"].startswith("v1.") and version["major"] == "1"


def test_unknown_paths(api: Api) -> None:
    assert api.get("/nothing").status == 404
    answer = api.get("/apis/apps/v9/deployments")
    assert (answer.status, answer.json["message"]) == (404, "the server could not find the requested resource")
