#!/usr/bin/env python3
"""Makes tiny DFlash and DSpark heads of random weights with the trainers' own code, and what that code computes with them.

    pip install torch transformers safetensors
    pip install --no-deps speculators==0.9.0 specforge==0.2.0   (and what they import)
    python make_tiny_blocks.py

Both packages write the checkpoints themselves (save_pretrained). Beside what they write, the files get the target's embedding
and, where the head drafts all tokens, its output matrix, so that the heads load without a target. Everything is computed in
float32, with the packages' own masks: SpecForge's create_dflash_sdpa_mask, and speculators' whole forward pass.

golden.json: `tokens` [n] and `states` [n - 1][states * width], what the target gave behind the first n - 1 tokens. `blocks`: for
an anchor, the position of the newest token, the `logits` [positions][vocab] of the positions behind it; null stands for minus
infinity. Of DSpark: `chain`, the block's greedy tokens, each chosen with what the token before it adds to the `logits`, which
are without it; and `chain_logits`, with it.

DeepSpec is no package: its dialect is written here, with what speculators' code computes from the same tensors.
"""

import json
import pathlib
import shutil
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

HERE = pathlib.Path(__file__).resolve().parent / "heads"
VOCAB, DRAFT_VOCAB, HIDDEN, MASK = 48, 31, 32, 46
TOKENS = [3, 17, 45, 8, 0, 29, 33, 21, 21, 6, 47, 12, 4, 40, 9, 30]
ANCHORS = [1, 2, 5, 11]


def layers(types, window, **more):
    return Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=56,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=len(types),
        layer_types=types,
        use_sliding_window="sliding_attention" in types,
        sliding_window=window,
        max_window_layers=len(types),
        vocab_size=VOCAB,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
        **more,
    )


def randomise(module):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(*((-0.3, 0.3) if name.endswith("bias") else (0.6, 1.4)))
            else:
                bound = 1.0 if "embed" in name or "markov_w1" in name else (3.0 / parameter.shape[1]) ** 0.5
                parameter.uniform_(-bound, bound)


def finish(folder, more, golden):
    """Adds the target's tensors to what the package has written, and takes out what is not needed."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors = {name: value for name, value in tensors.items() if name != "t2d"} | more
    save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, path)
    for other in folder.iterdir():
        if other.name not in ("config.json", "model.safetensors"):
            other.unlink()
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def spread(logits, tokens):
    rows = []
    for row in logits.tolist():
        full = [None] * VOCAB
        for token, logit in zip(tokens, row):
            full[token] = logit
        rows.append(full)
    return rows


def fresh(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@torch.no_grad()
def specforge(name="dflash-specforge", seed=21):
    from specforge.algorithms.common.dflash_family_model import create_dflash_sdpa_mask
    from specforge.modeling.draft.dflash import DFlashDraftModel, extract_context_feature

    torch.manual_seed(seed)
    config = layers(["sliding_attention", "full_attention", "sliding_attention"], 5, attention_bias=True)
    config.num_target_layers, config.block_size = 9, 4
    config.dflash_config = {"mask_token_id": MASK, "target_layer_ids": [0, 2, 5]}
    model = DFlashDraftModel(config).eval()
    randomise(model)
    embedding, output = torch.rand(VOCAB, HIDDEN) * 2 - 1, (torch.rand(VOCAB, HIDDEN) * 2 - 1) * (3 / HIDDEN) ** 0.5
    # What the target gave after 0, 1, ... layers: the package chooses from these.
    hidden = [torch.randn(1, len(TOKENS) - 1, HIDDEN) for _ in range(10)]
    states = extract_context_feature(hidden, model.target_layer_ids)
    blocks = []
    for anchor in ANCHORS:
        size = config.block_size
        masks = {
            kind: create_dflash_sdpa_mask(
                torch.tensor([[anchor]]), torch.tensor([[True]]), anchor, size, "cpu", sliding_window=window
            )
            for kind, window in (("full_attention", None), ("sliding_attention", config.sliding_window))
        }
        slots = torch.tensor([[TOKENS[anchor]] + [MASK] * (size - 1)])
        out = model(
            position_ids=torch.arange(anchor + size)[None],
            attention_mask=masks,
            noise_embedding=torch.nn.functional.embedding(slots, embedding),
            target_hidden=states[:, :anchor],
        )
        # As its own loop does: all slots but the anchor's.
        logits = out[0, -size + 1 :] @ output.T
        blocks.append({"anchor": anchor, "logits": spread(logits, range(VOCAB))})
    folder = fresh(name)
    model.save_pretrained(folder)
    finish(
        folder,
        {"embed_tokens.weight": embedding, "lm_head.weight": output},
        {"tokens": TOKENS, "states": states[0].tolist(), "taps": [1, 3, 6], "blocks": blocks},
    )


@torch.no_grad()
def speculators(name, seed, types, draft_vocab, ids, algorithm="dflash", rewrite=None, **fields):
    import speculators.models.dflash.core as core
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    torch.manual_seed(seed)
    anchor_first = fields.get("sample_from_anchor", False)
    size = 4
    is_dspark = algorithm == "dspark"
    config = (DSparkSpeculatorConfig if is_dspark else DFlashSpeculatorConfig)(
        transformer_layer_config=layers(types, 5),
        draft_vocab_size=draft_vocab,
        block_size=size,
        aux_hidden_state_layer_ids=ids,
        mask_token_id=MASK,
        speculators_config=SpeculatorsConfig(
            algorithm=algorithm,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=size if anchor_first else size - 1)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **fields,
    )
    model = (DSparkDraftModel if is_dspark else core.DFlashDraftModel)(config).eval()
    randomise(model)
    tokens = list(range(VOCAB))
    if draft_vocab < VOCAB:
        drafted = torch.tensor(sorted(torch.randperm(VOCAB)[:draft_vocab].tolist()))
        tokens = drafted.tolist()
        t2d = torch.zeros(VOCAB, dtype=torch.bool)
        t2d[drafted] = True
        model.load_vocab_mappings(t2d, drafted - torch.arange(draft_vocab))
    length = len(TOKENS)
    states = torch.randn(1, length, len(ids) * HIDDEN)
    anchors = torch.tensor(ANCHORS)
    chosen = mock.patch.object(core, "select_anchors", lambda *_: (anchors, torch.ones(len(anchors), dtype=torch.bool)))
    with chosen:
        _, logits, _, _, _ = model._backbone_forward(
            states,
            torch.tensor([TOKENS]),
            torch.ones(1, length),
            torch.zeros(1, length, HIDDEN),
            torch.zeros(1, length, dtype=torch.long),
            max_anchors=len(anchors),
        )
    logits = logits.view(len(anchors), size, -1)[:, 0 if anchor_first else 1 :]
    blocks = [{"anchor": anchor, "logits": spread(of, tokens)} for anchor, of in zip(ANCHORS, logits)]
    for block, of in zip(blocks, logits) if is_dspark else ():
        before, block["chain"], biased = TOKENS[block["anchor"]], [], []
        for row in of:
            bias = model.markov_head.block_bias(prev_token_ids=torch.tensor([[before]]), hidden_states=None)
            biased.append(row + bias[0, 0])
            before = tokens[biased[-1].argmax()]
            block["chain"].append(before)
        block["chain_logits"] = spread(torch.stack(biased), tokens)
    folder = fresh(name)
    model.save_pretrained(folder)
    if rewrite is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(rewrite(json.loads(path.read_text())), indent=1) + "\n")
    more = {"embed_tokens.weight": model.embed_tokens.weight}
    if draft_vocab == VOCAB:
        more["lm_head.weight"] = model.lm_head.weight
    finish(folder, more, {"tokens": TOKENS, "states": states[0, :-1].tolist(), "taps": ids, "blocks": blocks})


def deepspec(config):
    """The same head as DeepSpec describes it: numbers of layers, whose outputs it reads."""
    return config["transformer_layer_config"] | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": config["block_size"],
        "mask_token_id": config["mask_token_id"],
        "target_layer_ids": [number - 1 for number in config["aux_hidden_state_layer_ids"]],
        "num_target_layers": 9,
        "num_anchors": 512,
        "markov_rank": config["markov_rank"],
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


if __name__ == "__main__":
    specforge()
    speculators(
        "dflash-speculators",
        22,
        ["full_attention", "sliding_attention", "full_attention"],
        DRAFT_VOCAB,
        [1, 3],
    )
    speculators(
        "dflash-speculators-anchor",
        23,
        ["sliding_attention", "full_attention"],
        VOCAB,
        [2, 4, 6],
        sample_from_anchor=True,
        sliding_window_non_causal=True,
    )
    dspark = {"algorithm": "dspark", "markov_rank": 6}
    speculators("dspark-speculators", 24, ["full_attention"] * 2, DRAFT_VOCAB, [1, 3], sample_from_anchor=True, **dspark)
    speculators(
        "dspark-deepspec",
        25,
        ["full_attention"] * 2,
        VOCAB,
        [2, 4, 6],
        rewrite=deepspec,
        sample_from_anchor=True,
        **dspark,
    )
