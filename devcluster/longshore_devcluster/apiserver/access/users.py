"""Users and their tokens."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import orjson

from longshore_devcluster.apiserver.access.jwt import BadToken, Signer
from longshore_devcluster.apiserver.errors import unauthorized
from longshore_devcluster.apiserver.pki import write_private
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Key, Store

ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] = field(default_factory=dict)


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


def _known(name: str, *groups: str) -> User:
    return User(name, (*groups, "system:authenticated"))


_FIXED_USERS = {
    "kubernetes-admin": _known("kubernetes-admin", "system:masters"),
    "system:kube-scheduler": _known("system:kube-scheduler"),
    "system:kube-controller-manager": _known("system:kube-controller-manager"),
    "system:node": _known("system:node:devcluster", "system:nodes"),
}
ADMIN = "kubernetes-admin"


class FixedTokens:
    """The tokens of the administrator and the cluster's components, kept in one private file."""

    def __init__(self, path: Path) -> None:
        tokens: dict[str, str] = orjson.loads(path.read_bytes()) if path.exists() else {}
        missing = [name for name in _FIXED_USERS if name not in tokens]
        if missing:
            tokens |= {name: secrets.token_urlsafe(32) for name in missing}
            write_private(path, orjson.dumps(tokens))
        self._tokens = tokens
        self._users = {token: _FIXED_USERS[name] for name, token in tokens.items() if name in _FIXED_USERS}

    def of(self, component: str) -> str:
        """Return the token of ``system:kube-scheduler``, ``system:kube-controller-manager``, ... Raises KeyError."""
        return self._tokens[component]

    def user(self, token: str) -> User | None:
        return self._users.get(token)


def service_account_user(namespace: str, name: str, uid: str = "", pod: Object | None = None) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    extra: dict[str, list[str]] = {}
    if pod:
        extra["authentication.kubernetes.io/pod-name"] = [pod["name"]]
        extra["authentication.kubernetes.io/pod-uid"] = [pod["uid"]]
    return User(f"system:serviceaccount:{namespace}:{name}", groups, uid, extra)


class ServiceAccountTokens:
    """Issues and checks the tokens of service accounts. A token ends with its account, its pod and its time."""

    def __init__(self, signer: Signer, store: Store, now: Callable[[], datetime]) -> None:
        self._signer, self._store, self._now = signer, store, now

    def issue(
        self, account: Object, audiences: list[str], expiration_s: int, bound: Object | None
    ) -> tuple[str, datetime]:
        """Return a token and its end; ``bound`` is the pod (kind, name, uid) that it belongs to."""
        now = self._now()
        ends = now + timedelta(seconds=expiration_s)
        metadata = account["metadata"]
        claims: Object = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        if bound:
            claims["pod"] = {"name": bound["name"], "uid": bound["uid"]}
        token = self._signer.sign(
            {
                "iss": ISSUER,
                "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
                "aud": audiences or [ISSUER],
                "iat": int(now.timestamp()),
                "nbf": int(now.timestamp()),
                "exp": int(ends.timestamp()),
                "jti": secrets.token_hex(16),
                "kubernetes.io": claims,
            }
        )
        return token, ends

    def user(self, token: str, audiences: tuple[str, ...] = (ISSUER,)) -> User | None:
        """Return whose token it is, or None where it is not valid (any more)."""
        try:
            claims = self._signer.verify(token)
        except BadToken:
            return None
        now_s = self._now().timestamp()
        if not claims.get("nbf", 0) - 10 <= now_s < claims.get("exp", 0):
            return None
        if not set(audiences) & set(claims.get("aud") or ()):
            return None
        about = claims.get("kubernetes.io") or {}
        namespace, account, pod = about.get("namespace", ""), about.get("serviceaccount") or {}, about.get("pod")
        if not self._lives("serviceaccounts", namespace, account):
            return None
        if pod and not self._lives("pods", namespace, pod):
            return None
        return service_account_user(namespace, account["name"], account["uid"], pod)

    def _lives(self, resource: str, namespace: str, ref: Object) -> bool:
        record = self._store.get(Key(resource, namespace, ref.get("name", "")))
        return record is not None and record.obj["metadata"]["uid"] == ref.get("uid")


class Authenticator:
    """From an Authorization header to a user."""

    def __init__(self, fixed: FixedTokens, accounts: ServiceAccountTokens) -> None:
        self._fixed, self._accounts = fixed, accounts

    def user(self, authorization: str) -> User:
        """Return the user, or the anonymous one without credentials; raises 401 for credentials that are not valid."""
        if not authorization:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        found = self.by_token(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise unauthorized()
        return found

    def by_token(self, token: str, audiences: tuple[str, ...] = (ISSUER,)) -> User | None:
        return self._fixed.user(token) or self._accounts.user(token, audiences)
