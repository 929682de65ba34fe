"""Writes spools as routers do, for tests of what reads them."""

import os
import pathlib
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy" / "learning"))

from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402

import spool  # noqa: E402

TAG_BYTES = 16


def header_of(key, file_id=None, version=spool.VERSION, created_ms=0):
    file_id = file_id or os.urandom(16)
    head = struct.pack("<8sI16s8sQ16x", spool.MAGIC, version, file_id, spool.key_id(key), created_ms)
    return head + struct.pack("<I", zlib.crc32(head)), file_id


def text_of(text):
    data = text.encode()
    return struct.pack("<H", len(data)) + data


def body_of(record):
    body = struct.pack("<I", spool.BODY_VERSION) + text_of(record.request_id) + text_of(record.model) + text_of(record.adapter)
    body += struct.pack("<QfII", record.vocabulary_fingerprint, record.temperature, len(record.prompt), len(record.output))
    body += struct.pack(f"<{len(record.prompt)}I", *record.prompt)
    for token in record.output:
        body += spool.OUTPUT_TOKEN.pack(token.token, token.logprob, len(token.top))
        body += b"".join(spool.CHOICE.pack(*choice) for choice in token.top)
    return body


def record_bytes(key, file_id, kind, digest, body, time_ms=0):
    nonce = os.urandom(12) if kind == spool.REQUEST else bytes(12)
    size = len(body) + TAG_BYTES if kind == spool.REQUEST else 0
    head = struct.pack("<IIQ16s12s", size, kind, time_ms, digest, nonce)
    sealed = AESGCM(key).encrypt(nonce, body, file_id + head[:32]) if kind == spool.REQUEST else b""
    return head + struct.pack("<I", zlib.crc32(sealed, zlib.crc32(head))) + sealed


class SpoolFixture:
    """A spool and its keys below a folder."""

    def __init__(self, folder, tenant="acme"):
        self.spool, self.keys, self.tenant = pathlib.Path(folder) / "spool", pathlib.Path(folder) / "keys", tenant
        self.folder = self.spool / spool.folder_name(tenant)
        self.folder.mkdir(parents=True)
        self.keys.mkdir()
        self.key = os.urandom(32)
        (self.keys / f"{spool.folder_name(tenant)}.key").write_text(self.key.hex() + "\n")
        self.segments = 0

    def write(self, records, key=None):
        """One segment with the records; its path."""
        key = key or self.key
        head, file_id = header_of(key)
        self.segments += 1
        path = self.folder / f"{self.segments:012}-{file_id[:4].hex()}.segment"
        digest = lambda record: spool.request_digest(self.tenant, record.request_id)  # noqa: E731
        path.write_bytes(
            head
            + b"".join(
                record_bytes(key, file_id, spool.REQUEST, digest(r), body_of(r), r.time_ms) for r in records
            )
        )
        return path

    def delete(self, *request_ids):
        head, file_id = header_of(bytes(32))
        stones = [
            record_bytes(b"", file_id, spool.TOMBSTONE, spool.request_digest(self.tenant, name), b"") for name in request_ids
        ]
        (self.folder / "tombstones").write_bytes(head + b"".join(stones))

    def read(self, damage=None):
        return list(spool.read_tenant([self.spool], self.keys, self.tenant, damage or spool.Damage()))


def record_of(request_id="r1", prompt=(1, 2, 3), output=(4, 5), top=((4, -0.1), (7, -3.0)), **more):
    # A token that is not among the most likely ones is less likely than they are.
    tokens = [spool.OutputToken(token, dict(top).get(token, -6.0), list(top)) for token in output]
    fields = {"digest": b"", "time_ms": 0, "model": "target", "adapter": "", "vocabulary_fingerprint": 7, "temperature": 1.0}
    return spool.Record(**(fields | {"request_id": request_id, "prompt": list(prompt), "output": tokens} | more))
