#!/usr/bin/env python3
"""Tests of the training scripts for drafting heads, deploy/demo-models/train.

    python tests/heads/heads_test.py

Needs torch, transformers and safetensors, so it runs by hand and not with ctest. With REFERENCE naming a folder into which
PyPI's specforge, speculators and medusa-llm are unpacked, forward passes are compared with theirs too:

    pip download --no-deps -d wheels specforge speculators medusa-llm
    for wheel in wheels/*.whl; do unzip -qo "$wheel" -d reference; done
    REFERENCE=reference python tests/heads/heads_test.py
"""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "drafter" / "testdata" / "heads"
sys.path[:0] = [str(ROOT / "deploy" / "demo-models" / "train"), str(TESTDATA)]

import eagle3  # noqa: E402
import eagle3_head  # noqa: E402
import features  # noqa: E402
import head_training  # noqa: E402
import make_golden  # noqa: E402
import medusa  # noqa: E402
import prompts  # noqa: E402
import target_fingerprint  # noqa: E402

REFERENCE = os.environ.get("REFERENCE")
needs_reference = unittest.skipUnless(REFERENCE, "REFERENCE names no folder of reference packages")


def load_source(name, path, stubs):
    """A module from a file of the reference's, with modules that it would import replaced."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(REFERENCE) / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.update(stubs)
    try:
        spec.loader.exec_module(module)
    finally:
        # What else was imported stays: torch and transformers cannot be imported twice.
        for stub in stubs:
            sys.modules.pop(stub, None)
    return module


def anything(*names):
    """Modules that have whatever is asked of them."""
    return {name: mock.MagicMock(__path__=[]) for name in names}


def random_head(draft_vocab=96):
    head = eagle3_head.Head(make_golden.shape(draft_vocab), make_golden.draft_ids(draft_vocab))
    make_golden.randomize(head, seed=3)
    return head


class ReferenceTest(unittest.TestCase):
    """Ours and the reference's, on the same random weights."""

    @needs_reference
    def test_eagle3_unrolls_as_specforge_does(self):
        torch._dynamo.config.disable = True
        stubs = anything("specforge", "specforge.modeling", "specforge.modeling.draft", "specforge.distributed",
                         "specforge.modeling.draft.flex_attention", "specforge.utils", "specforge.modeling.draft.registry")
        base = types.ModuleType("specforge.modeling.draft.base")
        base.Eagle3DraftModel = type("Eagle3DraftModel", (torch.nn.Module,),
                                     {"__init__": lambda self, config: torch.nn.Module.__init__(self),
                                      "post_init": lambda self: None})
        stubs["specforge.modeling.draft.base"] = base
        stubs["specforge.modeling.draft.registry"].register_draft = lambda cls: cls
        reference = load_source("specforge.modeling.draft.llama3_eagle",
                                "specforge/modeling/draft/llama3_eagle.py", stubs)
        head, tokens, states, embedding = random_head(), *make_golden.inputs()
        from transformers import LlamaConfig
        with tempfile.TemporaryDirectory() as folder:
            eagle3_head.save_head(head, folder, [2, 4, 5], "tiny", torch.float32)
            config = json.loads((pathlib.Path(folder) / "config.json").read_text())
            from safetensors.torch import load_file
            tensors = load_file(pathlib.Path(folder) / "model.safetensors")
        theirs = reference.LlamaForCausalLMEagle3(LlamaConfig(**config))
        missing = theirs.load_state_dict(tensors, strict=False)
        self.assertEqual(missing.unexpected_keys, [])
        self.assertEqual([key for key in missing.missing_keys if "rotary" not in key], ["embed_tokens.weight"])

        length = tokens.shape[1] - 1
        batch = head_training.Batch(tokens, torch.tensor([length + 1]), torch.tensor([1]), states, states)
        chains = torch.arange(length)[None]
        ours = list(eagle3.unroll(head, embedding, batch, 4, chains))
        cache, ids = [[], []], tokens[:, 1:]
        mask = torch.zeros(1, 1, length, length).masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf)
        hidden = theirs.project_hidden_states(states[:, :-1])
        for step, (output, _) in enumerate(ours):
            logits = head.logits(output)
            hidden = theirs.backbone(functional.embedding(ids, embedding), hidden, cache, mask, torch.arange(length)[None])
            wanted = theirs.compute_logits(hidden)
            # Past a text's end the two read different fillings.
            torch.testing.assert_close(logits[:, : length - step], wanted[:, : length - step], rtol=1e-4, atol=1e-4)
            ids = functional.pad(ids[:, 1:], (0, 1))

    @needs_reference
    def test_eagle3_layer_is_that_of_speculators(self):
        stubs = anything("speculators", "speculators.models", "speculators.models.eagle3")
        stubs["speculators"].SpeculatorModel = torch.nn.Module
        reference = load_source("eagle3_legacy_model", "speculators/convert/eagle/eagle3_legacy_model.py", stubs)
        head, tokens, states, embedding = random_head(), *make_golden.inputs()
        shape = head.shape
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
        config = LlamaConfig(attention_bias=False, rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
                             **{key: value for key, value in dataclasses.asdict(shape).items() if key != "rope_theta"})
        theirs = reference.Eagle3DecoderLayer(config, layer_idx=0)
        theirs.load_state_dict(head.midlayer.state_dict())
        embedded = functional.embedding(tokens[:, 1:], embedding)
        ours, _ = head.first(embedded, states[:, :-1])
        length = embedded.shape[1]
        mask = torch.zeros(1, 1, length, length).masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf)
        positions = torch.arange(length)[None]
        rotary = LlamaRotaryEmbedding(config)(embedded, positions)

        # Their call hands the position ids where today's transformers has the dimension to unsqueeze.
        def rotate(query, key, cos, sin, _ids):
            from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
            return apply_rotary_pos_emb(query, key, cos, sin)

        reference.apply_rotary_pos_emb = rotate
        wanted = theirs(torch.cat((embedded, head.fc(states[:, :-1])), -1), mask, positions, position_embeddings=rotary)[0]
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)

    @needs_reference
    def test_medusa_heads_are_the_authors(self):
        stubs = anything("medusa", "medusa.model", "medusa.model.modeling_llama_kv", "medusa.model.utils",
                         "medusa.model.kv_cache")
        reference = load_source("medusa.model.medusa_model", "medusa/model/medusa_model.py", stubs)
        heads = medusa.Heads(3, 1, 64, 128, own_output=True)
        make_golden.randomize(heads, seed=4)
        theirs = torch.nn.ModuleList(
            torch.nn.Sequential(reference.ResBlock(64), torch.nn.Linear(64, 128, bias=False)) for _ in range(3))
        with tempfile.TemporaryDirectory() as folder:
            medusa.save_heads(heads, folder, "tiny", torch.float32)
            from safetensors.torch import load_file
            theirs.load_state_dict(load_file(pathlib.Path(folder) / medusa.FILE))
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(5))
        for index in range(3):
            torch.testing.assert_close(heads.logits(index, x, None), theirs[index](x), rtol=1e-5, atol=1e-5)


class Eagle3Test(unittest.TestCase):
    def test_chain_is_the_same_one_column_at_a_time(self):
        """What training unrolls for all columns at once is what a drafter computes along one path."""
        head, tokens, states, embedding = random_head(), *make_golden.inputs()
        length = tokens.shape[1] - 1
        batch = head_training.Batch(tokens, torch.tensor([length + 1]), torch.tensor([1]), states, states)
        unrolled = list(eagle3.unroll(head, embedding, batch, 4, torch.arange(length)[None]))
        for root in (0, 2, length - 4):
            path = make_golden.Path(head, embedding)
            path.add_true(tokens[0, 1 : root + 2], states[0, : root + 1])
            for step in range(4):
                hidden, guessed = unrolled[step]
                self.assertEqual(guessed[0, root], root + 2 + step)
                torch.testing.assert_close(head.logits(hidden[0, root]), path.logits()[-1], rtol=1e-4, atol=1e-4)
                if step < 3:
                    path.add_own(tokens[0, root + 2 + step : root + 3 + step])

    def test_chosen_chains_are_rows_of_all_chains(self):
        head, tokens, states, embedding = random_head(), *make_golden.inputs()
        length = tokens.shape[1] - 1
        batch = head_training.Batch(tokens, torch.tensor([length + 1]), torch.tensor([1]), states, states)
        chosen = eagle3.chosen_chains(batch, 0.5, torch.Generator().manual_seed(1))
        self.assertEqual(chosen.shape[1], length // 2)
        every = list(eagle3.unroll(head, embedding, batch, 3, torch.arange(length)[None]))
        some = list(eagle3.unroll(head, embedding, batch, 3, chosen))
        for step in (1, 2):
            torch.testing.assert_close(some[step][0][0], every[step][0][0, chosen[0]], rtol=1e-4, atol=1e-5)
            self.assertEqual(some[step][1].tolist(), every[step][1][:, chosen[0]].tolist())

    def test_learns_of_answers_alone(self):
        head, tokens, states, embedding = random_head(), *make_golden.inputs()
        length, width = tokens.shape[1], states.shape[-1] // 3
        target = types.SimpleNamespace(embedding=embedding, output=embedding)
        answer = 5
        final = torch.randn(1, length, width, generator=torch.Generator().manual_seed(4))

        def loss(final):
            batch = head_training.Batch(tokens, torch.tensor([length]), torch.tensor([answer]), states, final)
            chains = eagle3.chosen_chains(batch, 0.5, torch.Generator().manual_seed(1))
            self.assertGreaterEqual(chains.min().item(), answer - 2)
            return eagle3.loss_of(head, target, batch, 3, chains)[0].item()

        wanted, other = loss(final), final.clone()
        # The distribution of the answer's first token stands with the prompt's last.
        other[:, : answer - 1] += 1
        self.assertEqual(loss(other), wanted)
        other[:, answer - 1] += 1
        self.assertNotEqual(loss(other), wanted)

    def test_goes_on_from_a_head_of_another_draft_vocabulary(self):
        start, head = random_head(64), random_head(96)
        untouched = head.lm_head.weight.clone()
        eagle3_head.copy_weights(start, head)
        torch.testing.assert_close(head.midlayer.mlp.up_proj.weight, start.midlayer.mlp.up_proj.weight, rtol=0, atol=0)
        known = {token: row for row, token in enumerate(start.draft_ids.tolist())}
        rows = [(row, known.get(token)) for row, token in enumerate(head.draft_ids.tolist())]
        self.assertTrue(any(trained is None for _, trained in rows) and any(trained is not None for _, trained in rows))
        for row, trained in rows:
            wanted = untouched[row] if trained is None else start.lm_head.weight[trained]
            torch.testing.assert_close(head.lm_head.weight[row], wanted, rtol=0, atol=0)
        with self.assertRaisesRegex(ValueError, "another shape"):
            narrow = dataclasses.replace(head.shape, intermediate_size=head.shape.intermediate_size // 2)
            eagle3_head.copy_weights(start, eagle3_head.Head(narrow, head.draft_ids))

    def test_gradient_is_that_of_cross_entropy(self):
        generator = torch.Generator().manual_seed(2)
        logits = torch.randn(32, 20, generator=generator, requires_grad=True)
        wanted = torch.randn(32, 20, generator=generator).softmax(-1)
        weight = torch.rand(32, generator=generator)
        head_training.SoftTargets.apply(logits, wanted, weight).backward()
        ours, logits.grad = logits.grad, None
        (-(wanted * logits.log_softmax(-1)).sum(-1) * weight).sum().backward()
        torch.testing.assert_close(ours, logits.grad)

    def test_checkpoint_comes_back(self):
        head = random_head()
        with tempfile.TemporaryDirectory() as folder:
            eagle3_head.save_head(head, folder, [2, 5, 7], "tiny", torch.float32)
            again, layers = eagle3_head.load_head(folder)
        self.assertEqual(layers, [2, 5, 7])
        self.assertEqual(again.shape, head.shape)
        self.assertEqual(again.draft_ids.tolist(), head.draft_ids.tolist())
        for name, tensor in head.state_dict().items():
            torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


class MedusaTest(unittest.TestCase):
    def test_more_heads_and_blocks_begin_as_those_that_there_are(self):
        generator = torch.Generator().manual_seed(6)
        start, heads = medusa.Heads(2, 1, 16, 32, False), medusa.Heads(3, 2, 16, 32, False)
        with torch.no_grad():
            for parameter in start.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        medusa.copy_weights(start, heads)
        x, output = (torch.randn(count, 16, generator=generator) for count in (5, 32))
        for index, trained in ((0, 0), (1, 1), (2, 1)):
            torch.testing.assert_close(heads.logits(index, x, output), start.logits(trained, x, output))
        with self.assertRaisesRegex(ValueError, "more blocks"):
            medusa.copy_weights(heads, start)


class PromptsTest(unittest.TestCase):
    def test_keeps_out_what_it_is_told_to(self):
        """Neither prompts for measuring nor the documents that they come from are for training."""
        long = "words that a document begins with, as many as it takes to know it by"
        sources = {
            "tinystories_sample.txt": "<|endoftext|>".join([long + " and more", *(f"Story {i} of some length" for i in range(9))]),
            "news.txt": "<|endoftext|>".join(f"News {i}" for i in range(9)),
            "thealgorithms.txt": "# file: a.py\n\"\"\"" + long + "\"\"\"\n\ndef kept_out(x):\n    return x\n"
                                 "<|endoftext|># file: b.py\n\ndef kept(x):\n    return x\n",
            "python311_stdlib.txt": "",
            "roleplay-instruct.json": "[]",
            "codegen-instruct.json": json.dumps([{"instruction": long, "input": ""}, {"instruction": "Do it", "input": "now"}]),
        }
        corpus = types.SimpleNamespace(read=sources.__getitem__, read_json_lines=lambda name: [{"question": "How many?"}])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "golden.json"
            path.write_text(json.dumps({"cases": [{"prompt_text": "<|bos|>"}, {"prompt_text": f"<|bos|><|user|>\n{long}"}]}))
            excluded = prompts.read_excluded(path)
        self.assertEqual(excluded, [long[: prompts.SHARED_CHARACTERS]])
        all_found, found = (prompts.read(corpus, out, random.Random(1)) for out in ([], excluded))
        self.assertEqual({domain: len(all_found[domain]) - len(found[domain]) for domain in found},
                         {"story": 1, "news": 0, "code": 1, "math": 0, "chat": 1})
        for domain, kept in found.items():
            # In the same order, so that prompts for measuring stay what they are.
            self.assertEqual(kept, [prompt for prompt in all_found[domain] if prompt in kept])
            self.assertFalse([prompt for prompt in kept if "kept_out" in prompt or excluded[0] in prompt])


class TargetFingerprintTest(unittest.TestCase):
    def test_is_the_drafters(self):
        # That of common/model/target_fingerprint_test.cc.
        demo = ROOT / "deploy" / "demo-models" / "tandem-target-15m"
        self.assertEqual(target_fingerprint.target_fingerprint(demo), "d3bbed61b666add0")
        self.assertEqual(target_fingerprint.hash_bytes(b"", 0), target_fingerprint.combine(0, 0))


class TrainingTest(unittest.TestCase):
    """The programs from prompts to checkpoints, on a target of another family with random weights."""

    def run_program(self, module, *arguments):
        with mock.patch.object(sys, "argv", [module.__name__, *map(str, arguments)]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(module.main(), 0)
        return out.getvalue()

    def test_trains_and_goes_on_where_it_was_stopped(self):
        from transformers import Qwen2Config, Qwen2ForCausalLM
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            target = shutil.copytree(ROOT / "deploy" / "demo-models" / "tandem-target-15m", folder / "target",
                                     ignore=shutil.ignore_patterns("model.safetensors", "config.json"))
            torch.manual_seed(1)
            config = Qwen2Config(vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=5,
                                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
            Qwen2ForCausalLM(config).save_pretrained(target)
            prompts = folder / "story.train.jsonl"
            prompts.write_text("".join(json.dumps({"prompt": f"Number {i} and more words"}) + "\n" for i in range(12)))
            questions = folder / "chat.test.jsonl"
            questions.write_text("".join(json.dumps({"question": f"What is {i} and more?"}) + "\n" for i in range(3)))
            store = folder / "features"
            stored = ("--target", target, "--output", store, "--layers", "1,2,4", "--prompts", prompts,
                      "--held-back", questions, "--max-tokens", 12)
            self.run_program(features, *stored)
            states = (store / features.STATES).read_bytes()
            # Everything is on the disk already, and stays what it is.
            self.run_program(features, *stored)
            self.assertEqual((store / features.STATES).read_bytes(), states)
            index = features.Store(store)
            self.assertEqual({row.kind for row in index.rows}, {"greedy", "sampled"})
            twice = features.Store(store, store)
            self.assertEqual(len(twice.rows), 2 * len(index.rows))
            torch.testing.assert_close(twice.states(len(index.rows) + 1, [0, 2], 1, 3), index.states(1, [0, 2])[1:4],
                                       rtol=0, atol=0)
            self.assertEqual(len(index.select(held_back=True)), 6)
            for trainer, more, weights in ((eagle3, ("--draft-vocab", 512), "model.safetensors"), (medusa, (), medusa.FILE)):
                with self.subTest(trainer.__name__):
                    output = folder / trainer.__name__
                    arguments = ("--target", target, "--features", store, "--output", output, "--tokens", 64, "--no-bf16")
                    self.run_program(trainer, *arguments, *more, "--steps", 3)
                    said = self.run_program(trainer, *arguments, *more, "--steps", 6)
                    self.assertIn("goes on after step 3", said)
                    self.assertIn(" 6 steps", said)
                    self.assertTrue((output / weights).exists())
                    self.assertIn("chat greedy", self.run_program(trainer, *arguments, "--evaluate"))
                    # Another run goes on from it, on two stores.
                    further = ("--target", target, "--features", store, store, "--output", folder / f"{trainer.__name__}-2")
                    said = self.run_program(trainer, *further, "--start", output, *more, "--tokens", 64, "--no-bf16", "--steps", 2)
                    self.assertIn(" 2 steps", said)
            # A smaller draft vocabulary is a part of a larger one.
            cut = ("--target", target, "--features", store, "--output", folder / "cut", "--start", folder / "eagle3")
            self.run_program(eagle3, *cut, "--draft-vocab", 300, "--steps", 0)
            (large, _), (small, _) = (eagle3_head.load_head(folder / name) for name in ("eagle3", "cut"))
            rows = [large.draft_ids.tolist().index(token) for token in small.draft_ids.tolist()]
            self.assertEqual(len(rows), 300)
            torch.testing.assert_close(small.lm_head.weight, large.lm_head.weight[rows], rtol=0, atol=0)
            # The answers that a row begins with are the target's, whose states they are.
            row, columns = index.rows[0], index.columns([1, 2, 4])
            model, _ = features.load_target(target)
            wanted = model(torch.tensor([row.tokens]), output_hidden_states=True).hidden_states
            torch.testing.assert_close(index.states(0, columns).float(),
                                       torch.cat([wanted[1], wanted[2], wanted[4]], -1)[0], rtol=0.01, atol=0.01)


class AnswersTest(unittest.TestCase):
    def test_answers_are_what_transformers_generates(self):
        """Greedily the target's own, whatever stands beside them; they end with their end token, or go on."""
        model, tokenizer = features.load_target(ROOT / "deploy" / "demo-models" / "tandem-target-15m")
        ids = [features.encode_prompt(tokenizer, key, text) for key, text in
               (("prompt", "Once upon a time"), ("question", "What is 2 and 3?"), ("prompt", "def add(first, second):"))]
        wanted = []
        for prompt in ids:
            out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None)
            wanted.append(out[0, len(prompt) :].tolist())
        self.assertEqual(features.answer(model, tokenizer, ids, [0.0] * 3, 24, past_end=True), wanted)
        # One that is sampled changes nothing for the others.
        torch.manual_seed(1)
        mixed = features.answer(model, tokenizer, ids, [0.0, 0.8, 0.0], 24, past_end=True)
        self.assertEqual([mixed[0], mixed[2]], [wanted[0], wanted[2]])
        end = wanted[0][7]
        model.generation_config.eos_token_id = end
        self.assertEqual(features.answer(model, tokenizer, ids[:1], [0.0], 24), [wanted[0][: wanted[0].index(end) + 1]])


class GoldenTest(unittest.TestCase):
    """The golden files are what the scripts make of the checkpoints beside them."""

    def test_golden_files_are_up_to_date(self):
        for name in make_golden.CASES:
            with self.subTest(name):
                stored = json.loads((TESTDATA / name / "golden.json").read_text(encoding="utf-8"))
                made = make_golden.golden(name, TESTDATA / name)
                self.assertEqual(stored.keys(), made.keys())
                for key, value in made.items():
                    if isinstance(value, str) or value is None:
                        self.assertEqual(stored[key], value)
                    else:
                        torch.testing.assert_close(torch.tensor(stored[key]), torch.tensor(value), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
