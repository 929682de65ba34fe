"""The measurements of a scenario, and its promises. No I/O."""

import dataclasses
import math
import operator

_COMPARISONS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


def quantile(values, share):
    """The value below which this share of the values is, NaN without any."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def slope(points):
    """The median of the slopes between each point (x, y) and the one half of the series later. Steady growth has a
    slope, a single jump has none. 0 with fewer than 8 points."""
    points = sorted(points)
    half = len(points) // 2
    if half < 4:
        return 0.0
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in zip(points, points[half:]) if x2 > x1]
    return quantile(slopes, 0.5) if slopes else 0.0


@dataclasses.dataclass(frozen=True)
class Promise:
    """A figure with a bound. NaN keeps no promise."""

    name: str
    value: float
    comparison: str
    bound: float
    unit: str = ""

    @property
    def kept(self):
        return _COMPARISONS[self.comparison](self.value, self.bound)


def _number(value):
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Report:
    """Figures and promises of one run of a scenario, in the order in which they were added."""

    def __init__(self, scenario, strict):
        self.scenario = scenario
        self.strict = strict
        self.figures = {}
        self.promises = []
        self.notes = []

    def figure(self, name, value, unit=""):
        self.figures[name] = (value, unit)

    def promise(self, name, value, comparison, bound, unit=""):
        self.promises.append(Promise(name, value, comparison, bound, unit))

    def note(self, text):
        """Adds something to look at to the report, such as the first of the failures."""
        self.notes.append(text)

    @property
    def broken(self):
        return [promise for promise in self.promises if not promise.kept]

    def as_json(self):
        return {
            "scenario": self.scenario,
            "strict": self.strict,
            "kept": not self.broken,
            "promises": [dataclasses.asdict(promise) | {"kept": promise.kept} for promise in self.promises],
            "figures": {name: {"value": value, "unit": unit} for name, (value, unit) in self.figures.items()},
            "notes": self.notes,
        }

    def table(self):
        """In Markdown."""
        lines = [f"| {self.scenario} | measured | promised | |", "| --- | --- | --- | --- |"]
        for promise in self.promises:
            measured, bound = (f"{_number(value)} {promise.unit}".strip() for value in (promise.value, promise.bound))
            lines.append(f"| {promise.name} | {measured} | {promise.comparison} {bound} | {'' if promise.kept else 'BROKEN'} |")
        lines += [f"| {name} | {_number(value)} {unit} | | |" for name, (value, unit) in self.figures.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
