"""Errors of the Kubernetes client, and of the connection below it, as a sentence and a fix."""

import json
from typing import Final

from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from longshore_cli.errors import CliError

EXPECTED: Final = (ApiException, ConfigException, HTTPError)
"""Errors of the libraries that `explain` turns into a sentence."""


def explain(error: Exception) -> CliError:
    """The sentence for an error of the Kubernetes client or of the connection below it."""
    if isinstance(error, ApiException):
        return _explain_answer(error)
    if isinstance(error, ConfigException):
        return CliError(
            f"No usable kubeconfig: {_one_line(str(error))}",
            "Pass --kubeconfig or set KUBECONFIG, or start a cluster on this machine with `longshore up`.",
        )
    return CliError(
        f"The API server does not answer: {_root_cause(error)}",
        "Check --kubeconfig and --context; `longshore up` starts the embedded cluster again.",
    )


def server_message(error: ApiException) -> str:
    """The message of the Status object that the API server answered with."""
    try:
        body = json.loads(error.body or "")
    except ValueError:
        return _one_line(str(error.body or error.reason or "no reason given"))
    return str(body.get("message") or error.reason) if isinstance(body, dict) else str(error.reason)


def _explain_answer(error: ApiException) -> CliError:
    message = server_message(error)
    match error.status:
        case 401:
            return CliError(
                "The API server does not accept the credentials of the kubeconfig.",
                "Renew them, or choose others with --kubeconfig or --context.",
            )
        case 403:
            return CliError(
                f"Not allowed: {message}",
                "Ask for a role that may do so: the chart brings longshore-viewer, -editor and -admin.",
            )
        case 404 if "could not find the requested resource" in message or "page not found" in message:
            return CliError(
                "The cluster does not know RLJobs.",
                "Install Longshore with `longshore up --cluster current`, or choose another --context.",
            )
        case 400 | 422:
            return CliError(f"The API server refuses the object: {message}", "Correct the field and try again.")
        case _:
            return CliError(f"The API server answers {error.status}: {message}")


def _root_cause(error: BaseException) -> str:
    """The innermost reason: urllib3 wraps the one that matters three times."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _root_cause(reason)
    return _one_line(str(error)).rsplit(": ", 1)[-1]


def _one_line(text: str) -> str:
    return " ".join(text.split())
