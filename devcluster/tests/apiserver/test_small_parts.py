"""JSONPath, durations, content negotiation, request paths, tokens, rights, budgets."""

from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from longshore_devcluster.apiserver.access.jwt import BadToken, Signer
from longshore_devcluster.apiserver.access.rbac import Attributes, rule_allows
from longshore_devcluster.apiserver.clock import age, human_duration
from longshore_devcluster.apiserver.crd.jsonpath import BadPath, find, steps
from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.negotiate import Representation, negotiate
from longshore_devcluster.apiserver.request import parse_request

OBJ = {
    "metadata": {"labels": {"example.com/a": "x"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
    "spec": {"list": [1, 2]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.list[0]", [1]),
        (".spec.list[*]", [1, 2]),
        (".spec.list[-1]", [2]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type!='Ready')].status", ["False"]),
        (r".metadata.labels.example\.com/a", ["x"]),
        (".metadata.labels['example.com/a']", ["x"]),
        ("{.spec.list}", [[1, 2]]),
        (".absent.deep", []),
    ],
)
def test_json_paths(path: str, expected: list[object]) -> None:
    assert list(find(steps(path), OBJ)) == expected


def test_a_path_that_cannot_be_read_says_so() -> None:
    with pytest.raises(BadPath):
        steps(".spec[")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (600, "10m"), (3 * 3600, "3h"), (3 * 3600 + 60, "3h1m"),
        (9 * 3600, "9h"), (47 * 3600, "47h"), (49 * 3600, "2d1h"), (9 * 86400, "9d"), (400 * 86400, "400d"),
        (3 * 365 * 86400, "3y"),
    ],
)  # fmt: skip
def test_ages_are_short(seconds: int, shown: str) -> None:
    assert human_duration(seconds) == shown


def test_an_age_is_counted_from_the_present() -> None:
    assert age("2026-01-01T00:00:00Z", datetime(2026, 1, 1, 0, 0, 33, tzinfo=UTC)) == "33s"
    assert age(None, datetime(2026, 1, 1, tzinfo=UTC)) == "<unknown>"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", Representation()),
        ("*/*", Representation()),
        ("application/vnd.kubernetes.protobuf,application/json", Representation()),
        ("application/yaml", Representation(yaml=True)),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Representation(transform="Table")),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Representation()),
    ],
)
def test_the_first_servable_representation_wins(accept: str, expected: Representation) -> None:
    assert negotiate(accept) == expected


def test_what_nobody_speaks_is_not_acceptable() -> None:
    with pytest.raises(ApiError) as error:
        negotiate("text/plain")
    assert error.value.code == 406


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, ("list", "", "", "pods", "", "")),
        ("GET", "/api/v1/namespaces/a/pods", {"watch": "true"}, ("watch", "", "a", "pods", "", "")),
        ("GET", "/api/v1/namespaces/a/pods/p/log", {}, ("get", "", "a", "pods", "p", "log")),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments",
            {},
            ("deletecollection", "apps", "a", "deployments", "", ""),
        ),
        ("GET", "/api/v1/namespaces/a", {}, ("get", "", "a", "namespaces", "a", "")),
        ("PUT", "/api/v1/namespaces/a/finalize", {}, ("update", "", "a", "namespaces", "a", "finalize")),
        ("POST", "/api/v1/namespaces", {}, ("create", "", "", "namespaces", "", "")),
        ("GET", "/apis/apps/v1", {}, ("get", "", "", "", "", "")),
    ],
)
def test_paths_are_taken_apart(method: str, path: str, query: dict[str, str], expected: tuple[str, ...]) -> None:
    info = parse_request(method, path, query)
    assert (info.verb, info.group, info.namespace, info.resource, info.name, info.subresource) == expected


def test_a_token_is_only_valid_as_signed() -> None:
    signer = Signer(ec.generate_private_key(ec.SECP256R1()))
    token = signer.sign({"sub": "a"})
    assert signer.verify(token) == {"sub": "a"}
    header, claims, signature = token.split(".")
    for forged in (f"{header}.{claims}.{signature[::-1]}", f"{header}.{claims[:-2]}.{signature}", "x", ""):
        with pytest.raises(BadToken):
            signer.verify(forged)
    with pytest.raises(BadToken):
        Signer(ec.generate_private_key(ec.SECP256R1())).verify(token)


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        ({"resources": ["pods"]}, Attributes("get", "", "pods"), True),
        ({"resources": ["pods"]}, Attributes("get", "", "pods", "log"), False),
        ({"resources": ["pods/log"]}, Attributes("get", "", "pods", "log"), True),
        ({"resources": ["*/scale"]}, Attributes("get", "", "things", "scale"), True),
        ({"resources": ["*"]}, Attributes("get", "", "pods", "log"), True),
        ({"resources": ["pods"], "resourceNames": ["a"]}, Attributes("get", "", "pods", name="a"), True),
        ({"resources": ["pods"], "resourceNames": ["a"]}, Attributes("list", "", "pods"), False),
        ({"resources": ["pods"]}, Attributes("get", "apps", "pods"), False),
        ({"nonResourceURLs": ["/healthz/*"]}, Attributes("get", path="/healthz/a"), True),
        ({"nonResourceURLs": ["/healthz"]}, Attributes("get", path="/healthz/a"), False),
    ],
)
def test_a_rule_covers_what_it_names(rule: dict[str, object], asked: Attributes, allowed: bool) -> None:
    whole = {"verbs": ["get", "list"], "apiGroups": [""], **rule}
    assert rule_allows(whole, asked) is allowed
