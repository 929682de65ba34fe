#!/usr/bin/env python3
"""Trains Medusa heads (Medusa-1; Cai et al., 2024) on what features.py stored.

    python medusa.py --target tandem-target-15m --features features --output heads

Head i reads the target's final normed state of a token and guesses the token i + 2 places after it: residual blocks,
x + silu(W x + b), and an output matrix. With --own-output every head has an output matrix that begins as the target's, as
in the paper; without it they all use the target's, which the checkpoint then leaves out ("original_lm_head" in config.json,
as vLLM calls it). The output is a folder with the authors' tensor names in medusa_lm_head.safetensors.

A stopped run resumes if you start it again with the same arguments and --work.
"""

import argparse
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import features
import head_training
from target_fingerprint import target_fingerprint

# Weight of head i's error relative to head i - 1's (the paper's choice).
HEAD_WEIGHT = 0.8
FILE = "medusa_lm_head.safetensors"
ROWS_A_PASS = 16


class Block(nn.Module):
    """x + silu(W x + b), the identity at first."""

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return x + functional.silu(self.linear(x))


class Heads(nn.Module):
    """Parameters with the names of a checkpoint: HEAD.BLOCK.linear.weight and .bias, and HEAD.BLOCKS.weight of an own
    output."""

    def __init__(self, num_heads, num_layers, hidden_size, vocab_size, own_output):
        super().__init__()
        self.num_layers, self.own_output, self.vocab_size = num_layers, own_output, vocab_size
        self.heads = nn.ModuleList()
        for _ in range(num_heads):
            parts = [Block(hidden_size) for _ in range(num_layers)]
            if own_output:
                parts.append(nn.Linear(hidden_size, vocab_size, bias=False))
            self.heads.append(nn.ModuleList(parts))

    def logits(self, index, x, output):
        """The logits of one head. x: [.., hidden], the target's final normed states; output: the target's matrix."""
        for block in self.heads[index][: self.num_layers]:
            x = block(x)
        return self.heads[index][self.num_layers](x) if self.own_output else functional.linear(x, output)


def save_heads(heads, folder, target_name, dtype=torch.bfloat16, fingerprint=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["MedusaModel"],
        "base_model_name_or_path": target_name,
        "hidden_size": heads.heads[0][0].linear.in_features,
        "medusa_num_heads": len(heads.heads),
        "medusa_num_layers": heads.num_layers,
        "model_type": "medusa",
        # The heads end in the target's own output matrix, which is not stored.
        "original_lm_head": not heads.own_output,
        **({"tandem_target_fingerprint": fingerprint} if fingerprint else {}),
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": heads.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name.removeprefix("heads."): t.to("cpu", dtype).contiguous() for name, t in heads.state_dict().items()}
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def load_heads(folder):
    """In float32."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads = Heads(config["medusa_num_heads"], config["medusa_num_layers"], config["hidden_size"], config["vocab_size"],
                  not config.get("original_lm_head", False))
    heads.load_state_dict({f"heads.{name}": tensor.float() for name, tensor in load_file(folder / FILE).items()})
    return heads


def copy_weights(start, heads):
    """Copies trained heads' weights. Blocks that they lack follow theirs and stay the identity; heads that they lack
    start as a copy of their last one."""
    if (start.own_output, start.vocab_size) != (heads.own_output, heads.vocab_size) or start.num_layers > heads.num_layers:
        raise ValueError("the heads to start from have another output or more blocks")
    with torch.no_grad():
        for index, head in enumerate(heads.heads):
            trained = start.heads[min(index, len(start.heads) - 1)]
            for block, block_trained in zip(head[: start.num_layers], trained[: start.num_layers], strict=True):
                block.load_state_dict(block_trained.state_dict())
            if heads.own_output:
                head[-1].load_state_dict(trained[-1].state_dict())


def positions_of(batch, index):
    """Positions where head `index` has something to guess and its distribution is stored, [rows, length]."""
    at = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return at + 1 + index < batch.lengths[:, None]


def begins(batch):
    """Positions from which heads guess in service, [rows, length]: the prompt's last but one, and those after it."""
    return torch.arange(batch.tokens.shape[1], device=batch.tokens.device) + 2 >= batch.answers[:, None]


def loss_of(heads, output, batch, chosen):
    """Weighted mean over the heads of the cross-entropy with the target's distribution, and each head's own.
    chosen: the positions to guess from, [rows, length]"""
    total, weights, means = 0.0, 0.0, []
    for index in range(len(heads.heads)):
        rows, at = torch.nonzero(positions_of(batch, index) & chosen, as_tuple=True)
        # The distribution of the token i + 2 positions later is stored i + 1 positions later.
        there = functional.linear(batch.final[rows, at + 1 + index], output.to(batch.final.dtype)).softmax(-1)
        logits = heads.logits(index, batch.final[rows, at], output)
        weight = torch.full((len(there),), 1 / max(1, len(there)), device=there.device)
        loss = head_training.SoftTargets.apply(logits, there, weight)
        means.append(loss.item())
        total, weights = total + HEAD_WEIGHT**index * loss, weights + HEAD_WEIGHT**index
    return total / weights, means


def training_loss(heads, output, args):
    """The loss in the form that head_training.fit expects."""

    def loss(batch, _share, step):
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
        chosen = torch.rand(batch.tokens.shape, generator=generator).to(batch.tokens.device) < args.positions
        return loss_of(heads, output, batch, chosen & begins(batch))

    return loss


@torch.no_grad()
def score(heads, target, store, columns, indices, args):
    """How often each head is right where all heads before it are, from every token of answers, like a chain of first
    guesses."""
    total = head_training.Score.zero(len(heads.heads))
    for first in range(0, len(indices), ROWS_A_PASS):
        batch = head_training.read_batch(store, indices[first : first + ROWS_A_PASS], columns, args.device).float()
        final = batch.final
        wanted = functional.linear(final, target.output).softmax(-1)
        begun = begins(batch)
        alive = begun
        for index in range(len(heads.heads)):
            counted = positions_of(batch, index) & begun
            guessed = heads.logits(index, final, target.output).softmax(-1)
            there, text = wanted.roll(-1 - index, 1), batch.tokens.roll(-2 - index, 1)
            right = guessed.argmax(-1) == there.argmax(-1)
            total.alive[index] += (alive & counted).sum().item()
            total.right[index] += (alive & counted & right).sum().item()
            total.overlap[index] += (torch.minimum(there, guessed).sum(-1) * counted).sum().item()
            total.count[index] += counted.sum().item()
            alive = alive & counted & right & (guessed.argmax(-1) == text)
    return total


def main():
    parser = argparse.ArgumentParser(description="Trains Medusa heads.")
    add = parser.add_argument
    head_training.add_arguments(add)
    add("--heads", type=int, default=4, help="number of heads (%(default)s)")
    add("--blocks", type=int, default=1, help="residual blocks per head (%(default)s)")
    add("--start", type=pathlib.Path, help="folder of heads to start from, with at most this many blocks")
    add("--positions", type=float, default=1.0, help="share of an answer's positions that each step uses (%(default)s)")
    add("--own-output", action="store_true", help="train an output matrix for each head, not the target's for all")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work = args.work or args.output.with_suffix(".work")
    store, target = features.Store(*args.features), head_training.Target(args.target, args.device)
    # Only the final normed state.
    columns = [len(store.layers)]
    if not args.evaluate:
        heads = Heads(args.heads, args.blocks, store.width, target.output.shape[0], args.own_output)
        if args.own_output:
            with torch.no_grad():
                for head in heads.heads:
                    head[-1].weight.copy_(target.output)
        if args.start:
            copy_weights(load_heads(args.start), heads)
        heads.to(args.device)
        print(f"{sum(p.numel() for p in heads.parameters()):,} parameters", flush=True)
        progress = head_training.fit(heads, training_loss(heads, target.output, args), store, columns, args)
        save_heads(heads, args.output, args.target.name, fingerprint=target_fingerprint(args.target))
        print(f"wrote {args.output}: {progress.step} steps, {progress.tokens:,} tokens, {progress.seconds / 60:.1f} minutes")
    heads = load_heads(args.output).to(args.device)
    head_training.evaluate(lambda indices: score(heads, target, store, columns, indices, args), store, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
