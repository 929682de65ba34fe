"""A spool in an S3-compatible object store: the copy follows the folder, deletions too, and the trainer reads it.

Needs boto3 and moto's server (pip install boto3 'moto[server]'), in the Python that TANDEM_S3_PYTHON names or this one; without
them the test is skipped (status 77)."""

import importlib.util
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("TANDEM_S3_PYTHON", "")
if __name__ == "__main__":
    if PYTHON and os.environ.get("TANDEM_IN_S3_PYTHON") != "1":
        os.execve(PYTHON, [PYTHON, "-B", *sys.argv], os.environ | {"TANDEM_IN_S3_PYTHON": "1"})
    if not all(importlib.util.find_spec(name) for name in ("boto3", "moto", "flask")):
        print(f"skipped: {sys.executable} has no boto3 and moto[server], and TANDEM_S3_PYTHON names no Python that has")
        sys.exit(77)

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

sys.path.insert(0, str(HERE))

from spool_fixture import SpoolFixture, record_of  # noqa: E402

import object_store  # noqa: E402
import spool  # noqa: E402

REPOSITORY = HERE.parents[1]
LEARNING = REPOSITORY / "deploy" / "learning"
START = REPOSITORY / "deploy" / "demo-models" / "tandem-draft-general-1m"
BUCKET = "tandem-spools"
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true", "no_proxy": "127.0.0.1,localhost",
}  # fmt: skip


class ObjectStoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ.update(ACCOUNT)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        cls.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        cls.server.start()
        cls.addClassCleanup(cls.server.stop)
        cls.endpoint = "http://{}:{}".format(*cls.server.get_host_and_port())
        cls.client = boto3.client("s3", endpoint_url=cls.endpoint)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-object-store-")
        self.addCleanup(folder.cleanup)
        self.fixture = SpoolFixture(folder.name)
        (self.fixture.spool / "lock").touch()
        self.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        self.addCleanup(self.empty_bucket)
        self.url = f"s3://{BUCKET}/spools/router-0"
        self.prefix = object_store.Prefix(self.url, self.endpoint)
        self.known = {}

    def empty_bucket(self):
        for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
            self.client.delete_object(Bucket=BUCKET, Key=entry["Key"])
        self.client.delete_bucket(Bucket=BUCKET)

    def copy(self):
        done = object_store.copy_spool(self.fixture.spool, self.prefix, self.known)
        return done.uploaded, done.removed

    def ids(self, damage=None):
        records = spool.read_tenant([self.prefix], self.fixture.keys, "acme", damage or spool.Damage())
        return [record.request_id for record in records]

    def keys(self):
        return sorted(entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", []))

    def test_the_copy_follows_the_folder(self):
        first = self.fixture.write([record_of("r1"), record_of("r2")])
        second = self.fixture.write([record_of("r3")])
        self.assertEqual(self.copy(), (2, 0))
        self.assertEqual(self.ids(), ["r1", "r2", "r3"])
        self.assertEqual(self.copy(), (0, 0))
        # A copier that was started anew knows what is there.
        self.known = {}
        self.assertEqual(self.copy(), (0, 0))
        # Segments grow, are replaced by others of their size, and go.
        whole = second.read_bytes()
        second.write_bytes(whole[:-1])
        self.assertEqual(self.copy(), (1, 0))
        damage = spool.Damage()
        self.assertEqual(self.ids(damage), ["r1", "r2"])
        self.assertGreater(damage.torn_bytes, 0)
        second.write_bytes(whole[:-1] + b"x")
        os.utime(second, ns=(1, 1))
        self.assertEqual(self.copy(), (1, 0))
        second.write_bytes(whole)
        self.known = {}
        self.assertEqual(self.copy(), (1, 0))
        self.assertEqual(self.ids(), ["r1", "r2", "r3"])
        first.unlink()
        self.assertEqual(self.copy(), (0, 1))
        self.assertEqual(self.ids(), ["r3"])

    def test_deletions_reach_it(self):
        path = self.fixture.write([record_of("r1"), record_of("r2")])
        self.copy()
        self.fixture.delete("r1")
        self.assertEqual(self.copy(), (1, 0))
        damage = spool.Damage()
        self.assertEqual(self.ids(damage), ["r2"])
        self.assertEqual(damage.deleted_records, 1)
        # As the router's clean-up does it: the record leaves the file, later the tombstone.
        old = path.read_bytes()
        path.unlink()
        new = self.fixture.write([record_of("r2")])
        new.rename(path)
        self.assertEqual(self.copy(), (1, 0))
        self.assertNotIn(old[64:], self.client.get_object(Bucket=BUCKET, Key=self.keys()[0])["Body"].read())
        (self.fixture.folder / "tombstones").unlink()
        self.assertEqual(self.copy(), (0, 1))
        self.assertEqual(self.ids(), ["r2"])
        # A tenant that is forgotten: its key is gone at once, its objects at the next turn.
        (self.fixture.keys / "acme.key").unlink()
        self.assertEqual(self.ids(), [])
        path.unlink()
        self.fixture.folder.rmdir()
        self.assertEqual(self.copy(), (0, 1))
        self.assertEqual(self.keys(), [])

    def test_tombstones_go_first_and_leave_last(self):
        path = self.fixture.write([record_of("r1")])
        self.copy()
        self.fixture.delete("r1")
        self.fixture.write([record_of("r2")])
        order = []
        prefix = self.prefix

        class Watched:
            objects, modified_ns = prefix.objects, prefix.modified_ns

            def write(self, key, *rest):
                order.append(("write", key.split("/")[1]))
                prefix.write(key, *rest)

            def remove(self, key):
                order.append(("remove", key.split("/")[1]))
                prefix.remove(key)

        object_store.copy_spool(self.fixture.spool, Watched(), {})
        self.assertEqual([order[0], order[1][0], len(order)], [("write", "tombstones"), "write", 2])
        order.clear()
        (self.fixture.folder / "tombstones").unlink()
        path.unlink()
        object_store.copy_spool(self.fixture.spool, Watched(), {})
        self.assertEqual([order[0][0], order[1], len(order)], ["remove", ("remove", "tombstones"), 2])

    def test_a_folder_that_is_no_spool_deletes_nothing(self):
        self.fixture.write([record_of("r1")])
        self.copy()
        (self.fixture.spool / "lock").unlink()
        with self.assertRaisesRegex(spool.SpoolError, "no spool of a router"):
            self.copy()
        self.assertEqual(self.ids(), ["r1"])

    def test_other_objects_are_left_alone(self):
        self.fixture.write([record_of("r1")])
        others = ["spools/router-00/acme/000000000001-00.segment", "spools/router-0/readme", "spools/router-0/acme/x/tombstones"]
        for key in others:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=b"x")
        self.copy()
        self.fixture.folder.joinpath("draft.new").write_bytes(b"x")
        for path in self.fixture.folder.glob("*.segment"):
            path.unlink()
        self.assertEqual(self.copy(), (0, 1))
        self.assertEqual(self.keys(), sorted(others))

    def test_more_objects_than_a_page_lists(self):
        path = self.fixture.write([record_of("r1")])
        for number in range(25):
            key = f"spools/router-0/acme/{number + 100:012}-{number:08x}.segment"
            self.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
        self.prefix.objects_a_page = 10
        self.assertEqual(len(self.prefix.segments("acme")), 25)
        self.assertEqual(self.copy(), (1, 25))
        self.assertEqual(self.ids(), ["r1"])

    def test_damage_and_errors_are_told(self):
        self.fixture.write([record_of("r1")])
        self.fixture.delete("r9")
        self.copy()
        key = "spools/router-0/acme/tombstones"
        stones = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        self.client.put_object(Bucket=BUCKET, Key=key, Body=stones[:-1])
        with self.assertRaisesRegex(spool.SpoolError, f"s3://{BUCKET}/{key}: byte 64: expected a tombstone"):
            self.ids()
        for url in ("s3://", "s3:///x", "s3://Bucket/x", "https://x/y"):
            with self.assertRaisesRegex(spool.SpoolError, "expected s3://BUCKET/PREFIX"):
                object_store.Prefix(url)
        nowhere = object_store.Prefix("s3://nowhere-at-all/x", self.endpoint)
        for what in (lambda: nowhere.segments("acme"), lambda: nowhere.write("acme/tombstones", b"", 0)):
            with self.assertRaisesRegex(spool.SpoolError, "s3://nowhere-at-all/x.*NoSuchBucket"):
                what()

    def run_program(self, name, *arguments):
        command = [sys.executable, "-B", LEARNING / name, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)

    def test_the_programs(self):
        self.fixture.write([record_of(f"r{number}") for number in range(5)])
        to = ("--spool", self.fixture.spool, "--to", self.url, "--endpoint-url", self.endpoint)
        done = self.run_program("tandem-spool-copy", *to)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["event"], said["uploaded"], said["objects"]), ("copied", 1, 1))
        # The trainer, as far as it goes with so few requests.
        reader = ("--spool", self.url, "--endpoint-url", self.endpoint, "--keys", self.fixture.keys, "--tenant", "acme")
        done = self.run_program("tandem-trainer", *reader, "--start", START, "--output", self.fixture.spool / "new")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("5 requests of acme for target", done.stdout)
        done = self.run_program("tandem-spool-copy", *to[:2], "--to", "s3://nowhere-at-all", *to[4:])
        self.assertEqual(done.returncode, 1)
        self.assertIn("NoSuchBucket", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
