"""Reads model folders (config.json and model.safetensors), and writes ones with random weights."""

import json
import pathlib

import numpy as np

DTYPES = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def to_float(array, dtype):
    """Converts any stored type to float32."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


class ModelFolder:
    """A folder whose weights are in one file. `tensor` gives (array, dtype); bfloat16 is an array of uint16."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        path = self.folder / "model.safetensors"
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            self._entries = json.loads(file.read(header_bytes))
        self._entries.pop("__metadata__", None)
        self._data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + header_bytes)

    def names(self):
        return list(self._entries)

    def tensor(self, name):
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        return self._data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"]), entry["dtype"]


def tensor_shapes(config):
    """Name and shape of every tensor of a Llama, Qwen2 or Qwen3 config.json."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes[layer + "input_layernorm.weight"] = [hidden]
        shapes[layer + "post_attention_layernorm.weight"] = [hidden]
        for name, outputs in (("q", query), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [outputs, hidden]
            if config["model_type"] == "qwen2":
                shapes[f"{layer}self_attn.{name}_proj.bias"] = [outputs]
        if config["model_type"] == "qwen3":
            for name in ("q", "k"):
                shapes[f"{layer}self_attn.{name}_norm.weight"] = [config["head_dim"]]
        shapes[layer + "self_attn.o_proj.weight"] = [hidden, query]
        shapes[layer + "mlp.gate_proj.weight"] = [inner, hidden]
        shapes[layer + "mlp.up_proj.weight"] = [inner, hidden]
        shapes[layer + "mlp.down_proj.weight"] = [hidden, inner]
    return shapes


def random_values(generator, name, shape):
    """bfloat16: matrices with variance 1 / inputs, embeddings in +-1, norms in 1 +- 0.5, biases in +-0.5."""
    center, spread = 0.0, 1.0
    if len(shape) == 1:
        center, spread = (0.0, 0.5) if name.endswith(".bias") else (1.0, 0.5)
    elif name != "model.embed_tokens.weight":
        spread = (3.0 / shape[-1]) ** 0.5
    values = generator.random(shape, dtype=np.float32)
    values *= 2 * spread
    values += center - spread
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_random_folder(folder, config_text, seed=1):
    """Writes config.json and weights of this shape; does nothing if the folder holds them already."""
    folder = pathlib.Path(folder)
    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    if weights_path.exists() and config_path.exists() and config_path.read_text() == config_text:
        return
    folder.mkdir(parents=True, exist_ok=True)
    shapes = tensor_shapes(json.loads(config_text))
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    generator = np.random.default_rng(seed)
    partial = weights_path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            random_values(generator, name, shape).tofile(file)
    partial.rename(weights_path)
    config_path.write_text(config_text)
