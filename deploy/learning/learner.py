"""Distils a target into a draft model, from the records of a spool: sparse soft targets, and replay to limit
forgetting.

Loss of a step: the mean, over positions that output tokens follow, of KL(target || draft) and `overlap_weight` times the
probability that a guess is rejected, 1 - sum(min(p, q)), where the target is known at its most likely tokens and as the
probability of all others together, plus `replay_weight` times the mean KL(start || draft) over texts of general kind, start
being the draft model as it was. What is written lies between start and what was learned (`blend`).
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
import time
import typing

import torch
from tokenizers import Tokenizer
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "demo-models" / "train"))

import model as llama  # noqa: E402
import recipe  # noqa: E402
import sample  # noqa: E402
import train  # noqa: E402

LEAST_OTHERS = 1e-6  # Least probability of all other tokens together, because its logarithm is taken.
EVALUATION_ROWS = 32
FEWEST_REPLAY_ROWS = 4  # In a step.


@dataclasses.dataclass
class Example:
    """One request as training data: its tokens and, at the positions from `first` on, the target's probabilities."""

    tokens: list  # Without the last one, after which nothing is guessed.
    first: int  # Position of the token before the first output token.
    top: torch.Tensor  # [outputs, k] token ids, padded by repeating the first,
    weights: torch.Tensor  # [outputs, k] their probabilities, 0 where padded.
    said: torch.Tensor  # [outputs] the tokens that the target really said.
    digest: bytes
    temperature: float = 1.0  # Of the probabilities, and of the draft model's when it is compared with them.


def example_from(prompt, said, top, weights, digest, max_length, temperature=1.0):
    """The last max_length tokens of an output (token ids) and its prompt; None if they have no output."""
    tokens = prompt + said
    cut = max(0, len(tokens) - 1 - max_length)
    first = max(len(prompt) - 1 - cut, 0)
    left_out = max(0, cut - (len(prompt) - 1))
    if left_out >= len(said):
        return None
    return Example(tokens[cut:-1], first, top[left_out:], weights[left_out:], torch.tensor(said[left_out:]), digest, temperature)


def example_of(record, max_length):
    """As the spool has it."""
    width = max((len(token.top) for token in record.output), default=0)
    top = torch.zeros(len(record.output), width, dtype=torch.long)
    weights = torch.zeros(len(record.output), width)
    for row, token in enumerate(record.output):
        top[row] = token.top[0][0]
        for column, (candidate, logprob) in enumerate(token.top):
            top[row, column], weights[row, column] = candidate, math.exp(logprob)
    said = [token.token for token in record.output]
    return example_from(record.prompt, said, top, weights, record.digest, max_length)


def is_held_back(record_prompt, share):
    """Requests with the same prompt are on the same side, so held-out requests are never used for training."""
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in record_prompt)).digest()
    return int.from_bytes(digest[:8], "little") < share * 2**64


def padded(examples, device):
    longest = max(len(example.tokens) for example in examples)
    return torch.tensor([example.tokens + [0] * (longest - len(example.tokens)) for example in examples], device=device)


def guesses(model, examples, device):
    """Logits at the positions before output tokens, divided by the temperature: [positions of all examples, vocab]."""
    features = model.features(padded(examples, device))
    picked = [features[i, example.first : len(example.tokens)] / example.temperature for i, example in enumerate(examples)]
    return model.logits(torch.cat(picked)).float()


def targets(examples, device):
    """(token ids, probabilities), [places, k], of examples whose k may differ."""
    width = max(example.top.shape[1] for example in examples)
    top = torch.cat([functional.pad(e.top, (0, width - e.top.shape[1]), mode="replicate") for e in examples])
    weights = torch.cat([functional.pad(e.weights, (0, width - e.weights.shape[1])) for e in examples])
    return top.to(device).long(), weights.to(device)


def sparse_losses(logits, top, weights):
    """KL(target || draft) in nats, and 1 - sum(min(p, q)), means over places."""
    guessed = functional.log_softmax(logits, -1)
    of_top = guessed.gather(1, top)
    there = weights > 0
    others = (1 - weights.sum(1)).clamp(LEAST_OTHERS, 1)
    # The draft model's probability of all others, computed without cancellation if nearly all is in the most likely
    # ones.
    shares = of_top.exp() * there
    of_others = (1 - shares.sum(1)).clamp(LEAST_OTHERS, 1)
    known = (torch.where(there, weights * (weights.clamp(min=1e-30).log() - of_top), 0.0)).sum(1)
    kl = (known + others * (others.log() - of_others.log())).mean()
    overlap = torch.minimum(shares, weights).sum(1) + torch.minimum(of_others, others)
    return kl, (1 - overlap).mean()


def sparse_kl(logits, top, weights):
    return sparse_losses(logits, top, weights)[0]


class Agreement(typing.NamedTuple):
    """Of one request, sums over its places."""

    places: int
    greedy: float  # The same most likely token as the target's.
    overlap: float  # Of min(p, q), over the target's most likely ones.
    said: float  # Of the probability of the token that the target really said.


@torch.no_grad()
def agreement(model, examples, device):
    """A row of sums over places for each example."""
    rows = []
    for start in range(0, len(examples), EVALUATION_ROWS):
        part = examples[start : start + EVALUATION_ROWS]
        probabilities = guesses(model, part, device).softmax(-1)
        top, weights = targets(part, device)
        same = (probabilities.argmax(-1) == top[:, 0]).float()
        overlap = torch.minimum(probabilities.gather(1, top) * (weights > 0), weights).sum(1)
        said = probabilities.gather(1, torch.cat([e.said for e in part]).to(device)[:, None]).squeeze(1)
        at = 0
        for example in part:
            places = slice(at, at + len(example.said))
            rows.append(Agreement(len(example.said), *(of[places].sum().item() for of in (same, overlap, said))))
            at = places.stop
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

    def __init__(self, start, texts, rows, length, device):
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
            wanted = functional.log_softmax(self._start(tokens)[real].float(), -1)
        guessed = functional.log_softmax(model(tokens)[real].float(), -1)
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


class Spent(typing.NamedTuple):
    """Time of a run."""

    seconds: float = 0.0
    core_seconds: float = 0.0  # Of all threads, which on a machine that others use is what counts.

    @staticmethod
    def now():
        return Spent(time.monotonic(), time.process_time())

    def plus(self, other):
        return Spent(self.seconds + other.seconds, self.core_seconds + other.core_seconds)

    def since(self, then):
        return Spent(self.seconds - then.seconds, self.core_seconds - then.core_seconds)

    def over(self, args, share=1.0):
        """Whether it is more than a share of what the run may take."""
        limits = (args.max_seconds, args.max_core_seconds)
        return any(limit and passed > share * limit for passed, limit in zip(self, limits))


def fit(model, examples, replay, args, identity, progress, prepared=Spent(), prepared_again=Spent()):
    """Takes the remaining steps. Every step is a function of the run's seed and its number, so that an interrupted run
    ends like one that was not interrupted. `prepared` is what was spent before the first step, `prepared_again` what a run
    that goes on has spent. Returns (steps done, Spent over all runs, why it ended)."""
    stage = recipe.Stage(args.steps, args.lr, weights={}, teacher="target")
    optimizer = train.optimizer_for(model, stage)
    done, before = 0, prepared
    state = load_checkpoint(args.work, identity) if args.work else None
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, before = state["step"], Spent(state["seconds"], state["core_seconds"]).plus(prepared_again)
        print(f"goes on behind step {done}", flush=True)
    started, saved = Spent.now(), time.monotonic()

    def spent():
        return before.plus(Spent.now().since(started))

    def save(step):
        if args.work:
            save_checkpoint(
                args.work,
                {
                    "identity": identity,
                    "step": step,
                    "seconds": spent().seconds,
                    "core_seconds": spent().core_seconds,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
            )

    total = count = 0
    why = "steps"
    for step in range(done, args.steps):
        if spent().over(args):
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
        with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.bf16):
            learned, rejected = sparse_losses(guesses(model, rows, args.device), top, weights)
            loss = learned + args.overlap_weight * rejected
            if args.replay_weight > 0:
                loss = loss + args.replay_weight * replay.loss(model, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.GRADIENT_CLIP)
        optimizer.step()
        done = step + 1
        total, count = total + learned.item(), count + 1
        if done % max(1, args.steps // 20) == 0 or done == args.steps:
            progress(done, total / count, spent())
            total = count = 0
        if time.monotonic() - saved > args.save_seconds:
            save(done)
            saved = time.monotonic()
    save(done)
    return done, spent(), why


@torch.no_grad()
def blend(model, start, share):
    """Moves the model's weights back towards those of `start`, until so large a share is its own (Wortsman et al., 2022). Between
    the two lie models that know both kinds of text: little of what was learned is lost, and much of what was forgotten is back."""
    for own, old in zip(model.parameters(), start.parameters(), strict=True):
        own.lerp_(old, 1 - share)


def identity_of(args, data_digest):
    """The identity of a run; it resumes only from a checkpoint with the same one."""
    names = ("steps", "lr", "seed", "tokens_per_step", "max_length", "replay_weight", "overlap_weight", "warmup", "held_back", "bf16")
    said = {name: getattr(args, name) for name in names} | {"data": data_digest, "start": folder_digest(args.start)}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def folder_digest(folder):
    """SHA-256 over a model folder's configuration and weights."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((pathlib.Path(folder) / name).read_bytes())
    return digest.hexdigest()


class DraftModels:
    """Draft models as tandem-trainer learns them. heads.Heads has the same face."""

    kind = "draft model"

    def __init__(self, args):
        self._args = args
        self.start, self._model = self.load(args.start), self.load(args.start)
        self._tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
        self.target, self._read = None, {}
        if args.target is not None:
            import further  # Needs transformers.

            self.target = further.Target(args, self.start.embed_tokens.num_embeddings)

    def load(self, folder):
        return llama.load_model(folder).to(self._args.device).eval()

    def vet(self, records):
        """(records that the target may have answered, the number of others): all, without the target."""
        if self.target is None:
            return records, 0
        import further

        read = self.target.read(records)
        kept = [(record, example) for record, (example, difference) in zip(records, read) if difference <= further.MOST_DIFFERENCE]
        self._read = {id(record): example for record, example in kept}
        return [record for record, _ in kept], len(records) - len(kept)

    def example_of(self, record, held_back):
        """What is held back is always as the spool has it: what is written is judged by what a router saw, not by --target."""
        if self.target is None or held_back:
            return example_of(record, self._args.max_length)
        return self._read[id(record)]

    def further_examples(self, records, identity, progress):
        """Of further outputs, which the target writes for the prompts of these records."""
        return self.target.write(records, identity, progress) if self.target is not None else []

    def encode(self, text):
        return [self._tokenizer.token_to_id("<|bos|>"), *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def write_texts(self, count, generator):
        """Texts of the model's own."""
        bos, *stops = (self._tokenizer.token_to_id(name) for name in ("<|bos|>", "<|eos|>", "<|end|>"))
        return Replay.sampled(self.start, bos, stops, count, min(self._args.max_length, 256), generator)

    def agreement(self, model, examples):
        return agreement(model, examples, self._args.device)

    def fit(self, examples, texts, identity, progress):
        length = min(self._args.max_length, 256)
        # A third as many tokens as there are of requests.
        replay = Replay(self.start, texts, max(FEWEST_REPLAY_ROWS, self._args.tokens_per_step // (3 * length)), length, self._args.device)
        prepared = (self.target.spent(), self.target.spent_now()) if self.target is not None else ()
        done = fit(self._model.train(), examples, replay, self._args, identity, progress, *prepared)
        blend(self._model, self.start, self._args.blend)
        return done

    def save(self, folder):
        llama.save_model(self._model, self._tokenizer, folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (self._args.start / name).exists():
                shutil.copyfile(self._args.start / name, folder / name)

    def kept(self, model, texts):
        return Replay(self.start, texts, 8, min(self._args.max_length, 256), self._args.device).kept(model, texts)
