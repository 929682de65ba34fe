"""A router's spool as a prefix of an S3-compatible object store. Needs boto3, which finds credentials, region and endpoint by its
own rules (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3, ~/.aws, a pod's service account, ...).

    s3://BUCKET/PREFIX/TENANT/NUMBER-ID.segment
    s3://BUCKET/PREFIX/TENANT/tombstones
"""

import contextlib
import dataclasses
import re

import spool

# What is written below the prefix; other objects are not looked at.
OBJECT = re.compile(r"(?P<tenant>[A-Za-z0-9_%-]+)/(?P<name>[0-9]+-[0-9a-f]+\.segment|tombstones)")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
MODIFIED = "tandem-modified-ns"


@dataclasses.dataclass
class Copied:
    """What a turn of `copy_spool` did."""

    uploaded: int = 0
    uploaded_bytes: int = 0
    removed: int = 0
    objects: int = 0  # That are there after it.


class Prefix:
    """What is below one prefix of a bucket. Errors of the store are SpoolError and name the object."""

    objects_a_page = 1000

    def __init__(self, url, endpoint_url=""):
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not url.startswith("s3://") or not BUCKET.fullmatch(self._bucket):
            raise spool.SpoolError(f"{url}: expected s3://BUCKET/PREFIX")
        self._prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
        try:
            import boto3
            import botocore.exceptions
        except ImportError as error:
            raise spool.SpoolError(f"{url}: boto3 is not installed (pip install boto3): {error}") from error
        self._errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
        with self._told(url):
            self._client = boto3.client("s3", endpoint_url=endpoint_url or None)

    @contextlib.contextmanager
    def _told(self, what, may_be_gone=False):
        try:
            yield
        except self._errors as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            if may_be_gone and code in ("NoSuchKey", "404"):
                raise FileNotFoundError(what) from error
            raise spool.SpoolError(f"{what}: {error}") from error

    def _url(self, key):
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def where(self, tenant, name):
        return self._url(f"{spool.folder_name(tenant)}/{name}")

    def objects(self, below=""):
        """{key behind the prefix: size} of a spool's objects."""
        found = {}
        with self._told(self._url(below)):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + below, PaginationConfig={"PageSize": self.objects_a_page}
            )
            for page in pages:
                for entry in page.get("Contents", []):
                    key = entry["Key"].removeprefix(self._prefix)
                    if OBJECT.fullmatch(key):
                        found[key] = entry["Size"]
        return found

    def segments(self, tenant):
        folder = spool.folder_name(tenant) + "/"
        return sorted(key.removeprefix(folder) for key in self.objects(folder) if key.endswith(".segment"))

    def read(self, tenant, name):
        key = f"{spool.folder_name(tenant)}/{name}"
        with self._told(self._url(key), may_be_gone=True):
            return self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()

    def modified_ns(self, key):
        """The file's time that the object is of; 0 if it does not say."""
        with self._told(self._url(key), may_be_gone=True):
            told = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key).get("Metadata", {})
        text = told.get(MODIFIED, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    def write(self, key, content, modified_ns):
        with self._told(self._url(key)):
            self._client.put_object(
                Bucket=self._bucket, Key=self._prefix + key, Body=content, Metadata={MODIFIED: str(modified_ns)}
            )

    def remove(self, key):
        with self._told(self._url(key)):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)


def copy_spool(folder, prefix, known):
    """One turn: afterwards the prefix holds what the folder does, and nothing of what is no longer there. `known` is {} at first
    and then what the turn before left in it. Tombstones go first and leave last, so that at no time a reader learns from what is
    deleted here. SpoolError for a folder that is no spool's, whose objects are left alone: a volume that is not mounted is no
    reason to delete."""
    if not (folder / "lock").is_file():
        raise spool.SpoolError(f"{folder}: no spool of a router: there is no file `lock` in it")
    there = prefix.objects()
    here = {}
    for path in folder.glob("*/*"):
        key = f"{path.parent.name}/{path.name}"
        if OBJECT.fullmatch(key) and path.is_file():
            here[key] = path
    order = lambda key: (not key.endswith("/tombstones"), key)  # noqa: E731
    done = Copied()
    for key in sorted(here, key=order):
        try:
            of_file = here[key].stat()
            content = None
            if (of_file.st_size, of_file.st_mtime_ns) == known.get(key) and there.get(key) == of_file.st_size:
                continue
            if there.get(key) == of_file.st_size and prefix.modified_ns(key) == of_file.st_mtime_ns:
                known[key] = (of_file.st_size, of_file.st_mtime_ns)
                continue
            # May be longer than it was above, or another file: what is noted is from before, so that the next turn sees it.
            content = here[key].read_bytes()
        except FileNotFoundError:
            continue  # Removed meanwhile, here or there: the next turn sees to it.
        prefix.write(key, content, of_file.st_mtime_ns)
        known[key] = (of_file.st_size, of_file.st_mtime_ns)
        done.uploaded += 1
        done.uploaded_bytes += len(content)
    for key in sorted(set(there) - set(here), key=order, reverse=True):
        prefix.remove(key)
        known.pop(key, None)
        done.removed += 1
    done.objects = len(prefix.objects())
    return done
