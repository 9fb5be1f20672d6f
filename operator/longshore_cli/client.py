"""The cluster as the command line sees it: the few requests that it needs, each with a time limit."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from longshore.api import names
from longshore_cli.errors import CliError
from longshore_cli.plain import plain, plain_json

FIELD_MANAGER: Final = "longshore-cli"
CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0

Json = dict[str, Any]


class Kube:
    """The API server, and the namespace that commands mean."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.core = client.CoreV1Api(api)

    def open(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json",
             query: Mapping[str, str] | None = None, read_timeout_s: float = REQUEST_TIMEOUT_S) -> Any:  # fmt: skip
        """Send a request; the answer's body is still to be read (urllib3 response).

        Raises:
            ApiException: the server answered with an error.
        """
        prepared = self.api.param_serialize(
            method, path, {}, list((query or {}).items()),
            {"Accept": "application/json", "Content-Type": content_type}, body, auth_settings=["BearerToken"],
        )  # fmt: skip
        answer = self.api.call_api(*prepared, _request_timeout=(CONNECT_TIMEOUT_S, read_timeout_s))
        if not 200 <= answer.status <= 299:
            answer.read()
            raise ApiException(http_resp=answer, body=answer.data.decode(errors="replace"), data=None)
        return answer.response

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json",
                query: Mapping[str, str] | None = None) -> Json:  # fmt: skip
        """One request with a JSON object as its answer.

        Raises:
            ApiException: the server answered with an error.
            CliError: the answer is none of an API server.
        """
        response = self.open(method, path, body, content_type=content_type, query=query)
        try:
            result = plain_json(json.loads(response.data or b"{}"))
        except (ValueError, RecursionError):
            result = None
        if not isinstance(result, dict):
            raise CliError(
                f"{self.api.configuration.host} answers with what is no object of Kubernetes.",
                "Check the server of the kubeconfig: something else may listen there, or a proxy in between.",
            )
        return result

    def find(self, path: str) -> Json | None:
        """The object at `path`, or None where there is none."""
        try:
            return self.request("GET", path)
        except ApiException as error:
            if is_missing_object(error):
                return None
            raise

    def job_path(self, name: str = "") -> str:
        """Where the API server keeps the RLJob `name`, or all of the namespace."""
        collection = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.PLURAL}"
        return f"{collection}/{name}" if name else collection

    def find_job(self, name: str) -> Json | None:
        """The RLJob `name`, or None."""
        return self.find(self.job_path(name))

    def job(self, name: str) -> Json:
        """The RLJob `name`.

        Raises:
            CliError: there is none.
        """
        found = self.find_job(name)
        if found is None:
            raise self._no_job(name)
        return found

    def patch_job(self, name: str, patch: Json) -> Json:
        """Merge `patch` into the RLJob `name`.

        Raises:
            CliError: there is no such job.
        """
        try:
            return self.request(
                "PATCH", self.job_path(name), patch, content_type="application/merge-patch+json",
                query={"fieldManager": FIELD_MANAGER},
            )  # fmt: skip
        except ApiException as error:
            if is_missing_object(error):
                raise self._no_job(name) from error
            raise

    def apply(self, document: Json) -> Json:
        """Server-side apply one object of any kind.

        Raises:
            CliError: the cluster does not know the kind.
            ApiException: the server refused the object.
        """
        resource = self._resource(document)
        metadata = document["metadata"]
        scope = f"/namespaces/{metadata.get('namespace', self.namespace)}" if resource["namespaced"] else ""
        return self.request(
            "PATCH", f"{_group_path(document['apiVersion'])}{scope}/{resource['name']}/{metadata['name']}", document,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"},
        )  # fmt: skip

    def pods(self, label_selector: str, namespace: str | None = None) -> list[Json]:
        """Pods with these labels."""
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods"
        return list(self.request("GET", path, query={"labelSelector": label_selector}).get("items", []))

    def log_lines(self, pod: str, *, namespace: str | None = None, follow: bool = False,
                  tail_lines: int | None = None, previous: bool = False) -> Iterator[str]:  # fmt: skip
        """Lines of a pod's log; with `follow` until its container ends."""
        query = {"follow": str(follow).lower(), "previous": str(previous).lower()}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        path = f"/api/v1/namespaces/{namespace or self.namespace}/pods/{pod}/log"
        # A quiet program may say nothing for hours, so a followed log has no read limit worth setting.
        limit_s = 24 * 3600.0 if follow else REQUEST_TIMEOUT_S
        return map(plain, lines_of(self.open("GET", path, query=query, read_timeout_s=limit_s)))

    def _no_job(self, name: str) -> CliError:
        return CliError(
            f"There is no RLJob {name!r} in namespace {self.namespace!r}.",
            "List them all with `kubectl get rljobs -A`, or choose another --namespace.",
        )

    def _resource(self, document: Json) -> Json:
        try:
            known = self.request("GET", _group_path(document["apiVersion"]))["resources"]
        except ApiException as error:
            if error.status != 404:
                raise
            known = []
        for resource in known:
            if resource["kind"] == document["kind"] and "/" not in resource["name"]:
                return dict(resource)
        raise CliError(
            f"The cluster does not know the kind {document['kind']} of {document['apiVersion']}.",
            "Install Longshore first: `longshore up`." if document["kind"] == names.KIND else "",
        )


def lines_of(response: Any) -> Iterator[str]:
    """Lines of a streamed answer, as they arrive; the connection is let go at the end."""
    try:
        yield from split_lines(response.stream(amt=None, decode_content=True))
    finally:
        response.close()


def split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines of text out of chunks of bytes that break anywhere."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in complete)
    if pending:
        yield pending.decode(errors="replace")


def is_missing_object(error: ApiException) -> bool:
    """Is it the object that is missing, rather than the whole API?"""
    if error.status != 404:
        return False
    try:
        details = json.loads(error.body or "{}").get("details") or {}
    except ValueError:
        return False
    return bool(details.get("name"))


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
