"""What goes wrong between a client and an API server, each as one sentence."""

from typing import Any


class KubeError(Exception):
    """Anything that went wrong, except mistakes of the caller."""


class AccessError(KubeError):
    """The access data cannot be used; the message names the file and the entry."""


class Unreachable(KubeError):
    """No answer: the connection was refused, broke off or took too long."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        """Whether the server may have carried the request out."""


class Unreadable(KubeError):
    """An answer that is too large, nested too deeply, or none of the Kubernetes API."""


class ApiError(KubeError):
    """An answer of the API server other than success; see `metav1.Status`."""

    def __init__(
        self,
        code: int,
        reason: str = "",
        message: str = "",
        *,
        details: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        if self.code == 401:
            return "the API server does not accept the credentials: renew them, or use others"
        return self.message or f"the API server answers {self.code} {self.reason}".rstrip()

    @property
    def not_found(self) -> bool:
        """The object does not exist."""
        return self.code == 404

    @property
    def conflict(self) -> bool:
        """The object exists already, or has changed since it was read."""
        return self.code == 409


class Gone(ApiError):
    """The resource version is too old to watch or list from: list again."""


def api_error(code: int, status: object, retry_after: str = "") -> ApiError:
    """Return the error for a `Status` object, or for another answer in its place."""
    fields: dict[str, Any] = status if isinstance(status, dict) else {"message": str(status).strip()[:500]}
    details = fields.get("details")
    return (Gone if code == 410 else ApiError)(
        code,
        str(fields.get("reason") or ""),
        str(fields.get("message") or ""),
        details=details if isinstance(details, dict) else None,
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )
