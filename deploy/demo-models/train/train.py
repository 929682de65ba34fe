#!/usr/bin/env python3
"""Trains the demo models from text: tokenizer, target, and the drafters distilled from it.

    python train.py --corpus corpus.tar.xz --output out                  # the models of the card
    python train.py --corpus corpus.tar.xz --output out --preset smoke   # every step once, in about a minute

Writes one Hugging Face folder per model and prints the card's tables of held-out loss and agreement.
"""

import argparse
import contextlib
import json
import math
import pathlib
import sys
import time

import numpy as np
import torch

import data
import distill
import evaluate
import model as llama
import recipe
import tokenizer as bpe

FINAL_LR_SHARE = 0.04
GRADIENT_CLIP = 1.0
BETAS = (0.9, 0.95)


def learning_rate(stage, step, warmup_steps):
    """Linear warm-up, then a cosine down to FINAL_LR_SHARE of the peak."""
    warmup = min(warmup_steps, stage.steps // 4 + 1)
    if step < warmup:
        return stage.peak_lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, stage.steps - warmup)
    return stage.peak_lr * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * progress)))


def optimizer_for(model, stage):
    """AdamW; weight decay pulls on matrices only, never on the norms' gains."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    gains = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": stage.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=stage.peak_lr, betas=BETAS)


def run_stage(model, stage, teacher, streams, settings, rng, device):
    """Takes stage.steps optimiser steps. Reports about ten times."""
    optimizer = optimizer_for(model, stage)
    on_gpu = torch.device(device).type == "cuda"
    arithmetic = torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext()
    model.train()
    started = time.monotonic()
    for step in range(stage.steps):
        length = settings.row_lengths[2 * step >= stage.steps]
        rows = settings.tokens_per_step // length
        tokens = torch.from_numpy(data.batch(streams, stage.weights, rng, rows, length)).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(stage, step, settings.warmup_steps)
        with arithmetic:
            loss = (
                distill.distillation(model, teacher, tokens)
                if teacher
                else distill.cross_entropy(model, tokens)
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        if (step + 1) % max(1, stage.steps // 10) == 0 or step + 1 == stage.steps:
            rate = (step + 1) * settings.tokens_per_step / (time.monotonic() - started)
            kind = "KL" if teacher else "loss"
            print(
                f"    step {step + 1:5}/{stage.steps}  {kind} {loss.item():.3f}  {rate:,.0f} tokens/s",
                flush=True,
            )


def train_models(settings, streams, tokenizer, output, device):
    """Trains every model of the recipe in order; each is saved as soon as it is done."""
    trained = {}
    for index, entry in enumerate(settings.models):
        model = llama.Llama(entry.shape, recipe.VOCAB_SIZE)
        if entry.start:
            model.load_state_dict(trained[entry.start].state_dict())
        else:
            model.initialise(settings.seed + index)
        model.to(device)
        print(f"\n{entry.name}: {model.num_parameters():,} parameters", flush=True)
        rng = np.random.default_rng([settings.seed, index])
        for stage in entry.stages:
            teacher = trained[stage.teacher] if stage.teacher else None
            run_stage(model, stage, teacher, streams, settings, rng, device)
        model.eval()
        trained[entry.name] = model
        if not entry.intermediate:
            folder = output / entry.name
            folder.mkdir(parents=True, exist_ok=True)
            llama.save_model(model, tokenizer, folder)
            bpe.save_tokenizer(tokenizer, folder)


def excluded_texts(paths):
    """The `problem`, `question` or `prompt` of each line of JSON-lines files: benchmark items to keep out."""
    texts = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            text = next((row[key] for key in ("problem", "question", "prompt") if key in row), None)
            if not text:
                raise ValueError(f"{path}: a line without problem, question or prompt")
            texts.append(text)
    return texts


def main():
    parser = argparse.ArgumentParser(description="Trains the demo models.")
    parser.add_argument("--corpus", required=True, help="the corpus, as a folder or a tar archive")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder for the models' folders")
    parser.add_argument("--preset", choices=sorted(recipe.PRESETS), default="full")
    parser.add_argument(
        "--exclude", type=pathlib.Path, nargs="*", default=[], help="JSON lines of benchmark items"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    settings = recipe.PRESETS[args.preset]
    torch.manual_seed(settings.seed)

    print("corpus", flush=True)
    excluded = excluded_texts(args.exclude)
    documents = data.read_documents(data.Corpus(args.corpus), recipe.DOMAINS, settings.corpus_share, excluded)
    texts = [text for domain in documents.values() for text in domain.train]
    print(f"tokenizer over {sum(map(len, texts)) / 1e6:.1f}M characters", flush=True)
    tokenizer = bpe.train_tokenizer(texts, recipe.VOCAB_SIZE)
    streams = {name: data.TokenStream.encode(tokenizer, domain.train) for name, domain in documents.items()}
    print(f"{sum(len(stream.tokens) for stream in streams.values()) / 1e6:.1f}M training tokens", flush=True)

    train_models(settings, streams, tokenizer, args.output, args.device)

    folders = [args.output / entry.name for entry in settings.models if not entry.intermediate]
    held_out = evaluate.encode_held_out(tokenizer, documents)
    evaluate.evaluate(folders, args.output / recipe.TARGET, held_out, settings.evaluation_tokens, args.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
