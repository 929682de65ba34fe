"""The demo models' recipe as data: shapes, stages, domain weights. The model card explains it in words."""

import dataclasses

VOCAB_SIZE = 4096
DOMAINS = ("story", "news", "code", "math")

GENERAL_WEIGHTS = {"story": 0.32, "news": 0.16, "code": 0.28, "math": 0.24}
CODE_WEIGHTS = {"story": 0.05, "news": 0.05, "code": 0.82, "math": 0.08}
MATH_WEIGHTS = {"story": 0.07, "news": 0.04, "code": 0.07, "math": 0.82}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A Llama architecture. Heads are `head_dim` wide; the output matrix is the embedding's."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    head_dim: int = 64


TARGET_15M = Shape(hidden_size=384, num_layers=8, num_heads=6, num_kv_heads=2, ffn_size=1024)
DRAFT_1M = Shape(hidden_size=128, num_layers=2, num_heads=2, num_kv_heads=1, ffn_size=384)
DRAFT_4M = Shape(hidden_size=256, num_layers=3, num_heads=4, num_kv_heads=1, ffn_size=704)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One learning-rate schedule over one loss. `teacher` names the model whose distribution is matched;
    without one the loss is cross-entropy with the text itself."""

    steps: int
    peak_lr: float
    weights: dict
    teacher: str = ""

    @property
    def weight_decay(self):
        return 0.02 if self.teacher else 0.1


@dataclasses.dataclass(frozen=True)
class ModelRecipe:
    """A model and its stages in order. It starts from `start`, an earlier model of its shape, or at random."""

    name: str
    shape: Shape
    stages: tuple
    start: str = ""
    # A model from which others start, and that is not served.
    intermediate: bool = False


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything a run needs besides the corpus."""

    models: tuple
    tokens_per_step: int = 8192
    # Rows of a step; the first half of a stage's steps uses the shorter, the second half the longer one.
    row_lengths: tuple = (256, 512)
    # Share of each source that is read, from its beginning.
    corpus_share: float = 1.0
    # Held-out tokens scored per domain.
    evaluation_tokens: int = 16384
    warmup_steps: int = 50
    seed: int = 1


TARGET = "tandem-target-15m"


def _full_models():
    target = ModelRecipe(TARGET, TARGET_15M, (Stage(2793, 0.0015, GENERAL_WEIGHTS),))
    base = ModelRecipe("draft-base-1m", DRAFT_1M, (Stage(2260, 0.004, GENERAL_WEIGHTS),), intermediate=True)

    def drafter_1m(domain, steps, weights):
        stages = (Stage(steps, 0.0025, weights, teacher=TARGET),)
        return ModelRecipe(f"tandem-draft-{domain}-1m", DRAFT_1M, stages, start=base.name)

    general_4m = ModelRecipe(
        "tandem-draft-general-4m",
        DRAFT_4M,
        (
            Stage(329, 0.0025, GENERAL_WEIGHTS),
            Stage(380, 0.00175, GENERAL_WEIGHTS, teacher=TARGET),
            Stage(704, 0.0025, GENERAL_WEIGHTS),
            Stage(125, 0.00084, GENERAL_WEIGHTS, teacher=TARGET),
        ),
    )
    return (
        target,
        base,
        drafter_1m("general", 380, GENERAL_WEIGHTS),
        drafter_1m("code", 601, CODE_WEIGHTS),
        drafter_1m("math", 609, MATH_WEIGHTS),
        general_4m,
    )


def _with_steps(model, steps):
    stages = tuple(dataclasses.replace(stage, steps=steps) for stage in model.stages)
    return dataclasses.replace(model, stages=stages)


def _smoke():
    """Runs every kind of step in about a minute. The models are loadable, but not useful."""
    return Recipe(
        models=tuple(_with_steps(model, 4) for model in _full_models()),
        tokens_per_step=1024,
        row_lengths=(64, 128),
        corpus_share=0.02,
        evaluation_tokens=1024,
        warmup_steps=2,
    )


PRESETS = {"full": Recipe(models=_full_models()), "smoke": _smoke()}
