"""Certificates for tests: an authority, and what it issues."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str

    def put(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write both, and return their files."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_text(self.certificate, encoding="ascii")
        key.write_text(self.key, encoding="ascii")
        return certificate, key


class Authority:
    """An authority of its own making."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))

    @property
    def certificate(self) -> str:
        """Its certificate, in PEM."""
        return _pem(self._certificate)

    def issue(self, name: str) -> Certificate:
        """Return a certificate for a host or a client of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        made = self._signed(_name(name), key, x509.BasicConstraints(ca=False, path_length=None), names)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(_pem(made), private.decode())

    @classmethod
    def other(cls) -> Self:
        """Return one that nobody trusts."""
        return cls("other authority")

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints)
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
