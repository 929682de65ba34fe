"""The calibration that ships with the demo models: it is theirs, and a router takes it."""

import hashlib
import json
import subprocess
import unittest

from processes import BIN_DIR, DRAFTERS, MODELS, PATIENCE_SECONDS, TARGET, ProcessTest, clean_environment
from tandem.v1 import routing_pb2

CALIBRATION = MODELS / "calibration.bin"
MANIFEST = MODELS / "calibration.sha256"
# Nothing listens there: what a choice would rest on needs no verifier.
NOBODY = "127.0.0.1:1"
# Drafts with the target's tokenizer.
HEAD, HEAD_FOLDER = "eagle3", "tandem-eagle3-15m"


class CalibrationTest(ProcessTest):
    def explain(self, prompt, *flags):
        command = [str(BIN_DIR / "tandem"), "explain", prompt, "--json", *flags]
        command += ["--endpoint", self.router.address, "--token", "secret"]
        done = subprocess.run(
            command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def start_calibrated(self, path, **tenant):
        tenant = {"drafter": "", "drafter_policy": "auto", **tenant}
        return self.start_router([NOBODY], NOBODY, flags=("--calibration", path), **tenant)

    def changed(self, change):
        """A calibration that was changed, as a file."""
        state = routing_pb2.LearnedRouting.FromString(CALIBRATION.read_bytes())
        change(state)
        path = self.folder / "changed.bin"
        path.write_bytes(state.SerializeToString())
        return path

    def assert_refused(self, path, *parts):
        server = self.start_calibrated(path)
        self.assertEqual(server.wait(), 1, server.log)
        server.close()
        self.servers.remove(server)
        for part in (str(path), *parts):
            self.assertIn(part, server.log)

    def test_it_was_made_with_these_models_and_prompts(self):
        digests = dict(line.split("  ")[::-1] for line in MANIFEST.read_text().splitlines())
        expected = {"calibration.bin", "calibration_prompts.jsonl", f"{HEAD_FOLDER}/model.safetensors"}
        for model in (TARGET, *(f"tandem-draft-{name}" for name in DRAFTERS)):
            expected |= {f"{model}/model.safetensors", f"{model}/tokenizer.json", f"{model}/tokenizer_config.json"}
        self.assertEqual(set(digests), expected)
        for name, digest in digests.items():
            self.assertEqual(
                hashlib.sha256((MODELS / name).read_bytes()).hexdigest(), digest, f"{name} is not what it was made with"
            )

    def test_it_knows_every_drafter_of_the_quickstart(self):
        state = routing_pb2.LearnedRouting.FromString(CALIBRATION.read_bytes())
        (model,) = state.models
        self.assertEqual(model.model, TARGET)
        self.assertEqual({drafter.drafter for drafter in model.drafters}, {*DRAFTERS, HEAD})

    def test_routers_take_it(self):
        self.router = self.start_calibrated(CALIBRATION).wait_ready()
        acceptances = {}
        for kind, prompt, flags in (
            ("code", "def count_vowels(text: str) -> int:\n    total = 0\n", ()),
            ("maths", "Anna has 3 bags of 7 apples. She eats 4. How many are left?", ("--chat",)),
        ):
            explanation = self.explain(prompt, *flags)
            self.assertTrue(explanation["features_fitted"])
            candidates = {c["drafter"]: c for c in explanation["candidates"] if c["drafter"]}
            self.assertEqual(set(candidates), set(DRAFTERS))
            for candidate in candidates.values():
                self.assertGreaterEqual(candidate["samples"], 60)
                # Of the machine it was made on, nothing.
                self.assertFalse(candidate["costs_measured"])
                self.assertEqual(candidate["correction"], 1.0)
            self.assertEqual(explanation["verify_seconds"], [])
            acceptances[kind] = {name: c["acceptance"]["mean"] for name, c in candidates.items()}
        self.assertGreater(acceptances["code"]["code-1m"], acceptances["code"]["math-1m"])
        self.assertGreater(acceptances["maths"]["math-1m"], acceptances["maths"]["code-1m"])

    def test_what_does_not_fit_is_refused(self):
        def another_vocabulary(state):
            state.models[0].vocabulary_fingerprint ^= 1

        self.assert_refused(self.changed(another_vocabulary), TARGET, "was learned with a vocabulary that is not")

        def another_model(state):
            state.models[0].model = "elsewhere"

        self.assert_refused(self.changed(another_model), "elsewhere", f"but this router serves {TARGET}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
