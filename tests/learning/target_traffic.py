"""Requests as a router keeps them, made by the demo's target in PyTorch. Needs torch."""

import dataclasses
import math
import pathlib
import sys

import torch

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "deploy" / "learning"))

import learner  # noqa: E402
import spool  # noqa: E402

TOP = 20


def records(target, prompts, max_tokens, generator, stop_ids, temperature=1.0, name="target"):
    """Continuations of the prompts (token ids) by the target, with its most likely tokens at temperature 1."""
    made = []
    for start in range(0, len(prompts), 64):
        part = prompts[start : start + 64]
        outputs = learner.sample.continue_batch(target, part, max_tokens, temperature, stop_ids, generator)
        for prompt, (output, features) in zip(part, outputs):
            with torch.no_grad():
                logprobs = target.logits(features.float()).log_softmax(-1)
            values, tokens = logprobs.topk(TOP)
            top = [list(zip(row, value)) for row, value in zip(tokens.tolist(), values.tolist())]
            picked = [logprobs[i, token].item() for i, token in enumerate(output)]
            made.append(
                spool.Record(
                    digest=b"",
                    time_ms=len(made),
                    request_id=f"request-{len(made)}",
                    model=name,
                    adapter="",
                    vocabulary_fingerprint=7,
                    temperature=temperature,
                    prompt=list(prompt),
                    output=[spool.OutputToken(*said) for said in zip(output, picked, top)],
                )
            )
    return made


def lied_about(records, vocab_size):
    """The same requests, but what the target is said to have thought likely are other tokens, always the same ones in their place.
    Every record is consistent in itself."""
    made = []
    for record in records:
        output = []
        for token in record.output:
            top = [((candidate + 1) % vocab_size, logprob) for candidate, logprob in token.top]
            left = math.log(max(1 - sum(math.exp(logprob) for _, logprob in top), 1e-9))
            output.append(spool.OutputToken(token.token, dict(top).get(token.token, min(left, top[-1][1])), top))
        made.append(dataclasses.replace(record, output=output))
    return made


def poisoned(count, vocab_size, generator, length=48):
    """Random tokens in place of prompts and outputs, with random log probabilities."""

    def draw(size):
        return torch.randint(vocab_size, (size,), generator=generator).tolist()

    made = []
    for number in range(count):
        output = []
        for token in draw(length):
            top = list(dict.fromkeys([token, *draw(TOP - 1)]))
            weights = torch.rand(len(top), generator=generator)
            shares = (weights / weights.sum() * 0.95).tolist()
            choices = sorted(((t, math.log(s)) for t, s in zip(top, shares)), key=lambda choice: -choice[1])
            output.append(spool.OutputToken(token, math.log(shares[0]), choices))
        made.append(
            spool.Record(b"", number, f"poison-{number}", "target", "", 7, 1.0, [4090, *draw(15)], output)
        )
    return made
