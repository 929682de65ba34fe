#!/usr/bin/env python3
"""Makes unicode_tables.inc: where the Hugging Face `tokenizers` library classes characters otherwise than the
libraries that Tandem is built with.

    make_unicode_tables.py > common/tokenizer/unicode/unicode_tables.inc

Asks `tokenizers` (0.23.3: Oniguruma and Rust of Unicode 16 and 17, normal forms of about 9, scripts of its own)
about every character, and PCRE2 10.42 and utf8proc 2.8.0 of Debian 12, by ctypes, about the same.
"""

import ctypes
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
BLOCK = 4096
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co").split()
SCRIPTS = """
adlam adlm aghb ahom anatolianhieroglyphs arab arabic armenian armi armn avestan avst bali balinese bamu
bamum bass bassavah batak batk beng bengali bhaiksuki bhks bopo bopomofo brah brahmi brai braille bugi
buginese buhd buhid cakm canadianaboriginal cans cari carian caucasianalbanian chakma cham cher cherokee
chorasmian chrs common copt coptic cpmn cprt cuneiform cypriot cyprominoan cyrillic cyrl deseret deva
devanagari diak divesakuru dogr dogra dsrt dupl duployan egyp egyptianhieroglyphs elba elbasan elym elymaic
ethi ethiopic geor georgian glag glagolitic gong gonm goth gothic gran grantha greek grek gujarati gujr
gunjalagondi gurmukhi guru han hang hangul hani hanifirohingya hano hanunoo hatr hatran hebr hebrew hira
hiragana hluw hmng hmnp hung imperialaramaic inherited inscriptionalpahlavi inscriptionalparthian ital java
javanese kaithi kali kana kannada katakana kayahli khar kharoshthi khitansmallscript khmer khmr khoj khojki
khudawadi kits knda kthi lana lao laoo latin latn lepc lepcha limb limbu lina linb lineara linearb lisu lyci
lycian lydi lydian mahajani mahj maka makasar malayalam mand mandaic mani manichaean marc marchen
masaramgondi medefaidrin medf meeteimayek mend mendekikakui merc mero meroiticcursive meroitichieroglyphs
miao mlym modi mong mongolian mro mroo mtei mult multani myanmar mymr nabataean nand nandinagari narb nbat
newa newtailue nko nkoo nshu nushu nyiakengpuachuehmong ogam ogham olchiki olck oldhungarian olditalic
oldnortharabian oldpermic oldpersian oldsogdian oldsoutharabian oldturkic olduyghur oriya orkh orya osage
osge osma osmanya ougr pahawhhmong palm palmyrene pauc paucinhau perm phag phagspa phli phlp phnx phoenician
plrd prti psalterpahlavi qaac qaai rejang rjng rohg runic runr samaritan samr sarb saur saurashtra sgnw
sharada shavian shaw shrd sidd siddham signwriting sind sinh sinhala sogd sogdian sogo sora sorasompeng soyo
soyombo sund sundanese sylo sylotinagri syrc syriac tagalog tagb tagbanwa taile taitham taiviet takr takri
tale talu tamil taml tang tangsa tangut tavt telu telugu tfng tglg thaa thaana thai tibetan tibt tifinagh
tirh tirhuta tnsa toto ugar ugaritic unknown vai vaii vith vithkuqi wancho wara warangciti wcho xpeo xsux
yezi yezidi yiii zanabazarsquare zanb zinh zyyy zzzz
""".split()
# Scripts in which stand-ins for characters of scripts that PCRE2 does not know are looked for first: no
# tokenizer asks for them.
RARE_SCRIPTS = ("linb osma perm brah yezi shrd dsrt cari hung elba nand zanb soyo marc mend phag batk kthi maka "
                "rohg sogd sogo khar avst sarb merc mero limb bass hmng plrd").split()
NUM_CANDIDATES = 4


def blocks():
    for begin in range(0, len(CHARACTERS), BLOCK):
        yield CHARACTERS[begin:begin + BLOCK]


def removed_by(normalizer):
    """The characters that a normalizer removes."""
    removed = set()
    for block in blocks():
        left = set(map(ord, normalizer.normalize_str("".join(map(chr, block)))))
        removed.update(c for c in block if c not in left)
    return removed


def oniguruma(pattern):
    return removed_by(normalizers.Replace(Regex(pattern), ""))


class Pcre2:
    def __init__(self):
        self.lib = ctypes.CDLL("libpcre2-8.so.0")
        for name in ("pcre2_compile_8", "pcre2_match_data_create_from_pattern_8", "pcre2_get_ovector_pointer_8"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.text = "".join(map(chr, CHARACTERS)).encode()

    def members(self, pattern):
        error, offset = ctypes.c_int(), ctypes.c_size_t()
        source = (pattern + "+").encode()
        code = self.lib.pcre2_compile_8(source, ctypes.c_size_t(len(source)), 0x000A0000, ctypes.byref(error),
                                        ctypes.byref(offset), None)
        if not code:
            raise ValueError(pattern)
        data = self.lib.pcre2_match_data_create_from_pattern_8(ctypes.c_void_p(code), None)
        vector = ctypes.cast(self.lib.pcre2_get_ovector_pointer_8(ctypes.c_void_p(data)),
                             ctypes.POINTER(ctypes.c_size_t))
        found, at = set(), 0
        while self.lib.pcre2_match_8(ctypes.c_void_p(code), self.text, ctypes.c_size_t(len(self.text)),
                                     ctypes.c_size_t(at), 0x40000000, ctypes.c_void_p(data), None) > 0:
            found.update(map(ord, self.text[vector[0]:vector[1]].decode()))
            at = vector[1]
        return found


def ranges(characters):
    out = []
    for c in sorted(characters):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def make_stand_ins(pcre2):
    """For each run of newer characters: older ones of the same length, category, case and script."""
    category, old_category, script = {}, {}, {}
    for name in CATEGORIES:
        category.update(dict.fromkeys(oniguruma(r"\p{%s}" % name), name))
        old_category.update(dict.fromkeys(pcre2.members(r"\p{%s}" % name), name))
    newer = {c for c in CHARACTERS if category.get(c) != old_category.get(c)}
    scripts = {name: (oniguruma(r"\p{%s}" % name), pcre2.members(r"\p{sc:%s}" % name)) for name in SCRIPTS}
    for name in sorted(scripts, key=len, reverse=True):
        script.update(dict.fromkeys(scripts[name][0], name))
    cased = [oniguruma(r"\p{%s}" % name) for name in ("Alphabetic", "Lowercase", "Uppercase")]

    def key(c):
        return (len(chr(c).encode()), category[c], *[c in members for members in cased])

    candidates = {}
    for c in sorted(set(category) - newer, key=lambda c: (script.get(c) not in RARE_SCRIPTS, c)):
        if category[c] != "Co":
            for name in (script.get(c), None):
                candidates.setdefault((name, *key(c)), []).append(c)
    def first(choices):
        return (choices[:NUM_CANDIDATES] + choices[:1] * NUM_CANDIDATES)[:NUM_CANDIDATES]

    def spread(choices):
        # From different places, so that no range of a pattern holds them all.
        return first(sorted(choices)[::max(1, len(choices) // NUM_CANDIDATES)])

    runs = []
    for c in sorted(newer):
        of_any = candidates[(None, *key(c))]
        of_script = candidates.get((script[c], *key(c))) if c in script else None
        chosen = (spread(of_script) if of_script else first(of_any)) + spread(of_any)
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == chosen:
            runs[-1][1] = c
        else:
            runs.append([c, c, chosen])

    def is_exact(expected, old):
        return expected - newer == old - newer and all(
            (begin in expected) == (c in old) for begin, _, chosen in runs for c in chosen[:NUM_CANDIDATES])

    refused = sorted(name for name, (expected, old) in scripts.items() if not is_exact(expected, old))
    return runs, refused, newer


class Utf8proc:
    STABLE, COMPAT, COMPOSE, DECOMPOSE = 2, 4, 8, 16

    def __init__(self):
        self.lib = ctypes.CDLL("libutf8proc.so.2")
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def map(self, text, options):
        out, source = ctypes.c_void_p(), text.encode()
        length = self.lib.utf8proc_map(source, ctypes.c_ssize_t(len(source)), ctypes.byref(out), options)
        result = ctypes.string_at(out, length).decode()
        self.free(out)
        return result


def make_without_normal_form(utf8proc, newer):
    """Characters that utf8proc decomposes or reorders, and `tokenizers` does not know."""
    forms = [(normalizers.NFD(), utf8proc.DECOMPOSE), (normalizers.NFKD(), utf8proc.DECOMPOSE | utf8proc.COMPAT),
             (normalizers.NFC(), utf8proc.COMPOSE), (normalizers.NFKC(), utf8proc.COMPOSE | utf8proc.COMPAT)]
    # The newest libraries may know what both of these do not.
    found = set(newer)
    for normalizer, options in forms:
        found.update(c for c in CHARACTERS[1:]
                     if normalizer.normalize_str(chr(c)) != utf8proc.map(chr(c), options | utf8proc.STABLE))
    classes = {}
    for c in CHARACTERS:
        classes.setdefault(unicodedata.combining(chr(c)), chr(c))
    lowest, highest = (classes[f(k for k in classes if k)] for f in (min, max))
    below, above, virama, kana = classes[220], classes[230], classes[9], classes[8]
    for c in CHARACTERS[1:]:
        x = chr(c)
        for text in ("a" + highest + x + lowest, "a" + above + x + below, "a" + x + below + above,
                     "a" + above + below + x, "a" + virama + x + kana):
            if c not in found and normalizers.NFD().normalize_str(text) != utf8proc.map(
                    text, utf8proc.DECOMPOSE | utf8proc.STABLE):
                found.add(c)
    return ranges(found)


def make_lowercase(utf8proc):
    lower = normalizers.Lowercase()
    runs = []
    for c in CHARACTERS:
        text = lower.normalize_str(chr(c))
        if len(text) == 1 and ord(text) != utf8proc.lib.utf8proc_tolower(c):
            if runs and runs[-1][1] == c - 1 and runs[-1][2] == ord(text) - c:
                runs[-1][1] = c
            else:
                runs.append([c, c, ord(text) - c])
    return runs


def split_off(pre_tokenizer):
    return {c for c in CHARACTERS if len(pre_tokenizer.pre_tokenize_str("a" + chr(c))) == 2}


def make_scripts():
    """Runs of characters that UnicodeScripts takes together, numbered; those left out go with anything."""
    splitter = pre_tokenizers.UnicodeScripts()

    def differ(a, b):
        return len(splitter.pre_tokenize_str(chr(a) + chr(b))) == 2

    runs, first_of = [], []
    for c in CHARACTERS:
        if not differ(0x61, c) and not differ(0x3B1, c):
            continue
        if runs and runs[-1][1] == c - 1 and not differ(c - 1, c):
            runs[-1][1] = c
            continue
        number = next((i for i, first in enumerate(first_of) if not differ(first, c)), len(first_of))
        if number == len(first_of):
            first_of.append(c)
        runs.append([c, c, number + 1])
    return runs


def print_table(kind, name, entries):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for entry in entries:
        if len(line) + len(entry) + 2 > 110:
            print(line)
            line = "   "
        line += f" {entry},"
    print(line + "\n};\n")


def pair(run):
    return f"{{0x{run[0]:X}, 0x{run[1]:X}}}"


def main():
    pcre2, utf8proc = Pcre2(), Utf8proc()
    stand_ins, refused, newer = make_stand_ins(pcre2)
    category = utf8proc.lib.utf8proc_category
    words = pre_tokenizers.Whitespace()
    in_word = {c for c in CHARACTERS if [p[0] for p in words.pre_tokenize_str("a" + chr(c))] == ["a" + chr(c)]}
    known_words = {*range(1, 11), 12}
    print("// Made by testdata/make_unicode_tables.py, which says what of. For unicode_tables.cc.\n")
    print_table("StandIn", "kStandIns", [
        "{0x%X, 0x%X, {%s}}" % (first, last, ", ".join(f"0x{c:X}" for c in chosen))
        for first, last, chosen in stand_ins])
    print_table("absl::string_view", "kScriptsWithNewer", [f'"{name}"' for name in refused])
    print_table("CodePointRange", "kWithoutNormalForm", map(pair, make_without_normal_form(utf8proc, newer)))
    print_table("CodePointRange", "kNewerWord", map(pair, ranges(c for c in in_word if not (
        category(c) in known_words or c in (0x200C, 0x200D) or unicodedata.category(chr(c)) == "So"))))
    print_table("CodePointRange", "kNewerNumeric", map(pair, ranges(
        c for c in split_off(pre_tokenizers.Digits(individual_digits=False)) if category(c) not in (9, 10, 11))))
    print_table("CodePointRange", "kPunctuation", map(pair, ranges(
        split_off(pre_tokenizers.Punctuation("isolated")))))
    print_table("Shift", "kNewerLowercase", [
        f"{{0x{a:X}, 0x{b:X}, {by}}}" for a, b, by in make_lowercase(utf8proc)])
    print_table("ScriptRun", "kScripts", [f"{{0x{a:X}, 0x{b:X}, {number}}}" for a, b, number in make_scripts()])


if __name__ == "__main__":
    main()
