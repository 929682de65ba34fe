#!/usr/bin/env python3
"""Held-out loss of models, and how well drafters agree with the target.

Per domain: non-overlapping windows over the held-out text, float32 arithmetic on the bf16 weights.
  nats per token    cross-entropy with the text
  greedy agreement  share of positions where drafter and target have the same most likely token
  overlap           mean of sum(min(p, q)): the expected acceptance of one draft token at temperature 1
"""

import argparse
import pathlib

import torch
from tokenizers import Tokenizer
from torch.nn import functional

import data
import model as llama
import recipe

WINDOW = 512


def windows(stream, num_tokens, window=WINDOW):
    """[n, window + 1]: inputs and the tokens after them."""
    window = min(window, len(stream.tokens) - 1, num_tokens)
    count = max(1, min(num_tokens // window, (len(stream.tokens) - 1) // window))
    rows = [stream.tokens[i * window : (i + 1) * window + 1] for i in range(count)]
    return torch.tensor([row.tolist() for row in rows])


@torch.no_grad()
def score(model, target, tokens):
    """(nats per token, greedy agreement, overlap) of `model` against `target` on tokens [n, window + 1]."""
    nats = agreement = overlap = 0.0
    for row in tokens.split(4):
        logits = model(row[:, :-1]).float()
        target_logits = logits if model is target else target(row[:, :-1]).float()
        nats += functional.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten(), reduction="sum").item()
        agreement += (logits.argmax(-1) == target_logits.argmax(-1)).sum().item()
        overlap += torch.minimum(logits.softmax(-1), target_logits.softmax(-1)).sum().item()
    count = tokens[:, 1:].numel()
    return nats / count, agreement / count, overlap / count


def evaluate(folders, target_folder, held_out, num_tokens, device):
    """Prints the two tables of the model card for model folders; `held_out` is a TokenStream per domain."""
    target = llama.load_model(target_folder).to(device).eval()
    rows = {domain: windows(stream, num_tokens).to(device) for domain, stream in held_out.items()}
    scores = {}
    for folder in folders:
        model = target if folder == target_folder else llama.load_model(folder).to(device).eval()
        scores[folder.name] = {domain: score(model, target, tokens) for domain, tokens in rows.items()}

    width = max(len(name) for name in scores)
    domains = list(held_out)
    print("\nheld-out nats per token")
    print(f"{'':{width}}  " + "  ".join(f"{domain:>7}" for domain in domains))
    for name, by_domain in scores.items():
        print(f"{name:{width}}  " + "  ".join(f"{by_domain[domain][0]:7.3f}" for domain in domains))
    print(f"\nagainst {target_folder.name}: greedy agreement / overlap")
    print(f"{'':{width}}  " + "  ".join(f"{domain:>13}" for domain in domains))
    for name, by_domain in scores.items():
        if name != target_folder.name:
            cells = (f"{by_domain[domain][1]:.3f} / {by_domain[domain][2]:.3f}" for domain in domains)
            print(f"{name:{width}}  " + "  ".join(cells))
    return scores


def encode_held_out(tokenizer, documents):
    return {domain: data.TokenStream.encode(tokenizer, texts.held_out) for domain, texts in documents.items()}


def main():
    parser = argparse.ArgumentParser(description="Held-out loss and agreement of the demo models.")
    parser.add_argument("--corpus", required=True, help="the corpus, as a folder or a tar archive")
    parser.add_argument(
        "--models", required=True, type=pathlib.Path, help="folder that holds the models' folders"
    )
    parser.add_argument("--tokens", type=int, default=16384, help="held-out tokens per domain")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    target_folder = args.models / recipe.TARGET
    folders = [path for path in sorted(args.models.glob("tandem-*")) if (path / "config.json").exists()]
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    documents = data.read_documents(data.Corpus(args.corpus), recipe.DOMAINS)
    evaluate(folders, target_folder, encode_held_out(tokenizer, documents), args.tokens, args.device)


if __name__ == "__main__":
    main()
