"""Manifests that the pages show are accepted: by `longshore simulate`, and by the schema and rules of the CRD."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pydantic import ValidationError

from longshore.api import names
from longshore.api.crd import rljob_crd
from longshore.api.rljob import RLJob
from longshore.api.spec import RLJobSpec
from longshore_cli.simulate.inputs import read_job
from tests.unit.api.specs import API_SERVER

Json = dict[str, Any]

_ROOT: Final = Path(__file__).parents[3]
_SCHEMA: Final = rljob_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
_FIELDS: Final = _SCHEMA["properties"]["spec"]["properties"].keys()
_COMPLETE: Final[Json] = {
    "model": {"path": "models/m", "maxContextTokens": 32768},
    "data": {"path": "data/train.jsonl", "domainField": "domain"},
    "reward": {"functions": [{"name": "maths", "kind": "Maths"}]},
    "algorithm": {"steps": 1, "promptsPerStep": 64, "responsesPerPrompt": 8, "maxResponseTokens": 4096},
    "storage": {"claimName": "shared"},
}
"""What a fragment of a spec leaves out."""


def _blocks() -> Iterator[tuple[str, str]]:
    """Place and text of every fenced YAML block of the pages, without the indentation of its fence."""
    for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))):
        block: list[str] | None = None
        indent = start = 0
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            if block is None and line.strip() == "```yaml":
                block, indent, start = [], len(line) - len(line.lstrip()), number
            elif block is not None and line.strip() == "```":
                yield f"{page.relative_to(_ROOT)}:{start}", "\n".join(block) + "\n"
                block = None
            elif block is not None:
                block.append(line[indent:])


def _documents(text: str) -> list[Json]:
    return [one for one in yaml.safe_load_all(text) if isinstance(one, dict)]


def _is_job(document: Json) -> bool:
    return document.get("kind") == names.KIND and "spec" in document


def _fragment(text: str) -> Json | None:
    """The fields of a spec that a block shows; None where it shows something else, or an RLJob."""
    documents = _documents(text)
    if len(documents) != 1:
        return None
    shown = documents[0]["spec"] if documents[0].keys() == {"spec"} else documents[0]
    return shown if shown.keys() <= _FIELDS else None


def _merged(base: Json, shown: Json) -> Json:
    merged = dict(base)
    for field, value in shown.items():
        both = isinstance(value, dict) and isinstance(merged.get(field), dict)
        merged[field] = _merged(merged[field], value) if both else value
    return merged


def _completed(shown: Json) -> Json:
    """A whole spec around a fragment, with GPUs where the fragment needs some."""
    base = copy.deepcopy(_COMPLETE)
    for field in ("model", "data"):
        if shown.get(field, {}).keys() & {"hub", "builtin", "sources"}:
            del base[field]["path"]
    spec = _merged(base, shown)
    if "workers" not in shown:
        spec["workers"] = {"replicas": 2, "gpusPerPod": 8}
    return spec


def _refusals(spec: Json) -> list[str]:
    """What an API server with the CRD has against a spec, unknown fields included."""
    stored = copy.deepcopy(spec)
    unknown = [f"{path}: is no field" for path in API_SERVER.prune(stored)]
    API_SERVER.fill_defaults(stored)
    return unknown + [f"{error.field}: {error.message}" for error in API_SERVER.validate(stored, None)]


_BLOCKS: Final = dict(_blocks())
_JOBS: Final = [place for place, text in _BLOCKS.items() if any(map(_is_job, _documents(text)))]
_FRAGMENTS: Final = [place for place, text in _BLOCKS.items() if _fragment(text) is not None]


@pytest.mark.parametrize("place", _JOBS)
def test_complete_jobs_are_accepted(place: str, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(_BLOCKS[place], encoding="utf-8")
    read_job(manifest, "checked")
    assert [_refusals(one["spec"]) for one in _documents(_BLOCKS[place]) if _is_job(one)] == [[]]


@pytest.mark.parametrize("place", _FRAGMENTS)
def test_fragments_of_a_spec_fit_into_one(place: str) -> None:
    shown = _fragment(_BLOCKS[place])
    assert shown is not None
    spec = _completed(shown)
    assert _refusals(spec) == []
    RLJobSpec.model_validate(spec)


def test_the_tutorial_makes_its_mistake_in_the_manifest_that_is_there() -> None:
    """A `sed` that finds nothing would apply the job as it is."""
    (command,) = re.findall(r"^sed '(.*)' (manifests/\S+)", (_ROOT / "docs/tutorials/first-job.md").read_text(), re.M)
    script, path = command
    manifest = (_ROOT / path).read_text()
    for old, new in re.findall(r"s/(.*?)/(.*?)/", script):
        assert old in manifest
        manifest = manifest.replace(old, new, 1)
    job = next(one for one in yaml.safe_load_all(manifest) if one["kind"] == "RLJob")
    with pytest.raises(ValidationError, match="promptFactor"):
        RLJob.model_validate(job)
