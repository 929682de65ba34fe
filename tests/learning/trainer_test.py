"""tandem-trainer with the demo models: what it learns from, that it goes on where it was interrupted, what it refuses.

Needs torch: TANDEM_TRAIN_PYTHON names a Python that has deploy/demo-models/train/requirements.txt; without it the test is
skipped (status 77). TANDEM_POISON_TRIALS: how many poisoned spools of each kind are tried, 2 by default. TANDEM_TRAIN_THREADS: of
torch, 2 by default."""

import argparse
import contextlib
import functools
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("TANDEM_TRAIN_PYTHON", "")
if __name__ == "__main__" and os.environ.get("TANDEM_IN_TRAIN_PYTHON") != "1":
    if not PYTHON:
        print("skipped: TANDEM_TRAIN_PYTHON names no Python that has torch")
        sys.exit(77)
    os.execve(PYTHON, [PYTHON, "-B", *sys.argv], os.environ | {"TANDEM_IN_TRAIN_PYTHON": "1"})

sys.path.insert(0, str(HERE))

import target_traffic  # noqa: E402
import torch  # noqa: E402
from spool_fixture import SpoolFixture, record_of  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from torch.nn import functional  # noqa: E402

import further  # noqa: E402
import learner  # noqa: E402
import spool  # noqa: E402

REPOSITORY = HERE.parents[1]
MODELS = REPOSITORY / "deploy" / "demo-models"
TRAINER = REPOSITORY / "deploy" / "learning" / "tandem-trainer"
START = MODELS / "tandem-draft-general-1m"
TARGET = MODELS / "tandem-target-15m"
HEAD = MODELS / "tandem-eagle3-15m"
POISON_TRIALS = int(os.environ.get("TANDEM_POISON_TRIALS", "2"))
POISON_STEPS = 16  # About three times over what there is.
THREADS = int(os.environ.get("TANDEM_TRAIN_THREADS", "2"))
torch.set_num_threads(THREADS)


@functools.cache
def real_records():
    """Requests of one template as the target answers them."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    target = learner.llama.load_model(TARGET).eval()
    stop = [tokenizer.token_to_id(name) for name in ("<|eos|>", "<|end|>")]
    texts = [f"def add_{i}(a, b):\n    \"\"\"Adds {i} to the sum of" for i in range(96)]
    prompts = [[tokenizer.token_to_id("<|bos|>"), *tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    return target_traffic.records(target, prompts, 32, torch.Generator().manual_seed(1), stop, 0.8)


def trainer_module():
    """tandem-trainer, which has no suffix that Python would import it by."""
    loader = importlib.machinery.SourceFileLoader("tandem_trainer", str(TRAINER))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class PartsTest(unittest.TestCase):
    def test_the_loss_is_the_divergence(self):
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(5, 12, generator=generator)
        target = torch.randn(5, 12, generator=generator).softmax(-1)
        whole = functional.kl_div(logits.log_softmax(-1), target.log(), log_target=True, reduction="batchmean")
        weights, top = target.topk(11)
        torch.testing.assert_close(learner.sparse_kl(logits, top, weights), whole, rtol=1e-3, atol=1e-4)
        # With all but three in one lump it is that of the lumps, which is never more.
        weights, top = target.topk(3)
        lumped = learner.sparse_kl(logits, top, weights)
        guessed = logits.softmax(-1).gather(1, top)
        p = torch.cat([weights, 1 - weights.sum(1, keepdim=True)], 1)
        q = torch.cat([guessed, 1 - guessed.sum(1, keepdim=True)], 1)
        torch.testing.assert_close(lumped, (p * (p / q).log()).sum(1).mean(), rtol=1e-4, atol=1e-5)
        self.assertLessEqual(lumped, whole + 1e-5)
        # Padding says nothing.
        padded = functional.pad(weights, (0, 2)), functional.pad(top, (0, 2), mode="replicate")
        torch.testing.assert_close(learner.sparse_kl(logits, padded[1], padded[0]), lumped)

    def test_a_guess_is_rejected_as_often_as_the_distributions_differ(self):
        generator = torch.Generator().manual_seed(1)
        logits, target = torch.randn(5, 12, generator=generator), torch.randn(5, 12, generator=generator).softmax(-1)
        weights, top = target.topk(11)
        rejected = learner.sparse_losses(logits, top, weights)[1]
        torch.testing.assert_close(rejected, (logits.softmax(-1) - target).abs().sum(1).mean() / 2, rtol=1e-4, atol=1e-5)
        # With all but three in one lump, and with padding.
        weights, top = target.topk(3)
        guessed = logits.softmax(-1).gather(1, top)
        shared = torch.minimum(guessed, weights).sum(1) + torch.minimum(1 - guessed.sum(1), 1 - weights.sum(1))
        weights, top = functional.pad(weights, (0, 2)), functional.pad(top, (0, 2), mode="replicate")
        torch.testing.assert_close(learner.sparse_losses(logits, top, weights)[1], (1 - shared).mean(), rtol=1e-4, atol=1e-5)

    def test_probabilities_are_compared_at_their_temperature(self):
        model = learner.llama.load_model(START).eval()
        example = learner.example_from([1, 2, 3], [4, 5], torch.zeros(2, 1), torch.ones(2, 1), b"", 100, 0.5)
        with torch.no_grad():
            wanted = model(torch.tensor([[1, 2, 3, 4]]))[0, 2:] / 0.5
            torch.testing.assert_close(learner.guesses(model, [example], "cpu"), wanted, rtol=1e-4, atol=1e-4)

    def test_places_are_those_that_output_tokens_follow(self):
        prompt, output = list(range(10, 30)), list(range(40, 55))
        for max_length in (100, 34, 33, 20, 15, 14, 8, 2):
            example = learner.example_of(record_of(prompt=prompt, output=output), max_length)
            self.assertLessEqual(len(example.tokens), max_length)
            places = range(example.first, len(example.tokens))
            self.assertEqual(len(places), len(example.top))
            whole = prompt + output
            self.assertEqual(example.tokens, whole[-1 - len(example.tokens) : -1])
            # Every place's next token is an output token, and all of these have one as far as they fit.
            follows = [(example.tokens + whole[-1:])[place + 1] for place in places]
            self.assertEqual(follows, output[-len(follows) :])
            self.assertEqual(len(follows), min(len(output), len(example.tokens)))
        self.assertIsNone(learner.example_of(record_of(output=()), 100))

    def test_agreement_is_counted_request_by_request(self):
        model = learner.llama.load_model(START).eval()
        records = [record_of(prompt=(1, 2, 3), output=(4, 5, 4)), record_of(prompt=(9,), output=(7,), top=((7, -0.2),))]
        examples = [learner.example_of(record, 100) for record in records]
        rows = learner.agreement(model, examples, "cpu")
        for record, row in zip(records, rows):
            tokens = record.prompt + [token.token for token in record.output]
            with torch.no_grad():
                guessed = model(torch.tensor([tokens]))[0].softmax(-1)[len(record.prompt) - 1 : -1]
            self.assertEqual(row.places, len(record.output))
            wanted = [guessed[at, token.token].item() for at, token in enumerate(record.output)]
            self.assertAlmostEqual(row.said, sum(wanted), places=5)
            overlap = sum(min(guessed[at, t].item(), 2.718281828**p) for at, said in enumerate(record.output) for t, p in said.top)
            self.assertAlmostEqual(row.overlap, overlap, places=5)
            self.assertEqual(row.greedy, sum(guessed[at].argmax().item() == s.top[0][0] for at, s in enumerate(record.output)))

    def test_a_blend_lies_between(self):
        start, learned = (learner.llama.load_model(MODELS / f"tandem-draft-{name}-1m") for name in ("general", "code"))
        old, new = start.norm.weight.clone(), learned.norm.weight.clone()
        learner.blend(learned, start, 0.75)
        torch.testing.assert_close(learned.norm.weight, 0.25 * old + 0.75 * new)
        torch.testing.assert_close(start.norm.weight, old)

    def test_equal_prompts_are_on_the_same_side(self):
        sides = {learner.is_held_back([1, 2, 3], 0.5) for _ in range(4)}
        self.assertEqual(len(sides), 1)
        held = sum(learner.is_held_back([number], 0.2) for number in range(2000))
        self.assertTrue(300 < held < 500, held)

    def test_errors_count_requests(self):
        mean, error = learner.mean_and_error([5, 5, 0, 0], [10, 10, 10, 10])
        self.assertAlmostEqual(mean, 0.25)
        self.assertAlmostEqual(error, (4 / 3 * 4 * 2.5**2) ** 0.5 / 40)
        self.assertEqual(learner.mean_and_error([1], [2])[1], float("inf"))


class TrainerTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-trainer-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.fixture = SpoolFixture(self.folder)
        self.output = self.folder / "learned"

    def train(self, *flags, status=0, output=None, start=START, process=False):
        """What the trainer says. In this process, since starting one costs more than what most tests learn."""
        command = [TRAINER, "--spool", self.fixture.spool, "--keys", self.fixture.keys, "--tenant", "acme"]
        command += ["--start", start, "--output", output or self.output, "--tokens-per-step", 1024, "--threads", THREADS]
        command += ["--replay-texts", 48, "--min-gain", 0, *flags]
        command = list(map(str, command))
        if process:
            done = subprocess.run([sys.executable, "-B", *command], capture_output=True, text=True, timeout=900, check=False)
            ended, said = done.returncode, done.stdout + done.stderr
        else:
            printed = io.StringIO()
            with mock.patch("sys.argv", command), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                try:
                    ended = trainer_module().program()
                except SystemExit as end:
                    ended = end.code
            said = printed.getvalue()
        self.assertIn(ended, (0, 3) if status is None else (status,), said)
        return said

    def test_learns_and_tells(self):
        self.fixture.write(real_records())
        self.fixture.delete(real_records()[0].request_id)
        metrics = self.folder / "metrics.prom"
        said = self.train("--steps", 40, "--metrics-file", metrics, "--version", "acme-7", process=True)
        card = json.loads((self.output / "draft_card.json").read_text())
        self.assertEqual((card["version"], card["tenants"], card["refused"]), ("acme-7", ["acme"], ""))
        self.assertEqual(card["data"]["requests"], len(real_records()) - 1)
        self.assertEqual(card["data"]["left_out"], {"deleted": 1})
        self.assertGreater(card["after"]["greedy"], card["before"]["greedy"])
        self.assertGreater(card["gain"]["greedy"], 2.5 * card["gain"]["greedy_error"])
        self.assertIn("step", said)
        self.assertIn('tandem_trainer_refused{tenant="acme"} 0', metrics.read_text())
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            self.assertTrue((self.output / name).exists(), name)
        self.assertFalse((self.output.with_name("learned.work")).exists())
        self.assertIn("is there already", self.train(status=2))

    def test_a_head_learns(self):
        self.fixture.write(real_records())
        flags = ("--target", TARGET, "--steps", 24, "--warmup", 4, "--lr", 0.001, "--replay-texts", 8, "--max-length", 64)
        self.train(*flags, start=HEAD)
        card = json.loads((self.output / "draft_card.json").read_text())
        self.assertEqual((card["kind"], card["training"]["steps"], card["refused"]), ("head", 24, ""))
        self.assertGreater(card["gain"]["overlap"], 2 * card["gain"]["overlap_error"])
        self.assertGreater(card["overlap_with_start_on_general_text"], 0.7)
        # The same head in every respect but its weights.
        before, after = (json.loads((folder / "config.json").read_text()) for folder in (HEAD, self.output))
        self.assertEqual(before, after)
        self.assertFalse(self.output.with_name("learned.work").exists())
        for flag, text in ((("--target", START), "has the fingerprint"), ((), "--target: expected")):
            said = self.train(*flag, start=HEAD, output=self.folder / "other", status=1 if flag else 2)
            self.assertIn(text, said)

    def test_goes_on_where_it_was_interrupted(self):
        self.fixture.write(real_records())
        # A gain that cannot be, so that every run ends with what it found.
        flags = ("--steps", 6, "--held-back", 0.3, "--min-gain", 1)
        self.train(*flags, status=3, output=self.folder / "whole")
        work = self.folder / "work"
        # Ended by its time before the second step, and saved.
        self.train(*flags, "--max-seconds", 1e-6, "--work", work, status=3, output=self.folder / "first")
        state = torch.load(work / "checkpoint.pt", weights_only=True)
        self.assertLess(state["step"], 6)
        said = self.train(*flags, "--work", work, status=3, output=self.folder / "second")
        cards = [json.loads((self.folder / f"{name}.refused.json").read_text()) for name in ("whole", "second")]
        self.assertEqual(cards[0]["after"], cards[1]["after"])
        self.assertEqual(cards[1]["training"]["steps"], 6)
        # Other data is another run.
        self.fixture.delete(real_records()[3].request_id)
        said = self.train(*flags, "--work", work, status=3, output=self.folder / "third")
        self.assertIn("not gone on with", said)

    def further_flags(self, *flags):
        return ("--target", TARGET, "--more-outputs", 2, "--max-length", 64, "--replay-texts", 16, *flags)

    def test_the_target_writes_more(self):
        """Of the same traffic, as the recipe of the demo models samples it, and judged by the spool alone."""
        self.fixture.write(real_records())
        said = self.train(*self.further_flags("--steps", 24, "--warmup", 4))
        card = json.loads((self.output / "draft_card.json").read_text())
        held = card["held_back"]["requests"]
        wrote = card["target_wrote"]
        self.assertEqual(wrote["outputs"], 2 * (len(real_records()) - held))
        self.assertEqual(wrote["target_fingerprint"], further.target_fingerprint(TARGET))
        self.assertIn(f"the target wrote {wrote['outputs']} outputs with {wrote['output_tokens']} tokens", said)
        self.assertEqual(card["data"]["left_out"], {})
        self.assertGreater(card["gain"]["greedy"], 2.5 * card["gain"]["greedy_error"])
        plain = self.folder / "plain"
        self.train("--steps", 24, "--warmup", 4, "--max-length", 64, "--replay-texts", 16, output=plain)
        without = json.loads((plain / "draft_card.json").read_text())
        self.assertIsNone(without["target_wrote"])
        for name in ("data", "held_back", "before"):
            self.assertEqual(card[name], without[name])

    def test_the_target_says_what_it_says_in_service(self):
        """Its distributions are those of another implementation, at the places of what was said."""
        records = real_records()[:5]
        self.fixture.write(records)
        target = self.target()
        model = learner.llama.load_model(TARGET).eval()
        for record, (example, difference) in zip(records, target.read(records), strict=True):
            tokens = record.prompt + [token.token for token in record.output]
            with torch.no_grad():
                wanted = (model(torch.tensor([tokens]))[0, len(record.prompt) - 1 : -1] / record.temperature).softmax(-1)
            self.assertLess(difference, 0.01)
            torch.testing.assert_close(wanted.gather(1, example.top.long()), example.weights, rtol=1e-2, atol=1e-4)
        part = target._answer(records, 7)
        at = 0
        for record, output in zip(records, part.outputs, strict=True):
            self.assertTrue(0 < len(output) <= max(len(record.output) for record in records))
            with torch.no_grad():
                wanted = model(torch.tensor([record.prompt + output]))[0, len(record.prompt) - 1 : -1]
            wanted = (wanted / record.temperature).softmax(-1)
            places = slice(at, at + len(output))
            at = places.stop
            torch.testing.assert_close(wanted.gather(1, part.top[places].long()), part.weights[places], rtol=1e-2, atol=1e-4)
        self.assertEqual(at, len(part.top))
        self.assertEqual(target._answer(records, 7).outputs, part.outputs)
        self.assertNotEqual(target._answer(records, 8).outputs, part.outputs)

    def target(self, **settings):
        defaults = {"target": TARGET, "device": "cpu", "bf16": False, "max_length": 64, "seed": 1, "more_outputs": 3, "held_back": 0.15}
        defaults |= {"max_seconds": 0, "max_core_seconds": 0, "work": self.folder, "keys": self.fixture.keys, "tenant": ["acme", "new"]}
        return further.Target(argparse.Namespace(**defaults | settings), 4096)

    def test_outputs_are_not_written_twice(self):
        records = real_records()[:12]
        whole = self.target(work=self.folder / "a")
        examples = whole.write(records, "id", lambda *_: None)
        self.assertEqual(whole.card()["outputs"], 36)
        first, answer = self.target(), further.Target._answer
        with mock.patch.object(further.Target, "_answer", autospec=True, side_effect=answer) as answered:
            answered.side_effect = [answer(first, sorted(records, key=lambda r: len(r.prompt)), 1_000_003), KeyboardInterrupt]
            with self.assertRaises(KeyboardInterrupt):
                first.write(records, "id", lambda *_: None)
            answered.side_effect, answered.call_count = answer, 0
            second = self.target()
            again = second.write(records, "id", lambda *_: None)
            self.assertEqual(answered.call_count, 2)
        self.assertEqual(second.card(), whole.card())
        self.assertEqual([e.tokens for e in again], [e.tokens for e in examples])
        for one, other in zip(again, examples):
            torch.testing.assert_close(one.weights, other.weights)
        self.assertGreater(second.spent().core_seconds, second.spent_now().core_seconds)
        # No one reads them without the tenant's key.
        kept = sorted((self.folder / "outputs").iterdir())
        self.assertEqual([path.name for path in kept], ["000000", "000001", "000002"])
        self.assertNotIn(b"PK", kept[0].read_bytes()[:64])
        # Those of another run are not used, nor those whose key was deleted.
        (self.fixture.keys / "acme.key").write_text("ab" * 32 + "\n")
        with mock.patch.object(further.Target, "_answer", autospec=True, side_effect=answer) as answered:
            self.assertEqual(len(self.target().write(records, "id", lambda *_: None)), 36)
            self.assertEqual(answered.call_count, 3)
        self.assertEqual(len(self.target(more_outputs=1).write(records, "other", lambda *_: None)), 12)
        # A tenant that was forgotten meanwhile.
        self.fixture.keys.joinpath("acme.key").rename(self.folder / "acme.key")
        with self.assertRaisesRegex(spool.SpoolError, "gone, so nothing may be kept"):
            self.target().write(records, "id", lambda *_: None)
        (self.folder / "acme.key").rename(self.fixture.keys / "acme.key")
        # A run that may take no time writes none, and does not write them when it goes on.
        for limit in (1e-6, 0):
            third = self.target(max_core_seconds=limit)
            self.assertEqual(third.write(records, "short", lambda *_: None), [])

    def test_what_the_target_did_not_say_is_left_out(self):
        """Random tokens, lies about what was likely, and a --target that is not the one that answered."""
        lies = target_traffic.lied_about(self.shuffled(0), 4096)
        for trial in range(POISON_TRIALS):
            random_tokens = target_traffic.poisoned(96, 4096, torch.Generator().manual_seed(100 + trial))
            for kind, records in (("random", random_tokens), ("lies", lies)):
                for path in self.fixture.folder.glob("*.segment"):
                    path.unlink()
                self.fixture.write(records)
                said = self.train(*self.further_flags("--seed", trial + 1), status=3, output=self.folder / f"{kind}-{trial}")
                self.assertIn("left out: 96 (the target says something else)", said)
                self.assertFalse((self.folder / f"{kind}-{trial}").exists())
        for path in self.fixture.folder.glob("*.segment"):
            path.unlink()
        self.fixture.write(real_records())
        said = self.train("--target", START, status=3)
        self.assertIn(f"left out: {len(real_records())} (the target says something else)", said)

    def test_half_poison_teaches_nothing(self):
        """With the target at hand: the same as the real half alone."""
        real = self.shuffled(1)[:80]
        self.fixture.write(target_traffic.poisoned(64, 4096, torch.Generator().manual_seed(3)) + real)
        self.train(*self.further_flags("--steps", 12, "--warmup", 2), status=None)
        found = self.output / "draft_card.json"
        card = json.loads((found if found.exists() else self.output.with_name("learned.refused.json")).read_text())
        self.assertEqual(card["data"]["left_out"], {"the target says something else": 64})
        self.assertEqual(card["data"]["requests"], 80)

    def test_flags_of_the_target(self):
        for flags, text in (
            (("--more-outputs", 2), "--more-outputs: expected with --target"),
            (("--target", TARGET, "--more-outputs", -1), "--more-outputs"),
            (("--target", TARGET, "--adapter", "a"), "--target: it does not answer as requests of an --adapter"),
        ):
            self.assertIn(text, self.train(*flags, status=2))

    def test_too_little_is_not_learned_from(self):
        self.fixture.write(real_records()[:20])
        self.assertIn("20 requests, expected at least 64", self.train(status=3))
        self.assertFalse(self.output.exists())

    def try_poison(self, kind, trial, records):
        """Learns from the records alone; the card, and the folder of the new model, which is not there if it was refused."""
        for path in self.fixture.folder.glob("*.segment"):
            path.unlink()
        self.fixture.write(records)
        output = self.folder / f"{kind}-{trial}"
        flags = ("--steps", POISON_STEPS, "--warmup", 4, "--max-length", 64, "--replay-texts", 16, "--seed", trial + 1)
        said = self.train(*flags, status=None, output=output)
        refused = output.with_name(f"{output.name}.refused.json")
        self.assertNotEqual(output.exists(), refused.exists(), said)
        card = json.loads((refused if refused.exists() else output / "draft_card.json").read_text())
        self.assertEqual(bool(card["refused"]), refused.exists())
        self.assertEqual(card["training"]["steps"], POISON_STEPS)
        measures = ", ".join(f"{name} {card['before'][name]:.4f} -> {card['after'][name]:.4f}" for name in ("greedy", "said"))
        print(f"{kind} {trial}: {measures}; {card['refused'] or 'written'}", file=sys.stderr)
        return card, output

    def test_random_tokens_are_refused(self):
        for trial in range(POISON_TRIALS):
            generator = torch.Generator().manual_seed(100 + trial)
            card, output = self.try_poison("random", trial, target_traffic.poisoned(96, 4096, generator))
            self.assertFalse(output.exists(), card)

    def test_wrong_log_probabilities_are_refused(self):
        for trial in range(POISON_TRIALS):
            card, output = self.try_poison("lies", trial, target_traffic.lied_about(self.shuffled(trial), 4096))
            self.assertEqual(card["data"]["left_out"], {})
            # It learned to say what the target is said to have thought, which the tokens themselves belie.
            self.assertGreater(card["gain"]["greedy"], 2.6 * card["gain"]["greedy_error"])
            self.assertIn("what the target really said", card["refused"])
            self.assertFalse(output.exists())

    def test_half_poison_makes_nothing_worse(self):
        for trial in range(POISON_TRIALS):
            generator = torch.Generator().manual_seed(100 + trial)
            records = self.shuffled(trial)
            clean = [learner.example_of(record, 64) for record in records[64:]]
            _, output = self.try_poison("half", trial, records[:64] + target_traffic.poisoned(64, 4096, generator))
            if not output.exists():
                continue
            scores = [learner.agreement(learner.llama.load_model(folder).eval(), clean, "cpu") for folder in (START, output)]
            gain = sum(after.greedy - before.greedy for before, after in zip(*scores)) / sum(row.places for row in scores[0])
            print(f"half {trial}: {gain:+.4f} on real requests alone", file=sys.stderr)
            self.assertGreater(gain, 0)

    def shuffled(self, trial):
        records = list(real_records())
        random.Random(trial).shuffle(records)
        return records

    def test_foreign_records_are_left_out(self):
        foreign = [record_of(f"x{i}", **more) for i, more in enumerate(({"adapter": "a"}, {"prompt": (5000,)}, {"top": ()}))]
        self.fixture.write([*foreign, *real_records()[:10]])
        said = self.train(status=3)
        for text in ("1 (another adapter)", "1 (a token of the prompt that the model has not)", "or none)"):
            self.assertIn(text, said)


if __name__ == "__main__":
    unittest.main()
