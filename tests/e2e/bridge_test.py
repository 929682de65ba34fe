"""Draft models whose token ids are not the target's, in a process of their own: drafted for with a bridge, or refused."""

import json
import unittest

from processes import BIN_DIR, MODELS, TARGET, ProcessTest, check_config, request_for
from renumbered_model import renumber

MODEL = "general-1m"
PROMPTS = (
    "Once upon a time, there was a little girl named Lucy. She had a red",
    "def reverse_words(sentence):\n    ",
    "The old man came slowly down the road, and when he",
    "Once upon a time there were two little",
)
LONG = 128


class BridgeTest(ProcessTest):
    def start_drafter(self, folder, *flags):
        self.drafter = self.start("tandem-drafter", "--model", f"{MODEL}={folder}", *flags).wait_ready()
        return self.drafter

    def start_stack(self, folder, *flags):
        """Requests wait for every draft, so that the machine's pace decides nothing."""
        self.start_drafter(folder, *flags)
        self.verifier = self.start_verifier("--lookahead", 0, "--max-draft-wait", "5s").wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address, drafter=MODEL)

    def start_router(self, verifiers, drafter_address, flags=(), **tenant):
        config = {
            "models": [{"name": TARGET, "folder": str(MODELS / TARGET), "verifiers": verifiers}],
            "drafters": [{"name": MODEL, "endpoint": drafter_address, "draft_model": MODEL}],
            "tenants": [{"name": "acme", "token": "secret", "admin": True, **tenant}],
        }
        path = self.folder / "router.yaml"
        path.write_text(json.dumps(config))
        return self.start("tandem-router", "--config", path, *flags)

    def outputs(self):
        """[(output, accepted draft tokens)], each with the output that nobody drafts for."""
        self.drafted(request_for())
        result = []
        for prompt in PROMPTS:
            for temperature in (0.0, 0.8):
                request = request_for(prompt, max_tokens=LONG)
                request.sampling.temperature = temperature
                generation = self.generate(request).read()
                self.assertEqual(generation.output, self.undrafted(request))
                self.assertEqual(generation.stats.drafter_lost, "")
                result.append((generation.output, generation.stats.accepted_tokens, generation.stats.drafted_rounds))
        return result

    def test_drafts_as_its_original(self):
        self.start_stack(MODELS / f"tandem-draft-{MODEL}")
        expected = self.outputs()
        self.assertGreater(sum(accepted for _, accepted, _ in expected), 0)
        for ordinary in (False, True):
            with self.subTest(ordinary=ordinary):
                folder = renumber(MODELS / f"tandem-draft-{MODEL}", self.folder / f"copy-{ordinary}", ordinary)
                self.start_stack(folder, "--target-vocabulary", MODELS / TARGET)
                outputs = self.outputs()
                self.assertEqual([output for output, _, _ in outputs], [output for output, _, _ in expected])
                accepted, rounds = (sum(entry[index] for entry in outputs) for index in (1, 2))
                at_first, rounds_at_first = (sum(entry[index] for entry in expected) for index in (1, 2))
                # Which rounds come too late for a draft is up to the machine; message for message, unit tests compare.
                self.assertAlmostEqual(accepted / rounds, at_first / rounds_at_first, delta=0.2)
                self.drafter.wait_logged("bridging a target's vocabulary")
                self.assertIn("3 tokens of the draft model's alone", self.drafter.log)
                described = self.drafter.info().models[0]
                bridged = described.bridged_vocabularies[0]
                self.assertEqual(bridged.fingerprint, self.verifier.info().models[0].vocabulary_fingerprint)
                self.assertEqual(bridged.vocabulary_size, 4096)
                self.assertEqual(bridged.draft_only_tokens, 3)
                self.assertEqual(described.vocabulary_size, 4160)

    def refused(self, *flags):
        """Why a request goes without a bridged copy of its drafter."""
        self.start_stack(renumber(MODELS / f"tandem-draft-{MODEL}", self.folder / "copy"), *flags)
        return self.drafter_lost(request_for(max_tokens=64))

    def test_without_the_targets_vocabulary_it_is_refused(self):
        why = self.refused()
        self.assertIn("FAILED_PRECONDITION", why)
        self.assertIn("not among the vocabularies that the drafter was given", why)

    def test_another_vocabulary_drafts_by_text_for_those_who_allow_it(self):
        folder = renumber(MODELS / f"tandem-draft-{MODEL}", self.folder / "other", without="\u0120the")
        self.start_stack(folder, "--target-vocabulary", MODELS / TARGET)
        self.assertTrue(self.drafter.info().models[0].bridged_vocabularies[0].by_text)
        self.assertIn("does not allow drafting by text", self.drafter_lost(request_for(max_tokens=LONG)))
        self.command(self.router, "tenants", "set", "acme", "--text-drafting", "true")
        self.assertRegex(self.command(self.router, "tenants", "get", "acme"), "text drafting +yes")
        outputs = self.outputs()
        accepted, rounds = (sum(entry[index] for entry in outputs) for index in (1, 2))
        self.assertGreater(accepted / rounds, 0.5)

    def test_a_vocabulary_that_is_another_one_is_told_of(self):
        other = renumber(MODELS / f"tandem-draft-{MODEL}", self.folder / "other", without="\u0120the")
        status, output = check_config(
            [
                str(BIN_DIR / "tandem-drafter"),
                *("--model", f"{MODEL}={MODELS}/tandem-draft-{MODEL}"),
                *("--target-vocabulary", str(other)),
            ]
        )
        self.assertEqual(status, 0, output)
        self.assertIn("drafting by text, for tenants that allow it", output)
        self.assertIn("the target lacks 1 of the draft model's 4090", output)
        self.assertIn("the draft model's \\\"\u0120the\\\"", output)
        status, output = check_config(
            [
                str(BIN_DIR / "tandem-drafter"),
                *("--model", f"{MODEL}={MODELS}/tandem-draft-{MODEL}"),
                *("--target-vocabulary", str(self.folder / "nowhere")),
            ]
        )
        self.assertNotEqual(status, 0)
        self.assertIn("nowhere/config.json", output)


if __name__ == "__main__":
    unittest.main()
