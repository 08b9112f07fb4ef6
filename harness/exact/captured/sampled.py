"""Sampled outputs of two deployments: can they be told apart, and does each seed have an output of its own?

What texts hold is counted (features) and compared, outputs of one prompt and seed side by side. That says nothing if plain
against plain (the control) differs too, and never that two laws are one: what moves mass and no count is not seen, such as a
token that depends on others further off than its neighbours. The target's own laws are compared by equal parts of them, which
do not show what moves within a part. So the best verdict but "identical" is "no difference found", with what would have been
found. Greedy decoding under a sampling flag, and a seed that is ignored, show in outputs of
different seeds that are alike. Whether equal seeds give equal outputs is seen of lines that are repeated, and of the control.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.exact.captured.capture import Output
from harness.exact.captured.features import features_of, units_of
from harness.exact.captured.matched import CONTROL, PLAIN, SPECULATIVE, Group
from harness.exact.captured.replayed import Evenness, LocalTarget, ReadArm
from harness.exact.captured.two_samples import Feature, Test, can_reject, drawn_test, fisher, swap_tests
from harness.exact.checks import Finding
from harness.exact.fit import CELLS
from harness.measures.verdicts import MUST_FIND, NOT_TESTED

NOT_TOLD_APART = "no difference found"  # a verdict
ALL = 0.999  # of tokens that are first choices: greedy decoding, but for near-ties
FEW_SEEDS = "few seeds serve all prompts, whose outputs share random numbers: chance alone can cause it; record 8 or more"
MOSTLY = 0.9  # of pairs of outputs by different seeds that are equal: such an arm does not sample
ENOUGH = 4  # plain outputs with one beginning that tell how likely each next token is


@dataclass(frozen=True)
class Share:
    """How many of ``n`` pairs of outputs are equal. Pairs of the same seeds share random numbers: they are one of ``units``."""

    hits: int
    n: int
    units: int

    @property
    def least(self) -> tuple[int, int]:
        """Return hits and number as if each unit were one pair, rounded down."""
        return (self.hits * self.units // self.n if self.n else 0), self.units

    @property
    def most(self) -> tuple[int, int]:
        """Return the same, rounded up."""
        return (-(-self.hits * self.units // self.n) if self.n else 0), self.units

    def __str__(self) -> str:
        return f"{self.hits} of {self.n}"


def judge_sampled(group: Group, level: float, read: list[ReadArm] | None, target: LocalTarget | None) -> Finding:
    """Judge sampled outputs. Verdicts: "identical", "no difference found" (in what is counted), "biased", "bug" (a token that
    cannot be, a seed that is not kept), "not tested" (too few outputs to find a total variation of MUST_FIND in what is
    counted), "unknown" (plain itself is at odds).
    """
    name = "" if target is None else target.name
    if (found := _seed_fault(group, level, read, name)) is not None:
        return found
    if all(group.said(row[PLAIN]) == group.said(row[SPECULATIVE]) for row in group.rows):
        return Finding("identical", f"all {len(group.rows)} outputs are equal, seed by seed")
    notes, evidence, missed = [_repeats_note(group)], dict[str, Any](), list[float]()
    if read is not None:
        replayed = _judge_replay(group, level, read, name)
        if replayed.verdict != "unknown":
            if replayed.verdict != NOT_TOLD_APART:
                return replayed
            missed.append(replayed.evidence["missed_tv"])
        notes, evidence = [replayed.note, *notes], {"replayed": replayed.evidence}
    law = _judge_law(group, level)
    best = min([*missed, *(one for one in law.evidence["missed_tv"].values() if one is not None)], default=1.0)
    evidence, note = {**law.evidence, **evidence}, "; ".join([law.note, *(one for one in notes if one)])
    if law.verdict == NOT_TOLD_APART and best > MUST_FIND:
        needed = int(np.ceil(len(group.rows) * (best / MUST_FIND) ** 2))
        few = f"{len(group.rows)} outputs an arm are too few to find a total variation of {MUST_FIND:g}, record about {needed}"
        return Finding(NOT_TESTED, f"{few}; {note}", evidence)
    return Finding(law.verdict, note, evidence)


def _seed_fault(group: Group, level: float, read: list[ReadArm] | None, target: str) -> Finding | None:
    """Find outputs that do not depend on their seed, or on more than it."""
    plain, ours = _alike(group, PLAIN), _alike(group, SPECULATIVE)
    evidence: dict[str, Any] = {"alike": {"plain": [plain.hits, plain.n], "speculative": [ours.hits, ours.n]}}
    said = f"outputs of a prompt by different seeds are equal in {ours} pairs of speculative and {plain} of plain"
    if fisher(*ours.least, *plain.most) <= level:
        mostly = ours.hits >= MOSTLY * ours.n
        cause = _cause(group, level, read, target) if mostly else "it varies less than plain"
        return Finding("biased", f"{said}: {cause}", evidence)
    if plain.hits >= MOSTLY * plain.n and fisher(*plain.least, *ours.most) <= level:
        return Finding("unknown", f"{said}: the plain arm itself does not sample; capture it again", evidence)
    if min(plain.n, ours.n) > 1 and plain.hits == plain.n and ours.hits == ours.n:
        note = "neither arm samples, so no law can be compared; see that the engine reads seed and temperature"
        return Finding(NOT_TESTED, f"{said}: {note}", evidence)
    again, ours_again = _repeated(group, PLAIN), _repeated(group, SPECULATIVE)
    if fisher(ours_again.units - ours_again.most[0], ours_again.units, again.units - again.least[0], again.units) <= level:
        note = f"the same prompt and seed again give the same output in {ours_again} pairs of speculative and {again} of plain"
        return Finding("bug", f"{note}: the seed is ignored", evidence)
    return None


def _alike(group: Group, arm: int) -> Share:
    """Compare the first output of a prompt with its second, the third with its fourth..., each by another seed."""
    hits = n = 0
    units = set[Any]()
    for rows in group.of_prompts():
        by_seed: dict[Any, Output] = {}
        for number, row in enumerate(rows):
            by_seed.setdefault(number if row[arm].seed is None else ("seed", row[arm].seed), row[arm])
        outputs = list(by_seed.values())
        for first, second in zip(outputs[::2], outputs[1::2], strict=False):
            units.add((first.seed, second.seed) if first.seed is not None and second.seed is not None else n)
            n += 1
            hits += group.said(first) == group.said(second)
    return Share(hits, n, len(units))


def _repeated(group: Group, arm: int) -> Share:
    """Compare outputs of one prompt and seed: lines of an arm that say it twice; of plain decoding the control's too."""
    hits = n = 0
    units = set[int]()
    for rows in group.of_prompts():
        first: dict[int, Output] = {}
        outputs = [row[arm] for row in rows] + [row[CONTROL] for row in rows if arm == PLAIN and group.has_control]
        for one in outputs:
            if one.seed is not None and first.setdefault(one.seed, one) is not one:
                units.add(one.seed)
                n += 1
                hits += group.said(first[one.seed]) == group.said(one)
    return Share(hits, n, len(units))


def _repeats_note(group: Group) -> str:
    plain, ours = _repeated(group, PLAIN), _repeated(group, SPECULATIVE)
    said = f"equal seeds gave plain equal outputs in {plain} pairs" if plain.n else ""
    if ours.n:
        lost = [name for name, one in (("plain", plain), ("speculative", ours)) if one.hits < one.n]
        kept = f": seed not honoured by {' and '.join(lost)}"
        return f"{said or 'equal seeds'}, speculative in {ours}" + (kept if lost else "")
    return f"{said}; whether speculative keeps seeds is not known (no prompt and seed is twice in its file)" if said else ""


def _cause(group: Group, level: float, read: list[ReadArm] | None, target: str) -> str:
    """Tell greedy decoding from one draw that is repeated: by the target, else by how frequent plain's same beginnings are."""
    if read is not None and read[PLAIN].dtype is not None:
        choices = read[SPECULATIVE].choices
        shown = f"{100 * choices:.1f} % of its tokens are {target}'s first choice, its law says "
        shown += f"{100 * read[SPECULATIVE].expected_choices:.1f} %"
        return f"it decodes greedily ({shown})" if choices >= ALL else f"it ignores the seed, one draw is repeated ({shown})"
    above, below = (np.array(values, float) for values in zip(*_beginnings(group), strict=True))
    if above.sum() > 0 and _is_off(above, level):
        return "it decodes greedily (it goes on as plain does most often)"
    if below.sum() < 0 and _is_off(below, level):
        return "it ignores the seed, one draw is repeated (it does not go on as plain does most often)"
    return "it decodes greedily, or one draw is repeated for every seed; --target tells which"


def _is_off(numbers: np.ndarray, level: float) -> bool:
    return swap_tests({"mean": Feature(numbers[:, None])}, np.arange(len(numbers)), level)[0].p_value <= level


def _beginnings(group: Group) -> Iterator[tuple[float, float]]:
    """Yield two numbers for each prompt, summed over the places at which enough plain outputs begin as the repeated one does.

    How many of these go on as it does, less how many of two go on alike: 0 on average for a draw, more for the likeliest token.
    The same, less how many of one half go on as most of the other half do: 0 or more on average for the likeliest token.
    """
    for rows in group.of_prompts():
        plain = [tuple(units_of(row[PLAIN], group.by_ids)) for row in rows]
        ours, _ = Counter(tuple(units_of(row[SPECULATIVE], group.by_ids)) for row in rows).most_common(1)[0]
        above = below = 0.0
        for place, token in enumerate(ours):
            behind = [one[place : place + 1] for one in plain if one[:place] == ours[:place]]
            if (n := len(behind)) < ENOUGH:
                break
            shared, half, other = behind.count((token,)) / n, behind[::2], behind[1::2]
            above += shared - sum(count * (count - 1) for count in Counter(behind).values()) / (n * (n - 1))
            below += shared - other.count(max(half, key=half.count)) / len(other)
        yield above, below


def _judge_replay(group: Group, level: float, read: list[ReadArm], target: str) -> Finding:
    """Judge speculative tokens by the target's own laws, where plain's pass the same checks."""
    laws = [_even(one.law, group, level) for one in read]
    p_values = [test.p_value for test, _ in laws]
    evidence = {
        "plain_p": p_values[PLAIN],
        "speculative_p": p_values[SPECULATIVE],
        "first_choices": read[SPECULATIVE].choices,
        "expected_first_choices": read[SPECULATIVE].expected_choices,
        "missed_tv": laws[SPECULATIVE][0].missed_tv or 1.0,
    }
    if read[PLAIN].dtype is None or p_values[PLAIN] <= level:
        why = f"{read[PLAIN].faults} of its tokens cannot be" if read[PLAIN].dtype is None else f"p {p_values[PLAIN]:.2g}"
        return Finding("unknown", f"{target} does not explain plain either ({why}), so it is not what ran", evidence)
    ours, first = read[SPECULATIVE], read[SPECULATIVE].first
    if ours.dtype is None and first is not None:
        off = f"{first.off:.2g} below the border where rounding explains {first.bound:.2g}"
        off = "behind an end of text" if math.isinf(first.off) else off
        note = f"{ours.faults} of {ours.tokens} tokens are outside of what {group.name} leaves of {target}'s law, the first "
        where = f"{first.token} at token {first.place}, {off}"
        return Finding("bug", f"{note}{where}; none of plain's is", evidence)
    choices = f"{100 * ours.choices:.1f} % are its first choice, its law says {100 * ours.expected_choices:.1f} %"
    law = f"tokens do not have {target}'s law (p {p_values[SPECULATIVE]:.2g}): {choices}"
    if ours.choices >= ALL and ours.greedy_p <= level:
        return Finding("biased", f"{law}; it decodes greedily", evidence)
    if laws[SPECULATIVE][1]:
        return Finding(NOT_TESTED, f"{law}, but {FEW_SEEDS}", evidence)
    if p_values[SPECULATIVE] <= level:
        return Finding("biased", law, evidence)
    p_value = f"p {p_values[SPECULATIVE]:.2g}, found would be a tv of {evidence['missed_tv']:.2f} between them"
    note = f"{ours.tokens} tokens lie evenly in {CELLS} parts of {target}'s laws ({p_value}; {choices})"
    return Finding(NOT_TOLD_APART, note, evidence)


def _even(law: Evenness | None, group: Group, level: float) -> tuple[Test, bool]:
    """Hold tokens against draws; what fails so is tested again by draws that seeds share, and is left open if seeds are few."""
    if law is None:
        return Test("law", 1.0, None), False
    test = drawn_test("law", law.apart, law.tokens, level)
    if law.shared is None or test.p_value > level:
        return test, False
    if not can_reject(len(set(group.seed_units)), level):
        return test, True
    return drawn_test("law", law.shared, law.tokens, level), False


def _judge_law(group: Group, level: float) -> Finding:
    """Compare plain with speculative outputs, and with the control."""
    tests, is_open = _law_tests(group, SPECULATIVE, level)
    failed = [one for one in tests if one.p_value <= level]
    evidence: dict[str, Any] = {
        "p_values": {one.name: one.p_value for one in tests},
        "missed_tv": {one.name: one.missed_tv for one in tests},
        "control_p_values": None,
    }
    missed = ", ".join(f"{one.name} {one.missed_tv:.2f}" for one in tests if one.missed_tv is not None)
    smallest = min((one.p_value for one in tests), default=1.0)
    said = f"{len(tests)} tests of {len(group.rows)} outputs an arm, smallest p {smallest:.2g}"
    said += f"; found would be a tv in what is counted of: {missed}"
    if failed:
        said = ", ".join(f"{one.name} differ (p {one.p_value:.2g})" for one in failed)
    control = "no control was given, so that how plain differs from itself is not known"
    if group.has_control:
        own, own_is_open = _law_tests(group, CONTROL, level)
        evidence["control_p_values"] = {one.name: one.p_value for one in own}
        smallest = min((one.p_value for one in own), default=1.0)
        control = f"the control against plain: smallest p {smallest:.2g}" + (f", but {FEW_SEEDS}" if own_is_open else "")
        if smallest <= level and not own_is_open:
            return Finding("unknown", f"{said}; but {control}: plain differs from itself, so nothing can be said", evidence)
    if not failed:
        return Finding(NOT_TOLD_APART, f"{said}; {control}", evidence)
    if is_open:
        return Finding(NOT_TESTED, f"{said}, but {FEW_SEEDS}; {control}", evidence)
    return Finding("biased", f"{said}; {control}", evidence)


def _law_tests(group: Group, arm: int, level: float) -> tuple[list[Test], bool]:
    """Test with every pair a unit; what fails so is tested again by seeds, which decide, and is left open if those are few."""
    pairs = [(row[PLAIN], row[arm]) for row in group.rows]
    features = features_of(pairs, group.by_ids, group.prompts)
    tests = swap_tests(features, np.arange(len(group.rows)), level)
    units = np.array(group.seed_units)
    num_units = int(units.max()) + 1
    if num_units == len(units) or all(one.p_value > level for one in tests):
        return tests, False
    if not can_reject(num_units, level):
        return tests, True
    return swap_tests(features, units, level), False
