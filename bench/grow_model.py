#!/usr/bin/env python3
"""Grows a Llama model folder into a larger one that computes the same function.

The added parts contribute nothing: new layers, heads and neurons end in zero projections, and new columns of the hidden
state are always zero. But they cost what they cost in any model: where they read zeros or lead to zeros, their weights are
random numbers, which an engine reads and multiplies like all others. So you can measure a small target, for which drafters
exist, at the cost of a large one.

RMSNorm divides by the root of the mean over the hidden state, which zeros make smaller: with r = old / new width its
weights are scaled by sqrt(r) and its epsilon by r. sqrt(r) has to be a power of two, so that this is exact in
bfloat16. The order of sums changes, so an output may differ where two tokens are almost equally likely; --verify
measures how often. Needs NumPy.

--head also converts an EAGLE-3 head of the source. The head keeps its size, reads the grown model's hidden states, whose
new columns are zero, and stores the source's embeddings.
"""

import argparse
import json
import math
import pathlib
import shutil
import struct
import sys

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
DEMO_TARGET = REPOSITORY / "deploy" / "demo-models" / "tandem-target-15m"
SEED = 20
SCALE = 0.02  # Standard deviation of the weights that are added.
COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
KEYS = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "layers": "num_hidden_layers",
}


def to_bits(values):
    """The bits of float32 values as bfloat16: exact for values that are bfloat16, otherwise truncated."""
    return (np.ascontiguousarray(values, dtype="<f4").view("<u4") >> 16).astype("<u2")


def from_bits(bits):
    return (bits.astype("<u4") << 16).view("<f4")


# Copies a draft head's token map.
KEPT_TYPES = {"I64": "<i8", "BOOL": "bool"}


def read_tensors(folder):
    """{name: array} of a folder with one safetensors file; bfloat16 becomes float32."""
    data = (folder / "model.safetensors").read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + header_size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            values = from_bits(np.frombuffer(data[begin:end], "<u2"))
        elif entry["dtype"] in KEPT_TYPES:
            values = np.frombuffer(data[begin:end], KEPT_TYPES[entry["dtype"]])
        else:
            raise ValueError(f"{name} is {entry['dtype']}; only BF16 is grown")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_tensors(path, tensors):
    header, offset, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name, values in tensors.items():
        kept = next((kind for kind, dtype in KEPT_TYPES.items() if values.dtype == np.dtype(dtype)), None)
        parts.append((values if kept else to_bits(values)).tobytes())
        end = offset + len(parts[-1])
        header[name] = {"dtype": kept or "BF16", "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)


class Growth:
    """Old and new sizes, and the new places of old heads."""

    def __init__(self, config, new):
        self.config = config
        self.old = {name: config[key] for name, key in KEYS.items()}
        self.new = new
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.random = np.random.default_rng(SEED)
        self._check()

    def _check(self):
        if self.config.get("model_type") != "llama" or self.config.get("attention_bias"):
            raise ValueError("only Llama models without biases are grown")
        for name, value in self.new.items():
            if value < self.old[name]:
                raise ValueError(f"--{name.replace('_', '-')} {value}: the model has {self.old[name]} already")
        ratio = self.old["hidden"] / self.new["hidden"]
        if math.frexp(math.sqrt(ratio))[0] != 0.5:
            raise ValueError(f"--hidden {self.new['hidden']}: expected {self.old['hidden']} times 1, 4, 16, ...")
        if self.new["heads"] % self.new["kv_heads"] != 0 or self._group(self.new) < self._group(self.old):
            raise ValueError("--heads: expected a multiple of --kv-heads, and no fewer for each than there are")
        self.norm_scale = math.sqrt(ratio)
        self.epsilon_scale = ratio

    @staticmethod
    def _group(sizes):
        return sizes["heads"] // sizes["kv_heads"]

    def noise(self, *shape):
        return from_bits(to_bits((SCALE * self.random.standard_normal(shape)).astype("<f4")))

    def query_rows(self):
        """The new rows of the old query heads: each stays with its key head."""
        old, new = self._group(self.old), self._group(self.new)
        heads = [(head // old) * new + head % old for head in range(self.old["heads"])]
        return np.concatenate([np.arange(self.head_dim) + head * self.head_dim for head in heads])

    def reader(self, weight, rows, new_rows):
        """A projection of the hidden state: new columns read zeros, and new rows lead to zeros."""
        grown = self.noise(new_rows, self.new["hidden"])
        grown[rows, : self.old["hidden"]] = weight
        return grown

    def writer(self, weight, columns, new_columns):
        """A projection that is added to the hidden state: all new parts are zero."""
        grown = np.zeros((self.new["hidden"], new_columns), "<f4")
        if weight is not None:
            grown[: self.old["hidden"], columns] = weight
        return grown

    def norm(self, weight):
        grown = self.noise(self.new["hidden"])
        if weight is not None:
            grown[: self.old["hidden"]] = self.norm_scale * weight
        return grown

    def columns(self, weight):
        """Embeddings: the new columns of the hidden state are zeros."""
        grown = np.zeros((weight.shape[0], self.new["hidden"]), "<f4")
        grown[:, : self.old["hidden"]] = weight
        return grown

    def layer(self, tensors, prefix):
        """One layer; a new one reads everything and adds nothing."""
        is_old = prefix + "input_layernorm.weight" in tensors
        get = lambda name: tensors[prefix + name + ".weight"] if is_old else None
        queries = self.query_rows()
        keys = np.arange(self.old["kv_heads"] * self.head_dim)
        neurons = np.arange(self.old["intermediate"])
        query_width, key_width = (self.new[name] * self.head_dim for name in ("heads", "kv_heads"))

        def read(name, rows, width):
            return self.reader(get(name), rows, width) if is_old else self.noise(width, self.new["hidden"])

        layer = {
            "input_layernorm": self.norm(get("input_layernorm")),
            "post_attention_layernorm": self.norm(get("post_attention_layernorm")),
            "self_attn.q_proj": read("self_attn.q_proj", queries, query_width),
            "self_attn.k_proj": read("self_attn.k_proj", keys, key_width),
            "self_attn.v_proj": read("self_attn.v_proj", keys, key_width),
            "self_attn.o_proj": self.writer(get("self_attn.o_proj"), queries, query_width),
            "mlp.gate_proj": read("mlp.gate_proj", neurons, self.new["intermediate"]),
            "mlp.up_proj": read("mlp.up_proj", neurons, self.new["intermediate"]),
            "mlp.down_proj": self.writer(get("mlp.down_proj"), neurons, self.new["intermediate"]),
        }
        return {f"{prefix}{name}.weight": values for name, values in layer.items()}

    def tensors(self, tensors):
        grown = {"model.embed_tokens.weight": self.columns(tensors["model.embed_tokens.weight"])}
        for index in range(self.new["layers"]):
            grown |= self.layer(tensors, f"model.layers.{index}.")
        grown["model.norm.weight"] = self.norm(tensors["model.norm.weight"])
        if "lm_head.weight" in tensors:
            head = tensors["lm_head.weight"]
            grown["lm_head.weight"] = self.reader(head, np.arange(head.shape[0]), head.shape[0])
        return grown

    def new_config(self):
        config = dict(self.config, head_dim=self.head_dim)
        config["rms_norm_eps"] = self.config["rms_norm_eps"] * self.epsilon_scale
        config.update({KEYS[name]: value for name, value in self.new.items()})
        return config


def grow(source, folder, new):
    """Writes the grown model's folder; returns its number of weights."""
    growth = Growth(json.loads((source / "config.json").read_text()), new)
    tensors = growth.tensors(read_tensors(source))
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(growth.new_config(), indent=2) + "\n")
    for name in COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    return sum(values.size for values in tensors.values())


def grow_head(head, source, folder, hidden):
    """Writes the folder of an EAGLE-3 head that reads the grown model's states instead of the source's."""
    config = json.loads((head / "config.json").read_text())
    if config.get("architectures") != ["LlamaForCausalLMEagle3"]:
        raise ValueError(f"{head}: expected an EAGLE-3 head")
    tensors = read_tensors(head)
    weight = tensors["fc.weight"]
    old = config.get("target_hidden_size", config["hidden_size"])
    grown = np.zeros((weight.shape[0], weight.shape[1] // old, hidden), "<f4")
    grown[:, :, :old] = weight.reshape(weight.shape[0], -1, old)
    tensors["fc.weight"] = grown.reshape(weight.shape[0], -1)
    tensors.setdefault("embed_tokens.weight", read_tensors(source)["model.embed_tokens.weight"])
    # Belongs to the source, not to the grown model.
    config.pop("tandem_target_fingerprint", None)
    config["target_hidden_size"] = hidden
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def verify(source, folder, bin_dir, num_tokens):
    """Compares greedy outputs and the cost of a step of both models. True if they agree on nearly all tokens."""
    import serve  # Beside this file.

    prompts = [line.strip() for line in (serve.PROMPTS / "story.txt").read_text().splitlines() if line.strip()]
    prompts += [json.loads(line)["prompt"] for line in (serve.PROMPTS / "code.jsonl").read_text().splitlines()]
    targets = {"original": (source, []), "grown": (folder, [])}
    agreed = total = same = 0
    with serve.Stack(bin_dir, folder.parent / "verify", targets, {}) as stack:
        for prompt in prompts:
            outputs = []
            for model in targets:
                flags = ["--model", model, "--temperature", 0, "--max-tokens", num_tokens, "--json"]
                done = stack.run("tandem", "generate", prompt, *flags, stdout=-1, text=True)
                if done.returncode != 0:
                    raise RuntimeError(f"{model}: tandem generate failed with {done.returncode}")
                outputs.append(json.loads(done.stdout)["tokens"])
            same += outputs[0] == outputs[1]
            total += max(map(len, outputs))
            # A tie that is broken differently changes everything after it.
            pairs = list(zip(*outputs))
            agreed += next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        for name, verifier in stack.verifiers.items():
            times = next(entry for entry in verifier.entries if entry.get("event") == "round times measured")
            print(f"{name}: {times['step_ms_1_row']} ms for one row, {times['step_ms_16_rows']} ms for 16")
    print(f"greedy outputs equal: {same} of {len(prompts)}; {agreed} of {total} tokens before a first difference")
    return agreed >= 0.9 * total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--source", type=pathlib.Path, default=DEMO_TARGET, help="model folder to grow")
    add("--out", type=pathlib.Path, default=REPOSITORY / "build/models/target-160m", help="folder for the new model")
    for name, default in (("hidden", 1536), ("intermediate", 2304), ("heads", 24), ("kv-heads", 8), ("layers", 9)):
        add(f"--{name}", type=int, default=default, help="(default %(default)s)")
    add("--head", type=pathlib.Path, help="EAGLE-3 head of the source; written to the new folder's name plus -head")
    add("--verify", type=pathlib.Path, metavar="BIN_DIR", help="compare greedy outputs with these binaries")
    add("--verify-tokens", type=int, default=64, help="tokens per prompt (default %(default)s)")
    args = parser.parse_args()
    new = {name: getattr(args, name) for name in KEYS}
    try:
        num_weights = grow(args.source, args.out, new)
        if args.head:
            grow_head(args.head, args.source, args.out.with_name(args.out.name + "-head"), new["hidden"])
    except (KeyError, ValueError) as error:
        sys.exit(f"grow_model.py: {args.source}: {error}")
    print(f"{args.out}: {num_weights / 1e6:.1f} million weights")
    if args.verify and not verify(args.source, args.out, args.verify, args.verify_tokens):
        sys.exit("grow_model.py: the grown model does not compute the same function")


if __name__ == "__main__":
    main()
