#!/usr/bin/env python3
"""Writes a model folder (Llama, Qwen2 or Qwen3, one safetensors file) as GGUF, in bfloat16, float16, Q8_0 or Q4_0.

llama.cpp and Tandem can then be measured side by side with the same weights. With --vocabulary, the file also contains the
tokenizer, which servers need; engine benchmarks use token ids.
"""

import argparse
import json
import math
import pathlib
import re

import gguf
import numpy as np

import model_folder

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
FILE_TYPES = {"bf16": gguf.LlamaFileType.MOSTLY_BF16, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}  # fmt: skip
KINDS = {"bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}  # fmt: skip


def rotary_order(array, num_heads):
    """llama.cpp's llama graph rotates neighbours, Hugging Face the halves of a head, so the rows of query and key
    projections are permuted."""
    rows = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)


def llama3_factors(config):
    """The factor by which each rotary frequency is divided, from the Llama 3 configuration."""
    scaling = config["rope_scaling"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for i in range(0, config["head_dim"], 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / config["head_dim"])
        turns = scaling["original_max_position_embeddings"] / wavelength
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def add_vocabulary(writer, folder):
    """Adds the tokenizer of `folder`, which must be byte-level BPE with Llama 3's split rule; ValueError otherwise."""
    tokenizer = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text(encoding="utf-8"))
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0].get("pattern", {}).get("Regex", "")
    if tokenizer["model"]["type"] != "BPE" or r"\p{N}{1,3}" not in split:
        raise ValueError(f"{folder}/tokenizer.json: expected byte-level BPE that splits digits in threes")
    ids = dict(tokenizer["model"]["vocab"])
    kinds = dict.fromkeys(ids, gguf.TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        ids[token["content"]] = token["id"]
        kinds[token["content"]] = gguf.TokenType.CONTROL
    texts = sorted(ids, key=ids.get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(texts)
    writer.add_token_types([kinds[text] for text in texts])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(ids[config["bos_token"]])
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_add_bos_token(True)


def add_fields(writer, config, dtype):
    writer.add_file_type(FILE_TYPES[dtype])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tensor(writer, name, array, source_dtype, dtype):
    values = model_folder.to_float(array, source_dtype)
    if array.ndim == 1:
        writer.add_tensor(name, values)
        return
    # The embedding, which is also the output head if they are tied, keeps 8 bits, as in llama.cpp's own files.
    kind = KINDS["q8_0" if dtype == "q4_0" and name.startswith(("token_embd", "output.")) else dtype]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def export(folder, path, dtype, vocabulary=False):
    """Writes `path`. KeyError for an unknown configuration or tensor, ValueError for an unsupported tokenizer."""
    model = model_folder.ModelFolder(folder)
    config = dict(model.config)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture], use_temp_file=True)
    add_fields(writer, config, dtype)
    if vocabulary:
        add_vocabulary(writer, folder)
    else:
        writer.add_tokenizer_model("none")
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for name in model.names():
        array, source_dtype = model.tensor(name)
        turned = re.search(r"\.self_attn\.([qk])_proj\.", name)
        if turned and config["model_type"] == "llama":
            array = rotary_order(array, heads[turned[1]])
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise KeyError(f"{folder}: GGUF has no name for tensor {name}")
        add_tensor(writer, found, array, source_dtype, dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("path")
    parser.add_argument("--dtype", choices=sorted(FILE_TYPES), default="bf16")
    parser.add_argument("--vocabulary", action="store_true", help="include the tokenizer, which servers need")
    args = parser.parse_args()
    export(args.folder, args.path, args.dtype, args.vocabulary)


if __name__ == "__main__":
    main()
