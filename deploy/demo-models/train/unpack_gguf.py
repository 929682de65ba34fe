#!/usr/bin/env python3
"""Writes a GGUF file's model as a Hugging Face folder in float32, for the programs here that train for it.

    python unpack_gguf.py --file "$(../../models.sh smollm2-135m)" --output build/smollm2-135m

A head that was trained for the folder drafts for the file too: both have the same norms, by which a drafter knows a head's target
(target_fingerprint.py).
"""

import argparse
import copy
import pathlib
import sys

import torch


def unpack(file, output):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # It saves no model that it has read from a GGUF file.
    config = copy.deepcopy(read.config)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(output)


def main():
    parser = argparse.ArgumentParser(description="Writes a GGUF file's model as a Hugging Face folder.")
    parser.add_argument("--file", required=True, type=pathlib.Path, help="the GGUF file")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="the folder to write")
    args = parser.parse_args()
    unpack(args.file.resolve(strict=True), args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
