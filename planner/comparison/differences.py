"""What differs between plans, and by how much: settings, terms of time per unit of work, terms of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.tolerances import EQUAL
from planner.core.errors import UsageError
from planner.spaces.items import FIRST_TOKEN_TERMS, TIME_TERMS, Basis, Item

# Questions that differ in these are about different work.
_WORK = ("model", "model file", "global batch", "sequence length", "documents", "adapters")
# Hashes say whether files are the same, and say nothing to people.
_HASHES = {"model file": "model", "cluster file": "cluster"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing of every plan, in the order of the plans."""

    key: str
    name: str
    values: tuple[float, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """Against the first plan, where they are more than the noise of the two."""
        first = self.values[0]
        return tuple(
            value - first if abs(value - first) > EQUAL * max(abs(value), abs(first)) else 0.0 for value in self.values
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans side by side; the first is what the others are compared with.

    Attributes
    ----------
    basis : str
        What the times of `times` are per.
    question, settings, layers : tuple of (name, texts)
        What differs, as text; "" where a plan has no such thing. Neighbouring layers that are split alike stand together.
    same : mapping
        Settings in which all plans agree and that are not neutral.
    times, first_token, memory : tuple of Row
    """

    items: tuple[Item, ...]
    basis: Basis
    question: tuple[tuple[str, tuple[str, ...]], ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]
    layers: tuple[tuple[str, tuple[str, ...]], ...]
    same: Mapping[str, str]
    times: tuple[Row, ...]
    first_token: tuple[Row, ...]
    memory: tuple[Row, ...]

    @property
    def scores(self) -> tuple[float, ...]:
        """What decides which plan is the fastest, least first: seconds per unit of work, or the objective of serving."""
        return tuple(item.score(self.basis, self.objective) for item in self.items)

    @property
    def fastest(self) -> int:
        """Position of the fastest plan that fits; of the fastest at all where none does."""
        fitting = [n for n, item in enumerate(self.items) if item.fits] or range(len(self.items))
        scores = self.scores
        return min(fitting, key=lambda n: (scores[n], n))

    def is_found_again(self, n: int) -> bool:
        """Whether a search found the first plan."""
        differing = (*self.question, *self.settings, *self.layers)
        return bool(self.items[n].found) and all(values[n] == values[0] for _, values in differing)

    def work(self, n: int) -> int:
        """Steps, samples or tokens of one step of a plan."""
        return self.items[n].work(self.basis)

    @property
    def objective(self) -> str:
        """What all plans were chosen for; throughput where they differ."""
        objectives = {item.objective for item in self.items}
        return objectives.pop() if len(objectives) == 1 else "throughput"


def compare_items(items: Sequence[Item]) -> Comparison:
    """Work out what differs.

    Raises
    ------
    UsageError
        Plans that have nothing to compare: of training and of inference, or of serving and of a forward pass.
    """
    assert len(items) > 1, "a comparison needs two"
    _check_comparable(items)
    basis = _basis(items)
    return Comparison(
        items=tuple(items),
        basis=basis,
        question=_question(items),
        settings=_differing([item.settings for item in items]),
        layers=_layers(items),
        same=_same(items),
        times=_rows(items, TIME_TERMS, lambda item: item.time_parts, [item.work(basis) for item in items]),
        first_token=_rows(items, FIRST_TOKEN_TERMS, lambda item: item.first_token_parts, [1] * len(items)),
        memory=_memory(items),
    )


def _check_comparable(items: Sequence[Item]) -> None:
    first = items[0]
    for item in items[1:]:
        modes = (first.question["mode"], item.question["mode"])
        if modes[0] != modes[1]:
            raise UsageError(
                f"{first.label} is for {modes[0]} and {item.label} for {modes[1]}: their times are of different things"
            )
        if first.kind != item.kind:
            served, other = sorted((first, item), key=lambda i: i.does, reverse=True)
            raise UsageError(
                f"{served.label} {served.does} and {other.label} {other.does}: their times are of different things"
            )


def _basis(items: Sequence[Item]) -> Basis:
    basis: Basis = "step"
    if any(len({item.question.get(name) for item in items}) > 1 for name in _WORK):
        lengths = {item.seq for item in items}
        basis = "sample" if None in lengths or len(lengths) == 1 else "token"
    return items[0].usual_basis(basis)


def _differing(tables: Sequence[Mapping[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, tuple(table.get(name, "-") for table in tables)) for name in names]
    return tuple((name, values) for name, values in rows if len(set(values)) > 1)


def _question(items: Sequence[Item]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    rows = dict(_differing([item.question for item in items]))
    for hidden, shown in _HASHES.items():
        hashes = rows.pop(hidden, None)
        if hashes is not None and shown not in rows:  # two files of one name
            rows[shown] = tuple(f"{i.question[shown]} ({h[:8]})" for i, h in zip(items, hashes, strict=True))
    return tuple(rows.items())


def _same(items: Sequence[Item]) -> dict[str, str]:
    """Settings that all plans share; degrees of 1, defaults without effect and what is switched off say nothing."""
    first = items[0].settings
    shared = {name: text for name, text in first.items() if all(item.settings.get(name) == text for item in items)}
    neutral = {"order": "tp-cp-dp-pp"}
    for degree, name in (("cp", "cp_kind"), ("pp", "schedule")):
        if all(item.settings.get(degree) == "1" for item in items):
            neutral[name] = first.get(name, "")
    return {
        n: text for n, text in shared.items() if text not in ("1", "0", "no", "none", "") and neutral.get(n) != text
    }


def _layers(items: Sequence[Item]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Runs of neighbouring layers that are split alike by every plan, where the plans differ."""
    names = list(items[0].layers)
    if not names or any(list(item.layers) != names for item in items):
        return ()
    return tuple(
        (run, splits)
        for run, splits, _ in _runs(names, [tuple(item.layers[name] for item in items) for name in names])
        if len(set(splits)) > 1
    )


def _runs(names: Sequence[str], keys: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...], list[str]]]:
    runs: list[tuple[tuple[str, ...], list[str]]] = []
    for name, key in zip(names, keys, strict=True):
        if runs and runs[-1][0] == key:
            runs[-1][1].append(name)
        else:
            runs.append((key, [name]))
    return [(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}", key, run) for key, run in runs]


def _rows(
    items: Sequence[Item],
    words: Mapping[str, str],
    parts: Callable[[Item], Mapping[str, float]],
    work: Sequence[int],
) -> tuple[Row, ...]:
    """Terms that any plan has; a term that a space does not know is nothing there."""
    rows = [
        Row(
            key=key,
            name=name,
            values=tuple(float(parts(item).get(key, 0.0)) / amount for item, amount in zip(items, work, strict=True)),
        )
        for key, name in words.items()
    ]
    largest = max((abs(value) for row in rows for value in row.values), default=0.0)
    return tuple(row for row in rows if any(abs(value) > EQUAL * largest for value in row.values))


def _memory(items: Sequence[Item]) -> tuple[Row, ...]:
    """Terms of the memory; of plans with a split per layer, the layers by runs that are split alike."""
    if all(item.memory_parts for item in items):
        return _rows(items, items[0].memory_terms, lambda item: item.memory_parts, [1] * len(items))
    names = list(items[0].layer_bytes)
    if not names or any(list(item.layer_bytes) != names for item in items):
        return ()
    runs = _runs(names, [tuple(item.layers[name] for item in items) for name in names])
    rows = [
        Row(
            key=f"{run}_bytes",
            name=run,
            values=tuple(sum(item.layer_bytes[layer] for layer in layers) for item in items),
        )
        for run, _, layers in runs
    ]
    changed = [row for row in rows if max(row.values) != min(row.values)]
    rest = tuple(item.memory_bytes - sum(row.values[n] for row in changed) for n, item in enumerate(items))
    name = "all other layers, and the context" if changed else "all"
    return (*changed, Row(key="other_bytes", name=name, values=rest))
