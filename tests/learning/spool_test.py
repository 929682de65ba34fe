"""What reads a router's spool, with spools that are whole, torn, damaged, deleted from, and of other keys."""

import os
import pathlib
import random
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from spool_fixture import SpoolFixture, header_of, record_bytes, record_of, body_of  # noqa: E402

import spool  # noqa: E402


def with_logprob(logprob, token=4):
    """A record of one token beside (4, -0.1) and (7, -3), which are 0.9546 together."""
    made = record_of(output=(token,))
    made.output[0].logprob = logprob
    return made


class SpoolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-spool-")
        self.addCleanup(folder.cleanup)
        self.fixture = SpoolFixture(folder.name)
        self.damage = spool.Damage()

    def ids(self):
        return [record.request_id for record in self.fixture.read(self.damage)]

    def test_what_is_written_is_read(self):
        written = record_of("r1", adapter="lora", temperature=0.5)
        self.fixture.write([written, record_of("r2", output=())])
        self.fixture.write([record_of("r3")])
        read = self.fixture.read(self.damage)
        self.assertEqual([record.request_id for record in read], ["r1", "r2", "r3"])
        first = read[0]
        self.assertEqual((first.prompt, first.adapter, first.temperature, first.model), ([1, 2, 3], "lora", 0.5, "target"))
        self.assertEqual([token.token for token in first.output], [4, 5])
        self.assertAlmostEqual(first.output[0].top[1][1], -3.0)
        self.assertEqual(self.damage, spool.Damage())

    def test_torn_tails_are_passed_over(self):
        path = self.fixture.write([record_of("r1"), record_of("r2")])
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            damage = spool.Damage()
            ids = [record.request_id for record in self.fixture.read(damage)]
            self.assertEqual(ids, ["r1", "r2"][: len(ids)])
            self.assertLess(len(ids), 2)
            self.assertTrue(damage.torn_bytes or damage.unreadable_files or spool.scan(whole[:size])[1] == size)

    def test_flipped_bits_cost_no_more_than_what_they_are_in(self):
        path = self.fixture.write([record_of("r1"), record_of("r2")])
        whole = path.read_bytes()
        generator = random.Random(7)
        for _ in range(300):
            at = generator.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << generator.randrange(8))]) + whole[at + 1 :])
            ids = self.ids()
            self.assertIn(ids, ([], ["r1"]), f"byte {at}")

    def test_nonsense_is_no_record(self):
        generator = random.Random(8)
        for _ in range(300):
            head, file_id = header_of(self.fixture.key)
            (self.fixture.folder / "000000000009-0.segment").write_bytes(head + generator.randbytes(generator.randrange(400)))
            self.assertEqual(self.ids(), [])
        # Whole records of this key whose bodies announce more than they have.
        body = body_of(record_of())
        for changed in (
            *[body[:size] for size in range(0, len(body), 3)],
            body + b"\0",
            struct.pack("<I", 2) + body[4:],
            body[:30] + b"\xff" * 20,
        ):
            head, file_id = header_of(self.fixture.key)
            record = record_bytes(self.fixture.key, file_id, spool.REQUEST, bytes(16), changed)
            (self.fixture.folder / "000000000009-0.segment").write_bytes(head + record)
            self.damage = spool.Damage()
            self.assertEqual(self.ids(), [])
            self.assertEqual(self.damage.unreadable_records, 1)

    def test_other_files_and_versions_are_named(self):
        path = self.fixture.folder / "000000000001-0.segment"
        for content, text in (
            (b"", "expected a header of 64"),
            (b"x" * 64, "TDMSPOOL"),
            (header_of(self.fixture.key, version=2)[0], "version 2"),
            (header_of(self.fixture.key)[0][:-1] + b"\0", "checksum"),
        ):
            path.write_bytes(content)
            self.damage = spool.Damage()
            self.assertEqual(self.ids(), [])
            self.assertIn(text, self.damage.notes[0])
            self.assertIn(str(path), self.damage.notes[0])

    def test_records_of_another_key_stay_closed(self):
        self.fixture.write([record_of("old")], key=os.urandom(32))
        self.fixture.write([record_of("new")])
        self.assertEqual(self.ids(), ["new"])
        self.assertEqual(self.damage.unreadable_records, 1)
        key = self.fixture.keys / "acme.key"
        for content in ("", "00", "x" * 64, self.fixture.key.hex() + "00"):
            key.write_text(content)
            with self.assertRaisesRegex(spool.SpoolError, "expected 64 hexadecimal digits"):
                self.fixture.read()
        key.unlink()
        self.assertEqual(self.ids(), [])
        self.assertIn("no key", self.damage.notes[-1])

    def test_what_was_deleted_is_not_read(self):
        self.fixture.write([record_of("r1"), record_of("r2"), record_of("r3")])
        self.fixture.delete("r2", "r9")
        self.assertEqual(self.ids(), ["r1", "r3"])
        self.assertEqual(self.damage.deleted_records, 1)
        stones = self.fixture.folder / "tombstones"
        stones.write_bytes(stones.read_bytes()[:-1])
        with self.assertRaisesRegex(spool.SpoolError, "expected a tombstone"):
            self.fixture.read()

    def test_tokens_are_checked(self):
        for record, text in (
            (record_of(), ""),
            (record_of(prompt=()), "no prompt"),
            (record_of(output=()), "no prompt or no output"),
            (record_of(prompt=(1, 100)), "of the prompt"),
            (record_of(output=(100,)), "of the output"),
            (record_of(top=((100, -1.0),)), "of the output"),
            (record_of(top=()), "or none"),
            (record_of(top=((1, float("nan")),)), "that is none"),
            (record_of(top=((1, 0.5),)), "that is none"),
            (record_of(top=((1, -0.1), (1, -4.0))), "twice"),
            (record_of(top=((1, -0.1), (2, -0.5))), "more than 1"),
            (with_logprob(-0.2), "two log probabilities"),
            (with_logprob(-0.1001), ""),
            (with_logprob(-2.0, token=9), "leave room for"),
            (with_logprob(-3.05, token=9), "leave room for"),
            (with_logprob(-4.0, token=9), ""),
        ):
            why = spool.check_tokens(record, 100)
            self.assertEqual(why == "", text == "", why)
            self.assertIn(text, why)

    def test_names_are_safe(self):
        self.assertEqual(spool.folder_name("acme-1_x"), "acme-1_x")
        self.assertEqual(spool.folder_name("../a.b"), "%2e%2e%2fa%2eb")
        self.assertLessEqual(len(spool.folder_name("." * 128)), 255)
        self.assertNotEqual(spool.folder_name("." * 128), spool.folder_name("." * 127 + "/"))


if __name__ == "__main__":
    unittest.main()
