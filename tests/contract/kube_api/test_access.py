"""Authentication, RBAC and tokens of service accounts."""

import base64
import json
from typing import Any

import pytest

from tests.contract.kube_api.api import Api, eventually, role_binding

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def bot(api: Api, namespace: str) -> Api:
    """A service account without rights of its own."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    assert api.post(accounts, {"metadata": {"name": "bot"}}).status == 201
    return api.as_token(_token(api, namespace))


def _token(api: Api, namespace: str, **spec: Any) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/bot/token"
    answer = api.post(path, {"spec": {"expirationSeconds": 3600, **spec}})
    assert answer.status == 201, answer.text
    return str(answer.json["status"]["token"])


def _grant(api: Api, namespace: str, *rules: dict[str, Any]) -> None:
    base = f"{RBAC}/namespaces/{namespace}"
    assert api.post(f"{base}/roles", {"metadata": {"name": "r"}, "rules": list(rules)}).status == 201
    assert api.post(f"{base}/rolebindings", role_binding("r", namespace, "bot", "r")).status == 201


def _until_allowed(api: Api, path: str) -> None:
    eventually(f"{path} is allowed", lambda: api.get(path).status == 200)


def test_nobody_gets_in_with_a_wrong_token(api: Api, namespace: str) -> None:
    answer = api.as_token("wrong").get(f"/api/v1/namespaces/{namespace}/pods")
    assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")


def test_strangers_see_health_and_version_only(api: Api) -> None:
    stranger = api.as_token("")
    assert stranger.get("/healthz").text == "ok"
    assert stranger.get("/version").status == 200
    answer = stranger.get("/api")
    assert (answer.status, answer.json["message"]) == (403, 'forbidden: User "system:anonymous" cannot get path "/api"')


def test_a_refusal_says_who_may_not_do_what_where(api: Api, bot: Api, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:bot"
    listing = bot.get(f"/api/v1/namespaces/{namespace}/secrets").json
    assert listing["message"] == (
        f'secrets is forbidden: User "{user}" cannot list resource "secrets" in API group "" '
        f'in the namespace "{namespace}"'
    )
    assert listing["details"] == {"kind": "secrets"}
    named = bot.get("/apis/apps/v1/namespaces/default/deployments/x").json
    assert named["message"] == (
        f'deployments.apps "x" is forbidden: User "{user}" cannot get resource "deployments" in API group "apps" '
        'in the namespace "default"'
    )
    everywhere = bot.get("/api/v1/nodes").json["message"]
    assert everywhere.endswith('cannot list resource "nodes" in API group "" at the cluster scope')


def test_a_role_gives_what_it_names(api: Api, bot: Api, namespace: str) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    _grant(api, namespace, rule)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    _until_allowed(bot, path)
    assert bot.post(path, {"metadata": {"name": "a"}}).status == 403
    assert bot.get("/api/v1/namespaces/default/configmaps").status == 403


def test_rights_may_be_for_named_objects_and_subresources(api: Api, bot: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("mine", "yours"):
        api.post(path, {"metadata": {"name": name}})
    named = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": ["get", "patch"]}
    status = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
    _grant(api, namespace, named, status)
    _until_allowed(bot, f"{path}/mine")
    assert bot.get(f"{path}/yours").status == 403
    assert bot.get(f"/api/v1/namespaces/{namespace}/pods/p/log").status == 404
    assert bot.get(f"/api/v1/namespaces/{namespace}/pods/p").status == 403


def test_rights_to_a_named_object_suffice_for_a_list_and_a_watch_of_it_alone(
    api: Api, bot: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for name in ("mine", "yours"):
        api.post(path, {"metadata": {"name": name}})
    verbs = ["get", "list", "watch"]
    _grant(api, namespace, {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"], "verbs": verbs})
    _until_allowed(bot, f"{path}/mine")
    found = bot.get(f"{path}?fieldSelector=metadata.name%3Dmine")
    assert [one["metadata"]["name"] for one in found.json["items"]] == ["mine"]
    watch = "watch=true&timeoutSeconds=1"
    assert bot.get(f"{path}?fieldSelector=metadata.name%3Dmine&{watch}").status == 200
    for selector in ("", "fieldSelector=metadata.name%3Dyours", "fieldSelector=metadata.name%21%3Dmine"):
        assert bot.get(f"{path}?{selector}").status == 403
        assert bot.get(f"{path}?{selector}&{watch}").status == 403


def test_nobody_grants_what_they_do_not_hold(api: Api, bot: Api, namespace: str) -> None:
    write = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"],
        "verbs": ["create", "list"],
    }
    _grant(api, namespace, write)
    roles = f"{RBAC}/namespaces/{namespace}/roles"
    _until_allowed(bot, roles)
    held = {"metadata": {"name": "held"}, "rules": [{**write, "verbs": ["list"]}]}
    assert bot.post(roles, held).status == 201
    secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    refused = bot.post(roles, {"metadata": {"name": "more"}, "rules": [secrets]})
    assert refused.status == 403
    assert "is attempting to grant RBAC permissions not currently held" in refused.json["message"]
    binding = role_binding("admin", namespace, "bot", "cluster-admin", "ClusterRole")
    assert bot.post(f"{RBAC}/namespaces/{namespace}/rolebindings", binding).status == 403


@pytest.mark.parametrize("kind", ["Role", "ClusterRole"])
def test_a_role_that_does_not_exist_is_bound_by_those_who_may_bind_any(
    api: Api, bot: Api, namespace: str, kind: str
) -> None:
    resources = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"]}
    _grant(api, namespace, {**resources, "verbs": ["create", "list"]})
    bindings = f"{RBAC}/namespaces/{namespace}/rolebindings"
    _until_allowed(bot, bindings)
    binding = role_binding("b", namespace, "bot", "missing", kind)
    refused = bot.post(bindings, binding)
    assert (refused.status, refused.json["reason"]) == (404, "NotFound")
    assert refused.json["message"] == 'rolebindings.rbac.authorization.k8s.io "missing" not found'
    assert api.post(bindings, binding).status == 201


def test_a_binding_keeps_its_role(api: Api, bot: Api, namespace: str) -> None:
    _grant(api, namespace, {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]})
    path = f"{RBAC}/namespaces/{namespace}/rolebindings/r"
    other = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "other"}}
    assert api.patch(path, other).status == 422


def test_a_token_says_whose_it_is(api: Api, bot: Api, namespace: str) -> None:
    review = bot.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    info = review.json["status"]["userInfo"]
    assert info["username"] == f"system:serviceaccount:{namespace}:bot"
    assert f"system:serviceaccounts:{namespace}" in info["groups"]
    token = _token(api, namespace)
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == info["username"] and claims["exp"] > claims["iat"]


def test_a_token_is_bound_to_a_pod_of_its_own_account_only(api: Api, bot: Api, namespace: str) -> None:
    spec = {"schedulerName": "none", "containers": [{"name": "c", "image": "x"}]}
    created = api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}, "spec": spec}).json
    assert created["spec"]["serviceAccountName"] == "default"
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/bot/token"
    answer = api.post(path, {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
    assert (answer.status, answer.json["message"]) == (
        400,
        'cannot bind token for serviceaccount "bot" to pod running with different serviceaccount name.',
    )


def test_a_token_ends_with_its_pod(api: Api, bot: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"schedulerName": "none", "serviceAccountName": "bot", "containers": [{"name": "c", "image": "x"}]}
    uid = api.post(pods, {"metadata": {"name": "p"}, "spec": spec}).json["metadata"]["uid"]
    token = _token(api, namespace, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid})
    assert api.as_token(token).get("/version").status == 200
    api.delete(f"{pods}/p")
    # A real server remembers for ten seconds whom it let in.
    eventually("the token has ended", lambda: api.as_token(token).get("/version").status == 401)


def test_a_token_for_another_audience_is_not_ours(api: Api, bot: Api, namespace: str) -> None:
    token = _token(api, namespace, audiences=["somebody-else"])
    assert api.as_token(token).get("/version").status == 401


def test_access_reviews_answer_without_trying(api: Api, bot: Api, namespace: str) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {"spec": {"resourceAttributes": {"namespace": namespace, "verb": "delete", "resource": "pods"}}}
    assert bot.post(path, asked).json["status"]["allowed"] is False
    assert api.post(path, asked).json["status"]["allowed"] is True
