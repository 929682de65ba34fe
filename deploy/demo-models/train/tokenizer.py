"""Trains the demo models' tokenizer: byte-level BPE with Llama 3's split rule.

Ids 0-255 are single bytes, then come the merges in the order they were learned, then six special tokens that are
the vocabulary's last entries.
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train_tokenizer(texts, vocab_size):
    """A tokenizer whose vocabulary, special tokens included, has exactly `vocab_size` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Special tokens separate the parts of documents and must not become merges.
    tokenizer.train_from_iterator((_without_special_tokens(text) for text in texts), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the text gave {tokenizer.get_vocab_size()} tokens instead of {vocab_size}: too little text"
        )
    return tokenizer


def _without_special_tokens(text):
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return text


def save_tokenizer(tokenizer, folder):
    """tokenizer.json and tokenizer_config.json, as Hugging Face lays them out."""
    folder = pathlib.Path(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {"content": token, **flags} for token in SPECIAL_TOKENS
        },
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
