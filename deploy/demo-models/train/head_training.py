"""Shared by the trainers of draft heads: the target's parts, batches of stored states, the loss, optimisers with their
schedule, the progress of a run, and the description of a head's guesses."""

import dataclasses
import json
import math
import pathlib
import random
import time

import torch
from torch.nn import functional
from torch.optim import _muon as muon

import features

FINAL_LR_SHARE = 0.02
GRADIENT_CLIP = 1.0
WARM_UP_SHARE = 0.03
ROWS_A_BUCKET = 256
SAVE_SECONDS = 120
# Orthogonal updates are scaled to a fifth of the rate; AdamW's are close to the full rate.
INNER_RATE = 2.5
SHOWN = 16


class Target:
    """The parts of the target that training needs in addition to stored states."""

    def __init__(self, folder, device):
        self.take(*features.load_target(folder, device))

    def take(self, model, tokenizer):
        self.tokenizer = tokenizer
        self.config = model.config
        self.embedding = model.get_input_embeddings().weight.detach().float()
        self.output = features.output_head(model)
        self.last_layer = {name: tensor.float() for name, tensor in model.get_decoder().layers[-1].state_dict().items()}
        self.norm = model.get_decoder().norm.weight.detach().float() if hasattr(model.get_decoder(), "norm") else None


@dataclasses.dataclass
class Batch:
    """Texts, padded on the right."""

    tokens: torch.Tensor  # [rows, length]
    lengths: torch.Tensor  # [rows]
    answers: torch.Tensor  # [rows] where answers begin
    states: torch.Tensor  # [rows, length, 3 * hidden]
    final: torch.Tensor  # [rows, length, hidden]

    def float(self):
        return dataclasses.replace(self, states=self.states.float(), final=self.final.float())


def read_batch(store, indices, columns, device):
    rows = [store.rows[i] for i in indices]
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.tensor([row.tokens + [0] * (longest - len(row.tokens)) for row in rows])
    stored = torch.zeros(len(rows), longest, len(columns) * store.width, dtype=torch.bfloat16)
    for i, index in enumerate(indices):
        stored[i, : len(rows[i].tokens)] = store.states(index, columns)
    states, final = stored.split(((len(columns) - 1) * store.width, store.width), -1)
    lengths, answers = (torch.tensor(numbers) for numbers in zip(*((len(row.tokens), row.prompt) for row in rows)))
    return Batch(*(part.to(device) for part in (tokens, lengths, answers, states, final)))


def epoch_batches(store, text_share, tokens_a_step, rng):
    """Every answer and a share of the other texts once, in random order, with rows of similar lengths together."""
    order = [i for i in store.select(held_back=False) if store.rows[i].kind != "text" or rng.random() < text_share]
    rng.shuffle(order)
    batches = []
    for first in range(0, len(order), ROWS_A_BUCKET):
        bucket = sorted(order[first : first + ROWS_A_BUCKET], key=lambda i: len(store.rows[i].tokens))
        while bucket:
            count = max(1, tokens_a_step // len(store.rows[bucket[-1]].tokens))
            batches.append(bucket[-count:])
            del bucket[-count:]
    rng.shuffle(batches)
    return batches


class SoftTargets(torch.autograd.Function):
    """sum of weight * cross-entropy of softmax(logits) with wanted, [rows, vocab] both. The gradient is computed at
    once, in the logits' type. The value is only for display: it excludes the entropy of `wanted`, so it is 0 if both
    agree, and it is estimated from every SHOWN-th row."""

    @staticmethod
    def forward(ctx, logits, wanted, weight):
        ctx.save_for_backward((logits.softmax(-1) - wanted).mul_(weight[:, None].to(logits.dtype)))
        part, shown = logits[::SHOWN].float(), weight[::SHOWN]
        there = wanted[::SHOWN].float()
        distance = (there * (there.clamp(min=1e-30).log() - part.log_softmax(-1))).sum(-1)
        return (distance * shown).sum() / shown.sum().clamp(min=1e-9) * weight.sum()

    @staticmethod
    def backward(ctx, gradient):
        (stored,) = ctx.saved_tensors
        return stored.mul_(gradient.to(stored.dtype)), None, None


def is_vocabulary(name):
    """Whether a parameter has a row for every token: only these, and `fc`, are outside of a layer or block."""
    return name.startswith(("lm_head.", "embed_tokens.")) or (name.startswith("heads.") and ".linear." not in name)


def orthogonal_in_float32(grad, ns_coefficients, ns_steps, eps):
    """What torch.optim.Muon makes of a gradient, in float32: the Newton-Schulz iteration of Jordan et al., 2024. Torch computes it in
    bfloat16, which a processor without such instructions emulates at a twentieth of the speed."""
    a, b, c = ns_coefficients
    wide = grad.float().T if grad.shape[0] > grad.shape[1] else grad.float()
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if grad.shape[0] > grad.shape[1] else wide


class Optimizers:
    """Muon for a head's inner matrices, whose updates it makes orthogonal; AdamW for output matrices and embeddings, which
    have a row for every token, and for gains."""

    def __init__(self, named, lr):
        named = list(named)
        outer = [p for name, p in named if p.dim() == 2 and is_vocabulary(name)]
        inner = [p for name, p in named if p.dim() == 2 and not is_vocabulary(name)]
        gains = [p for _, p in named if p.dim() < 2]
        self.lr = lr
        if inner and inner[0].device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
            muon._zeropower_via_newtonschulz = orthogonal_in_float32
        self.all = [
            torch.optim.Muon(inner, lr=lr, weight_decay=0.02, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([{"params": outer, "weight_decay": 0.02}, {"params": gains, "weight_decay": 0.0}],
                              lr=lr, betas=(0.9, 0.95)),
        ]

    def step(self, share):
        for optimizer, factor in zip(self.all, (INNER_RATE, 1.0), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = self.lr * factor * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self):
        return [optimizer.state_dict() for optimizer in self.all]

    def load(self, states):
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


def learning_rate_share(progress):
    """Linear warm-up, then a cosine down to FINAL_LR_SHARE of the peak."""
    if progress < WARM_UP_SHARE:
        return max(progress, 0.002) / WARM_UP_SHARE
    along = min(1.0, (progress - WARM_UP_SHARE) / (1 - WARM_UP_SHARE))
    return FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * along))


@dataclasses.dataclass
class Progress:
    """The progress of a run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0  # Of the epoch.


def save_progress(path, progress, head, optimizers):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({"progress": dataclasses.asdict(progress), "head": head.state_dict(), "optimizers": optimizers.state()}, part)
    part.replace(path)


def add_arguments(add):
    """The arguments of both trainers."""
    add("--target", required=True, type=pathlib.Path, help="folder of the target model")
    add("--features", required=True, type=pathlib.Path, nargs="+", help="folders that features.py wrote, all with the same layers")
    add("--output", required=True, type=pathlib.Path, help="folder for the trained head")
    add("--work", type=pathlib.Path, help="folder for checkpoints, from which a run resumes (default: --output plus .work)")
    add("--steps", type=int, default=4000, help="optimiser steps (%(default)s); 0: write the initial head unchanged")
    add("--minutes", type=float, default=0.0, help="end after this many minutes, with the learning rate scheduled to match (0: only --steps counts)")
    add("--tokens", type=int, default=2048, help="tokens per step (%(default)s)")
    add("--text-share", type=float, default=1.0, help="share of the plain texts to use in every epoch (%(default)s)")
    add("--lr", type=float, default=0.002, help="peak learning rate (%(default)s)")
    add("--no-bf16", dest="bf16", action="store_false", help="compute in float32, not in bfloat16 with float32 weights")
    add("--evaluate", action="store_true", help="only evaluate the head in --output")
    add("--report-seconds", type=float, default=20.0, help="seconds between lines of progress (%(default)s)")
    add("--threads", type=int, default=0, help="threads; 0: torch chooses (%(default)s)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seed", type=int, default=1)


def fit(head, loss_of, store, columns, args):
    """Trains until --steps are done or --minutes are over, whichever comes first; the learning rate follows the nearer
    of the two. loss_of(batch, share of the run that is over, step) -> (loss, values to show)"""
    optimizers, progress = Optimizers(head.named_parameters(), args.lr), Progress()
    path = args.work / "latest.pt"
    if path.exists():
        saved = torch.load(path, map_location=args.device)
        head.load_state_dict(saved["head"])
        optimizers.load(saved["optimizers"])
        progress = Progress(**saved["progress"])
        print(f"goes on after step {progress.step} of {path}", flush=True)
    recent = []
    before, started = progress.seconds, time.monotonic()
    saved_at = reported = started
    while True:
        batches = epoch_batches(store, args.text_share, args.tokens, random.Random(args.seed * 1_000_003 + progress.epoch))
        while progress.batch < len(batches):
            share = max(progress.step / args.steps if args.steps else 1.0, progress.seconds / (args.minutes * 60) if args.minutes else 0.0)
            if share >= 1:
                save_progress(path, progress, head, optimizers)
                return progress
            batch = read_batch(store, batches[progress.batch], columns, args.device)
            if not args.bf16:
                batch = batch.float()
            with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.bf16):
                loss, shown = loss_of(batch, share, progress.step)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), GRADIENT_CLIP)
            optimizers.step(learning_rate_share(share))
            progress.step, progress.batch = progress.step + 1, progress.batch + 1
            progress.tokens += int(batch.lengths.sum())
            progress.seconds = before + time.monotonic() - started
            recent.append(shown)
            now = time.monotonic()
            if now - reported > args.report_seconds:
                # Steps of another depth have another number of losses.
                alike = [shown for shown in recent if len(shown) == len(recent[-1])]
                mean = " ".join(f"{sum(values) / len(values):.3f}" for values in zip(*alike))
                print(f"  [{'#' * int(20 * share):20}] step {progress.step} epoch {progress.epoch}  loss {mean}  "
                      f"{progress.tokens / progress.seconds:,.0f} tokens/s  {progress.seconds / 60:.1f} min", flush=True)
                reported, recent = now, []
            if now - saved_at > SAVE_SECONDS:
                save_progress(path, progress, head, optimizers)
                saved_at = now
        progress.epoch, progress.batch = progress.epoch + 1, 0


@dataclasses.dataclass
class Score:
    """Sums over the positions of answers, for every step of a chain."""

    alive: list  # Chains whose guesses above were all right.
    right: list  # Of these, how many are right at this step.
    overlap: list  # Sum of sum(min(p, q)) over all positions.
    count: list

    @staticmethod
    def zero(depth):
        return Score(*([0.0] * depth for _ in range(4)))


def describe(name, total):
    right = [r / max(1, a) for r, a in zip(total.right, total.alive)]
    overlap = [o / max(1, c) for o, c in zip(total.overlap, total.count)]
    tokens = 1 + sum(math.prod(right[: i + 1]) for i in range(len(right)))
    print(f"  {name:16} acceptance by position {' '.join(f'{value:.3f}' for value in right)}; tokens a round of a chain "
          f"{tokens:.2f}; overlap {' '.join(f'{value:.3f}' for value in overlap)}", flush=True)
    return {"acceptance": right, "tokens": tokens, "overlap": overlap}


def evaluate(score, store, args):
    """Describes the results of score(indices of rows) -> Score on held-out texts, by domain and kind."""
    print("held back", flush=True)
    groups, results = {}, {}
    for i in store.select(held_back=True):
        groups.setdefault(f"{store.rows[i].domain} {store.rows[i].kind}", []).append(i)
    for name, indices in sorted(groups.items()):
        results[name] = describe(name, score(indices))
    args.work.mkdir(parents=True, exist_ok=True)
    (args.work / "evaluation.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
