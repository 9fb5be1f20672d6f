"""JSON Web Tokens signed with ES256 (RFC 7515, RFC 7518 section 3.4): all that service accounts need."""

import base64
import binascii
import hashlib

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from longshore_devcluster.apiserver.schema.node import Object

_COORDINATE_BYTES = 32


class BadToken(Exception):
    """The text is not a token of ours."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Signer:
    """Signs and verifies claims with one key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._key_id = _encode(hashlib.sha256(public).digest())

    def sign(self, claims: Object) -> str:
        header = {"alg": "ES256", "kid": self._key_id}
        signed = f"{_encode(orjson.dumps(header))}.{_encode(orjson.dumps(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(_COORDINATE_BYTES, "big") + s.to_bytes(_COORDINATE_BYTES, "big")
        return f"{signed}.{_encode(signature)}"

    def verify(self, token: str) -> Object:
        """Return the claims. Raises BadToken; expiry is the caller's to judge."""
        try:
            signed, signature = token.rsplit(".", 1)
            header, payload = signed.split(".")
            raw = _decode(signature)
            if orjson.loads(_decode(header)).get("alg") != "ES256" or len(raw) != 2 * _COORDINATE_BYTES:
                raise BadToken("not an ES256 token")
            r = int.from_bytes(raw[:_COORDINATE_BYTES], "big")
            s = int.from_bytes(raw[_COORDINATE_BYTES:], "big")
            self._key.public_key().verify(encode_dss_signature(r, s), signed.encode(), ec.ECDSA(hashes.SHA256()))
            claims: Object = orjson.loads(_decode(payload))
        except (ValueError, binascii.Error, InvalidSignature, AttributeError) as error:
            raise BadToken("the token's signature does not fit") from error
        return claims
