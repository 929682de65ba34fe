#!/usr/bin/env python3
"""Makes the golden files of the tokenizer tests with the Hugging Face `tokenizers` library.

    make_golden.py [--text FILE] [--demo FOLDER]

Trains one small tokenizer of every kind that Tandem reads, on --text or, without it, on sources of the Python
standard library, and writes it to <kind>/tokenizer.json beside this script. Then encodes the strings of
strings.json, made here from a fixed seed, with every tokenizer, and freezes ids and decoded text in
<kind>/golden.json; components.json has single components in place of those of one kind. With --demo the
tokenizer of the demo models is copied from that folder and becomes one more kind. Training breaks ties at
random, so every run gives slightly different vocabularies, and golden files that go with them.
"""

import argparse
import json
import pathlib
import random
import shutil
import sysconfig

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
NUM_STRINGS = 2000

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

SPECIALS = [
    "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
    "<|bos|>", "<|user|>", "[INST]", "[/INST]", "<tool>", "half", "<mask>",
]

WORDS = (
    "the of and speculative decoding draft verify token tree window don't we'll I'M it'S they'VE you're "
    "naïve café Zürich straße İstanbul ſharp Kelvin Ελλάδα αβγδ Привет мир Ёлка שלום עולם مرحبا بالعالم "
    "नमस्ते दुनिया สวัสดีชาวโลก こんにちは 世界 カタカナ ｶﾀｶﾅ 안녕하세요 你好世界 繁體字 ქართული Հայերեն አማርኛ "
    "e\u0301 a\u0308\u0323 a\u0323\u0308 q\u0307\u0323 \u1e9b\u0323 \u2126 \u212b \ufb01 \u0344 \u0958 "
    "\u1100\u1161\u11a8 각 \u0f73 \u0f71\u0f72 ½ ² Ⅷ ٣٤٥ ४५६ 𝟘𝟙 ①② 一二三 "
    "👍 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭🇯🇵 ❤️ 🤷🏾‍♀️ © ™ € £ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001d11e "
    "def foo(x): return x**2; if(a==b){c+=1;} std::vector<int> x; // note /* c */ #include <a.h> 0xDEADBEEF "
    "3.14159 1,000,000 12345678901234567890 2026-11-21 a_b_c camelCase snake_case __init__ http://x.y/z?q=1&r=2 "
    "user@mail.org ... !!! ?!?! --- === <<>> '' \"\" `x` ~ ^ | \\n \\ ▁ ▁▁ Ġ Ċ <0x0A> <0x41> \ufeff \u200b \u200d"
).split(" ")
BLANKS = [" ", " ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\r", "\u00a0", "\u3000",
          "\u2028", "\u0085", "\u180e", "\x0b", "\x0c", "        ", ""]
# Ranges that every Unicode version in use here agrees on.
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x2ff), (0x300, 0x36f), (0x390, 0x3ff), (0x400, 0x4ff),
          (0x5d0, 0x5ea), (0x621, 0x64a), (0x905, 0x939), (0xe01, 0xe3a), (0x10d0, 0x10f0), (0x1100, 0x1112),
          (0x1e00, 0x1eff), (0x1f00, 0x1f15), (0x2000, 0x206f), (0x2100, 0x214f), (0x2190, 0x21ff),
          (0x2460, 0x24ff), (0x3041, 0x30ff), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0xff01, 0xff9f),
          (0x1d400, 0x1d454), (0x1f300, 0x1f5ff), (0x1f600, 0x1f64f), (0x20000, 0x2a6d6), (0x0, 0x1f)]


def random_character(rng):
    return chr(rng.randint(*rng.choice(RANGES)))


def random_string(rng):
    kind = rng.random()
    if kind < 0.50:
        parts = []
        for _ in range(rng.randint(1, 7)):
            parts.append(rng.choice(WORDS))
            parts.append(rng.choice(BLANKS))
        return "".join(parts)
    if kind < 0.65:
        return "".join(random_character(rng) for _ in range(rng.randint(1, 10)))
    if kind < 0.72:
        return rng.randbytes(rng.randint(1, 16)).decode("latin-1")
    if kind < 0.77:
        return rng.randbytes(rng.randint(1, 16)).decode("utf-8", errors="replace")
    if kind < 0.92:
        parts = []
        for _ in range(rng.randint(1, 4)):
            parts += [rng.choice(WORDS + [""]), rng.choice(BLANKS), rng.choice(SPECIALS), rng.choice(BLANKS)]
        return "".join(parts)
    if kind < 0.96:
        return "".join(rng.choice(BLANKS) for _ in range(rng.randint(1, 10)))
    base = "".join(chr(rng.randint(0x300, 0x344)) if rng.random() < 0.7 else rng.choice("aeou")
                   for _ in range(rng.randint(1, 8)))
    return rng.choice("eaoKq") + base


def make_strings(seed, count):
    rng = random.Random(seed)
    fixed = ["", " ", "a", "  ", "\n", "Hello world", " Hello", "Hello ", "<s>", "<s> a", "▁", "▁a", " ▁a",
             "a" * 300, "ab" * 150, " " * 200, "\n" * 100, "1" * 100, "世" * 60, "é" * 80, "e\u0301" * 60,
             "a<s>b", "half", "halfway", " half ", "a  <mask>  b", "<mask>  <mask>"]
    strings = list(dict.fromkeys(fixed))
    seen = set(strings)
    while len(strings) < count:
        text = random_string(rng)
        if text not in seen:
            seen.add(text)
            strings.append(text)
    return strings


def training_text(path):
    if path:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")[:2_000_000].splitlines(True)
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    lines = []
    for name in ("argparse.py", "heapq.py", "bisect.py", "random.py", "statistics.py", "textwrap.py"):
        lines += (library / name).read_text(encoding="utf-8").splitlines(True)
    return lines


def train(kind, lines, vocab_size, specials, initial_alphabet):
    # Text in many scripts, so that merges of their characters occur too.
    lines = lines + make_strings(99, 1500)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=initial_alphabet, limit_alphabet=400)
    kind.train_from_iterator(lines, trainer)
    return kind


def byte_level(lines, pre_tokenizer, specials, normalizer=None, add_prefix_space=False):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, lines, 1000, specials, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def gpt2(lines):
    tokenizer = byte_level(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix_space(lines):
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    tokenizer = byte_level(lines, pre_tokenizers.Sequence(steps), ["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("half", single_word=True), AddedToken("<tool>", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    return tokenizer


def split_words(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def llama3(lines):
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer = byte_level(lines, split_words(LLAMA3_WORDS), [])
    # As in the original, special tokens come after the vocabulary and merges give way to whole words.
    tokenizer.add_special_tokens(specials)
    definition = json.loads(tokenizer.to_str())
    definition["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                      special_tokens=[(bos, tokenizer.token_to_id(bos))]),
    ])
    return tokenizer


def qwen2(lines):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level(lines, split_words(QWEN2_WORDS), [], normalizers.NFC())
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def with_bytes(tokenizer):
    """Rebuilds a trained SentencePiece-style tokenizer with byte tokens behind its special ones."""
    definition = json.loads(tokenizer.to_str())
    old = definition["model"]["vocab"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [name for name, _ in sorted(old.items(), key=lambda item: item[1]) if name not in names]
    definition["model"].update(vocab={name: i for i, name in enumerate(names)}, byte_fallback=True,
                               fuse_unk=True, unk_token="<unk>")
    for token in definition["added_tokens"]:
        token["id"] = names.index(token["content"])
    return Tokenizer.from_str(json.dumps(definition))


def frame_with_bos(tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


SENTENCEPIECE_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                         decoders.Strip(" ", 1, 0)]


def llama2(lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    # Trained on words, as SentencePiece does, and used without a pre-tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(tokenizer, lines, 1100, ["<unk>", "<s>", "</s>"], [])
    tokenizer = with_bytes(tokenizer)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(SENTENCEPIECE_DECODER)
    # An added token that is looked for in normalized text.
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    return frame_with_bos(tokenizer)


def mistral(lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    train(tokenizer, lines, 1100, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], [])
    tokenizer = with_bytes(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(SENTENCEPIECE_DECODER)
    return frame_with_bos(tokenizer)


def unknown(lines):
    """No byte tokens: what the vocabulary lacks becomes <unk>, once for each run of characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase(),
         normalizers.Replace(Regex(r"\s+"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return train(tokenizer, lines, 600, ["<unk>", "<s>", "</s>"], [])


KINDS = {"gpt2": gpt2, "gpt2_prefix_space": gpt2_prefix_space, "llama3": llama3, "qwen2": qwen2,
         "llama2": llama2, "mistral": mistral, "unknown": unknown}


def freeze(folder, strings):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids, decoded, framed, plain = [], {}, {}, {}
    for index, text in enumerate(strings):
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        ids.append(" ".join(map(str, encoded)))
        back = tokenizer.decode(encoded, skip_special_tokens=False)
        skipped = tokenizer.decode(encoded, skip_special_tokens=True)
        if back != text or skipped != text:
            # Equal to the text, or to the other one, goes without saying.
            decoded[index] = [back] if skipped == back else [back, skipped]
        if index % 40 == 0:
            framed[index] = tokenizer.encode(text, add_special_tokens=True).ids
    tokenizer.encode_special_tokens = True
    for index, text in enumerate(strings):
        as_text = " ".join(map(str, tokenizer.encode(text, add_special_tokens=False).ids))
        if as_text != ids[index]:
            plain[index] = as_text
    golden = {"ids": ids, "decoded": decoded, "framed": framed, "special_as_text": plain}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('","', '",\n"') + "\n", encoding="utf-8")


def freeze_components(strings):
    """Swaps single components into the GPT-2 kind, for what no whole kind uses."""
    base = json.loads((HERE / "gpt2" / "tokenizer.json").read_text(encoding="utf-8"))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def split(pattern, behavior, invert):
        step = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
        return {"type": "Sequence", "pretokenizers": [step, byte_level]}

    variants = []
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        variants.append({"pre_tokenizer": split({"Regex": r"\s|e"}, behavior, False)})
        variants.append({"pre_tokenizer": split({"Regex": r"\w+"}, behavior, True)})
        variants.append({"pre_tokenizer": split({"String": "e"}, behavior, False)})
    variants.append({"pre_tokenizer": split({"Regex": r"x*"}, "Isolated", False)})
    variants.append({"pre_tokenizer": split({"Regex": r"^\S|\S$"}, "Isolated", False)})
    variants.append({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}, byte_level]}})
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        variants.append({"normalizer": {"type": form}})
    for left, right in ((True, False), (False, True)):
        variants.append({"normalizer": {"type": "Strip", "strip_left": left, "strip_right": right}})
    chosen = strings[:27] + strings[27::40]
    for variant in variants:
        tokenizer = Tokenizer.from_str(json.dumps({**base, **variant}))
        variant["ids"] = [" ".join(map(str, tokenizer.encode(text).ids)) for text in chosen]
    golden = json.dumps({"texts": chosen, "variants": variants}, ensure_ascii=False, separators=(",", ":"))
    (HERE / "components.json").write_text(golden.replace('","', '",\n"') + "\n", encoding="utf-8")


def write_tokenizer(folder, tokenizer):
    folder.mkdir(exist_ok=True)
    definition = json.loads(tokenizer.to_str())
    text = json.dumps(definition, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", help="a file to train on")
    parser.add_argument("--demo", help="the folder of a demo model")
    arguments = parser.parse_args()
    strings = make_strings(7, NUM_STRINGS)
    (HERE / "strings.json").write_text(
        json.dumps(strings, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    lines = training_text(arguments.text)
    for name, make in KINDS.items():
        write_tokenizer(HERE / name, make(lines))
        freeze(HERE / name, strings)
    freeze_components(strings)
    if arguments.demo:
        (HERE / "demo").mkdir(exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(pathlib.Path(arguments.demo) / file, HERE / "demo" / file)
    freeze(HERE / "demo", strings)


if __name__ == "__main__":
    main()
