"""What the target itself adds to a spool: further outputs for the spool's own prompts, and its own distributions.

A spool has one output for each prompt, and the target's most likely tokens. With the target at hand there is more to learn
from: as many outputs as are wanted, of the very traffic, with the distributions that they were drawn from. Needs transformers.
"""

import hashlib
import io
import json
import os
import shutil
import time
import typing

import torch

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import learner  # Makes the folder of the demo models' recipe known.
import spool

import features
from target_fingerprint import target_fingerprint

TOP = 64  # Most likely tokens that are kept of each distribution.
ROWS = 96  # Prompts that are answered at a time, at most.
ROW_TOKENS = ROWS * 512  # The same for their tokens with those of their outputs, which the target's cache holds.
LOGIT_BYTES = 1 << 28  # At most, of several texts that are read at a time.
MOST_LOGIT_BYTES = 1 << 30  # Of one text. Longer ones are not read.
# Of the target's log probabilities and those that the spool has, mean over an output. Number formats change them by some hundredths.
MOST_DIFFERENCE = 0.5
# Requests at lower temperatures are answered at this one: otherwise each output would be the one that the spool has.
LEAST_TEMPERATURE = 0.5
# The share of a run's time after which no more outputs are begun.
MOST_TIME = 1 / 3


class Part(typing.NamedTuple):
    """Outputs for a few prompts: of each its tokens, and the target's most likely ones with their probabilities."""

    outputs: list
    top: torch.Tensor  # [all tokens, TOP] int32
    weights: torch.Tensor  # [all tokens, TOP]


class Target:
    """The target, and what it said in this run and those before it."""

    def __init__(self, args, vocab_size):
        self._args, self._vocab_size = args, vocab_size
        self.fingerprint = target_fingerprint(args.target)
        self._started = learner.Spent.now()
        self._model, self._tokenizer = features.load_target(args.target, args.device)
        if args.bf16:
            self._model.bfloat16()
        self._spent_before, self._key = learner.Spent(), b""
        self.parts = []

    def spent_now(self):
        """In this run."""
        return learner.Spent.now().since(self._started)

    def spent(self):
        return self._spent_before.plus(self.spent_now())

    def can_read(self, record):
        """Whether the request has only tokens of the target, and is not too long to be read."""
        vocab_size = self._model.config.vocab_size
        tokens = [*record.prompt, *(token.token for token in record.output)]
        return 4 * vocab_size * len(tokens) <= MOST_LOGIT_BYTES and max(tokens) < vocab_size

    def _most_likely(self, logits, temperature):
        """(ids, probabilities) of logits, [places, vocab]; temperature: one, or [places, 1]."""
        weights, top = (logits[:, : self._vocab_size] / temperature).softmax(-1).topk(min(TOP, self._vocab_size))
        return top.int().cpu(), weights.cpu()

    @torch.no_grad()
    def read(self, records):
        """For each record its example with the target's own distributions, and the mean difference between the log probabilities
        of what was said: (Example or None, difference)."""
        order = sorted(range(len(records)), key=lambda i: len(records[i].prompt) + len(records[i].output))
        found, at = [None] * len(records), 0
        while at < len(order):
            batch, longest = [], 0
            while at < len(order):
                record = records[order[at]]
                longest = len(record.prompt) + len(record.output)
                if batch and (len(batch) + 1) * longest * 4 * self._model.config.vocab_size > LOGIT_BYTES:
                    break
                batch.append(order[at])
                at += 1
            texts = [records[i].prompt + [token.token for token in records[i].output] for i in batch]
            longest = max(map(len, texts))
            # Attention is causal, so padding on the right changes nothing before it.
            ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=self._args.device)
            logits = self._model(input_ids=ids, use_cache=False).logits
            for row, i in enumerate(batch):
                found[i] = self._example_and_difference(records[i], logits[row, len(records[i].prompt) - 1 : len(texts[row]) - 1].float())
        return found

    def _example_and_difference(self, record, logits):
        said = [token.token for token in record.output]
        of_said = logits.log_softmax(-1).gather(1, torch.tensor(said, device=logits.device)[:, None])[:, 0].cpu()
        difference = (of_said - torch.tensor([token.logprob for token in record.output])).abs().mean().item()
        temperature = max(record.temperature, LEAST_TEMPERATURE)
        top, weights = self._most_likely(logits, temperature)
        example = learner.example_from(record.prompt, said, top, weights, record.digest, self._args.max_length, temperature)
        return example, difference

    def _answer(self, records, seed):
        """One more output for each."""
        temperatures = [max(record.temperature, LEAST_TEMPERATURE) for record in records]
        divisors = torch.tensor(temperatures, device=self._args.device)[:, None]
        steps = []
        torch.manual_seed(seed)
        outputs = features.answer(
            self._model,
            self._tokenizer,
            [record.prompt for record in records],
            temperatures,
            max(len(record.output) for record in records),
            note=lambda logits: steps.append(self._most_likely(logits, divisors)),
        )
        top, weights = (torch.stack(of, 1) for of in zip(*steps))  # [records, steps, TOP]
        # A draft model with fewer tokens cannot guess the others.
        outputs = [
            output[: next((i for i, token in enumerate(output) if token >= self._vocab_size), len(output))] for output in outputs
        ]
        kept = lambda of: torch.cat([of[i, : len(output)] for i, output in enumerate(outputs)])  # noqa: E731
        return Part(outputs, kept(top), kept(weights))

    def _read_key(self):
        """Of the outputs in the work folder: who deletes the key of a tenant's spool makes them unreadable too."""
        names = [self._args.keys / f"{spool.folder_name(tenant)}.key" for tenant in self._args.tenant]
        keys = [spool.read_key(name) for name in names if name.exists()]  # Nothing was read of a tenant that has none.
        if not keys:
            raise spool.SpoolError(f"{', '.join(map(str, names))}: gone, so nothing may be kept of the tenant")
        return hashlib.sha256(b"tandem further outputs " + b"".join(keys)).digest()

    def _save(self, folder, identity, number, part):
        """Without a part, it says that the run writes no more."""
        text = io.BytesIO()
        torch.save({"part": part and tuple(part), "spent": tuple(self.spent())}, text)
        nonce = os.urandom(12)
        path = folder / f"{number:06}"
        sealed = AESGCM(self._key).encrypt(nonce, text.getvalue(), f"{identity} {number}".encode())
        path.with_suffix(".new").write_bytes(nonce + sealed)
        os.replace(path.with_suffix(".new"), path)

    def _load(self, folder, identity):
        """Takes the parts that an interrupted run has written; whether it had written all."""
        while (path := folder / f"{len(self.parts):06}").exists():
            text = path.read_bytes()
            try:
                text = AESGCM(self._key).decrypt(text[:12], text[12:], f"{identity} {len(self.parts)}".encode())
            except (ValueError, InvalidTag):
                print(f"{path}: damaged, or of another run: outputs are written anew", flush=True)
                shutil.rmtree(folder)
                self.parts.clear()
                self._spent_before = learner.Spent()
                break
            state = torch.load(io.BytesIO(text), weights_only=True)
            self._spent_before = learner.Spent(*state["spent"])
            if state["part"] is None:
                return True
            self.parts.append(Part(*state["part"]))
        return False

    def write(self, records, identity, progress):
        """Examples of `more_outputs` outputs for every record's prompt, or of fewer if they took their share of the time. Every
        output is a function of the run's seed and its number, and those that an interrupted run has written are not written
        again: they are kept in the work folder, encrypted."""
        args, folder = self._args, self._args.work / "outputs"
        order = sorted(records, key=lambda record: len(record.prompt))
        longest_output = max((len(record.output) for record in order), default=0)
        batches = []
        for record in order:  # By length, so the last one is the longest of its batch.
            tokens = len(record.prompt) + longest_output
            if not batches or len(batches[-1]) >= min(ROWS, max(1, ROW_TOKENS // tokens)):
                batches.append([])
            batches[-1].append(record)
        wanted, told = args.more_outputs * len(batches), time.monotonic()
        self._key = self._read_key()
        whole = self._load(folder, identity)
        folder.mkdir(parents=True, exist_ok=True)
        while not whole and len(self.parts) < wanted:
            number = len(self.parts)
            if self.spent().over(args, MOST_TIME):
                self._save(folder, identity, number, None)
                break
            part = self._answer(batches[number % len(batches)], args.seed * 1_000_003 + number)
            self._save(folder, identity, number, part)
            self.parts.append(part)
            if time.monotonic() - told > 15:
                told = time.monotonic()
                progress(number + 1, wanted, self.spent())
        examples = []
        for number, part in enumerate(self.parts):
            at = 0
            for record, output in zip(batches[number % len(batches)], part.outputs, strict=True):
                places = slice(at, at + len(output))
                at = places.stop
                temperature = max(record.temperature, LEAST_TEMPERATURE)
                top, weights = part.top[places], part.weights[places]
                example = learner.example_from(record.prompt, output, top, weights, record.digest, args.max_length, temperature)
                if example is not None:
                    examples.append(example)
        return examples

    def identity_of(self, data_digest):
        """Of a run's outputs. A run that was interrupted takes only outputs with its own identity."""
        names = ("more_outputs", "seed", "held_back", "max_length", "bf16")
        said = {name: getattr(self._args, name) for name in names} | {
            "data": data_digest, "target": self.fingerprint, "vocab_size": self._vocab_size,
            "format": [1, ROWS, ROW_TOKENS, TOP],
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def card(self):
        outputs = [output for part in self.parts for output in part.outputs]
        digest = hashlib.sha256(repr(outputs).encode()).hexdigest()
        return {"target_fingerprint": self.fingerprint, "outputs": len(outputs), "output_tokens": sum(map(len, outputs)), "sha256": digest}
