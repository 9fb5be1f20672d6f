"""Service-account tokens for pods, renewed before they expire."""

from collections.abc import Callable
from dataclasses import dataclass

from longshore_devcluster.client.objects import uid_of
from longshore_kube.client import Client
from longshore_kube.resources import SERVICE_ACCOUNTS, Json
from longshore_kube.times import parse_time

_RENEW_AT_SHARE = 0.8


@dataclass(frozen=True)
class TokenRequest:
    """Which token a projected volume wants."""

    audience: str
    expiration_s: int


@dataclass(frozen=True)
class _Token:
    text: str
    renew_s: float


class Tokens:
    """The tokens of one pod. `now` gives Unix seconds."""

    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._held: dict[TokenRequest, _Token] = {}

    async def fetch(self, pod: Json, requests: list[TokenRequest]) -> dict[TokenRequest, str]:
        """Return a valid token for each request. Errors: ApiError."""
        for request in requests:
            held = self._held.get(request)
            if held is None or held.renew_s <= self._now():
                self._held[request] = await self._ask(pod, request)
        return {request: self._held[request].text for request in requests}

    def renewal_s(self) -> float | None:
        """Return the Unix time at which the first of the tokens is due for renewal."""
        return min((token.renew_s for token in self._held.values()), default=None)

    async def _ask(self, pod: Json, request: TokenRequest) -> _Token:
        meta, asked_s = pod["metadata"], self._now()
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid_of(pod)}
        spec: Json = {"expirationSeconds": request.expiration_s, "boundObjectRef": bound}
        if request.audience:
            spec["audiences"] = [request.audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod["spec"].get("serviceAccountName") or "default"
        answer = await self._client.create(SERVICE_ACCOUNTS, body, meta["namespace"], account, "token")
        expires_s = parse_time(answer["status"]["expirationTimestamp"]).timestamp()
        return _Token(answer["status"]["token"], asked_s + _RENEW_AT_SHARE * (expires_s - asked_s))
