#!/usr/bin/env python3
"""Writes a small stop head of random weights beside this script, and what PyTorch computes with it, into golden.json.

Needs what deploy/demo-models/train/ needs.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "deploy/demo-models/train"))
from stop_head import StopHead  # noqa: E402

HIDDEN_SIZE, NUM_LAYERS, NUM_STATES = 12, 2, 6


@torch.no_grad()
def main():
    torch.manual_seed(3)
    head = StopHead(HIDDEN_SIZE, NUM_LAYERS)
    for parameter in head.parameters():
        parameter.normal_(std=0.6)
    states = torch.randn(NUM_STATES, HIDDEN_SIZE)
    # Some that are accepted, some that are not.
    head.output.weight.mul_(0.3)
    head.output.bias.sub_(head(states).mean())
    save_file(head.state_dict(), HERE / "stop_head.safetensors")
    cases = [{"state": state.tolist(), "acceptance": head(state).sigmoid().item()} for state in states]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "golden.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
