#!/usr/bin/env python3
"""Makes tiny draft heads of random weights in the formats that people have, and what reference implementations compute
with them.

    pip install torch transformers safetensors
    pip install --no-deps speculators==0.9.0 medusa-llm==0.1
    python make_tiny_heads.py [FUNCTION ...]

Without functions it makes everything; each has random numbers of its own.

EAGLE-3 layers are those of vLLM's `speculators` (speculators.models.eagle3.model_definitions). EAGLE-1's is transformers'
LlamaDecoderLayer without its input norm, as in the authors' code for layer 0. Medusa's blocks are the authors'
(medusa.model.medusa_model). The next-token module is MiMo's: transformers' Qwen2DecoderLayer between the norms and the
projection that its authors describe. Everything is computed in float32.

golden.json of heads with a layer: `tokens` [n] and `states` [n - 1][states * width]: what the target gave behind the first n - 1 tokens. Row j
reads tokens[j + 1] and states[j]. `logits` [n - 1][vocab] and `outputs` [n - 1][hidden] are the rows'; null stands for minus
infinity. `chain`: two more tokens, each read with the output of the row before it, and what these rows give. Of Medusa:
`states` [n][hidden] and `logits` [n][heads][vocab].
"""

import functools
import importlib.util
import json
import pathlib
import sys
import types
from unittest import mock

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3Config
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

HERE = pathlib.Path(__file__).resolve().parent / "heads"
VOCAB, DRAFT_VOCAB, HIDDEN, WIDTH = 48, 31, 32, 40
TOKENS = [3, 17, 45, 8, 0, 29, 33, 21, 21, 6, 47, 12]
CHAIN = [30, 5]


@functools.cache
def speculators_layers():
    """The module of layer definitions alone: the package around it wants a trainer's dependencies."""
    spec = importlib.util.find_spec("speculators")
    package = pathlib.Path(spec.submodule_search_locations[0])
    for name in ("speculators", "speculators.models"):
        sys.modules[name] = types.ModuleType(name)
    components = types.ModuleType("speculators.models.base_components")
    components.ModelComponents = object
    components.override_components = lambda *args, **kwargs: None
    sys.modules["speculators.models.base_components"] = components
    sys.modules["speculators.models"].base_components = components
    definition = importlib.util.spec_from_file_location(
        "eagle3_layers", package / "models" / "eagle3" / "model_definitions.py"
    )
    module = importlib.util.module_from_spec(definition)
    definition.loader.exec_module(module)
    return module


@functools.cache
def medusa_blocks():
    """The authors' module with the heads, without the target model of theirs, which wants an old transformers."""
    package = pathlib.Path(importlib.util.find_spec("medusa").submodule_search_locations[0])
    for name in ("modeling_llama_kv", "utils", "kv_cache"):
        sys.modules[f"medusa.model.{name}"] = mock.MagicMock(__path__=[])
    sys.modules["medusa"] = sys.modules["medusa.model"] = types.ModuleType("medusa")
    definition = importlib.util.spec_from_file_location(
        "medusa.model.medusa_model", package / "model" / "medusa_model.py"
    )
    module = importlib.util.module_from_spec(definition)
    definition.loader.exec_module(module)
    return module


class Head(nn.Module):
    """A layer, or several, with what stands around them. `kind`: eagle3 or eagle. `state_norms`, in front of fc: None,
    "together" or "each", as speculators' Eagle3DraftModel has them. Without `projects` the layer begins with the one state
    that a row reads."""

    def __init__(
        self,
        kind,
        config,
        num_states,
        draft_vocab,
        norm_before_residual=False,
        norm_output=False,
        state_norms=None,
        projects=True,
    ):
        super().__init__()
        self.kind = kind
        self.norm_output = norm_output
        self.state_norms = state_norms
        self.projects = projects
        self.config = config
        qwen3 = isinstance(config, Qwen3Config)
        modeling = modeling_qwen3 if qwen3 else modeling_llama
        norm = modeling_qwen3.Qwen3RMSNorm if qwen3 else modeling_llama.LlamaRMSNorm
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, draft_vocab, bias=False)
        if kind == "eagle3":
            layers = speculators_layers()
            layer = layers.Qwen3DecoderEagle3FirstLayer if qwen3 else layers.LlamaDecoderEagle3FirstLayer
            self.layer = layer(config, 0, norm_before_residual)
            self.fc = nn.Linear(num_states * WIDTH, HIDDEN, bias=False) if projects else None
            self.norm = norm(HIDDEN, eps=config.rms_norm_eps)
            if state_norms == "together":
                self.input_norm = norm(num_states * WIDTH, eps=config.rms_norm_eps)
            elif state_norms == "each":
                self.fc_norm = nn.ModuleList(norm(WIDTH, eps=config.rms_norm_eps) for _ in range(num_states))
            decoder = modeling.Qwen3DecoderLayer if qwen3 else modeling.LlamaDecoderLayer
            self.further = nn.ModuleList(decoder(config, i) for i in range(1, config.num_hidden_layers))
        else:
            self.layer = modeling.LlamaDecoderLayer(config, 0)
            self.layer.input_layernorm = nn.Identity()
            self.fc = nn.Linear(2 * HIDDEN, HIDDEN, bias=True)
            self.norm = nn.Identity()
            self.further = nn.ModuleList()
        rotary = modeling_qwen3.Qwen3RotaryEmbedding if qwen3 else modeling_llama.LlamaRotaryEmbedding
        self.rotary = rotary(config)

    def run(self, tokens, hidden):
        """All rows at once, [n, hidden] -> outputs [n, hidden], logits [n, draft_vocab]."""
        length = len(tokens)
        embedded = self.embed_tokens(torch.tensor([tokens]))
        rows = torch.cat((embedded, hidden[None]), -1)
        if self.kind == "eagle":
            rows = self.fc(rows)
        positions = torch.arange(length)[None]
        turns = self.rotary(rows, positions)
        out = rows
        for i, layer in enumerate([self.layer, *self.further]):
            out = layer(out, attention_mask=self.mask(i, length), position_ids=positions, position_embeddings=turns)
            out = out[0] if isinstance(out, tuple) else out
        out = out[0] if out.dim() == 3 else out
        normed = self.norm(out)
        return normed if self.norm_output else out, self.lm_head(normed)

    def mask(self, layer, length):
        """A window counts the row itself, as in transformers and speculators."""
        types = getattr(self.config, "head_layer_types", None)
        back = self.config.head_window if types and types[layer] == "sliding_attention" else length
        row, column = torch.arange(length)[:, None], torch.arange(length)[None]
        seen = (column <= row) & (column > row - back)
        return torch.zeros(length, length).masked_fill(~seen, float("-inf"))[None, None]

    def states_in(self, states):
        if self.kind == "eagle" or not self.projects:
            return states
        if self.state_norms == "together":
            states = self.input_norm(states)
        elif self.state_norms == "each":
            chunks = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks)], -1)
        return self.fc(states)


@torch.no_grad()
def golden(head, states, draft_tokens):
    def spread(logits):
        rows = []
        for row in logits.tolist():
            full = [None] * VOCAB
            for token, logit in zip(draft_tokens, row):
                full[token] = logit
            rows.append(full)
        return rows

    hidden = head.states_in(states)
    tokens = TOKENS[1:]
    outputs, logits = head.run(tokens, hidden)
    result = {"tokens": TOKENS, "states": states.tolist(), "outputs": outputs.tolist(), "logits": spread(logits)}
    chain = []
    for token in CHAIN:
        hidden = torch.cat((hidden, outputs[-1:]))
        tokens = tokens + [token]
        outputs, logits = head.run(tokens, hidden)
        chain.append({"token": token, "output": outputs[-1].tolist(), "logits": spread(logits[-1:])[0]})
    result["chain"] = chain
    return result


def layer_config(kind=LlamaConfig, layers=1):
    return kind(
        hidden_size=HIDDEN,
        intermediate_size=56,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=layers,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )


def plain_config(config):
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    fields = {name: getattr(config, name) for name in names}
    return fields | {
        "num_hidden_layers": config.num_hidden_layers,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "model_type": config.model_type,
    }


def tensors_of(head, layer, leave_out=()):
    tensors = {"fc.weight": head.fc.weight} if head.fc is not None else {}
    if head.fc is not None and head.fc.bias is not None:
        tensors["fc.bias"] = head.fc.bias
    if head.state_norms == "together":
        tensors["input_norm.weight"] = head.input_norm.weight
    elif head.state_norms == "each":
        tensors |= {f"fc_norm.{i}.weight": norm.weight for i, norm in enumerate(head.fc_norm)}
    for name, value in head.layer.state_dict().items():
        tensors[f"{layer}.{name}"] = value
    for i, further in enumerate(head.further, 1):
        tensors |= {f"layers.{i}.{name}": value for name, value in further.state_dict().items()}
    if head.kind == "eagle3":
        tensors["norm.weight"] = head.norm.weight
    tensors["embed_tokens.weight"] = head.embed_tokens.weight
    tensors["lm_head.weight"] = head.lm_head.weight
    return {name: value.detach().clone().contiguous() for name, value in tensors.items() if name not in leave_out}


def write(name, config, tensors, values, file="model.safetensors"):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / file)
    if values is not None:
        (folder / "golden.json").write_text(json.dumps(values) + "\n")


def randomise(head):
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(*((-0.3, 0.3) if name.endswith("bias") else (0.6, 1.4)))
            else:
                bound = 1.0 if "embed" in name else (3.0 / parameter.shape[1]) ** 0.5
                parameter.uniform_(-bound, bound)


def eagle_heads():
    torch.manual_seed(7)
    offsets = torch.tensor(sorted(torch.randperm(VOCAB)[:DRAFT_VOCAB].tolist()))
    draft_tokens = offsets.tolist()
    d2t = offsets - torch.arange(DRAFT_VOCAB)
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[offsets] = True
    mapping = {"d2t": d2t, "t2d": t2d}

    # SpecForge and SGLang: some of the tokens, the target's embedding.
    head = Head("eagle3", layer_config(), 3, DRAFT_VOCAB)
    randomise(head)
    config = plain_config(head.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": WIDTH,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 3], "use_aux_hidden_state": True},
    }
    values = golden(head, torch.randn(len(TOKENS) - 1, 3 * WIDTH), draft_tokens)
    write("eagle3-specforge", config, tensors_of(head, "midlayer") | mapping, values)

    # As they are published: embedding, output matrix and the layers to read are the target's.
    head = Head("eagle3", layer_config(), 3, VOCAB)
    randomise(head)
    head.fc = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
    config = plain_config(head.config) | {"architectures": ["LlamaForCausalLMEagle3"]}
    tensors = tensors_of(head, "midlayer", leave_out=("embed_tokens.weight", "lm_head.weight"))
    write("eagle3-shared", config, tensors, None)

    # vLLM speculators.
    for name, kind, before in (("llama", LlamaConfig, True), ("qwen3", Qwen3Config, False)):
        head = Head("eagle3", layer_config(kind), 2, DRAFT_VOCAB, norm_before_residual=before)
        randomise(head)
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": DRAFT_VOCAB,
            "norm_before_residual": before,
            "target_hidden_size": WIDTH,
            "eagle_aux_hidden_state_layer_ids": [1, 3],
            "transformer_layer_config": plain_config(head.config),
        }
        values = golden(head, torch.randn(len(TOKENS) - 1, 2 * WIDTH), draft_tokens)
        write(f"eagle3-speculators-{name}", config, tensors_of(head, "layers.0") | mapping, values)

    # The authors' EAGLE-1 and 2: a Llama by its configuration, all tokens.
    head = Head("eagle", layer_config(), 1, VOCAB)
    randomise(head)
    values = golden(head, torch.randn(len(TOKENS) - 1, HIDDEN), list(range(VOCAB)))
    config = plain_config(head.config) | {"architectures": ["LlamaForCausalLM"]}
    write("eagle1", config, tensors_of(head, "layers.0"), values)



def eagle3_normed_output():
    """A row's own state is the normed one: in speculators' form, and the same head in SpecForge's."""
    torch.manual_seed(10)
    head = Head("eagle3", layer_config(), 2, VOCAB, norm_output=True)
    randomise(head)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": VOCAB,
        "norm_output": True,
        "target_hidden_size": WIDTH,
        "eagle_aux_hidden_state_layer_ids": [1, 3],
        "transformer_layer_config": plain_config(head.config),
    }
    values = golden(head, torch.randn(len(TOKENS) - 1, 2 * WIDTH), list(range(VOCAB)))
    write("eagle3-speculators-normed", config, tensors_of(head, "layers.0"), values)
    config = plain_config(head.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCAB,
        "norm_output": True,
        "target_hidden_size": WIDTH,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2], "use_aux_hidden_state": True},
    }
    write("eagle3-specforge-normed", config, tensors_of(head, "midlayer"), values)


def draft_mapping():
    tokens = torch.tensor(sorted(torch.randperm(VOCAB)[:DRAFT_VOCAB].tolist()))
    return tokens.tolist(), {"d2t": tokens - torch.arange(DRAFT_VOCAB)}


def eagle31_heads():
    """EAGLE-3.1: norms in front of fc, and each row's own state behind the last norm."""
    torch.manual_seed(11)
    # What speculators writes for a Llama layer unless told otherwise.
    tokens, mapping = draft_mapping()
    head = Head("eagle3", layer_config(), 3, DRAFT_VOCAB, norm_output=True, state_norms="together")
    randomise(head)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,
        "target_hidden_size": WIDTH,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        "transformer_layer_config": plain_config(head.config),
    }
    values = golden(head, 3 * torch.randn(len(TOKENS) - 1, 3 * WIDTH), tokens)
    write("eagle31-speculators", config, tensors_of(head, "layers.0") | mapping, values)

    # SpecForge's, with a norm for each state.
    head = Head("eagle3", layer_config(), 3, VOCAB, norm_output=True, state_norms="each")
    randomise(head)
    config = plain_config(head.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCAB,
        "fc_norm": True,
        "norm_output": True,
        "target_hidden_size": WIDTH,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
    }
    scales = torch.tensor([0.2, 1.0, 7.0]).repeat_interleave(WIDTH)
    values = golden(head, scales * torch.randn(len(TOKENS) - 1, 3 * WIDTH), list(range(VOCAB)))
    write("eagle31-specforge", config, tensors_of(head, "midlayer"), values)


def modelopt_heads():
    torch.manual_seed(12)
    # The norm is named in eagle_config; plain otherwise.
    tokens, mapping = draft_mapping()
    eagle = {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    head = Head("eagle3", layer_config(), 3, DRAFT_VOCAB, state_norms="together")
    randomise(head)
    config = plain_config(head.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": WIDTH,
        "eagle_config": eagle | {"eagle_aux_hidden_state_layer_ids": [0, 2, 3], "norm_before_fc": True},
    }
    values = golden(head, 3 * torch.randn(len(TOKENS) - 1, 3 * WIDTH), tokens)
    write("eagle3-modelopt-normed", config, tensors_of(head, "layers.0") | mapping, values)

    # The target's final state, where the layer begins: there is no fc.
    head = Head("eagle3", layer_config(), 1, VOCAB, projects=False)
    randomise(head)
    config = plain_config(head.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCAB,
        "eagle_config": eagle | {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": False},
    }
    values = golden(head, torch.randn(len(TOKENS) - 1, HIDDEN), list(range(VOCAB)))
    write("eagle3-modelopt-final", config, tensors_of(head, "layers.0"), values)


def deep_heads():
    """Several layers, with windows in some, in speculators' form: transformers' layers behind the first one."""
    torch.manual_seed(13)
    for name, kind in (("llama", LlamaConfig), ("qwen3", Qwen3Config)):
        config = layer_config(kind, layers=3)
        config.head_layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
        config.head_window = 4
        head = Head("eagle3", config, 3, VOCAB)
        randomise(head)
        window = {"layer_types": config.head_layer_types, "sliding_window": config.head_window}
        described = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": VOCAB,
            "norm_before_residual": False,
            "target_hidden_size": WIDTH,
            "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
            "transformer_layer_config": plain_config(config)
            | window
            | ({"use_sliding_window": True} if kind is Qwen3Config else {}),
        }
        values = golden(head, torch.randn(len(TOKENS) - 1, 3 * WIDTH), list(range(VOCAB)))
        write(f"eagle3-deep-{name}", described, tensors_of(head, "layers.0"), values)


@torch.no_grad()
def medusa_golden(heads):
    states = torch.randn(4, HIDDEN)
    return {"states": states.tolist(), "logits": torch.stack([head(states) for head in heads], 1).tolist()}


def medusa_heads():
    torch.manual_seed(8)
    block = medusa_blocks().ResBlock

    # The authors': two blocks and an output matrix for each of three heads.
    heads = nn.ModuleList(
        nn.Sequential(block(HIDDEN), block(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)) for _ in range(3)
    )
    randomise(heads)
    config = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "target"}
    tensors = {name: value.clone() for name, value in heads.state_dict().items()}
    # Sizes are left to the target's where heads are published.
    config |= {"hidden_size": HIDDEN, "vocab_size": VOCAB}
    write("medusa", config, tensors, medusa_golden(heads), file="medusa_lm_head.safetensors")

    # vLLM's: blocks without biases, and the target's output matrix, of which there is a copy.
    output = nn.Linear(HIDDEN, VOCAB, bias=False)
    heads = nn.ModuleList(nn.Sequential(block(HIDDEN), output) for _ in range(2))
    randomise(heads)
    for head in heads:
        head[0].linear.bias = None
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "truncated_vocab_size": VOCAB,
        "original_lm_head": True,
    }
    tensors = {f"blocks.{i}.layers.0.weight": head[0].linear.weight.detach().clone() for i, head in enumerate(heads)}
    tensors["lm_heads.0.weight"] = output.weight.detach().clone()
    write("medusa-vllm", config, tensors, medusa_golden(heads))


class NextTokenModule(nn.Module):
    """Guesses from the target's final normed states and the next tokens; its own states are normed too."""

    def __init__(self, config):
        super().__init__()
        self.token_layernorm = modeling_qwen2.Qwen2RMSNorm(HIDDEN, eps=config.rms_norm_eps)
        self.hidden_layernorm = modeling_qwen2.Qwen2RMSNorm(HIDDEN, eps=config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.layer = modeling_qwen2.Qwen2DecoderLayer(config, 0)
        self.final_layernorm = modeling_qwen2.Qwen2RMSNorm(HIDDEN, eps=config.rms_norm_eps)
        self.rotary = modeling_qwen2.Qwen2RotaryEmbedding(config)

    def forward(self, embedded, states):
        """[n, hidden] each."""
        rows = self.input_proj(torch.cat((self.hidden_layernorm(states), self.token_layernorm(embedded)), -1))[None]
        length = rows.shape[1]
        positions = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        out = self.layer(
            rows,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self.rotary(rows, positions),
        )
        out = out[0] if isinstance(out, tuple) else out
        return self.final_layernorm(out.view(length, HIDDEN))


@torch.no_grad()
def next_token_module():
    torch.manual_seed(9)
    config = Qwen2Config(
        hidden_size=HIDDEN,
        intermediate_size=56,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        vocab_size=VOCAB,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    target, module = Qwen2ForCausalLM(config), NextTokenModule(config)
    randomise(target)
    randomise(module)
    embedding = target.model.embed_tokens
    states = torch.randn(len(TOKENS) - 1, HIDDEN)
    tokens = TOKENS[1:]

    outputs = module(embedding(torch.tensor(tokens)), states)
    values = {"tokens": TOKENS, "states": states.tolist(), "outputs": outputs.tolist()}
    values["logits"] = target.lm_head(outputs).tolist()
    values["chain"] = []
    for token in CHAIN:
        states = torch.cat((states, outputs[-1:]))
        tokens = tokens + [token]
        outputs = module(embedding(torch.tensor(tokens)), states)
        logits = target.lm_head(outputs[-1])
        values["chain"].append({"token": token, "output": outputs[-1].tolist(), "logits": logits.tolist()})

    tensors = {name: value.clone() for name, value in target.state_dict().items()}
    for name, value in module.state_dict().items():
        tensors[f"model.mtp_layers.0.{name.removeprefix('layer.')}"] = value.clone()
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
             "vocab_size", "max_position_embeddings", "rms_norm_eps")
    described = {name: getattr(config, name) for name in names} | {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
    }
    write("mimo", described, tensors, values)


def main():
    makers = {
        "eagle_heads": eagle_heads,
        "eagle3_normed_output": eagle3_normed_output,
        "eagle31_heads": eagle31_heads,
        "modelopt_heads": modelopt_heads,
        "deep_heads": deep_heads,
        "medusa_heads": medusa_heads,
        "next_token_module": next_token_module,
    }
    for name in sys.argv[1:] or makers:
        makers[name]()


if __name__ == "__main__":
    main()
