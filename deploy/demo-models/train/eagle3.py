#!/usr/bin/env python3
"""Trains an EAGLE-3 head with training-time test (Li et al., 2025) on what features.py stored.

    python eagle3.py --target tandem-target-15m --features features --layers 2,5,7 --output head

The head is one decoder layer that reads, at every token, the target's states after three of its layers and the
embedding of the token that follows, and guesses the token after that. Below the first guess it feeds on its own output;
training unrolls --depth such steps, so that it learns from inputs of the kind that it has in service. The output is a
folder in the format of SpecForge and SGLang (LlamaForCausalLMEagle3). Held-out texts show how often it is right, by
position.

A stopped run resumes if you start it again with the same arguments and --work.
"""

import argparse
import pathlib
import sys

import torch
from torch.nn import functional

import eagle3_head
import features
import head_training
from target_fingerprint import target_fingerprint

# Weight of an error at a step relative to the step before it (the paper's loss).
STEP_WEIGHT = 0.8
LARGEST_DRAFT_VOCABULARY = 32000
ROWS_A_PASS = 16


def draft_vocabulary(store, size, vocab_size):
    """The most frequent ids in training texts, ascending, and their share of the tokens."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for i in store.select(held_back=False):
        counts += torch.bincount(torch.tensor(store.rows[i].tokens), minlength=vocab_size)
    chosen = counts.argsort(descending=True, stable=True)[:size]
    return chosen.sort().values, (counts[chosen].sum() / counts.sum()).item()


def learned_columns(batch):
    """Columns with something to learn, [rows, width]: those whose guess is a token of an answer, or of a text without a
    prompt, and whose target distribution is stored. A column guesses the token two positions after it."""
    at = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
    return (at + 1 < batch.lengths[:, None]) & (at + 2 >= batch.answers[:, None])


def chosen_chains(batch, share, generator):
    """Columns from which chains continue below the first step, [rows, chains], ascending: a share of all."""
    rows, width = batch.tokens.shape[0], batch.tokens.shape[1] - 1
    if share >= 1:
        return torch.arange(width).expand(rows, -1).to(batch.tokens.device)
    # Columns with something to learn at them and below them come first, if a text has enough.
    learned = learned_columns(batch).cpu() & (torch.arange(width) < batch.lengths.cpu()[:, None] - 2)
    odds = torch.rand(rows, width, generator=generator) + learned
    return odds.topk(max(1, int(width * share)), -1).indices.sort(-1).values.to(batch.tokens.device)


def unroll(head, target_embedding, batch, depth, chains):
    """Yields for every step: its output [rows, chains, hidden] and which token of the text each guesses [rows, chains].
    The first step is over all columns, and the steps below it over `chains`."""
    width = batch.tokens.shape[1] - 1
    at = torch.arange(width, device=batch.tokens.device).expand(batch.tokens.shape[0], -1)
    hidden, columns = head.first(head.embed(batch.tokens[:, 1:], target_embedding), batch.states[:, :-1])
    yield hidden, at + 2
    if depth == 1:
        return
    hidden = hidden.gather(1, chains[..., None].expand(-1, -1, hidden.shape[-1]))
    columns.mask = columns.mask[chains][:, None, None]
    for step in range(1, depth):
        # There is nothing to read past a text's end; these positions have no weight.
        token = batch.tokens.gather(1, (chains + 1 + step).clamp(max=width))
        hidden = head.next(head.embed(token, target_embedding), hidden, chains + step, columns)
        yield hidden, chains + 2 + step


@torch.no_grad()
def teacher(target, head, final):
    """The target's distribution over draft ids [rows, draft vocab] by its final normed states [rows, hidden], and whether its
    most likely token is among them [rows]."""
    logits = functional.linear(final, target.output.to(final.dtype))
    if head.shape.draft_vocab_size == head.shape.vocab_size:
        return logits.softmax(-1), torch.ones(len(final), dtype=torch.bool, device=logits.device)
    inside = torch.zeros(head.shape.vocab_size, dtype=torch.bool, device=logits.device)
    inside[head.draft_ids] = True
    return logits[:, head.draft_ids].softmax(-1), inside[logits.argmax(-1)]


def loss_of(head, target, batch, depth, chains):
    """Weighted mean over the steps of the cross-entropy with the target's distribution, and each step's own."""
    # The distribution of token t is stored at token t - 1. A position without a target has no row of `wanted`.
    learned = functional.pad(learned_columns(batch), (1, 0))
    wanted, inside = teacher(target, head, batch.final[learned])
    row_of = torch.zeros(learned.shape, dtype=torch.long, device=learned.device)
    row_of[learned] = torch.arange(len(wanted), device=learned.device)
    total, weights, means = 0.0, 0.0, []
    for step, (hidden, guessed) in enumerate(unroll(head, target.embedding, batch, depth, chains)):
        source = (guessed - 1).clamp(max=batch.tokens.shape[1] - 1)
        rows = row_of.gather(1, source)
        counted = (guessed - 1 < batch.lengths[:, None]) & learned.gather(1, source) & inside[rows]
        rows = rows[counted]
        weight = torch.full((len(rows),), 1 / max(1, len(rows)), device=rows.device)
        loss = head_training.SoftTargets.apply(head.logits(hidden[counted]), wanted[rows], weight)
        means.append(loss.item())
        total, weights = total + STEP_WEIGHT**step * loss, weights + STEP_WEIGHT**step
    return total / weights, means


def training_loss(head, target, args):
    """The loss in the form that head_training.fit expects."""

    def loss(batch, share, step):
        # Shallow at first: a step learns little before the step above it, whose output it reads, is trained.
        depth = min(args.depth, 1 + int(share * args.depth / max(args.deepening, 1e-9)))
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
        return loss_of(head, target, batch, depth, chosen_chains(batch, args.chains, generator))

    return loss


@torch.no_grad()
def score(head, target, store, columns, indices, args):
    """Compares chains of most likely guesses, from every token of answers, with the target's own choices."""
    depth = args.depth + 1
    total = head_training.Score.zero(depth)
    for first in range(0, len(indices), ROWS_A_PASS):
        batch = head_training.read_batch(store, indices[first : first + ROWS_A_PASS], columns, args.device).float()
        width = batch.tokens.shape[1] - 1
        chains = torch.arange(width, device=batch.tokens.device).expand(len(batch.tokens), -1)
        wanted = functional.linear(batch.final, target.output).softmax(-1)
        alive = torch.ones(chains.shape, dtype=torch.bool, device=chains.device)
        for step, (hidden, guessed) in enumerate(unroll(head, target.embedding, batch, depth, chains)):
            logits = head.logits(hidden)
            source = (guessed - 1).clamp(max=width)
            # Chains begin as in service: after a token of the answer, or after the prompt's last one.
            counted = (guessed - 1 < batch.lengths[:, None]) & (chains + 2 >= batch.answers[:, None])
            there = wanted.gather(1, source[..., None].expand(-1, -1, wanted.shape[-1]))
            # The text continues with the target's choice only while guesses agree with the text.
            text = batch.tokens.gather(1, guessed.clamp(max=width))
            said = head.draft_ids[logits.argmax(-1)]
            right = said == there.argmax(-1)
            total.alive[step] += (alive & counted).sum().item()
            total.right[step] += (alive & counted & right).sum().item()
            overlap = torch.minimum(there[..., head.draft_ids], logits.softmax(-1)).sum(-1)
            total.overlap[step] += (overlap * counted).sum().item()
            total.count[step] += counted.sum().item()
            alive &= right & counted & (said == text)
    return total


def main():
    parser = argparse.ArgumentParser(description="Trains an EAGLE-3 head.")
    add = parser.add_argument
    head_training.add_arguments(add)
    add("--layers", default="", help="three of the layers with stored states, ascending (default: all)")
    add("--start", type=pathlib.Path, help="folder of a head to start from, with any draft vocabulary")
    add("--draft-vocab", type=int, default=0, help="size of the draft vocabulary: the most frequent tokens (default: all, up to 32000)")
    add("--intermediate", type=int, default=0, help="width of the feed-forward part (default: the target's)")
    add("--own-embedding", action="store_true", help="train and store its own embedding")
    add("--depth", type=int, default=5, help="number of steps to unroll (%(default)s)")
    add("--deepening", type=float, default=0.3, help="share of the run after which all steps are unrolled (%(default)s)")
    add("--chains", type=float, default=1.0, help="share of the columns that further steps continue from (%(default)s)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    args.work = args.work or args.output.with_suffix(".work")
    store, target = features.Store(*args.features), head_training.Target(args.target, args.device)
    if not args.evaluate:
        layers = [int(layer) for layer in args.layers.split(",")] if args.layers else store.layers
        if len(layers) != 3 or layers != sorted(set(layers)):
            parser.error(f"--layers: expected three ascending numbers, got {layers}")
        vocab_size = target.output.shape[0]
        size = args.draft_vocab or min(vocab_size, LARGEST_DRAFT_VOCABULARY)
        draft_ids, covered = draft_vocabulary(store, size, vocab_size)
        shape = eagle3_head.Shape.of_target(target.config, vocab_size, len(draft_ids), args.intermediate)
        head = eagle3_head.Head(shape, draft_ids, args.own_embedding)
        eagle3_head.initialise(head, target, args.seed)
        if args.start:
            start, start_layers = eagle3_head.load_head(args.start)
            if start_layers != layers:
                parser.error(f"--start: {args.start} reads states after layers {start_layers}, expected {layers}")
            eagle3_head.copy_weights(start, head)
        head.to(args.device)
        tokens = sum(len(store.rows[i].tokens) for i in store.select(held_back=False))
        print(f"{sum(p.numel() for p in head.parameters()):,} parameters; draft vocabulary {len(draft_ids)}, {covered:.2%} of "
              f"the tokens; {tokens:,} tokens to learn from", flush=True)
        columns = [*store.columns(layers), len(store.layers)]
        progress = head_training.fit(head, training_loss(head, target, args), store, columns, args)
        eagle3_head.save_head(head, args.output, layers, args.target.name, fingerprint=target_fingerprint(args.target))
        print(f"wrote {args.output}: {progress.step} steps, {progress.tokens:,} tokens, {progress.seconds / 60:.1f} minutes")
    # As saved, rounded to bfloat16.
    head, layers = eagle3_head.load_head(args.output)
    head.to(args.device)
    columns = [*store.columns(layers), len(store.layers)]
    head_training.evaluate(lambda indices: score(head, target, store, columns, indices, args), store, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
