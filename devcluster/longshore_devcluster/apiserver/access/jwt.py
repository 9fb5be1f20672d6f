"""JSON Web Tokens signed with ES256: all that service accounts need."""

from typing import Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec

from longshore_devcluster.apiserver.schema.node import Object

_ALGORITHM: Final = "ES256"
_SIGNATURES: Final = jwt.PyJWS([_ALGORITHM])


class BadToken(Exception):
    """The text is not a token of ours."""


class Signer:
    """Signs and verifies claims with one key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key

    def sign(self, claims: Object) -> str:
        return _SIGNATURES.encode(orjson.dumps(claims), self._key, _ALGORITHM)

    def verify(self, token: str) -> Object:
        """Return the claims. Raises BadToken; expiry is the caller's to judge."""
        try:
            claims: Object = orjson.loads(_SIGNATURES.decode(token, self._key.public_key(), [_ALGORITHM]))
        except (jwt.InvalidTokenError, ValueError) as error:
            raise BadToken("the token's signature does not fit") from error
        return claims
