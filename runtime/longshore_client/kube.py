"""The cluster as the command line sees it: what commands ask of it, with every text made safe for a terminal."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from longshore.api import names
from longshore.api.rules import CHANGES_WHILE_SUSPENDED, IS_IMMUTABLE
from longshore_client.changes import refused_change, spelling_mistake
from longshore_client.errors import ClientError
from longshore_client.plain import plain, plain_json
from longshore_kube.blocking import Blocking
from longshore_kube.client import APPLY_TYPE, JSON_TYPE, Patch
from longshore_kube.errors import ApiError, KubeError, Unreachable, Unreadable
from longshore_kube.reflector import Listed, Reflector
from longshore_kube.resources import PODS, Json, Resource, group_path

FIELD_MANAGER: Final = "longshore-cli"
GRACE_S: Final = 60.0
"""So long an API server may be away while something is watched."""
_LOG_TIMEOUT_S: Final = 30.0
_RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)

Change = tuple[str, Json]
"""ADDED, MODIFIED or DELETED, and the object."""


class Kube:
    """The API server, and the namespace that commands mean."""

    def __init__(self, api: Blocking, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed: nothing can be asked any more."""
        return self.api.is_closed

    def request(self, method: str, path: str, body: Json | None = None, *, content_type: str = JSON_TYPE,
                query: Mapping[str, str] | None = None) -> Json:  # fmt: skip
        """Send one request with a JSON object as its answer.

        Raises:
            KubeError: the server refused it or gave no answer that can be taken.
        """
        return _plain(
            self.api.call(
                lambda client: client.request(method, path, query=query or {}, body=body, content_type=content_type)
            )
        )

    def items(self, path: str, *, labels: str = "", fields: str = "") -> list[Json]:
        """Return the objects of a collection."""
        return [_plain(item) for item in self.api.call(lambda c: c.items(path, labels=labels, fields=fields))]

    def watch(
        self, path: str, fields: str, *, known: Iterable[Json] = (), timeout_s: float | None = None
    ) -> Iterator[Change]:
        """Yield ADDED for each object that exists, then every change, until `timeout_s` is over.

        What vanished while the watch was broken is reported as DELETED, with its last known object. `known`: objects
        that the caller has seen, for which the first change is MODIFIED, or DELETED where they are gone by now.

        Raises:
            KubeError: the server refused the watch, or was away for longer than GRACE_S.
        """
        seen = {item["metadata"]["uid"]: item for item in known}
        changes = self.api.iterate(
            lambda client: Reflector(client, path, _plain, fields=fields, on_error=_give_up).changes(), timeout_s
        )
        for news in changes:
            if isinstance(news, Listed):
                found = {item["metadata"]["uid"]: item for item in news.items}
                yield from [("DELETED", item) for uid, item in seen.items() if uid not in found]
                yield from [("MODIFIED" if uid in seen else "ADDED", item) for uid, item in found.items()]
                seen = found
                continue
            seen[news.item["metadata"]["uid"]] = news.item
            if news.kind == "DELETED":
                del seen[news.item["metadata"]["uid"]]
            yield news.kind, news.item

    def find(self, path: str) -> Json | None:
        """Return the object at `path`, or None where there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if is_missing_object(error):
                return None
            raise

    def within(self, document: Json) -> "Kube":
        """Return the same API server, and the namespace of an object: that which it names, or else that of commands."""
        return Kube(self.api, document["metadata"].get("namespace") or self.namespace)

    def jobs_path(self) -> str:
        """Return where the API server keeps the RLJobs of the namespace."""
        return _RLJOBS.path(self.namespace)

    def job_path(self, name: str) -> str:
        """Return where the API server keeps the RLJob `name`.

        Raises:
            ClientError: the name is empty, as that of a variable of the shell that is not set: it would mean all jobs.
        """
        if not name:
            raise ClientError("The name of the RLJob is empty.")
        return _RLJOBS.path(self.namespace, name)

    def jobs(self, namespace: str | None) -> list[Json]:
        """Return all RLJobs of a namespace; None: of the cluster."""
        return self.items(_RLJOBS.path(namespace))

    def find_job(self, name: str) -> Json | None:
        """Return the RLJob `name`, or None."""
        return self.find(self.job_path(name))

    def job(self, name: str) -> Json:
        """Return the RLJob `name`.

        Raises:
            ClientError: there is none.
        """
        found = self.find_job(name)
        if found is None:
            raise self._no_job(name)
        return found

    def patch_job(self, name: str, patch: Json, uid: str) -> Json:
        """Merge `patch` into the RLJob `name` that has this uid.

        Raises:
            ClientError: there is no such job, or another one has its name.
        """
        patch = patch | {"metadata": {"uid": uid}}
        try:
            return self.request("PATCH", self.job_path(name), patch, content_type=Patch.MERGE.value)
        except ApiError as error:
            if is_missing_object(error):
                raise self._no_job(name) from error
            # API servers call it an attempt to change the uid, or a conflict.
            if error.code in (409, 422) and self.job(name)["metadata"]["uid"] != uid:
                raise replaced(name) from error
            raise

    def apply(self, document: Json) -> Json:
        """Apply one object of any kind, server-side.

        Raises:
            ClientError: the cluster does not know the kind or a field of an RLJob, or the RLJob may not change so.
            ApiError: the server refused the object.
        """
        path = self._resource(document).path(self.within(document).namespace, document["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        try:
            return self.request("PATCH", path, document, content_type=APPLY_TYPE, query=query)
        except ApiError as error:
            is_immutable = IS_IMMUTABLE in error.message
            is_change = is_immutable or CHANGES_WHILE_SUSPENDED in error.message
            if is_change and (there := self.find(path)) is not None:
                raise refused_change(there, document, is_immutable=is_immutable) from error
            # To an API server, a field that a manifest misspells is a fault of its own (500).
            if "field not declared in schema" in error.message and (mistake := spelling_mistake(document)):
                raise ClientError(mistake, "Correct the field and try again.") from error
            raise

    def pods(self, label_selector: str, namespace: str | None = None) -> list[Json]:
        """Return pods with these labels."""
        return self.items(PODS.path(namespace or self.namespace), labels=label_selector)

    def log_lines(self, pod: str, *, namespace: str | None = None, follow: bool = False,
                  tail_lines: int | None = None) -> Iterator[str]:  # fmt: skip
        """Return lines of a pod's log; with `follow` until its container ends."""
        query = {"follow": str(follow).lower()}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        path = PODS.path(namespace or self.namespace, pod, "log")
        # A quiet program may say nothing for hours.
        limit_s = None if follow else _LOG_TIMEOUT_S
        return map(plain, self.api.iterate(lambda client: client.text_lines(path, query, timeout_s=limit_s)))

    def _no_job(self, name: str) -> ClientError:
        return ClientError(
            f"There is no RLJob {name!r} in namespace {self.namespace!r}.",
            "List them all with `kubectl get rljobs -A`, or choose another --namespace.",
        )

    def _resource(self, document: Json) -> Resource:
        api_version, kind = document["apiVersion"], document["kind"]
        try:
            known = self.request("GET", group_path(api_version))["resources"]
        except ApiError as error:
            if not error.not_found:
                raise
            known = []
        for resource in known:
            if resource["kind"] == kind and "/" not in resource["name"]:
                group, _, version = api_version.rpartition("/")
                return Resource(group, version, resource["name"], kind, resource["namespaced"])
        raise ClientError(
            f"The cluster does not know the kind {kind} of {api_version}.",
            "Install Longshore first: `longshore up`." if kind == names.KIND else "",
        )


def is_missing_object(error: ApiError) -> bool:
    """Return whether the object is missing, rather than the whole API."""
    return error.not_found and bool(error.details.get("name"))


def replaced(name: str) -> ClientError:
    """Return that a job is gone and that its name means another one."""
    return ClientError(
        f"The RLJob {name!r} was deleted, and another one has its name now.", "Read that one by its name to act on it."
    )


def _plain(answer: Json) -> Json:
    try:
        safe: Json = plain_json(answer)
    except RecursionError as error:
        raise Unreadable("the object is nested too deeply to be read") from error
    return safe


def _give_up(error: KubeError, silence_s: float) -> None:
    """Raise the error, unless it may be temporary and has not lasted too long."""
    passes = isinstance(error, Unreachable | Unreadable) or (isinstance(error, ApiError) and error.code >= 500)
    if not passes or silence_s > GRACE_S:
        raise error
