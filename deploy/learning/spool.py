"""Reads a router's spool (docs/inside/spool-format.md has its files byte by byte). Needs the package
cryptography; object_store.py reads one that was copied to an object store."""

import dataclasses
import hashlib
import math
import pathlib
import struct
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"TDMSPOOL"
VERSION = BODY_VERSION = 1
HEADER = struct.Struct("<8sI16s8sQ16xI")  # magic, version, file id, key id, created (ms), checksum
HEAD = struct.Struct("<IIQ16s12sI")  # body size, kind, time (ms), request, nonce, checksum
MOST_BODY_BYTES = 16 << 20
REQUEST, TOMBSTONE = 1, 2
OUTPUT_TOKEN = struct.Struct("<IfB")
CHOICE = struct.Struct("<If")
SLACK = 1e-3  # By which sums of rounded probabilities may be off.


class SpoolError(ValueError):
    """A file that does not belong to a spool, or an invalid key."""


@dataclasses.dataclass
class OutputToken:
    token: int
    logprob: float
    top: list  # (token, logprob), most likely first


@dataclasses.dataclass
class Record:
    """A request's prompt and output."""

    digest: bytes  # Of its id and tenant; decides the split into training and held-out requests.
    time_ms: int
    request_id: str
    model: str
    adapter: str
    vocabulary_fingerprint: int
    temperature: float
    prompt: list
    output: list


@dataclasses.dataclass
class Damage:
    """What a reader left out."""

    torn_bytes: int = 0  # After the last whole record of files.
    unreadable_records: int = 0  # Encrypted with another key, or changed.
    unreadable_files: int = 0
    deleted_records: int = 0
    notes: list = dataclasses.field(default_factory=list)


def folder_name(tenant):
    """The name of a tenant's folder and key."""
    name = "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or byte in b"-_") else f"%{byte:02x}"
        for byte in tenant.encode()
    )
    return name if name and len(name) <= 200 else "%" + hashlib.sha256(tenant.encode()).hexdigest()


def read_key(path):
    text = pathlib.Path(path).read_text(encoding="ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32 or len(text) != 64:
        raise SpoolError(f"{path}: no key of a spool, expected 64 hexadecimal digits")
    return key


def key_id(key):
    return hashlib.sha256(b"tandem spool key " + key).digest()[:8]


def request_digest(tenant, request_id):
    tenant = tenant.encode()
    return hashlib.sha256(b"tandem spool request " + struct.pack("<I", len(tenant)) + tenant + request_id.encode()).digest()[:16]


def parse_header(content, path):
    """(file id, key id) of a file's first 64 bytes."""
    if len(content) < HEADER.size:
        raise SpoolError(f"{path}: {len(content)} bytes, expected a header of {HEADER.size}")
    magic, version, file_id, key, _, checksum = HEADER.unpack_from(content)
    if magic != MAGIC:
        raise SpoolError(f"{path}: no file of a spool: it does not begin with TDMSPOOL")
    if checksum != zlib.crc32(content[: HEADER.size - 4]):
        raise SpoolError(f"{path}: the header's checksum is not that of its bytes")
    if version != VERSION:
        raise SpoolError(f"{path}: version {version}, expected {VERSION}")
    return file_id, key


def scan(content):
    """The whole records after the header, as (kind, time, request, nonce, offset, body size), and where they end."""
    records, at = [], HEADER.size
    while at + HEAD.size <= len(content):
        size, kind, time_ms, request, nonce, checksum = HEAD.unpack_from(content, at)
        end = at + HEAD.size + size
        if kind not in (REQUEST, TOMBSTONE) or size > MOST_BODY_BYTES or (kind == TOMBSTONE and size) or end > len(content):
            break
        if checksum != zlib.crc32(content[at + HEAD.size : end], zlib.crc32(content[at : at + HEAD.size - 4])):
            break
        records.append((kind, time_ms, request, nonce, at, size))
        at = end
    return records, at


class Folder:
    """A spool as a router writes it."""

    def __init__(self, path):
        self._path = pathlib.Path(path)

    def where(self, tenant, name):
        """What an error calls the file."""
        return str(self._path / folder_name(tenant) / name)

    def segments(self, tenant):
        """Names of the tenant's segments, older ones first."""
        return sorted(path.name for path in (self._path / folder_name(tenant)).glob("*.segment"))

    def read(self, tenant, name):
        """The file's bytes; FileNotFoundError if it is gone."""
        return (self._path / folder_name(tenant) / name).read_bytes()


def open_spool(name, endpoint_url=""):
    """A spool by what --spool says: a folder, or s3://BUCKET/PREFIX."""
    if not str(name).startswith("s3://"):
        return Folder(name)
    import object_store

    return object_store.Prefix(str(name), endpoint_url)


def tombstones(spool, tenant):
    """Digests of the tenant's deleted requests. A file that is damaged is an error: what was deleted is not to be learned
    from because nobody knows that it was."""
    path = spool.where(tenant, "tombstones")
    try:
        content = spool.read(tenant, "tombstones")
    except FileNotFoundError:
        return set()
    parse_header(content, path)
    records, end = scan(content)
    if end != len(content):
        raise SpoolError(f"{path}: byte {end}: expected a tombstone")
    return {record[2] for record in records}


def _text(body, at):
    (size,) = struct.unpack_from("<H", body, at)
    if at + 2 + size > len(body):
        raise struct.error("a text that ends behind the record")
    return body[at + 2 : at + 2 + size].decode("utf-8", "replace"), at + 2 + size


def parse_body(body, digest, time_ms):
    """The Record; SpoolError if the body's length does not match its contents."""
    try:
        (version,) = struct.unpack_from("<I", body)
        if version != BODY_VERSION:
            raise SpoolError(f"a body of version {version}, expected {BODY_VERSION}")
        request_id, at = _text(body, 4)
        model, at = _text(body, at)
        adapter, at = _text(body, at)
        fingerprint, temperature, num_prompt, num_output = struct.unpack_from("<QfII", body, at)
        at += 20
        if num_prompt > (len(body) - at) // 4 or num_output > (len(body) - at) // OUTPUT_TOKEN.size:
            raise SpoolError("a record that is shorter than the tokens that it announces")
        prompt = list(struct.unpack_from(f"<{num_prompt}I", body, at))
        at += 4 * num_prompt
        output = []
        for _ in range(num_output):
            token, logprob, num_top = OUTPUT_TOKEN.unpack_from(body, at)
            at += OUTPUT_TOKEN.size
            top = [CHOICE.unpack_from(body, at + CHOICE.size * i) for i in range(num_top)]
            at += CHOICE.size * num_top
            output.append(OutputToken(token, logprob, top))
    except struct.error as error:
        raise SpoolError(f"a record that ends too early: {error}") from error
    if at != len(body):
        raise SpoolError("a record that is longer than what it announces")
    return Record(digest, time_ms, request_id, model, adapter, fingerprint, temperature, prompt, output)


def check_tokens(record, vocab_size):
    """Why the record cannot be learned from, in words; empty if it can."""
    if not record.prompt or not record.output:
        return "no prompt or no output"
    if max(record.prompt) >= vocab_size:
        return "a token of the prompt that the model has not"
    for token in record.output:
        total = 0.0
        for candidate, logprob in [(token.token, token.logprob), *token.top]:
            if candidate >= vocab_size:
                return "a token of the output that the model has not"
            if math.isnan(logprob) or logprob > 1e-4:
                return "a log probability that is none"
        if len({candidate for candidate, _ in token.top}) != len(token.top):
            return "a token that is twice among the most likely ones"
        total = sum(math.exp(logprob) for _, logprob in token.top)
        if not token.top or total > 1 + SLACK:
            return "probabilities that sum to more than 1, or none"
        of_token = dict(token.top).get(token.token)
        if of_token is not None and abs(of_token - token.logprob) > SLACK:
            return "two log probabilities of one token"
        least = min(logprob for _, logprob in token.top)
        if of_token is None and (token.logprob > least + SLACK or math.exp(token.logprob) > 1 - total + SLACK):
            return "a token more likely than the most likely ones leave room for"
    return ""


def read_tenant(spools, keys, tenant, damage):
    """Yields the tenant's records in all of the spools (open_spool, or folders; one for each router), older ones of a spool
    first."""
    try:
        key = read_key(pathlib.Path(keys) / f"{folder_name(tenant)}.key")
    except FileNotFoundError:
        damage.notes.append(f"{tenant}: no key, so nothing of it can be read")
        return
    for spool in spools:
        if not hasattr(spool, "segments"):
            spool = Folder(spool)
        deleted = tombstones(spool, tenant)
        for name in spool.segments(tenant):
            try:
                content = spool.read(tenant, name)
                file_id, of_key = parse_header(content, spool.where(tenant, name))
            except FileNotFoundError:
                continue  # Was removed meanwhile.
            except SpoolError as error:
                damage.unreadable_files += 1
                damage.notes.append(str(error))
                continue
            records, end = scan(content)
            damage.torn_bytes += len(content) - end
            for kind, time_ms, request, nonce, at, size in records:
                if kind != REQUEST:
                    continue
                if request in deleted:
                    damage.deleted_records += 1
                    continue
                if of_key != key_id(key):
                    damage.unreadable_records += 1
                    continue
                try:
                    associated = file_id + content[at : at + 32]
                    body = AESGCM(key).decrypt(nonce, content[at + HEAD.size : at + HEAD.size + size], associated)
                    yield parse_body(body, request, time_ms)
                except (InvalidTag, SpoolError):
                    damage.unreadable_records += 1
