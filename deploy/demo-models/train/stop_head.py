#!/usr/bin/env python3
"""Trains a drafter's stop head: from the drafter's hidden state after a token that it guessed, the probability that the
target accepts the token (SpecDec++, Huang et al., 2024, sections 3.2 and 3.3).

    python stop_head.py --target tandem-target-15m --drafter tandem-draft-general-1m --prompts prompts.jsonl

Writes stop_head.safetensors into the drafter's folder (or --output). The target continues every prompt greedily. At
each position of these texts, the drafter's first guess is appended to the text so far, so that its state is the one
that the drafter has in service after accepted tokens. This replaces the paper's token mixing, whose texts contain wrong
tokens from which no round would continue. Models are those of train.py; prompts as for specialise.py.
"""

import argparse
import pathlib
import sys
import time

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

import data
import model as llama
import specialise

HELD_BACK_SHARE = 0.1
TEXTS_A_PASS = 16
# Practically greedy.
GREEDY = 1e-4


class StopHead(nn.Module):
    """x + silu(layer(x)), as often as there are layers, then one number: the logit of acceptance."""

    def __init__(self, hidden_size, num_layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_layers))
        self.output = nn.Linear(hidden_size, 1)
        for layer in self.layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):  # [.., hidden] -> [..]
        for layer in self.layers:
            x = x + functional.silu(layer(x))
        return self.output(x).squeeze(-1)


@torch.no_grad()
def guesses_beside(drafter, tokens):
    """[rows, length] -> states behind the drafter's first guess after each token, [rows, length, hidden], the guesses,
    and their probabilities, [rows, length] both."""
    length = tokens.shape[1]
    own, guesses = drafter.logits(drafter.features(tokens)).softmax(-1).max(-1)
    at = torch.arange(length)
    text = at[None, :] <= at[:, None]
    # A guess attends to the text up to its parent, and to itself.
    mask = torch.cat((torch.cat((text, torch.zeros(length, length, dtype=torch.bool)), 1),
                      torch.cat((text, torch.eye(length, dtype=torch.bool)), 1)))
    positions = torch.cat((at, at + 1)).expand(tokens.shape[0], -1)
    both = torch.cat((tokens, guesses), 1)
    return drafter.features(both, positions, mask[None, None])[:, length:], guesses, own


@torch.no_grad()
def examples(target, drafter, answers):
    """Of all positions that an output token follows: states [examples, hidden], whether the guess is accepted, and the
    drafter's own probability of it, [examples] both."""
    states, accepted, probabilities = [], [], []
    for first in range(0, len(answers.rows), TEXTS_A_PASS):
        rows = answers.rows[first : first + TEXTS_A_PASS]
        behind, guesses, own = guesses_beside(drafter, specialise.padded_right([tokens for tokens, _, _ in rows]))
        for i, (tokens, prompt, features) in enumerate(rows):
            output = slice(prompt - 1, len(tokens))
            states.append(behind[i, output])
            accepted.append(target.logits(features.float()).argmax(-1) == guesses[i, output])
            probabilities.append(own[i, output])
    return torch.cat(states), torch.cat(accepted).float(), torch.cat(probabilities)


def fit(head, states, accepted, args, generator):
    """Binary cross-entropy in which a rejected token weighs --rejection-weight times as much (section 3.3)."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)
    started, total, every = time.monotonic(), 0.0, max(1, args.steps // 5)
    for step in range(args.steps):
        batch = torch.randint(len(states), (args.rows,), generator=generator)
        weight = torch.where(accepted[batch] > 0, 1.0, args.rejection_weight)
        loss = functional.binary_cross_entropy_with_logits(head(states[batch]), accepted[batch], weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
        if (step + 1) % every == 0:
            seconds = (time.monotonic() - started) / (step + 1)
            print(f"  step {step + 1:5}/{args.steps}  loss {total / every:.3f}  {1000 * seconds:.1f} ms a step", flush=True)
            total = 0.0


def area_under_curve(scores, accepted):
    """The share of pairs of an accepted and a rejected guess in which the accepted one has the higher score."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    right = accepted.double().sum()
    return ((ranks[accepted > 0].sum() - right * (right + 1) / 2) / (right * (len(accepted) - right))).item()


@torch.no_grad()
def describe(head, states, accepted, own):
    """On held-out texts: the head's predictions compared with the outcome and with the drafter's own probability."""
    predicted = head(states).sigmoid()
    print(f"held back: {len(states)} guesses, {accepted.mean():.3f} accepted, {predicted.mean():.3f} predicted; area under "
          f"the curve {area_under_curve(predicted, accepted):.3f}, of the drafter's own probability "
          f"{area_under_curve(own, accepted):.3f}")
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (predicted >= low) & (predicted <= low + 0.2)
        if inside.any():
            print(f"  predicted {low:.1f} to {low + 0.2:.1f}: {int(inside.sum()):6} guesses, "
                  f"{accepted[inside].mean():.3f} accepted")


def main():
    parser = argparse.ArgumentParser(description="Trains a drafter's stop head.")
    add = parser.add_argument
    add("--target", required=True, type=pathlib.Path, help="folder of the target model")
    add("--drafter", required=True, type=pathlib.Path, help="folder of the draft model")
    add("--prompts", required=True, type=pathlib.Path, action="append", help="JSON lines with prompt or question; repeatable")
    add("--output", type=pathlib.Path, help="folder for stop_head.safetensors (default: the drafter's)")
    add("--num-prompts", type=int, default=1600, help="most prompts, from all files in turn (%(default)s)")
    add("--max-prompt-tokens", type=int, default=192, help="skip longer prompts (%(default)s)")
    add("--max-tokens", type=int, default=96, help="tokens per continuation (%(default)s)")
    add("--layers", type=int, default=3, help="layers of the head (%(default)s)")
    add("--rejection-weight", type=float, default=1.0,
        help="weight of rejected tokens in the loss; the paper's 6 predicts too little acceptance (%(default)s)")
    add("--steps", type=int, default=2000, help="optimiser steps (%(default)s)")
    add("--rows", type=int, default=512, help="draft tokens per step (%(default)s)")
    add("--lr", type=float, default=0.001, help="peak learning rate (%(default)s)")
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    if not args.rejection_weight > 0:
        parser.error("--rejection-weight: expected more than 0")
    if args.max_prompt_tokens + args.max_tokens >= llama.MAX_POSITIONS:
        parser.error(f"--max-prompt-tokens and --max-tokens: expected less than {llama.MAX_POSITIONS} together")
    generator = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    if tokenizer.to_str() != Tokenizer.from_file(str(args.drafter / "tokenizer.json")).to_str():
        parser.error(f"{args.drafter}: another tokenizer than {args.target}'s")
    stop_ids = [tokenizer.token_to_id(token) for token in (data.EOS, data.END)]
    target, drafter = llama.load_model(args.target).eval(), llama.load_model(args.drafter).eval()

    files = [specialise.read_prompts(path, tokenizer, args.max_prompt_tokens) for path in args.prompts]
    share = args.num_prompts // len(files)
    prompts = [prompt for file in files for prompt in file[:share]]
    prompts = [prompts[i] for i in torch.randperm(len(prompts), generator=generator).tolist()]
    held_back = max(8, int(len(prompts) * HELD_BACK_SHARE))
    args.temperature = GREEDY
    print("the target's answers", flush=True)
    held = examples(target, drafter, specialise.Answers(target, prompts[:held_back], args, stop_ids, generator))
    learned = examples(target, drafter, specialise.Answers(target, prompts[held_back:], args, stop_ids, generator))
    head = StopHead(drafter.shape.hidden_size, args.layers)
    print(f"{len(learned[0])} guesses to learn from", flush=True)
    fit(head, *learned[:2], args, generator)
    describe(head, *held)
    folder = args.output or args.drafter
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), folder / "stop_head.safetensors")
    print(f"wrote {folder / 'stop_head.safetensors'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
