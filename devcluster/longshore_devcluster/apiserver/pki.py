"""Keys and certificates of the cluster: a CA, the server's certificate and the key of service-account tokens."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=3650)
_SERVICE_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    path.touch(mode=0o600, exist_ok=True)
    path.chmod(0o600)
    path.write_bytes(data)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_or_create_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), f"{path} does not hold an elliptic-curve key"
        return key
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, _pem(key))
    return key


class Authority:
    """The certificate authority in a directory; created on first use, reloaded afterwards."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = load_or_create_key(directory / "ca.key")
        path = directory / "ca.crt"
        if not path.exists():
            path.write_bytes(self._self_signed().public_bytes(serialization.Encoding.PEM))
        self.path = path
        self.pem = path.read_text()
        self._certificate = x509.load_pem_x509_certificate(path.read_bytes())

    def _self_signed(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "devcluster-ca")])
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip

    def serving_context(self, host: str) -> ssl.SSLContext:
        """Return TLS for a server that answers as ``host`` and as localhost."""
        key = load_or_create_key(self._directory / "server.key")
        certificate = self._serving_certificate(key, host)
        path = self._directory / "server.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(path, self._directory / "server.key")
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _serving_certificate(self, key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in _SERVICE_NAMES]
        addresses = {"127.0.0.1", "::1", "10.96.0.1"}
        try:
            ipaddress.ip_address(host)
            addresses.add(host)
        except ValueError:
            names.append(x509.DNSName(host))
        names += [x509.IPAddress(ipaddress.ip_address(a)) for a in sorted(addresses - {"0.0.0.0", "::"})]
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
