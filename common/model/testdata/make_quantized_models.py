#!/usr/bin/env python3
"""Writes quantized/NAME.json beside this script: tiny models in the formats of quantised checkpoints, with reference
values from other implementations.

No weights are kept: they follow from a seed, here and in common/model/testing/quantized_fixture.cc. Element i of tensor t of
the list, with x = Mix64(2^40 + t * 2^24 + i), is, as the last field of a tensor says,

    {"levels": [center, step, bits]}    center + step * (2 * (x >> (64 - bits)) + 1 - 2^bits)
    {"random": true}                    the highest bits of x, as many as the type has; of an F8_E4M3 that would be
                                        no number, the lowest one is cleared
    {"constant": c}, {"values": [..]}   c, or the i-th

Each file holds

    config      config.json, as transformers saves it, and quantization_config
    tensors     [name, type, shape, how it is filled], as they lie in model.safetensors
    matrices    of each quantised matrix, by its name in the model: its shape, its first row, and of all numbers,
                row after row, the sum of (2 i + 1) * (the bits of number i as float32), modulo 2^64
    sequence    tokens in, and logits at some positions

What matrices hold is computed by AutoAWQ's dequantize_gemm (awq), by compressed-tensors' compressors, by
transformers' dequantisation of fp8, all given scales in float32, and for GPTQ by its formula, (code - zero point) *
scale, in numpy. Logits are those of transformers for these matrices, in float32. Needs torch, transformers 5.24,
compressed-tensors 0.20 and the sources of autoawq 0.2.9 (pip install --no-deps --no-build-isolation autoawq).
Run: make_quantized_models.py [NAME ...]
"""

import importlib.util
import json
import pathlib
import sys
import tempfile

import numpy
import safetensors.numpy
import torch
import transformers
from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations import finegrained_fp8

from make_family_models import distribution, rounded
from seeded_values import mix64, values

SEED = 1
SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=48, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_awq():
    """The one file: the package as a whole asks for older libraries."""
    folder = importlib.util.find_spec("awq").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("packing_utils", folder + "/utils/packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def levels(center, step, bits=3):
    return {"levels": [center, step, bits]}


SCALES_OF_4_BITS = levels(2.0 ** -5, 2.0 ** -9)
SCALES_OF_8_BITS = levels(2.0 ** -9, 2.0 ** -13)
RANDOM = {"random": True}


def fill(index, type_name, shape, how):
    """A tensor's elements; floats as float32, F8_E4M3 as bytes."""
    count = int(numpy.prod(shape, dtype=numpy.int64))
    if "levels" in how:
        return values(SEED, index, tuple(shape), *how["levels"])
    if "constant" in how or "values" in how:
        listed = how.get("values", [how.get("constant")] * count)
        kind = {"I64": numpy.int64, "I32": numpy.int32, "I8": numpy.int8}.get(type_name, numpy.float32)
        return numpy.array(listed, dtype=numpy.int64).astype(kind).reshape(shape)
    x = mix64(numpy.uint64((SEED << 40) + (index << 24)) + numpy.arange(count, dtype=numpy.uint64))
    if type_name == "I32":
        return (x >> numpy.uint64(32)).astype(numpy.uint32).view(numpy.int32).reshape(shape)
    highest = (x >> numpy.uint64(56)).astype(numpy.uint8)
    if type_name == "I8":
        return highest.view(numpy.int8).reshape(shape)
    assert type_name == "F8_E4M3"
    return numpy.where(highest & 0x7f == 0x7f, highest & 0xfe, highest).astype(numpy.uint8).reshape(shape)


def ceil(number, by):
    return -(-number // by)


def shuffled_groups(name, inputs, group_size):
    """The group of each input, in an order of its own for each matrix."""
    groups = numpy.arange(inputs) // group_size
    return {"values": numpy.random.default_rng(len(name) + inputs).permutation(groups).tolist()}


class Awq:
    def __init__(self, group_size):
        self.config = dict(quant_method="awq", bits=4, group_size=group_size, zero_point=True, version="gemm",
                           modules_to_not_convert=["lm_head"])
        self.group_size = group_size

    def tensors(self, name, outputs, inputs):
        groups = 1 if self.group_size == -1 else inputs // self.group_size
        return [("qweight", "I32", [inputs, outputs // 8], RANDOM), ("qzeros", "I32", [groups, outputs // 8], RANDOM),
                ("scales", "F16", [groups, outputs], SCALES_OF_4_BITS)]

    def numbers(self, parts, outputs, inputs):
        size = inputs if self.group_size == -1 else self.group_size
        torches = {key: torch.from_numpy(value) for key, value in parts.items()}
        return load_awq().dequantize_gemm(torches["qweight"], torches["qzeros"], torches["scales"], 4, size).T.numpy()


class Gptq:
    def __init__(self, bits, group_size, is_v2=False, sym=False, desc_act=False, has_index=True, zero_biases=False):
        self.bits, self.group_size, self.is_v2, self.sym = bits, group_size, is_v2, sym
        self.desc_act, self.has_index, self.zero_biases = desc_act, has_index, zero_biases
        self.config = dict(quant_method="gptq", bits=bits, group_size=group_size, sym=sym, desc_act=desc_act,
                           damp_percent=0.1, true_sequential=True)
        if is_v2:
            self.config["checkpoint_format"] = "gptq_v2"

    def tensors(self, name, outputs, inputs):
        per_word = 32 // self.bits
        size = inputs if self.group_size == -1 else self.group_size
        groups = ceil(inputs, size)
        zeros = {"constant": 0x77777777} if self.sym else RANDOM
        tensors = [("qweight", "I32", [inputs // per_word, outputs], RANDOM),
                   ("qzeros", "I32", [groups, outputs // per_word], zeros),
                   ("scales", "F16", [groups, outputs], SCALES_OF_4_BITS if self.bits == 4 else SCALES_OF_8_BITS)]
        if self.desc_act:
            tensors.append(("g_idx", "I32", [inputs], shuffled_groups(name, inputs, size)))
        elif self.has_index:
            tensors.append(("g_idx", "I32", [inputs], {"values": [i // size for i in range(inputs)]}))
        if self.zero_biases:
            tensors.append(("bias", "F16", [outputs], {"constant": 0}))
        return tensors

    def numbers(self, parts, outputs, inputs):
        shifts = numpy.arange(0, 32, self.bits, dtype=numpy.uint32)
        mask = numpy.uint32(2 ** self.bits - 1)
        # [inputs / n, n, outputs] and [groups, outputs / n, n]
        codes = (parts["qweight"].view(numpy.uint32)[:, None, :] >> shifts[None, :, None]) & mask
        zeros = (parts["qzeros"].view(numpy.uint32)[:, :, None] >> shifts[None, None, :]) & mask
        codes = codes.reshape(inputs, outputs).astype(numpy.int64)
        zeros = zeros.reshape(-1, outputs).astype(numpy.int64) + (0 if self.is_v2 else 1)
        size = inputs if self.group_size == -1 else self.group_size
        groups = parts["g_idx"] if "g_idx" in parts else numpy.arange(inputs) // size
        return ((codes - zeros[groups]).astype(numpy.float32) * parts["scales"][groups]).T


class CompressedTensors:
    def __init__(self, format_name, scale_type="F32", extra=(), static=False, **weights):
        self.format, self.scale_type, self.static = format_name, scale_type, static
        self.weights = dict(weights)
        self.args = QuantizationArgs(**{key: value for key, value in weights.items() if key != "actorder"})
        activations = dict(num_bits=8, type=weights["type"], symmetric=True, strategy="tensor", dynamic=not static)
        group = dict(targets=["Linear"], weights=self.weights,
                     input_activations=None if format_name == "pack-quantized" else activations, output_activations=None)
        self.config = dict(quant_method="compressed-tensors", format=format_name, ignore=["lm_head"],
                           config_groups=dict(group_0=group), kv_cache_scheme=None, quantization_status="compressed",
                           **dict(extra))

    def grid(self, outputs, inputs):
        strategy = self.weights["strategy"]
        if strategy == "tensor":
            return [1]
        if strategy == "block":
            rows, columns = self.weights["block_structure"]
            return [ceil(outputs, rows), ceil(inputs, columns)]
        return [outputs, inputs // self.weights["group_size"] if strategy == "group" else 1]

    def tensors(self, name, outputs, inputs):
        is_packed, symmetric = self.format == "pack-quantized", self.weights.get("symmetric", True)
        bits = self.weights["num_bits"]
        grid = self.grid(outputs, inputs)
        scales = ("weight_scale", self.scale_type, grid, SCALES_OF_4_BITS if bits == 4 else SCALES_OF_8_BITS)
        if not is_packed:
            codes = "F8_E4M3" if self.weights["type"] == "float" else "I8"
            tensors = [("weight", codes, [outputs, inputs], RANDOM), scales]
            if not symmetric:
                tensors.append(("weight_zero_point", "I8", grid, RANDOM))
            if self.static:
                tensors.append(("input_scale", "F32", [1], levels(1.0, 2.0 ** -4)))
            return tensors
        per_word = 32 // bits
        tensors = [("weight_packed", "I32", [outputs, ceil(inputs, per_word)], RANDOM), scales,
                   ("weight_shape", "I64", [2], {"values": [outputs, inputs]})]
        if not symmetric:
            tensors.append(("weight_zero_point", "I32", [ceil(outputs, per_word), grid[1]], RANDOM))
        if self.weights.get("actorder") == "group":
            tensors.append(("weight_g_idx", "I32", [inputs],
                            shuffled_groups(name, inputs, self.weights["group_size"])))
        return tensors

    def numbers(self, parts, outputs, inputs):
        state = {key: torch.from_numpy(value) for key, value in parts.items()}
        if self.weights["type"] == "float":
            state["weight"] = state["weight"].view(torch.float8_e4m3fn)
        if "weight_g_idx" in state:
            # Version 0.20 no longer reads these: earlier ones took of each input the scale of its group.
            codes = unpack_from_int32(state["weight_packed"], self.weights["num_bits"], torch.Size([outputs, inputs]))
            return (codes.float() * state["weight_scale"][:, state["weight_g_idx"].long()]).numpy()
        if "weight_shape" in state:
            state["weight_shape"] = torch.Size(state["weight_shape"].tolist())
        scheme = QuantizationScheme(targets=["Linear"], weights=self.args)
        compressor = PackedQuantizationCompressor if self.format == "pack-quantized" else NaiveQuantizationCompressor
        return compressor.decompress(state, scheme)["weight"].float().numpy()


class Fp8:
    def __init__(self, block, scale_type="F32"):
        self.block, self.scale_type = block, scale_type
        self.config = dict(quant_method="fp8", activation_scheme="static" if block is None else "dynamic")
        if block is None:
            self.config["ignored_layers"] = ["lm_head"]
        else:
            self.config.update(fmt="e4m3", weight_block_size=block, modules_to_not_convert=["lm_head"])

    def tensors(self, name, outputs, inputs):
        if self.block is None:
            return [("weight", "F8_E4M3", [outputs, inputs], RANDOM), ("weight_scale", "F32", [], SCALES_OF_8_BITS),
                    ("input_scale", "F32", [], levels(1.0, 2.0 ** -4))]
        grid = [ceil(outputs, self.block[0]), ceil(inputs, self.block[1])]
        return [("weight", "F8_E4M3", [outputs, inputs], RANDOM),
                ("weight_scale_inv", self.scale_type, grid, SCALES_OF_8_BITS)]

    def numbers(self, parts, outputs, inputs):
        scale = torch.from_numpy(parts["weight_scale" if self.block is None else "weight_scale_inv"])
        weight = torch.from_numpy(parts["weight"]).view(torch.float8_e4m3fn)
        return finegrained_fp8._dequantize_fp8_weight(weight, scale, self.block, torch.float32).numpy()


def llama(**sizes):
    return transformers.LlamaConfig(**{**SIZES, **sizes})


# name -> (configuration, format, parts of names of matrices that are kept as they are)
MODELS = {
    "awq": (llama(num_hidden_layers=2), Awq(16), ["lm_head", "layers.1.self_attn.v_proj"]),
    # All inputs of an output in one group; queries, keys and values in one matrix.
    "awq-phi3": (transformers.Phi3Config(**SIZES), Awq(-1), ["lm_head"]),
    "gptq-4-bit": (transformers.Qwen2Config(**SIZES), Gptq(4, 16, desc_act=True), []),
    # The last group is half full.
    "gptq-8-bit-v2": (llama(), Gptq(8, 32, is_v2=True, has_index=False), ["lm_head"]),
    "gptq-symmetric": (llama(), Gptq(4, -1, sym=True, zero_biases=True), ["lm_head"]),
    "float-channel": (llama(), CompressedTensors("float-quantized", "BF16", num_bits=8, type="float",
                                                 strategy="channel"), ["lm_head"]),
    "float-tensor": (transformers.Qwen2Config(**SIZES), CompressedTensors(
        "naive-quantized", num_bits=8, type="float", strategy="tensor", static=True), ["lm_head", "o_proj"]),
    "float-blocks": (llama(), CompressedTensors("float-quantized", num_bits=8, type="float", strategy="block",
                                                block_structure=[20, 24]), ["lm_head"]),
    "int8-channel": (llama(), CompressedTensors("int-quantized", "BF16", num_bits=8, type="int",
                                                strategy="channel"), ["lm_head"]),
    "int8-zero-points": (llama(), CompressedTensors("int-quantized", num_bits=8, type="int", strategy="channel",
                                                    symmetric=False), ["lm_head"]),
    "packed-4-bit": (llama(), CompressedTensors("pack-quantized", "F16", num_bits=4, type="int", strategy="group",
                                                group_size=16), ["lm_head"]),
    # Words that are not full, of codes and of zero points.
    "packed-zero-points": (llama(intermediate_size=44), CompressedTensors(
        "pack-quantized", "BF16", num_bits=4, type="int", strategy="group", group_size=4, symmetric=False),
        ["lm_head"]),
    "packed-8-bit": (llama(), CompressedTensors("pack-quantized", num_bits=8, type="int", strategy="channel"),
                     ["lm_head"]),
    "packed-group-index": (llama(), CompressedTensors("pack-quantized", num_bits=4, type="int", strategy="group",
                                                      group_size=16, actorder="group"), ["lm_head"]),
    # Blocks at the ends are not full; experts, whose router is not quantised.
    "fp8-blocks": (transformers.Qwen3MoeConfig(**{**SIZES, "head_dim": 16, "moe_intermediate_size": 24,
                                                  "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
                   Fp8([16, 20], "BF16"), ["lm_head", "mlp.gate."]),
    # As DeepSeek-V3's files: latent attention, whose matrices of heads lie across blocks.
    "fp8-blocks-latent": (transformers.DeepseekV3Config(
        q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
        moe_intermediate_size=24, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        first_k_dense_replace=0, num_mtp_layers=0, **{**SIZES, "num_key_value_heads": 4}),
        Fp8([16, 20]), ["lm_head", "mlp.gate."]),
    "fp8-tensor": (llama(), Fp8(None), ["lm_head"]),
}


def digest(numbers):
    bits = numbers.astype(numpy.float32).reshape(-1).view(numpy.uint32).astype(numpy.uint64)
    with numpy.errstate(over="ignore"):
        return int(((2 * numpy.arange(bits.size, dtype=numpy.uint64) + numpy.uint64(1)) * bits).sum())


def is_matrix(name, shape, kept):
    return len(shape) == 2 and "embed" not in name and not any(part in name for part in kept)


def make(name):
    config, kind, kept = MODELS[name]
    config.tie_word_embeddings = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        saved = {key: value.shape for key, value in safetensors.numpy.load_file(folder / "model.safetensors").items()}
        tensors, state, matrices = [], {}, {}
        for tensor, shape in sorted(saved.items()):
            if not is_matrix(tensor, shape, kept):
                how = levels(*distribution(tensor, shape, config))
                tensors.append([tensor, "F16", list(shape), how])
                state[tensor] = fill(len(tensors) - 1, "F16", shape, how)
                continue
            parts = {}
            for suffix, type_name, of, how in kind.tensors(tensor, *shape):
                tensors.append([tensor.removesuffix("weight") + suffix, type_name, of, how])
                parts[suffix] = fill(len(tensors) - 1, type_name, of, how)
            numbers = numpy.ascontiguousarray(kind.numbers(parts, *shape), dtype=numpy.float32)
            assert numbers.shape == shape, (tensor, numbers.shape, shape)
            assert numpy.isfinite(numbers).all()
            state[tensor] = numbers
            matrices[tensor] = dict(shape=list(shape), row=numbers[0].astype(float).tolist(), digest=str(digest(numbers)))
        safetensors.numpy.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        tokens = numpy.random.default_rng(SEED).integers(0, config.vocab_size, 12).tolist()
        with torch.no_grad():
            logits = model.eval()(torch.tensor([tokens]), use_cache=False).logits[0]
        sequence = dict(tokens=tokens, positions=[0, 11], logits=[rounded(logits[p].tolist()) for p in (0, 11)])
        saved_config = json.loads((folder / "config.json").read_text())
        saved_config["quantization_config"] = kind.config
        path = pathlib.Path(__file__).parent / "quantized" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        lines = ",\n  ".join(json.dumps(tensor) for tensor in tensors)
        rows = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in matrices.items())
        path.write_text(f'{{"config": {json.dumps(saved_config, sort_keys=True)},\n "tensors": [\n  {lines}],\n '
                        f'"matrices": {{\n  {rows}}},\n "sequence": {json.dumps(sequence)}}}\n')
        json.loads(path.read_text())
        print(f"{name}: {path.stat().st_size} bytes, logits {logits.std().item():.2f}", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or MODELS:
        make(name)


if __name__ == "__main__":
    main()
