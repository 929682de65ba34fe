"""Distils a target into a draft model, from the records of a spool: sparse soft targets, and replay to limit
forgetting.

Loss of a step: the mean, over positions that output tokens follow, of KL(target || draft), where the target is known at its
most likely tokens and as the probability of all others together, plus `replay` times the mean KL(start || draft) over texts
of general kind, start being the draft model as it was.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import sys
import time

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "demo-models" / "train"))

import model as llama  # noqa: E402
import recipe  # noqa: E402
import sample  # noqa: E402
import train  # noqa: E402

LEAST_OTHERS = 1e-6  # Least probability of all other tokens together, because its logarithm is taken.
EVALUATION_ROWS = 32


@dataclasses.dataclass
class Example:
    """One request as training data: its tokens and, at the positions from `first` on, the target's probabilities."""

    tokens: list  # Without the last one, after which nothing is guessed.
    first: int  # Position of the token before the first output token.
    top: torch.Tensor  # [outputs, k] token ids, padded by repeating the first,
    weights: torch.Tensor  # [outputs, k] their probabilities, 0 where padded.
    digest: bytes


def example_of(record, max_length):
    """The record's last max_length tokens; None if they have no output."""
    tokens = record.prompt + [token.token for token in record.output]
    cut = max(0, len(tokens) - 1 - max_length)
    first = max(len(record.prompt) - 1 - cut, 0)
    outputs = record.output[max(0, cut - (len(record.prompt) - 1)) :]
    if not outputs:
        return None
    width = max(len(token.top) for token in outputs)
    top = torch.zeros(len(outputs), width, dtype=torch.long)
    weights = torch.zeros(len(outputs), width)
    for row, token in enumerate(outputs):
        top[row] = token.top[0][0]
        for column, (candidate, logprob) in enumerate(token.top):
            top[row, column], weights[row, column] = candidate, math.exp(logprob)
    return Example(tokens[cut:-1], first, top, weights, record.digest)


def is_held_back(example, record_prompt, share):
    """Requests with the same prompt are on the same side, so held-out requests are never used for training."""
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in record_prompt)).digest()
    return int.from_bytes(digest[:8], "little") < share * 2**64


def padded(examples, device):
    longest = max(len(example.tokens) for example in examples)
    return torch.tensor([example.tokens + [0] * (longest - len(example.tokens)) for example in examples], device=device)


def guesses(model, examples, device):
    """Logits at the positions before output tokens: [positions of all examples, vocab]."""
    features = model.features(padded(examples, device))
    picked = [features[i, example.first : len(example.tokens)] for i, example in enumerate(examples)]
    return model.logits(torch.cat(picked))


def targets(examples, device):
    """(token ids, probabilities), [places, k], of examples whose k may differ."""
    width = max(example.top.shape[1] for example in examples)
    top = torch.cat([functional.pad(e.top, (0, width - e.top.shape[1]), mode="replicate") for e in examples])
    weights = torch.cat([functional.pad(e.weights, (0, width - e.weights.shape[1])) for e in examples])
    return top.to(device), weights.to(device)


def sparse_kl(logits, top, weights):
    """KL(target || draft) in nats, mean over places."""
    guessed = functional.log_softmax(logits, -1)
    of_top = guessed.gather(1, top)
    there = weights > 0
    others = (1 - weights.sum(1)).clamp(LEAST_OTHERS, 1)
    # The draft model's probability of all others, computed without cancellation if nearly all is in the most likely
    # ones.
    of_others = (1 - (of_top.exp() * there).sum(1)).clamp(LEAST_OTHERS, 1).log()
    known = (torch.where(there, weights * (weights.clamp(min=1e-30).log() - of_top), 0.0)).sum(1)
    return (known + others * (others.log() - of_others)).mean()


@torch.no_grad()
def agreement(model, examples, device):
    """For each example (places, same most likely token, sum of min(p, q) over the target's most likely ones)."""
    rows = []
    for start in range(0, len(examples), EVALUATION_ROWS):
        part = examples[start : start + EVALUATION_ROWS]
        probabilities = guesses(model, part, device).softmax(-1)
        top, weights = targets(part, device)
        same = (probabilities.argmax(-1) == top[:, 0]).float()
        overlap = torch.minimum(probabilities.gather(1, top) * (weights > 0), weights).sum(1)
        at = 0
        for example in part:
            count = len(example.tokens) - example.first
            rows.append((count, same[at : at + count].sum().item(), overlap[at : at + count].sum().item()))
            at += count
    return rows


def mean_and_error(values, counts):
    """The ratio of the sums, and its standard error with examples as what is independent."""
    total, n = sum(counts), len(counts)
    mean = sum(values) / total
    if n < 2:
        return mean, math.inf
    residuals = sum((value - mean * count) ** 2 for value, count in zip(values, counts))
    return mean, math.sqrt(n / (n - 1) * residuals) / total


class Replay:
    """General texts, with the draft model's distributions before training."""

    def __init__(self, start, texts, rows, length, generator, device):
        self._start, self._device = start, device
        self._rows, self._length = rows, length
        self.texts = [text for text in texts if len(text) > 1]

    @staticmethod
    def sampled(start, bos, stop_ids, count, length, generator):
        """Texts that the draft model writes itself, from an empty prompt, so that it does not forget such text."""
        texts = []
        while len(texts) < count:
            batch = sample.continue_batch(start, [[bos]] * min(64, count - len(texts)), length, 1.0, stop_ids, generator)
            texts += [[bos] + output for output, _ in batch]
        return texts

    def loss(self, model, generator):
        chosen = torch.randint(len(self.texts), (self._rows,), generator=generator).tolist()
        rows = [self.texts[i][: self._length] for i in chosen]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        real = torch.tensor([[i < len(row) for i in range(longest)] for row in rows], device=self._device)
        with torch.no_grad():
            wanted = functional.log_softmax(self._start(tokens)[real], -1)
        guessed = functional.log_softmax(model(tokens)[real], -1)
        return functional.kl_div(guessed, wanted, log_target=True, reduction="batchmean")

    @torch.no_grad()
    def kept(self, model, texts):
        """Mean of sum(min(p, q)) of the model and its start over texts: 1 if nothing has changed."""
        kept = count = 0.0
        for text in texts:
            tokens = torch.tensor([text[: self._length]], device=self._device)
            kept += torch.minimum(model(tokens).softmax(-1), self._start(tokens).softmax(-1)).sum().item()
            count += tokens.numel()
        return kept / count


def checkpoint_path(work):
    return pathlib.Path(work) / "checkpoint.pt"


def save_checkpoint(work, state):
    path = checkpoint_path(work)
    draft = path.with_suffix(".new")
    torch.save(state, draft)
    os.replace(draft, path)


def load_checkpoint(work, identity):
    """The saved state of a run with this identity; None if there is none, or if it belongs to another run."""
    path = checkpoint_path(work)
    if not path.exists():
        return None
    state = torch.load(path, weights_only=True)
    if state.get("identity") != identity:
        print(f"{path}: of another run, not gone on with", flush=True)
        return None
    return state


def fit(model, examples, replay, args, identity, progress):
    """Takes the remaining steps. Every step is a function of the run's seed and its number, so that an interrupted run
    ends like one that was not interrupted. Returns (steps done, seconds over all runs, why it ended)."""
    stage = recipe.Stage(args.steps, args.lr, weights={}, teacher="target")
    optimizer = train.optimizer_for(model, stage)
    done, spent = 0, 0.0
    state = load_checkpoint(args.work, identity) if args.work else None
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, spent = state["step"], state["seconds"]
        print(f"goes on behind step {done}", flush=True)
    started, saved = time.monotonic(), time.monotonic()

    def save(step):
        if args.work:
            seconds = spent + time.monotonic() - started
            save_checkpoint(
                args.work,
                {
                    "identity": identity,
                    "step": step,
                    "seconds": seconds,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
            )

    total = count = 0
    why = "steps"
    for step in range(done, args.steps):
        if args.max_seconds and spent + time.monotonic() - started > args.max_seconds:
            why = "time"
            break
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
        rows, tokens = [], 0
        for index in torch.randperm(len(examples), generator=generator).tolist():
            rows.append(examples[index])
            tokens += len(examples[index].tokens)
            if tokens >= args.tokens_per_step:
                break
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(stage, step, args.warmup)
        top, weights = targets(rows, args.device)
        loss = learned = sparse_kl(guesses(model, rows, args.device), top, weights)
        if args.replay_weight > 0:
            loss = loss + args.replay_weight * replay.loss(model, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.GRADIENT_CLIP)
        optimizer.step()
        done = step + 1
        total, count = total + learned.item(), count + 1
        if done % max(1, args.steps // 20) == 0 or done == args.steps:
            progress(done, total / count, spent + time.monotonic() - started)
            total = count = 0
        if time.monotonic() - saved > args.save_seconds:
            save(done)
            saved = time.monotonic()
    save(done)
    return done, spent + time.monotonic() - started, why


def identity_of(args, data_digest):
    """The identity of a run; it resumes only from a checkpoint with the same one."""
    names = ("steps", "lr", "seed", "tokens_per_step", "max_length", "replay_weight", "warmup", "held_back")
    said = {name: getattr(args, name) for name in names} | {"data": data_digest, "start": folder_digest(args.start)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def folder_digest(folder):
    """SHA-256 over a model folder's configuration and weights."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((pathlib.Path(folder) / name).read_bytes())
    return digest.hexdigest()
