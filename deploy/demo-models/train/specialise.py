#!/usr/bin/env python3
"""Makes a drafter better for one kind of prompts: distils the target on the target's own answers to them.

    python specialise.py --target tandem-target-15m --start tandem-draft-general-1m \
        --prompts prompts.jsonl --output specialist

The target continues every prompt. Then a drafter, which starts as --start, learns the target's distribution at every
position of these continuations, which are the kind of text that it must guess in service. Held-out prompts show the
gain. Needs no text but the prompts: JSON lines with "prompt" (plain text) or "question" (one turn of a chat).
"""

import argparse
import json
import pathlib
import sys
import time

import torch
from tokenizers import Tokenizer
from torch.nn import functional

import data
import model as llama
import recipe
import sample
import tokenizer as bpe
import train

HELD_BACK_SHARE = 0.05
WARM_UP_STEPS = 30
SAMPLING_ROWS = 128


def read_prompts(path, tokenizer, max_tokens):
    """Token ids of every line's prompt, laid out as a server does; prompts over max_tokens are skipped."""
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if "question" in row:
            text = data.chat_prompt(row["question"].strip())
        elif "prompt" in row:
            text = data.BOS + row["prompt"]
        else:
            raise ValueError(f"{path}:{number}: expected a line with \"prompt\" or \"question\"")
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) <= max_tokens:
            prompts.append(tuple(ids))
    # Once each, so that held-out prompts are not used for training.
    prompts = [list(ids) for ids in dict.fromkeys(prompts)]
    if len(prompts) < 40:
        raise ValueError(f"{path}: {len(prompts)} different prompts of at most {max_tokens} tokens, expected at least 40")
    return prompts


class Answers:
    """Prompts with the target's continuations, and the target's features at each position before an output token: one
    product gives its distribution there, so the target need not run again."""

    def __init__(self, target, prompts, args, stop_ids, generator):
        self.rows = []  # (token ids without the last, length of the prompt, features [outputs, hidden])
        # Prompts of similar lengths go together, so that a batch has little padding.
        prompts = sorted(prompts, key=len)
        started, outputs = time.monotonic(), 0
        for first in range(0, len(prompts), SAMPLING_ROWS):
            batch = prompts[first : first + SAMPLING_ROWS]
            continued = sample.continue_batch(
                target, batch, args.max_tokens, args.temperature, stop_ids, generator
            )
            for prompt, (output, features) in zip(batch, continued):
                self.rows.append((prompt + output[:-1], len(prompt), features))
                outputs += len(output)
        seconds = time.monotonic() - started
        print(f"  {len(prompts)} prompts, {outputs} tokens of the target's, {outputs / seconds:,.0f} a second", flush=True)


def padded_right(texts):
    longest = max(map(len, texts))
    return torch.tensor([text + [0] * (longest - len(text)) for text in texts])


def log_distributions(model, target, rows):
    """Of drafter and target at the positions that output tokens follow: two [positions, vocab]."""
    features = model.features(padded_right([tokens for tokens, _, _ in rows]))
    picked = torch.cat(
        [features[i, prompt - 1 : len(tokens)] for i, (tokens, prompt, _) in enumerate(rows)]
    )
    with torch.no_grad():
        wanted = target.logits(torch.cat([row for _, _, row in rows]).float())
    return functional.log_softmax(model.logits(picked), -1), functional.log_softmax(wanted, -1)


@torch.no_grad()
def agreement(model, target, answers):
    """(share of positions with the same most likely token, mean of sum(min(p, q)))"""
    same = overlap = count = 0
    for first in range(0, len(answers.rows), 32):
        guessed, wanted = log_distributions(model, target, answers.rows[first : first + 32])
        same += (guessed.argmax(-1) == wanted.argmax(-1)).sum().item()
        overlap += torch.minimum(guessed.exp(), wanted.exp()).sum().item()
        count += len(wanted)
    return same / count, overlap / count


def fit(model, target, answers, args, generator):
    stage = recipe.Stage(args.steps, args.lr, weights={}, teacher=args.target.name)
    optimizer = train.optimizer_for(model, stage)
    order, started, total = [], time.monotonic(), 0.0
    every = max(1, args.steps // 10)
    for step in range(args.steps):
        if len(order) < args.rows:
            order += torch.randperm(len(answers.rows), generator=generator).tolist()
        rows, order = [answers.rows[i] for i in order[: args.rows]], order[args.rows :]
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(stage, step, WARM_UP_STEPS)
        guessed, wanted = log_distributions(model, target, rows)
        loss = functional.kl_div(guessed, wanted, log_target=True, reduction="batchmean")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.GRADIENT_CLIP)
        optimizer.step()
        total += loss.item()
        if (step + 1) % every == 0:
            seconds = (time.monotonic() - started) / (step + 1)
            print(f"  step {step + 1:5}/{args.steps}  KL {total / every:.3f}  {seconds:.2f} s a step", flush=True)
            total = 0.0


def main():
    parser = argparse.ArgumentParser(description="Makes a drafter better for one kind of prompts.")
    add = parser.add_argument
    add("--target", required=True, type=pathlib.Path, help="folder of the target model")
    add("--start", required=True, type=pathlib.Path, help="folder of the drafter to start from")
    add("--prompts", required=True, type=pathlib.Path, help="JSON lines with prompt or question")
    add("--output", required=True, type=pathlib.Path, help="folder for the specialist")
    add("--repeat", type=int, default=1, help="continuations per prompt (%(default)s)")
    add("--max-prompt-tokens", type=int, default=256, help="skip longer prompts (%(default)s)")
    add("--max-tokens", type=int, default=128, help="tokens per continuation (%(default)s)")
    add("--temperature", type=float, default=0.8, help="temperature of the continuations (%(default)s)")
    add("--steps", type=int, default=800, help="optimiser steps (%(default)s)")
    add("--rows", type=int, default=48, help="continuations per step (%(default)s)")
    add("--lr", type=float, default=0.002, help="peak learning rate (%(default)s)")
    add("--seed", type=int, default=1)
    args = parser.parse_args()
    if not args.temperature > 0:
        parser.error("--temperature: expected more than 0")
    if args.max_prompt_tokens + args.max_tokens > llama.MAX_POSITIONS:
        parser.error(f"--max-prompt-tokens and --max-tokens: expected at most {llama.MAX_POSITIONS} together")
    generator = torch.Generator().manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    if tokenizer.to_str() != Tokenizer.from_file(str(args.start / "tokenizer.json")).to_str():
        parser.error(f"{args.start}: another tokenizer than {args.target}'s")
    stop_ids = [tokenizer.token_to_id(token) for token in (data.EOS, data.END)]
    target, model = llama.load_model(args.target).eval(), llama.load_model(args.start)

    prompts = read_prompts(args.prompts, tokenizer, args.max_prompt_tokens)
    prompts = [prompts[i] for i in torch.randperm(len(prompts), generator=generator).tolist()]
    held_back = max(8, int(len(prompts) * HELD_BACK_SHARE))
    print("held back", flush=True)
    held_answers = Answers(target, prompts[:held_back], args, stop_ids, generator)
    before = agreement(model, target, held_answers)
    print("to learn from", flush=True)
    answers = Answers(target, prompts[held_back:] * args.repeat, args, stop_ids, generator)
    fit(model.train(), target, answers, args, generator)
    args.output.mkdir(parents=True, exist_ok=True)
    llama.save_model(model, tokenizer, args.output)
    bpe.save_tokenizer(tokenizer, args.output)
    after = agreement(llama.load_model(args.output), target, held_answers)
    print("greedy agreement / overlap on the prompts held back")
    for name, (same, overlap) in ((args.start.name, before), (args.output.name, after)):
        print(f"  {name:28} {same:.3f} / {overlap:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
