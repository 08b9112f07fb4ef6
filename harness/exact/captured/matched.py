"""Captures that belong together, matched output by output: the same prompts, sampling and seeds in each.

``groups_of`` refuses what cannot be compared, says why, and what would make it comparable.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import UsageError
from harness.exact.captured.capture import Capture, Others, Output
from harness.measures.verdicts import shown_sampling
from methods.sampling import Sampling

PLAIN, SPECULATIVE, CONTROL = range(3)  # places in a row, and in what the user gives
ARMS = ("plain", "speculative", "control")
Row = tuple[Output, ...]  # one prompt and seed: the output of every arm


@dataclass(frozen=True)
class Group:
    """All rows that were decoded by the same settings. ``by_ids``: outputs are token ids in every arm, else texts."""

    sampling: Sampling
    others: Others
    rows: tuple[Row, ...]
    prompts: tuple[int, ...]  # the number of each row's prompt
    by_ids: bool

    @property
    def name(self) -> str:
        return shown_sampling(self.sampling)

    @property
    def has_control(self) -> bool:
        return len(self.rows[0]) > CONTROL

    @property
    def num_prompts(self) -> int:
        return len(set(self.prompts))

    @property
    def unit(self) -> str:
        """Return what a place in an output counts."""
        return "token" if self.by_ids else "character"

    @property
    def seed_units(self) -> list[int]:
        """Number the rows by seed; a row without a seed is a unit of its own."""
        keys = [number if row[PLAIN].seed is None else ("seed", row[PLAIN].seed) for number, row in enumerate(self.rows)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return [numbers[key] for key in keys]

    def arm(self, arm: int) -> list[Output]:
        return [row[arm] for row in self.rows]

    def said(self, output: Output) -> Sequence[Any]:
        """Return an output's token ids, or its text."""
        return (output.ids or ()) if self.by_ids else (output.text or "")

    def of_prompts(self) -> Iterator[list[Row]]:
        """Yield the rows of each prompt."""
        rows = defaultdict(list)
        for prompt, row in zip(self.prompts, self.rows, strict=True):
            rows[prompt].append(row)
        yield from rows.values()


def groups_of(captures: Sequence[Capture]) -> list[Group]:
    """Match a plain, a speculative and perhaps a control capture; greedy outputs first.

    Seeds must be the same in plain and speculative captures of sampled outputs; a control's may be others.

    Raises:
        UsageError: they cannot be compared.
    """
    prompt_of = _prompts(captures)
    by_ids = _both(captures, "an output", "ids", "text")
    sides = []
    for number, capture in enumerate(captures):
        order = sorted(capture.outputs, key=lambda one: (one.seed is not None, one.seed or 0, one.line))
        side = _keyed(order, prompt_of, with_seeds=number != CONTROL)
        sides.append(side)
    _check_same(captures, sides, SPECULATIVE, prompt_of)
    if len(captures) > CONTROL:
        sides[PLAIN], seeded = _keyed(list(sides[PLAIN].values()), prompt_of, with_seeds=False), sides[PLAIN]
        sides[SPECULATIVE] = {key: sides[SPECULATIVE][own] for key, own in zip(sides[PLAIN], seeded, strict=True)}
        _check_same(captures, sides, CONTROL, prompt_of)
    numbers: dict[Hashable, int] = {}
    found = defaultdict(list)
    for key, output in sides[PLAIN].items():
        numbers.setdefault(prompt_of(output), len(numbers))
        found[output.sampling, output.others].append(tuple(side[key] for side in sides))
    return [
        Group(sampling, others, tuple(rows), tuple(numbers[prompt_of(row[PLAIN])] for row in rows), by_ids)
        for (sampling, others), rows in sorted(found.items(), key=lambda one: one[0][0].temperature)
    ]


def _both(captures: Sequence[Capture], what: str, ids: str, text: str) -> bool:
    """Say whether all outputs have ids. UsageError where neither ids nor texts are in all of them."""
    outputs = [one for capture in captures for one in capture.outputs]
    if all(getattr(one, ids) is not None for one in outputs):
        return True
    if all(getattr(one, text) is not None for one in outputs):
        return False
    names = " and ".join(capture.name for capture in captures)
    raise UsageError(f"captured {names}: {what} is given as token ids in some lines and as a text in others; give one in all")


def _prompts(captures: Sequence[Capture]) -> Any:
    by_ids = _both(captures, "a prompt", "prompt_ids", "prompt_text")
    return lambda output: output.prompt_ids if by_ids else output.prompt_text


def _keyed(outputs: Sequence[Output], prompt_of: Any, with_seeds: bool) -> dict[Hashable, Output]:
    """Name each output by prompt, settings, seed and how often these came before."""
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, Output] = {}
    for one in outputs:
        seed = one.seed if with_seeds and not one.sampling.greedy else None
        key = (prompt_of(one), one.sampling, one.others, seed)
        found[(*key, seen[key])] = one
        seen[key] += 1
    return found


def _check_same(captures: Sequence[Capture], sides: Sequence[dict[Hashable, Output]], other: int, prompt_of: Any) -> None:
    """Raise UsageError, for the first reason found, unless both hold outputs of the same prompts, settings and seeds."""
    plain, theirs = sides[PLAIN], sides[other]
    if plain.keys() == theirs.keys():
        return
    names = [f"{ARMS[number]} {captures[number].name}" for number in (PLAIN, other)]
    pair = f"captured {names[0]} and {names[1]} cannot be compared: "
    for first, second, name in ((plain, theirs, names[1]), (theirs, plain, names[0])):
        known = {prompt_of(one) for one in second.values()}
        if lost := next((one for one in first.values() if prompt_of(one) not in known), None):
            said = {one.prompt_text for one in second.values() if one.is_chat}
            why = "became other tokens in" if lost.is_chat and lost.prompt_text in said else "is not in"
            remedy = "give both the same chat template" if why.startswith("became") else "record the same prompts in both"
            raise UsageError(f"{pair}prompt {lost.prompt_shown} {why} {name}; {remedy}")
    for first, second, name in ((plain, theirs, names[1]), (theirs, plain, names[0])):
        known_settings = {(prompt_of(one), one.sampling, one.others) for one in second.values()}
        for one in first.values():
            if (prompt_of(one), one.sampling, one.others) not in known_settings:
                raise UsageError(
                    f"{pair}{_shown(one)} of prompt {one.prompt_shown} is not in {name}, which has "
                    f"{_shown(next(two for two in second.values() if prompt_of(two) == prompt_of(one)))}; record both with "
                    "the same sampling settings"
                )
    counts = [Counter((prompt_of(one), one.sampling, one.others) for one in side.values()) for side in (plain, theirs)]
    for one in plain.values():
        own, other_count = (count[prompt_of(one), one.sampling, one.others] for count in counts)
        if own != other_count:
            raise UsageError(
                f"{pair}prompt {one.prompt_shown} has {own} outputs by {_shown(one)} in the first and {other_count} in the "
                "second; record as many in both, or remove lines"
            )
    lost = next(one for key, one in plain.items() if key not in theirs)
    raise UsageError(
        f"{pair}seed {lost.seed} of prompt {lost.prompt_shown} is not in {names[1]}; record both with the same seeds"
    )


def _shown(output: Output) -> str:
    return ", ".join([shown_sampling(output.sampling), *(f"{name} {value:g}" for name, value in output.others)])
