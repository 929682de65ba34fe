"""An EAGLE-3 head (Li et al., 2025) in PyTorch, and its checkpoint in the format of SpecForge and SGLang."""

import dataclasses
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a head, with the names of its config.json."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @staticmethod
    def from_config(config):
        values = dict(config)
        values.setdefault("target_hidden_size", values["hidden_size"])
        values.setdefault("draft_vocab_size", values["vocab_size"])
        values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
        return Shape(**{field.name: values[field.name] for field in dataclasses.fields(Shape)})

    @staticmethod
    def of_target(config, vocab_size, draft_vocab_size, intermediate_size):
        """The shape of the target's own layers, from its transformers configuration."""
        rope = getattr(config, "rope_parameters", None) or {}
        return Shape(
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            intermediate_size=intermediate_size or config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-5),
            rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", None) or 10000.0)),
            max_position_embeddings=config.max_position_embeddings,
        )


class RmsNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


def rotate(x, cos, sin):
    """Rotary embedding in the half-rotation layout. x: [batch, .., columns, head_dim], cos and sin broadcast."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Attention over the columns of true states and, for a chain, its own earlier columns. Its input is doubled."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        query_size, kv_size = (count * shape.head_dim for count in (shape.num_attention_heads, shape.num_key_value_heads))
        self.q_proj = nn.Linear(2 * shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)

    def forward(self, x, positions, columns):  # x: [batch, chains, 2 * hidden]; positions: [batch, chains]
        shape = self.shape
        frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, device=x.device).float() / shape.head_dim)
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        query = rotate(self.q_proj(x).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2), cos, sin)
        key = rotate(self.k_proj(x).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2), cos, sin)
        value = self.v_proj(x).unflatten(-1, (-1, shape.head_dim)).transpose(1, 2)
        # Query heads that share keys are one more dimension, so nothing is copied for them.
        query = query.unflatten(1, (shape.num_key_value_heads, -1)) * shape.head_dim**-0.5
        if columns.keys is None:
            columns.keys, columns.values = key, value
            weights = (query @ key[:, :, None].transpose(-1, -2)).float() + columns.mask
            weights = weights.softmax(-1).to(x.dtype)
            mixed = weights @ value[:, :, None]
        else:
            columns.own.append((key, value))
            weights = [query @ columns.keys[:, :, None].transpose(-1, -2) + columns.mask]
            # Only the chain itself sees its own columns: one product for each, instead of a matrix.
            weights += [(query * key[:, :, None]).sum(-1, keepdim=True) for key, _ in columns.own]
            weights = torch.cat(weights, -1).float().softmax(-1).to(x.dtype)
            width = columns.keys.shape[2]
            mixed = weights[..., :width] @ columns.values[:, :, None]
            for i, (_, value) in enumerate(columns.own):
                mixed = mixed + weights[..., width + i, None] * value[:, :, None]
        return self.o_proj(mixed.flatten(1, 2).transpose(1, 2).flatten(-2))


@dataclasses.dataclass
class Columns:
    """Keys and values of true columns, [batch, kv heads, columns, head_dim], which chain sees which of them, and the
    chains' own columns."""

    mask: torch.Tensor  # [.., chains, columns], 0 or minus infinity.
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None
    own: list = dataclasses.field(default_factory=list)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A decoder layer whose attention reads an embedding and a hidden state; only the latter is carried on."""

    def __init__(self, shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.hidden_norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, embedded, hidden, positions, columns):
        doubled = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(doubled, positions, columns)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(nn.Module):
    """Parameters with the names of a checkpoint. Without an embedding of its own, it uses the target's."""

    def __init__(self, shape, draft_ids=None, own_embedding=False):
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.target_hidden_size, shape.hidden_size, bias=False)
        self.midlayer = Layer(shape)
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        draft_ids = torch.arange(shape.draft_vocab_size) if draft_ids is None else draft_ids
        # The target's id of every draft id, ascending.
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        if own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)

    def embed(self, tokens, target_embedding):
        own = getattr(self, "embed_tokens", None)
        return functional.embedding(tokens, target_embedding) if own is None else own(tokens)

    def first(self, embedded, states):
        """All columns of texts: the embedding of the token after each state's. -> (output, columns)"""
        length = embedded.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=embedded.device).triu(1)
        columns = Columns(torch.zeros(length, length, device=embedded.device).masked_fill(future, -torch.inf))
        positions = torch.arange(length, device=embedded.device).expand(embedded.shape[0], -1)
        return self.midlayer(embedded, self.fc(states), positions, columns), columns

    def next(self, embedded, hidden, positions, columns):
        """One more column of every chain, from its own output."""
        return self.midlayer(embedded, hidden, positions, columns)

    def logits(self, hidden):
        return self.lm_head(self.norm(hidden))


def initialise(head, target, seed):
    """Starts from the target's last layer if that has the same shape: then states, norm and output rows mean the same
    as the target's from the first step on. Everything else is random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        head.lm_head.weight.copy_(target.output[head.draft_ids])
        if hasattr(head, "embed_tokens"):
            head.embed_tokens.weight.copy_(target.embedding)
        if target.norm is not None:
            head.norm.weight.copy_(target.norm)
        width, deepest = head.shape.hidden_size, 2 * head.shape.target_hidden_size
        head.fc.weight[:, deepest:] += torch.eye(width, head.shape.target_hidden_size)
        for name, parameter in head.midlayer.named_parameters():
            # The target's attention reads one state where the head's reads an embedding and a state.
            wanted = target.last_layer.get(name.replace("hidden_norm", "input_layernorm"))
            if name.startswith("input_layernorm") or wanted is None:
                continue
            if parameter.shape == wanted.shape:
                parameter.copy_(wanted)
            elif parameter.dim() == 2 and parameter.shape == (wanted.shape[0], 2 * wanted.shape[1]):
                parameter[:, width:] = wanted


def copy_weights(start, head):
    """Copies a trained head's weights. Output rows of tokens that it does not guess stay unchanged."""
    if dataclasses.replace(start.shape, draft_vocab_size=head.shape.draft_vocab_size) != head.shape:
        raise ValueError(f"the head to start from has another shape: {start.shape}, expected {head.shape}")
    tensors = start.state_dict()
    trained = tensors.pop("lm_head.weight")
    row_of = {token: row for row, token in enumerate(start.draft_ids.tolist())}
    with torch.no_grad():
        tensors["lm_head.weight"] = head.lm_head.weight.clone()
        for row, token in enumerate(head.draft_ids.tolist()):
            if token in row_of:
                tensors["lm_head.weight"][row] = trained[row_of[token]]
    head.load_state_dict(tensors)


def save_head(head, folder, layers, target_name, dtype=torch.bfloat16, fingerprint=None):
    """config.json and model.safetensors as SpecForge writes and SGLang reads them, and the target's fingerprint."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = head.shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        **dataclasses.asdict(shape),
        # Numbers of the layers whose outputs are read, from 0: one less than the layers that came before a state.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers], "use_aux_hidden_state": True},
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rope_scaling": None,
        **({"tandem_target_fingerprint": fingerprint} if fingerprint else {}),
        "target_model_name_or_path": target_name,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "use_cache": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in head.state_dict().items()}
    ids = head.draft_ids.cpu()
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(shape.vocab_size, dtype=torch.bool)
    tensors["t2d"][ids] = True
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_head(folder):
    """(head in float32, layers whose states it reads)"""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    draft_ids = tensors.pop("d2t") + torch.arange(len(tensors["lm_head.weight"]))
    tensors.pop("t2d")
    head = Head(Shape.from_config(config), draft_ids, own_embedding="embed_tokens.weight" in tensors)
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head, [layer + 1 for layer in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
