"""The two losses of the recipe."""

import torch
from torch.nn import functional


def cross_entropy(model, tokens):
    """Nats per token of the text. tokens: [rows, length + 1]."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def distillation(model, teacher, tokens):
    """KL(teacher || model) in nats per token, along the text: the drafter learns the target's whole distribution
    at every position, of which the text shows one draw. tokens: [rows, length + 1]."""
    inputs = tokens[:, :-1]
    with torch.no_grad():
        wanted = functional.log_softmax(teacher(inputs).float(), dim=-1)
    logits = functional.log_softmax(model(inputs).float(), dim=-1)
    return functional.kl_div(
        logits.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean"
    )
