"""Certificates for tests, made by the openssl command."""

import os
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA and what it signed, in a folder."""

    def __init__(self, folder, days=2):
        self.folder = folder
        folder.mkdir()
        self.ca = folder / "ca.pem"
        key = self._new_key("ca")
        openssl(*self._request("ca", key), "-x509", "-days", days, "-out", self.ca)
        os.replace(key, folder / "ca.key")

    def _new_key(self, name):
        return self.folder / f"{name}.key.new"

    def _request(self, name, key):
        return ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key) + (
            *("-subj", f"/CN={name}"),
        )

    def sign(self, name, role=None, days=2, hosts="IP:127.0.0.1,DNS:localhost"):
        """The certificate's and the key's files; a negative number of days makes an expired one. What is there already
        is replaced, as whoever renews certificates does it."""
        names = hosts + (f",URI:spiffe://tandem/role/{role}" if role else "")
        csr, pem = self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        new_key, new_pem = self._new_key(name), self.folder / f"{name}.pem.new"
        openssl(*self._request(name, new_key), "-out", csr, "-addext", f"subjectAltName={names}")
        openssl(
            *("x509", "-req", "-in", csr, "-CA", self.ca, "-CAkey", self.folder / "ca.key"),
            *("-days", days, "-copy_extensions", "copy", "-out", new_pem),
        )
        key = self.folder / f"{name}.key"
        os.replace(new_key, key)
        os.replace(new_pem, pem)
        return pem, key
