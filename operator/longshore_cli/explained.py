"""Errors of the Kubernetes client as a sentence and a fix."""

from longshore_cli.errors import CliError
from longshore_kube.errors import AccessError, ApiError, KubeError, Unreadable


def explain(error: KubeError) -> CliError:
    """The sentence for an error of the Kubernetes client."""
    if isinstance(error, ApiError):
        return _explain_answer(error)
    if isinstance(error, AccessError):
        return CliError(
            f"No usable kubeconfig: {error}.",
            "Pass --kubeconfig or set KUBECONFIG, or start a cluster on this machine with `longshore up`.",
        )
    if isinstance(error, Unreadable):
        return CliError(
            f"The API server cannot be understood: {error}.",
            "Check the server of the kubeconfig: there may be a proxy in between.",
        )
    return CliError(
        f"The API server does not answer: {error}.",
        "Check --kubeconfig and --context; `longshore up` starts the embedded cluster again.",
    )


def _explain_answer(error: ApiError) -> CliError:
    message = " ".join(str(error).split())
    match error.code:
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
            return CliError(f"The API server answers {error.code}: {message}")
