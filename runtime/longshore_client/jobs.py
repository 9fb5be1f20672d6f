"""Submit jobs, and find what belongs to them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from longshore.api import contract, names
from longshore.api.names import Component
from longshore.api.reasons import SuspendedReason
from longshore.api.status import ConditionType, Phase
from longshore_client import installed
from longshore_client.changes import ended, has_ended
from longshore_client.errors import ClientError
from longshore_client.kube import Kube, replaced
from longshore_client.transfer.copy import StorageClaim
from longshore_client.transfer.pod import IDS, HelperOptions, trouble
from longshore_client.view import job_view
from longshore_client.yaml_values import ManifestLoader, RepeatedKey
from longshore_kube.errors import ApiError
from longshore_kube.resources import CLAIMS, PODS, Json

DELETE_TIMEOUT_S: Final = 180.0
START_TIMEOUT_S: Final = 600.0


def read_manifest(path: Path) -> list[Json]:
    """Return the objects of a YAML file.

    Raises:
        ClientError: there is no such file, or it holds no objects.
    """
    if not path.is_file():
        raise ClientError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8")
        documents = [one for one in yaml.load_all(text, ManifestLoader) if one is not None]
    except RepeatedKey as error:
        raise ClientError(f"{path}: {error}.", "Remove one of them: the first would be lost.") from error
    except yaml.YAMLError as error:
        raise ClientError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"{path} cannot be read: {error}", "Manifests are text in UTF-8.") from error
    for document in documents:
        _require_object(document, path)
    if not documents:
        raise ClientError(f"{path} is empty.")
    return documents


def _require_object(document: Any, path: Path) -> None:
    is_object = isinstance(document, dict) and isinstance(document.get("metadata"), dict)
    if not is_object or not {"apiVersion", "kind"} <= document.keys() or "name" not in document["metadata"]:
        raise ClientError(
            f"{path} holds something that is no Kubernetes object.",
            "Each document needs apiVersion, kind and metadata.name.",
        )
    texts = {key: document[key] for key in ("apiVersion", "kind")}
    texts |= {f"metadata.{key}": document["metadata"].get(key) for key in ("name", "namespace")}
    texts = {field: value for field, value in texts.items() if (field, value) != ("metadata.namespace", None)}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise ClientError(f"{path}: {field} is no text but {value!r}.", f'Put it in quotes: {field}: "{value}".')


def jobs_in(documents: Sequence[Json]) -> list[Json]:
    """Return the RLJobs among the objects."""
    return [document for document in documents if document["kind"] == names.KIND]


def require_namespace(documents: Sequence[Json], given: str | None) -> None:
    """Raise ClientError where an object names another namespace than the option, as kubectl refuses it."""
    for document in documents:
        named = document["metadata"].get("namespace")
        if given is not None and named not in (None, "", given):
            what = f"{document['kind']} {document['metadata']['name']!r}"
            raise ClientError(
                f"{what} names the namespace {named!r}, and --namespace is {given!r}.",
                "Leave the option out, or the namespace in the file.",
            )


def only_job(documents: Sequence[Json], manifest: Path, what: str) -> Json:
    """Return the only RLJob of a manifest, of which `what` happens to one; raises ClientError."""
    found = jobs_in(documents)
    if len(found) != 1:
        raise ClientError(f"{manifest} holds {len(found)} RLJobs; exactly one is {what}.")
    return found[0]


def submit(kube: Kube, documents: Sequence[Json]) -> Iterator[Json]:
    """Apply the objects in their order; yields each as the API server has it then."""
    for document in documents:
        yield kube.apply(document)


def applied_text(applied: Json) -> str:
    """Return `kind/name applied`, and of a job that has ended, that it does not run."""
    text = f"{applied['kind'].lower()}/{applied['metadata']['name']} applied"
    if applied["kind"] != names.KIND or not has_ended(applied):
        return text
    return f"{text}, but it has {applied['status']['phase'].lower()} already and does not run again"


def require_new_run(applied: Sequence[Json]) -> None:
    """Raise ClientError if nothing runs by what was applied, because all jobs among it have ended before."""
    found = jobs_in(applied)
    if found and all(map(has_ended, found)):
        raise ended(found[0])


def make_room(kube: Kube, name: str, *, otherwise: str) -> str | None:
    """Delete a finished job of that name; one that goes on stays, and `otherwise` says what happens with it.

    Returns what there is to tell.
    """
    existing = kube.find_job(name)
    if existing is None:
        return None
    view = job_view(existing)
    if not view.is_finished:
        return f"An RLJob {name!r} is {view.phase.lower()} already; {otherwise}."
    delete(kube, name, view.uid)
    return f"The RLJob {name!r} of an earlier run, which {view.phase.lower()}, was deleted first."


def pod_name(job: str, component: Component, index: int) -> str:
    """Return the pod of a component."""
    match component:
        case Component.COORDINATOR:
            return names.coordinator_pod(job)
        case Component.WORKER:
            return names.worker_pod(job, index)
        case Component.TRAINER:
            return names.trainer_pod(job, index)
        case Component.REWARD:
            return names.reward_pod(job, index)
        case Component.JUDGE:
            return names.judge_pod(job, index)
        case Component.ENVIRONMENT:
            return names.environment_pod(job, index)


def set_suspended(kube: Kube, name: str, uid: str | None = None, *, suspended: bool) -> None:
    """Stop the pods of a job, or let it continue.

    Args:
        uid: of the job that is meant; unset: the one that has the name now.

    Raises:
        ClientError: there is no such job, it is finished, or it could not continue and was not suspended since.
    """
    job = kube.job(name)
    view = job_view(job)
    if uid not in (None, view.uid):
        raise replaced(name)
    if view.is_finished:
        what = "suspended" if suspended else "resumed"
        fix = "" if suspended or view.phase is Phase.SUCCEEDED else _how_to_go_on(job)
        raise ClientError(f"The RLJob {name!r} {view.phase.lower()} already and cannot be {what}.", fix)
    held = view.status.condition(ConditionType.SUSPENDED)
    is_held = held is not None and held.reason == SuspendedReason.CANNOT_CONTINUE and view.phase is Phase.SUSPENDED
    if not suspended and held is not None and is_held and not job["spec"].get("suspend"):
        # The operator has stopped it, and waits until its owner has done so, too.
        fix = f"Run `longshore suspend {name}`, correct it, and run `longshore resume {name}`."
        raise ClientError(f"The RLJob {name!r} cannot go on: {held.message}.", fix)
    kube.patch_job(name, {"spec": {"suspend": suspended}}, view.uid)


def _how_to_go_on(job: Json) -> str:
    """Return what to do with a job that failed."""
    name = job["metadata"]["name"]
    step = job_view(job).runtime.checkpoint_step
    claim = job["spec"]["storage"].get("claimName")
    if not step:
        return f"`kubectl describe rljob {name}` says why; correct its manifest, and submit it under another name."
    if claim is None:
        return f"Save its newest checkpoint, of step {step}, with `longshore fetch {name}`: its storage goes with it."
    return (
        f"To continue from its newest checkpoint, of step {step}, correct its manifest, set storage.output to "
        f"{output_path(job)!r}, and submit it under another name."
    )


def pod_log(kube: Kube, pod: str, *, follow: bool, tail_lines: int | None) -> Iterator[str]:
    """Yield lines of a pod's log; with `follow` from its start, which is waited for, to its end.

    Raises:
        ClientError: there is no such pod, or it has not started.
    """
    pods = PODS.path(kube.namespace)
    found = kube.find(f"{pods}/{pod}")
    if found is None:
        raise ClientError(f"There is no pod {pod} now.", "`longshore watch` shows what the job does, or how it ended.")
    if follow:
        changes = kube.watch(pods, f"metadata.name={pod}", timeout_s=START_TIMEOUT_S)
        found = next((item for _, item in changes if has_started(item)), found)
    if not has_started(found):
        raise ClientError(f"The pod {pod} has not started yet: {trouble(found) or 'its container is being created'}.")
    yield from kube.log_lines(pod, follow=follow, tail_lines=tail_lines)


def has_started(pod: Json) -> bool:
    """Return whether the pod has a log."""
    return bool((pod.get("status") or {}).get("phase", "Pending") != "Pending")


def delete(kube: Kube, name: str, uid: str | None = None) -> None:
    """Delete an RLJob and wait until it and its pods are gone; a claim that it does not own stays.

    Args:
        uid: of the job that is meant; unset: the one that has the name now.

    Raises:
        ClientError: there is no such job, another one has its name, or it did not go in time.
    """
    uid = uid or str(kube.job(name)["metadata"]["uid"])
    options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
    try:
        kube.request("DELETE", kube.job_path(name), options)
    except ApiError as error:
        if error.conflict:
            raise replaced(name) from error
        raise
    job = kube.find_job(name)
    if job is not None and job["metadata"]["uid"] == uid:
        _wait_deleted(kube, kube.jobs_path(), job, "RLJob")
    for pod in kube.pods(f"{names.LABEL_JOB}={name}"):
        if any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ()):
            _wait_deleted(kube, PODS.path(kube.namespace), pod, "pod")


def claim_of(kube: Kube, name: str, image: str | None) -> StorageClaim:
    """Return the storage claim of a job, with an image that its pods run too.

    Raises:
        ClientError: there is no such job, or no image to be found.
    """
    job = kube.job(name)
    storage = job["spec"]["storage"]
    claim = storage.get("claimName") or names.storage_claim(name)
    pod = next(iter(kube.pods(f"{names.LABEL_JOB}={name}")), None)
    return StorageClaim(claim, _helper(kube, image or job["spec"].get("image"), pod), job)


def claim_named(kube: Kube, claim: str, image: str | None) -> StorageClaim:
    """Return a storage claim that belongs to no job yet.

    Raises:
        ClientError: there is no such claim, or no image to be found.
    """
    if kube.find(CLAIMS.path(kube.namespace, claim)) is None:
        raise ClientError(f"There is neither an RLJob nor a claim {claim!r} in namespace {kube.namespace!r}.")
    return StorageClaim(claim, _helper(kube, image))


def output_path(job: Json) -> str:
    """Return where a job writes, relative to its storage."""
    return str(
        job["spec"]["storage"].get("output") or names.default_output(job["metadata"]["name"], job["metadata"]["uid"])
    )


def _helper(kube: Kube, image: str | None, pod: Json | None = None) -> HelperOptions:
    """Return how a helper pod starts: as `pod`, one of the job's, or as the installed operator starts pods.

    `image` has precedence.
    """
    if pod is not None:
        spec = pod["spec"]
        ids = {name: value for name, value in (spec.get("securityContext") or {}).items() if name in IDS}
        secrets = tuple(secret["name"] for secret in spec.get("imagePullSecrets") or ())
        return HelperOptions(image or str(spec["containers"][0]["image"]), ids, secrets)
    options = installed.operator_options(kube)
    image = image or next(iter(options.get("--runtime-image", ())), None)
    if image is None:
        raise ClientError(
            "The helper pod needs an image with Python, and neither a pod of the job nor the operator shows one.",
            "Name one with --image, as the runtime image that the chart was installed with.",
        )
    default = contract.USERS_ASSIGNED if installed.assigns_users(kube) else str(contract.POD_USER)
    user = next(iter(options.get("--pod-user", ())), default)
    ids = {} if user == contract.USERS_ASSIGNED else dict.fromkeys(IDS, int(user))
    return HelperOptions(image, ids, tuple(options.get("--image-pull-secret", ())))


def _wait_deleted(kube: Kube, collection: str, found: Json, kind: str) -> None:
    name = found["metadata"]["name"]
    # It may be gone before the watch begins, which then reports it because it is known.
    changes = kube.watch(collection, f"metadata.name={name}", known=[found], timeout_s=DELETE_TIMEOUT_S)
    if not any(change == "DELETED" for change, _ in changes):
        raise ClientError(f"The {kind} {name!r} did not go within {DELETE_TIMEOUT_S:.0f} s.")
