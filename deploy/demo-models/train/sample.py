"""Continues prompts with a model, many at a time: the kind of text that its drafters see in service."""

import torch

import model as llama


def padded(rows, fill):
    """[len(rows), longest], with `fill` on the left, and the number of padding tokens of each row."""
    longest = max(len(row) for row in rows)
    padding = torch.tensor([longest - len(row) for row in rows])
    return torch.tensor([[fill] * (longest - len(row)) + list(row) for row in rows]), padding


@torch.no_grad()
def continue_batch(model, prompts, max_tokens, temperature, stop_ids, generator):
    """For each prompt, a list of token ids that is not empty: the tokens that follow, up to max_tokens of them, the last
    one of stop_ids if it came, and the features that each was drawn from, [tokens, hidden] in bfloat16."""
    tokens, padding = padded(prompts, fill=next(iter(stop_ids)))
    rows, length = tokens.shape
    caches = [llama.KvCache(model.shape, rows, length + max_tokens) for _ in range(model.shape.num_layers)]
    keys = torch.arange(length + max_tokens)
    seen = keys >= padding[:, None]  # [rows, keys]: not padding.
    causal = keys[None, :length] <= keys[:length, None]
    # A row of padding attends to itself, because a softmax over nothing is NaN; nothing attends to it.
    prefill_mask = (seen[:, None, :length] & causal) | torch.eye(length, dtype=torch.bool)
    positions = (keys[:length] - padding[:, None]).clamp(min=0)
    features = model.features(tokens, positions, prefill_mask[:, None], caches)[:, -1]
    drawn, drawn_from, running = [], [], torch.ones(rows, dtype=torch.bool)
    for step in range(max_tokens):
        weights = (model.logits(features) / temperature).softmax(-1)
        chosen = torch.multinomial(weights, 1, generator=generator).squeeze(1)
        drawn.append(torch.where(running, chosen, -1))
        drawn_from.append(features.bfloat16())
        for stop in stop_ids:
            running &= chosen != stop
        if step + 1 == max_tokens or not running.any():
            break
        here = length + step
        features = model.features(
            chosen[:, None], (here - padding)[:, None], seen[:, None, None, : here + 1], caches
        )[:, -1]
    tokens = [[token for token in row if token >= 0] for row in torch.stack(drawn, 1).tolist()]
    return [(row, there[: len(row)].clone()) for row, there in zip(tokens, torch.stack(drawn_from, 1))]
