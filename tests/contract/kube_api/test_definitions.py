"""What an API server refuses in a CustomResourceDefinition, and that it accepts ours with every manifest we ship."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.api import names
from longshore.api.crd import rljob_crd
from tests.contract.kube_api.api import Api, eventually, is_established
from tests.unit.api.specs import BROKEN, from_python, spec

Json = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "contract.longshore.dev"
ROOT = "spec.validation.openAPIV3Schema.properties[spec]"
MANIFESTS = sorted((Path(__file__).parents[3] / "manifests").glob("*.yaml"))


def obj(properties: Json, **more: Any) -> Json:
    return {"type": "object", "properties": properties, **more}


def ruled(schema: Json, *rules: str, **more: str) -> Json:
    return schema | {"x-kubernetes-validations": [{"rule": rule, **more} for rule in rules]}


def definition(schema: Json) -> Json:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": GROUP, "scope": "Namespaced", "names": {"plural": "probes", "kind": "Probe"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"probes.{GROUP}"},
        "spec": {**spec, "versions": [version]},
    }


def causes(api: Api, spec: Json) -> list[tuple[str, str]]:
    """(Field, message) of each reason why a definition with this schema for `spec` is refused."""
    answer = api.post(DEFINITIONS, definition(obj({"spec": spec})), dryRun="All")
    if answer.status == 201:
        return []
    assert answer.status == 422, answer.text
    return [(cause["field"].removeprefix(ROOT), cause["message"]) for cause in answer.json["details"]["causes"]]


WITH_DEFAULT: Json = {"type": "integer", "default": 1}
POSITIVE = ruled(obj({"b": WITH_DEFAULT}), "self.b > 0", message="b must be positive")
TWO = obj({"b": WITH_DEFAULT, "c": WITH_DEFAULT})
NO_KEY = 'Invalid value: "object": no such key: b evaluating rule: b must be positive'


@pytest.mark.parametrize(
    ("schema", "field", "message"),
    [
        pytest.param(obj({"a": POSITIVE | {"default": {}}}), ".properties[a].default", NO_KEY, id="rule on nested"),
        pytest.param(
            obj({"a": ruled(obj({"b": WITH_DEFAULT}, default={}), "self.b > 0")}),
            ".properties[a].default",
            'Invalid value: "object": no such key: b evaluating rule: self.b > 0',
            id="rule without message",
        ),
        *(
            pytest.param(
                obj({"a": ruled(TWO | {"default": {}}, f"self.b > 0 {both} self.c > 0")}),
                ".properties[a].default",
                f'Invalid value: "object": no such key: b evaluating rule: self.b > 0 {both} self.c > 0',
                id=f"rule with an error on each side of {both}",
            )
            for both in ("&&", "||")
        ),
        pytest.param(
            obj({"a": obj({"c": POSITIVE}, default={"c": {}})}), ".properties[a].default.c", NO_KEY, id="rule below"
        ),
        pytest.param(
            obj({"l": {"type": "array", "items": obj({"a": POSITIVE | {"default": {}}})}}),
            ".properties[l].items.properties[a].default",
            NO_KEY,
            id="default inside a list's items",
        ),
        pytest.param(
            obj({"l": {"type": "array", "default": [{}], "items": POSITIVE}}),
            ".properties[l].default[0]",
            NO_KEY,
            id="item of a list's default",
        ),
        pytest.param(
            obj({"a": POSITIVE | {"default": {"b": 0}}}),
            ".properties[a].default",
            "Invalid value: b must be positive",
            id="broken rule",
        ),
        pytest.param(
            obj({"a": ruled({"type": "integer", "default": 1}, "self > oldSelf", message="it must grow")}),
            ".properties[a].default",
            "Invalid value: 1: it must grow",
            id="transition rule",
        ),
        pytest.param(
            obj({"a": {"type": "integer", "maximum": 3, "default": 4}}),
            ".properties[a].default",
            "Invalid value: 4:  in body should be less than or equal to 3",
            id="limit",
        ),
        pytest.param(
            obj({"a": {"type": "integer", "default": "x"}}),
            ".properties[a].default",
            'Invalid value: "string":  in body must be of type integer: "string"',
            id="type",
        ),
        pytest.param(
            obj({"a": obj({"b": WITH_DEFAULT}, required=["b"], default={})}),
            ".properties[a].default.b",
            "Required value",
            id="required field with a default of its own",
        ),
        pytest.param(
            obj({"a": obj({"b": WITH_DEFAULT}, default={"c": 1})}),
            ".properties[a].default",
            'Invalid value: {"c":1}: must not have unknown fields',
            id="unknown field",
        ),
    ],
)
def test_a_default_is_checked_as_it_is_written(api: Api, schema: Json, field: str, message: str) -> None:
    assert causes(api, schema) == [(field, message)]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(obj({"a": POSITIVE | {"default": {"b": 1}}}), id="written out"),
        pytest.param(ruled(obj({"a": {"type": "integer", "default": 0}}), "self.a > 0"), id="rule around the default"),
        pytest.param(
            obj({"m": {"type": "object", "additionalProperties": obj({"a": POSITIVE | {"default": {}}})}}),
            id="values of maps, which are not looked at",
        ),
    ],
)
def test_these_defaults_are_accepted(api: Api, schema: Json) -> None:
    assert causes(api, schema) == []


def keyed(items: Json, kind: str = "map") -> Json:
    keys = {"x-kubernetes-list-map-keys": ["n"]} if kind == "map" else {}
    return obj({"a": {"type": "array", "x-kubernetes-list-type": kind, **keys, "items": items}})


@pytest.mark.parametrize(
    ("schema", "field", "message"),
    [
        pytest.param(
            keyed(obj({"n": {"type": "string"}})),
            ".properties[a].items.properties[n].default",
            "Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a "
            "required property",
            id="optional key",
        ),
        pytest.param(
            keyed(obj({"m": {"type": "string"}})),
            ".properties[a].x-kubernetes-list-map-keys",
            'Invalid value: ["n"]: entries must all be names of item properties',
            id="unknown key",
        ),
        pytest.param(
            keyed(obj({"m": {"type": "string"}}), "set"),
            ".properties[a].items.x-kubernetes-map-type",
            "Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            id="set of objects",
        ),
        pytest.param(
            obj({"a": {"type": "array", "items": ruled({"type": "integer"}, "self == oldSelf")}}),
            ".properties[a].items.x-kubernetes-validations[0].rule",
            'Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema '
            f"within {ROOT}.properties[a]",
            id="old value of an item",
        ),
        pytest.param(
            ruled(obj({"a": {"type": "integer"}}), "self.a > 0", fieldPath=".z"),
            ".x-kubernetes-validations[0].fieldPath",
            'Invalid value: ".z": must be a valid path',
            id="path of a rule",
        ),
        pytest.param(
            ruled(obj({"a": {"type": "integer"}}), "self.a > \n0"),
            ".x-kubernetes-validations[0].message",
            "Required value: message must be specified if rule contains line breaks",
            id="rule over lines",
        ),
        pytest.param(
            obj({"a": {"type": "integer", "anyOf": [{"type": "integer"}]}}),
            ".properties[a].anyOf[0].type",
            "Forbidden: must be empty to be structural",
            id="type in a branch",
        ),
    ],
)
def test_what_is_not_structural_is_refused(api: Api, schema: Json, field: str, message: str) -> None:
    assert causes(api, schema) == [(field, message)]


def test_a_pattern_must_be_one_that_go_can_run(api: Api) -> None:
    [(field, message)] = causes(api, obj({"a": {"type": "string", "pattern": "(?<=x)y"}}))
    assert field == ".properties[a].pattern"
    assert message.startswith('Invalid value: "(?<=x)y": must be a valid regular expression')


@pytest.fixture(scope="module")
def rljobs(api: Api) -> Iterator[str]:
    """Our definition under a group of its own: a cluster under test may have jobs."""
    crd = rljob_crd()
    crd["metadata"]["name"] = f"{names.PLURAL}.{GROUP}"
    crd["spec"]["group"] = GROUP
    crd["spec"]["names"] |= {"shortNames": [], "categories": []}
    path = f"{DEFINITIONS}/{crd['metadata']['name']}"
    try:
        with api.watching(DEFINITIONS, fieldSelector=f"metadata.name={crd['metadata']['name']}") as events:
            answer = api.post(DEFINITIONS, crd, fieldValidation="Strict")
            assert answer.status == 201, answer.text
            events.until(is_established)
        yield f"/apis/{GROUP}/{names.VERSION}"
    finally:
        api.delete(path)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: str(path.stem))
def test_every_manifest_that_we_ship_is_accepted(api: Api, rljobs: str, namespace: str, manifest: Path) -> None:
    paths = {
        names.KIND: f"{rljobs}/namespaces/{namespace}/{names.PLURAL}",
        "PersistentVolumeClaim": f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    }
    for document in yaml.safe_load_all(manifest.read_text()):
        document["apiVersion"] = document["apiVersion"].replace(names.GROUP, GROUP)
        answer = api.post(paths[document["kind"]], document, dryRun="All", fieldValidation="Strict")
        assert answer.status == 201, answer.text


def quickstart_job() -> Json:
    documents = yaml.safe_load_all((MANIFESTS[0].parent / "quickstart.yaml").read_text())
    [job] = [one for one in documents if one["kind"] == names.KIND]
    return {**job, "apiVersion": f"{GROUP}/{names.VERSION}"}


def test_objects_that_a_job_leaves_out_come_with_all_their_defaults(api: Api, rljobs: str, namespace: str) -> None:
    job = quickstart_job()
    for name in ("trainer", "evaluation", "checkpoint", "rollout", "workers"):
        job["spec"].pop(name, None)
    answer = api.post(f"{rljobs}/namespaces/{namespace}/{names.PLURAL}", job, dryRun="All")
    assert answer.status == 201, answer.text
    stored = answer.json["spec"]
    assert stored["trainer"]["backend"] == "Torch"
    assert stored["rollout"]["tailBatching"] == {"promptFactor": 1.25, "responseFactor": 1.0}
    assert stored["workers"]["replicas"] == 1


def test_what_breaks_a_rule_is_refused_with_the_field_and_sentence_of_the_models(
    api: Api, rljobs: str, namespace: str
) -> None:
    """On a real control plane this also holds the CEL expressions against its types and functions."""
    for changes, _ in BROKEN:
        job = quickstart_job() | {"metadata": {"name": "probe"}, "spec": spec(changes)}
        answer = api.post(f"{rljobs}/namespaces/{namespace}/{names.PLURAL}", job, dryRun="All")
        assert answer.status == 422, changes
        causes = [(cause["field"], cause["message"]) for cause in answer.json["details"]["causes"]]
        expected = [(f"spec.{field}", f"Invalid value: {message}") for field, message in from_python(changes)]
        assert causes == expected, changes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.b", names.JOB_NAME_FORM_RULE),
        ("1a", names.JOB_NAME_FORM_RULE),
        ("a" * (names.MAX_JOB_NAME_LENGTH + 1), names.JOB_NAME_LENGTH_RULE),
    ],
)
def test_a_name_that_children_cannot_have_is_refused_at_once(
    api: Api, rljobs: str, namespace: str, name: str, message: str
) -> None:
    job = quickstart_job() | {"metadata": {"name": name}}
    answer = api.post(f"{rljobs}/namespaces/{namespace}/{names.PLURAL}", job, dryRun="All")
    assert answer.status == 422
    assert [cause["message"] for cause in answer.json["details"]["causes"]] == [f"Invalid value: metadata.{message}"]


def test_a_definition_with_a_new_default_keeps_the_generation_of_existing_jobs(
    api: Api, rljobs: str, namespace: str
) -> None:
    """By the generation an operator knows that nobody has changed the spec, although it reads something else."""
    jobs, definition = f"{rljobs}/namespaces/{namespace}/{names.PLURAL}", f"{DEFINITIONS}/{names.PLURAL}.{GROUP}"
    job = quickstart_job() | {"metadata": {"name": "old"}}
    assert api.post(jobs, job).status == 201
    found = api.get(definition).json
    spec = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["novelty"] = {"type": "integer", "default": 3}
    assert api.put(definition, found).status == 200
    eventually("the new default", lambda: api.get(f"{jobs}/old").json["spec"].get("novelty") == 3)
    assert api.get(f"{jobs}/old").json["metadata"]["generation"] == 1
    written = api.patch(f"{jobs}/old/status", {"status": {"attempt": 1}})
    assert (written.status, written.json["metadata"]["generation"]) == (200, 1)
    labelled = api.patch(f"{jobs}/old", {"metadata": {"labels": {"team": "a"}}})
    assert (labelled.status, labelled.json["metadata"]["generation"]) == (200, 1)
    changed = api.patch(f"{jobs}/old", {"spec": {"backoffLimit": 2}})
    assert (changed.status, changed.json["metadata"]["generation"]) == (200, 2)
