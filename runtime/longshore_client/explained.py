"""Errors of the Kubernetes client as a sentence and a fix."""

from collections.abc import Iterator
from contextlib import contextmanager

from longshore_client.errors import ClientError
from longshore_kube.errors import AccessError, ApiError, KubeError, Unreadable


def explain(error: KubeError) -> ClientError:
    """Return the sentence for an error of the Kubernetes client."""
    message, fix = _words(error)
    return ClientError(" ".join(message.split()), fix)


@contextmanager
def explained() -> Iterator[None]:
    """Raise ClientError in place of errors of the Kubernetes client; also a decorator, but not of generators."""
    try:
        yield
    except KubeError as error:
        raise explain(error) from error


def _words(error: KubeError) -> tuple[str, str]:
    text = str(error)
    match error:
        case AccessError():
            fix = "Pass --kubeconfig or set KUBECONFIG, or start a cluster on this machine with `longshore up`."
            return f"No usable kubeconfig: {text}.", fix
        case Unreadable():
            fix = "Check the server of the kubeconfig: there may be a proxy in between."
            return f"The API server cannot be understood: {text}.", fix
        case ApiError(code=401):
            fix = "Renew them, or choose others with --kubeconfig or --context."
            return "The API server does not accept the credentials of the kubeconfig.", fix
        case ApiError(code=403):
            fix = "Ask for a role that may do so: the chart brings longshore-viewer, -editor and -admin."
            return f"Not allowed: {text}", fix
        case ApiError(code=404) if "could not find the requested resource" in text or "page not found" in text:
            fix = "Install Longshore with `longshore up --cluster current`, or choose another --context."
            return "The cluster does not know RLJobs.", fix
        case ApiError(code=400 | 422):
            return f"The API server refuses the object: {text}", "Correct the field and try again."
        case ApiError():
            return f"The API server answers {error.code}: {text}", ""
    fix = "Check --kubeconfig and --context; `longshore up` starts the embedded cluster again."
    return f"The API server {text}.", fix
