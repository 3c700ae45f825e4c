"""Certificates for the tests, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from redis_servers import need


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: authorities of two kinds, and what the right one signed.

    Attributes:
        ca: who signed the certificates of server and client.
        other_ca: somebody else.
        server: the server's, for 127.0.0.1.
        server_key: its key.
        client: a client's.
        client_key: its key.
    """

    ca: Path
    other_ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def made(folder: Path) -> Certificates:
    """Make all of them."""
    need("openssl")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("ca", "other_ca"):
        _authority(folder, name)
    for name in ("server", "client"):
        _signed(folder, name)
    paths = [folder / each for each in ("ca.pem", "other_ca.pem")]
    for name in ("server", "client"):
        paths += [folder / f"{name}.pem", folder / f"{name}.key"]
    return Certificates(*paths)


def _authority(folder: Path, name: str) -> None:
    constraints = ["-addext", "keyUsage=critical,keyCertSign"]
    _openssl(
        folder,
        "req",
        "-x509",
        *_NEW,
        f"{name}.key",
        "-out",
        f"{name}.pem",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        *constraints,
    )


def _signed(folder: Path, name: str) -> None:
    _openssl(folder, "req", *_NEW, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    _openssl(
        folder,
        "x509",
        "-req",
        "-in",
        f"{name}.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        f"{name}.pem",
        "-days",
        "2",
        "-extfile",
        "names",
    )


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
