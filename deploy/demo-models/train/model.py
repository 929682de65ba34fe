"""A Llama language model in plain PyTorch, with export to and import from Hugging Face folders."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import recipe

RMS_EPS = 1e-5
ROPE_THETA = 10000.0
MAX_POSITIONS = 2048


class RmsNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + RMS_EPS).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Rotary embedding in the half-rotation layout: element i pairs with element i + head_dim / 2.

    x: [batch, heads, length, head_dim]; cos, sin: [length, head_dim / 2], or [batch, 1, length, head_dim / 2].
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class KvCache:
    """Keys and values of one layer for the positions so far, with room for `capacity`."""

    def __init__(self, shape, rows, capacity):
        size = (rows, shape.num_kv_heads, capacity, shape.head_dim)
        self._keys, self._values = torch.empty(size), torch.empty(size)
        self._length = 0

    def append(self, key, value):  # [rows, kv heads, length, head_dim]
        """Adds positions; all keys and values so far."""
        end = self._length + key.shape[2]
        self._keys[:, :, self._length : end] = key
        self._values[:, :, self._length : end] = value
        self._length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class Attention(nn.Module):
    """Causal self-attention in which several query heads share one key and value head."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        query_size = shape.num_heads * shape.head_dim
        kv_size = shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)

    def forward(self, x, cos, sin, mask=None, cache=None):  # [batch, length, hidden]
        def heads(projected, count):
            return projected.unflatten(-1, (count, self.shape.head_dim)).transpose(1, 2)

        query = rotate(heads(self.q_proj(x), self.shape.num_heads), cos, sin)
        key = rotate(heads(self.k_proj(x), self.shape.num_kv_heads), cos, sin)
        value = heads(self.v_proj(x), self.shape.num_kv_heads)
        if cache is not None:
            key, value = cache.append(key, value)
        group = self.shape.num_heads // self.shape.num_kv_heads
        if mask is None:
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            # Query heads that share keys become further rows of one head, so nothing is copied for them.
            rows = query.unflatten(1, (-1, group)).flatten(2, 3)
            mixed = functional.scaled_dot_product_attention(rows, key, value, mask.repeat(1, 1, group, 1))
            mixed = mixed.unflatten(2, (group, -1)).flatten(1, 2)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.down_proj = nn.Linear(shape.ffn_size, shape.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size)
        self.mlp = FeedForward(shape)

    def forward(self, x, cos, sin, mask=None, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Token ids to logits. Module names are the tensor names of LlamaForCausalLM below its `model.` prefix."""

    def __init__(self, shape, vocab_size):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RmsNorm(shape.hidden_size)
        frequencies = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(MAX_POSITIONS).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def initialise(self, seed):
        """Random normal weights; those that write to the residual stream shrink with depth, to keep its scale."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = 0.02 / (2 * self.shape.num_layers) ** 0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def forward(self, tokens):
        """[batch, length] -> [batch, length, vocab]."""
        return self.logits(self.features(tokens))

    def features(self, tokens, positions=None, mask=None, caches=None):
        """[batch, length] -> [batch, length, hidden]: the input of the output matrix.

        positions: [batch, length], from 0 without. mask: True where a row may look, [batch, 1, length, keys], causal
        without. caches: a KvCache for each layer, whose keys come before these tokens'.
        """
        x = self.embed_tokens(tokens)
        if positions is None:
            cos, sin = (table[: tokens.shape[1]].to(x.dtype) for table in (self.cos, self.sin))
        else:
            cos, sin = (table[positions].unsqueeze(1).to(x.dtype) for table in (self.cos, self.sin))
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, caches[index] if caches else None)
        return self.norm(x)

    def logits(self, features):
        return functional.linear(features, self.embed_tokens.weight)

    def num_parameters(self):
        return sum(parameter.numel() for parameter in self.parameters())


def _config(shape, vocab_size, ids):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|bos|>"],
        "eos_token_id": [ids["<|eos|>"], ids["<|end|>"]],
        "pad_token_id": ids["<|pad|>"],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn_size,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": RMS_EPS,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocab_size,
    }


def save_model(model, tokenizer, folder):
    """config.json, generation_config.json and bf16 model.safetensors. The tied output matrix is not stored."""
    folder = pathlib.Path(folder)
    ids = {token: tokenizer.token_to_id(token) for token in ("<|bos|>", "<|eos|>", "<|end|>", "<|pad|>")}
    config = _config(model.shape, model.embed_tokens.num_embeddings, ids)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    generation.update(do_sample=True, temperature=0.8, top_p=0.95, max_length=MAX_POSITIONS)
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {
        f"model.{name}": tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_model(folder):
    """A saved model in float32: the bf16-rounded weights that a server of the folder uses."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = recipe.Shape(
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        ffn_size=config["intermediate_size"],
        head_dim=config["head_dim"],
    )
    model = Llama(shape, config["vocab_size"])
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()})
    return model
