"""Makes an EAGLE-3 head better at what a spool has (deploy/demo-models/train/eagle3.py has the head and its loss).

A head reads the target's hidden states, which no spool keeps: the target runs over every request once more, and says its whole
distribution while it does, so that the spool's log probabilities are not needed. Needs transformers.
"""

import argparse
import dataclasses
import json

import torch
from torch.nn import functional

import learner  # First: it makes the folder of the demo models' recipe known.
import spool

import eagle3
import eagle3_head
import features
import head_training
from target_fingerprint import target_fingerprint

# Steps that chains unroll, and the share of the columns that they go on from, as eagle3.py has them.
DEPTH, CHAINS = 5, 0.5
REPLAY_TOKENS = 128
# Of the target's states, kept in memory; further ones are computed whenever they are wanted.
MOST_STATE_BYTES = 1 << 30


@dataclasses.dataclass
class Example:
    """One request: its first tokens, whose states depend on nothing that is left out."""

    tokens: list
    prompt: int
    said: list  # Output tokens among them, which the head is to guess.
    digest: bytes


class Texts:
    """What features.Store is, of texts whose states are computed when they are asked for."""

    def __init__(self, model, layers, rows):
        self.rows, self.layers, self.width = rows, layers, model.config.hidden_size
        self._model, self._kept, self._bytes = model, {}, 0

    def select(self, held_back):
        return [i for i, row in enumerate(self.rows) if row.held_back == held_back]

    def states(self, index, columns):
        """[tokens, columns * width] bf16."""
        found = self._kept.get(index)
        if found is None:
            found = features.states_of(self._model, [self.rows[index].tokens], self.layers)
            if self._bytes + found.nbytes <= MOST_STATE_BYTES:
                self._kept[index] = found
                self._bytes += found.nbytes
        return found.unflatten(1, (-1, self.width))[:, columns].flatten(1)


class Heads:
    """Heads as tandem-trainer learns them, with the face of learner.DraftModels."""

    kind = "head"

    def __init__(self, args):
        self._args = args
        self.start, self._layers = eagle3_head.load_head(args.start)
        self._head = self.load(args.start)
        self.start.to(args.device)
        config = json.loads((args.start / "config.json").read_text(encoding="utf-8"))
        self._fingerprint = target_fingerprint(args.target)
        wanted = config.get("tandem_target_fingerprint", self._fingerprint)
        if wanted != self._fingerprint:
            raise spool.SpoolError(f"--target: {args.target} has the fingerprint {self._fingerprint}, the head is for that with {wanted}")
        self._model, self._tokenizer = features.load_target(args.target, args.device)
        self._target = head_training.Target.__new__(head_training.Target)
        self._target.take(self._model, self._tokenizer)
        self._columns = [*range(len(self._layers)), len(self._layers)]

    def load(self, folder):
        return eagle3_head.load_head(folder)[0].to(self._args.device)

    target = None  # Writes no further outputs.

    def vet(self, records):
        return records, 0

    def further_examples(self, records, identity, progress):
        return []

    def example_of(self, record, held_back):
        """None of a request whose prompt leaves no room, or that is too short for a guess."""
        tokens = (record.prompt + [token.token for token in record.output])[: self._args.max_length]
        prompt = len(record.prompt)
        if prompt < 2 or len(tokens) <= max(prompt, features.FEWEST_TOKENS):
            return None
        return Example(tokens, prompt, tokens[prompt:], record.digest)

    def encode(self, text):
        return features.encode_prompt(self._tokenizer, "text", text)[:REPLAY_TOKENS]

    def write_texts(self, count, generator):
        """Texts of the target's own, begun with nothing."""
        bos = self._tokenizer.bos_token_id
        if bos is None:
            raise spool.SpoolError("--replay: expected, since the target's tokenizer has no token that texts begin with")
        torch.manual_seed(int(torch.randint(1 << 31, (1,), generator=generator)))
        texts = []
        while len(texts) < count:
            part = min(64, count - len(texts))
            answers = features.answer(self._model, self._tokenizer, [[bos]] * part, [1.0] * part, REPLAY_TOKENS - 1)
            texts += [[bos, *answer] for answer in answers]
        return texts

    def _batch(self, tokens, prompt=0):
        texts = Texts(self._model, self._layers, [features.Row(tokens, prompt, "", "", False)])
        return head_training.read_batch(texts, [0], self._columns, self._args.device).float()

    @torch.no_grad()
    def _first_guesses(self, head, batch):
        """[columns, draft vocab]: of column c the token two places after it."""
        hidden, _ = head.first(head.embed(batch.tokens[:, 1:], self._target.embedding), batch.states[:, :-1])
        return head.logits(hidden[0]).softmax(-1)

    @torch.no_grad()
    def agreement(self, head, examples):
        """Of the guesses directly after tokens of the text, as learner.agreement has it of draft models."""
        rows = []
        column_of = torch.full((head.shape.vocab_size,), -1, device=self._args.device)
        column_of[head.draft_ids] = torch.arange(len(head.draft_ids), device=self._args.device)
        for example in examples:
            batch = self._batch(example.tokens, example.prompt)
            guessed = self._first_guesses(head, batch)[example.prompt - 2 : -1]
            wanted = functional.linear(batch.final[0, example.prompt - 1 : -1], self._target.output).softmax(-1)
            said = column_of[batch.tokens[0, example.prompt :]]
            of_said = guessed.gather(1, said.clamp(min=0)[:, None]).squeeze(1) * (said >= 0)
            same = head.draft_ids[guessed.argmax(-1)] == wanted.argmax(-1)
            overlap = torch.minimum(wanted[:, head.draft_ids], guessed)
            sums = (part.sum().item() for part in (same, overlap, of_said))
            rows.append(learner.Agreement(len(example.said), *sums))
        return rows

    def fit(self, examples, texts, identity, progress):
        args = self._args
        rows = [features.Row(example.tokens, example.prompt, "", "sampled", False) for example in examples]
        rows += [features.Row(text[:REPLAY_TOKENS], 0, "", "text", False) for text in texts if len(text) >= features.FEWEST_TOKENS]
        # As head_training.fit and eagle3.training_loss name them.
        settings = argparse.Namespace(**vars(args))
        settings.work, settings.minutes = args.work / identity[:16], args.max_seconds / 60
        settings.tokens, settings.text_share = args.tokens_per_step, min(1.0, args.replay_weight)
        settings.depth, settings.deepening, settings.chains = DEPTH, 0.0, CHAINS
        settings.report_seconds = 20.0
        started = learner.Spent.now()
        loss = eagle3.training_loss(self._head, self._target, settings)
        done = head_training.fit(self._head, loss, Texts(self._model, self._layers, rows), self._columns, settings)
        spent = learner.Spent(done.seconds, learner.Spent.now().core_seconds - started.core_seconds)
        learner.blend(self._head, self.start, args.blend)
        return done.step, spent, "steps" if done.step >= args.steps else "time"

    def save(self, folder):
        eagle3_head.save_head(self._head, folder, self._layers, self._args.target.name, fingerprint=self._fingerprint)

    def kept(self, head, texts):
        """Mean of sum(min(p, q)) of the head's first guesses and its start's."""
        kept = count = 0.0
        for text in texts:
            if len(text) < 2:
                continue
            batch = self._batch(text[:REPLAY_TOKENS])
            both = (self._first_guesses(one, batch) for one in (head, self.start))
            kept += torch.minimum(*both).sum().item()
            count += len(text[:REPLAY_TOKENS]) - 1
        return kept / max(1.0, count)
