#!/usr/bin/env python3
"""Writes small drafting heads of random weights beside this script, each in a folder of its own with what they compute in
golden.json, and target/, a target of which nothing but its embedding and output head is there.

    python drafter/testdata/heads/make_golden.py

Needs what deploy/demo-models/train/ needs; the training scripts write the checkpoints, and what is expected of an EAGLE-3
head is computed here a second time, column by column as a drafter does it. tests/heads/heads_test.py compares both with
reference implementations.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "deploy/demo-models/train"))
import eagle3_head  # noqa: E402
import medusa  # noqa: E402

WIDTH, VOCAB, DRAFT_VOCAB = 64, 128, 96
NUM_TOKENS, OWN_STEPS = 9, 2
# Of a target of six layers: what SGLang reads where a checkpoint names no layers.
LAYERS = [2, 3, 4]
CASES = ("eagle3-shared", "eagle3-own", "medusa-own", "medusa-shared")


def shape(draft_vocab):
    return eagle3_head.Shape(
        hidden_size=WIDTH, target_hidden_size=WIDTH, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=VOCAB, draft_vocab_size=draft_vocab, rms_norm_eps=1e-5, rope_theta=10000.0,
        max_position_embeddings=256,
    )


def draft_ids(draft_vocab):
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(11))[:draft_vocab].sort().values


@torch.no_grad()
def randomize(module, seed):
    """Weights of a size at which every part of a layer matters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + 0.3 * drawn if parameter.dim() < 2 else drawn * 1.5 / parameter.shape[-1] ** 0.5)
    module.requires_grad_(False)


def inputs():
    """Tokens [1, 9], their states after three layers [1, 9, 3 * width], and the target's embedding. All are bfloat16 numbers,
    so that nothing is lost on the wire."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCAB, (1, NUM_TOKENS), generator=generator)
    states = torch.randn(1, NUM_TOKENS, 3 * WIDTH, generator=generator).bfloat16().float()
    return tokens, states, torch.randn(VOCAB, WIDTH, generator=generator).bfloat16().float()


class Path:
    """The columns of one path through a tree, as a drafter keeps them: keys and values, and the newest output."""

    def __init__(self, head, embedding):
        self.head, self.embedding = head, embedding
        self.keys = self.values = None
        self.output = None  # [columns of the last call, width]

    def _rotated(self, x, positions):
        head_dim = self.head.shape.head_dim
        angles = positions[:, None] * self.head.shape.rope_theta ** (-torch.arange(0, head_dim, 2) / head_dim)
        cos, sin = (torch.cat((part, part), -1)[:, None] for part in (angles.cos(), angles.sin()))
        return x * cos + torch.cat((-x[..., head_dim // 2 :], x[..., : head_dim // 2]), -1) * sin

    def _add(self, tokens, hidden):
        layer, shape, functions = self.head.midlayer, self.head.shape, functional
        eps = shape.rms_norm_eps

        def norm(x, weight):
            return functions.rms_norm(x, (shape.hidden_size,), weight, eps)

        embedded = norm(self.head.embed(tokens, self.embedding), layer.input_layernorm.weight)
        doubled = torch.cat((embedded, norm(hidden, layer.hidden_norm.weight)), -1)
        before = 0 if self.keys is None else len(self.keys)
        positions = torch.arange(before, before + len(tokens))
        attention = layer.self_attn
        query, key, value = (
            projection(doubled).view(len(tokens), -1, shape.head_dim)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = self._rotated(query, positions), self._rotated(key, positions)
        self.keys = key if self.keys is None else torch.cat((self.keys, key))
        self.values = value if self.values is None else torch.cat((self.values, value))
        mixed = torch.zeros_like(query)
        group = shape.num_attention_heads // shape.num_key_value_heads
        for row, position in enumerate(positions.tolist()):
            for index in range(shape.num_attention_heads):
                keys, values = (kept[: position + 1, index // group] for kept in (self.keys, self.values))
                mixed[row, index] = (keys @ query[row, index] / shape.head_dim**0.5).softmax(0) @ values
        hidden = hidden + attention.o_proj(mixed.flatten(1))
        inner = norm(hidden, layer.post_attention_layernorm.weight)
        mlp = layer.mlp
        self.output = hidden + mlp.down_proj(functions.silu(mlp.gate_proj(inner)) * mlp.up_proj(inner))

    def add_true(self, tokens, states):
        """Columns of a token each and the target's states of the token before it."""
        self._add(tokens, self.head.fc(states))

    def add_own(self, token):
        """One column of a guessed token and the output of the column before it."""
        self._add(token, self.output[-1:])

    def logits(self):
        return self.head.lm_head(functional.rms_norm(self.output, (self.head.shape.hidden_size,), self.head.norm.weight,
                                                     self.head.shape.rms_norm_eps))


def rounded(tensor):
    return json.loads(json.dumps(tensor.tolist()), parse_float=lambda digits: float(f"{float(digits):.6g}"))


@torch.no_grad()
def golden(name, folder):
    """What the checkpoint in a folder computes, in float32."""
    tokens, states, target_embedding = inputs()
    if name.startswith("medusa"):
        heads = medusa.load_heads(folder)
        output = load_file(HERE / "target" / "model.safetensors")["lm_head.weight"].float()
        # States as final normed ones are: of about unit size.
        state = states[0, :3, :WIDTH]
        logits = torch.stack([heads.logits(index, state, output) for index in range(len(heads.heads))], 1)
        return {"what": "logits[state][head][token] of final normed states", "states": rounded(state), "logits": rounded(logits)}
    head, layers = eagle3_head.load_head(folder)
    assert layers == LAYERS
    path = Path(head, target_embedding)
    path.add_true(tokens[0, 1:], states[0, :-1])
    made = {
        "what": "columns of (tokens[t + 1], states[t]) at position t, then own columns of (token, output before it); outputs "
                "are before the norm, logits are over draft ids",
        "tokens": tokens[0].tolist(),
        "states": rounded(states[0, :-1]),
        "outputs": rounded(path.output),
        "logits": rounded(path.logits()),
    }
    chain = {"chain_tokens": [], "chain_positions": [], "chain_outputs": [], "chain_logits": []}
    for _ in range(OWN_STEPS):
        guess = head.draft_ids[path.logits()[-1].argmax()]
        chain["chain_tokens"].append(guess.item())
        chain["chain_positions"].append(len(path.keys))
        path.add_own(guess[None])
        chain["chain_outputs"].append(rounded(path.output[0]))
        chain["chain_logits"].append(rounded(path.logits()[0]))
    return made | chain


@torch.no_grad()
def main():
    _, _, embedding = inputs()
    (HERE / "target").mkdir(exist_ok=True)
    output = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(8)) / WIDTH**0.5
    save_file({"model.embed_tokens.weight": embedding.bfloat16(), "lm_head.weight": output.bfloat16()},
              HERE / "target" / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 96,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
    }
    (HERE / "target" / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for index, name in enumerate(CASES):
        folder = HERE / name
        if name.startswith("medusa"):
            heads = medusa.Heads(2, 2, WIDTH, VOCAB, own_output=name.endswith("own"))
            randomize(heads, seed=20 + index)
            medusa.save_heads(heads, folder, "target")
        else:
            head = eagle3_head.Head(shape(DRAFT_VOCAB), draft_ids(DRAFT_VOCAB), own_embedding=name.endswith("own"))
            randomize(head, seed=20 + index)
            eagle3_head.save_head(head, folder, LAYERS, "target")
        values = golden(name, folder)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        (folder / "golden.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
