"""Python files of a job (`longshore submit --with FILE`) travel in a ConfigMap that belongs to their job."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from longshore.api import names
from longshore.api.mistakes import sentence
from longshore.api.spec import RLJobSpec
from longshore.checks.modules import import_paths, module_mistakes
from longshore_client.errors import ClientError
from longshore_client.kube import Kube
from longshore_client.transfer.pod import owner_reference
from longshore_kube.resources import Json


def read_modules(paths: Sequence[Path]) -> dict[str, bytes]:
    """Return files by name.

    Raises:
        ClientError: one cannot be read, or two have the same name.
    """
    files: dict[str, bytes] = {}
    for path in paths:
        if not path.is_file():
            raise ClientError(
                f"There is no file {path}.", "Modules are Python files; name those of a package one by one."
            )
        if path.name in files:
            raise ClientError(f"Two files are called {path.name}.", "Rename one: they are imported by their names.")
        files[path.name] = path.read_bytes()
    return files


def with_modules(documents: Sequence[Json], files: Mapping[str, bytes]) -> tuple[list[Json], Json]:
    """Return the objects, of which the only RLJob uses these modules, and the ConfigMap, still without an owner.

    Its name follows from the content: modules of a job that runs never change under it.

    Raises:
        ClientError: there is not one RLJob, or the modules cannot be used by it.
    """
    jobs = [document for document in documents if document["kind"] == names.KIND]
    if len(jobs) != 1:
        raise ClientError(f"Python files belong to one RLJob, and this file has {len(jobs)}.")
    (job,) = jobs
    name = names.modules_config_map(job["metadata"]["name"], _digest(files))
    spec = dict(job.get("spec") or {})
    if spec.get("modules"):
        raise ClientError("spec.modules is set in the file.", "Remove it, or add no files.")
    spec["modules"] = {"configMap": name, "files": sorted(files)}
    _require_usable(spec, files)
    changed = [{**job, "spec": spec} if document is job else document for document in documents]
    return changed, _config_map(name, job["metadata"], files)


def submit_with(kube: Kube, documents: Sequence[Json], config_map: Json) -> Iterator[Json]:
    """Apply what `with_modules` returns, and make the job the owner of its modules; yields each object as `submit`.

    The ConfigMap comes first, so that no pod waits for it, and goes again if the job is refused.
    """
    path = _path(kube, config_map)
    is_new = kube.find(path) is None
    if is_new:
        kube.apply(config_map)
    owner: Json | None = None
    try:
        for document in documents:
            applied = kube.apply(document)
            yield applied
            owner = applied if applied["kind"] == names.KIND else owner
    finally:
        if is_new and owner is None:
            kube.request("DELETE", path)
    assert owner is not None, "there is one RLJob"
    yield kube.apply(_owned(config_map, owner))


def _require_usable(spec: Json, files: Mapping[str, bytes]) -> None:
    try:
        valid = RLJobSpec.model_validate(spec)
    except ValidationError as error:
        raise ClientError(sentence(error, "spec", RLJobSpec), "Correct the file.") from error
    if mistakes := module_mistakes(files, import_paths(valid)):
        raise ClientError(f"Python files: {mistakes[0]}.")


def _config_map(name: str, job: Json, files: Mapping[str, bytes]) -> Json:
    namespace = {"namespace": job["namespace"]} if "namespace" in job else {}
    labels = {names.LABEL_JOB: job["name"], names.LABEL_MANAGED_BY: names.MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **namespace, "labels": labels},
        "immutable": True,
        "data": {file: content.decode() for file, content in sorted(files.items())},
    }


def _owned(config_map: Json, job: Json) -> Json:
    """Return the ConfigMap as owned by the job, with which it is deleted."""
    return {**config_map, "metadata": {**config_map["metadata"], "ownerReferences": [owner_reference(job)]}}


def _path(kube: Kube, config_map: Json) -> str:
    metadata = config_map["metadata"]
    return f"/api/v1/namespaces/{kube.within(config_map).namespace}/configmaps/{metadata['name']}"


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(b"%s\0%d\0" % (name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:8]
