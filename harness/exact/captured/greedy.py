"""Greedy outputs of two deployments: are they equal, and if not, does speculation part them or would anything?

Rounding differs from kernel to kernel and from batch to batch, so that even two equal deployments may part at every prompt
(raullenchai/Rapid-MLX issue 3295 lists cases; two of them agreed on 0 of 6 prompts). A control, the plain deployment
captured twice, shows how often that happens; a local copy of the target shows whether rounding explains each token.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.exact.captured.capture import Output
from harness.exact.captured.features import features_of
from harness.exact.captured.matched import CONTROL, PLAIN, SPECULATIVE, Group
from harness.exact.captured.replayed import LocalTarget, ReadArm, coarser
from harness.exact.captured.two_samples import found_share, sign_test, swap_tests
from harness.exact.checks import Finding
from harness.measures.statistics import exact_interval
from harness.measures.verdicts import NOT_TESTED
from harness.run.divergence import first_difference

MUST_FIND_SHARE = 0.5  # of prompts: a test that misses a fault that shows at so many of them says nothing
SHOWN = 3  # places that are shown
BEFORE, AROUND = 24, 48  # characters that are shown before a place and in all; a quarter of that in tokens
NEVER = 1 << 60
Parting = tuple[int, Output, Output]  # a place, and the two outputs that part there


@dataclass(frozen=True)
class Partings:
    """Where outputs of each prompt part from plain decoding's first: speculative ones, and the control's where there is one."""

    speculative: list[Parting | None]
    control: list[Parting | None] | None

    def counts(self, places: list[Parting | None]) -> str:
        n, hits = len(places), sum(one is not None for one in places)
        low, high = exact_interval(hits, n)
        return f"{hits} of {n} prompts ({100 * hits / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}])"

    @property
    def earlier(self) -> tuple[int, int]:
        """Return at how many prompts speculation parts before the control does, and the other way round."""
        pairs = [(_place(one), _place(two)) for one, two in zip(self.speculative, self.control or [], strict=True)]
        return sum(one < two for one, two in pairs), sum(one > two for one, two in pairs)


def _place(parting: Parting | None) -> int:
    return NEVER if parting is None else parting[0]


def partings_of(group: Group) -> Partings:
    """Find the first place of each prompt at which outputs part from plain decoding's."""

    def against(arm: int) -> list[Parting | None]:
        return [
            min((one for row in rows if (one := _parting(group, row[PLAIN], row[arm]))), key=_place, default=None)
            for rows in group.of_prompts()
        ]

    return Partings(against(SPECULATIVE), against(CONTROL) if group.has_control else None)


def _parting(group: Group, plain: Output, other: Output) -> Parting | None:
    ours, theirs = group.said(plain), group.said(other)
    return None if ours == theirs else (first_difference(ours, theirs), plain, other)


def judge_greedy(group: Group, level: float, read: list[ReadArm] | None, target: LocalTarget | None) -> Finding:
    """Judge greedy outputs. Verdicts: "identical", "near-tie" (the target explains every token within rounding),
    "no difference found" (they part as late and as seldom as the control), "bug", "unresolved", "not tested", "unknown".
    """
    partings = partings_of(group)
    parted = [one for one in partings.speculative if one is not None]
    evidence: dict[str, Any] = {
        "prompts": len(partings.speculative),
        "parted": len(parted),
        "control_parted": None if partings.control is None else sum(one is not None for one in partings.control),
        "places": [_shown(group, one, target) for one in parted[:SHOWN]],
    }
    parts = f"speculative parts from plain at {partings.counts(partings.speculative)}"
    name = "" if target is None else target.name
    if read is not None and read[PLAIN].dtype is not None:
        return _by_target(read, parts if parted else "", evidence, name)
    lost = "" if read is None else f"; {name} does not explain plain either ({_fault(read[PLAIN])}), so it is not what ran"
    if not parted:
        return Finding("identical", f"all outputs of {len(partings.speculative)} prompts are equal{lost}", evidence)
    if partings.control is None:
        return Finding(
            "unknown",
            f"{parts}; the control is missing: two equal deployments may part too, so this alone is neither right nor wrong; "
            f"capture plain decoding once more as the third --captured, or give --target{lost}",
            evidence,
        )
    found = _by_control(group, partings, level, parts)
    return Finding(found.verdict, found.note + lost, {**evidence, **found.evidence})


def _by_target(read: list[ReadArm], parts: str, evidence: dict[str, Any], target: str) -> Finding:
    plain, ours = read[PLAIN], read[SPECULATIVE]
    evidence = {**evidence, "plain_dtype": plain.dtype, "speculative_dtype": ours.dtype, "faults": ours.faults}
    if ours.dtype is None:
        note = f"{_fault(ours)}; every token of plain is its first choice within the rounding of {plain.dtype}"
        return Finding("bug", f"{parts or 'outputs are equal'}; {note}", evidence)
    if not parts:
        return Finding(
            "identical", f"all outputs are equal, and {target}'s first choices within {ours.dtype}'s rounding", evidence
        )
    if ours.unread:
        note = (
            f"every token up to an end of text is {target}'s first choice, but {ours.unread} behind one, which alone part some"
        )
        return Finding("unresolved", f"{parts}; {note} outputs, were not read: capture what stops there", evidence)
    note = f"every token is {target}'s first choice within the rounding of {ours.dtype}"
    if coarser(ours.dtype, plain.dtype):
        note += f", and plain's within that of {plain.dtype}: no fault of speculation, but another dtype than plain's"
    return Finding("near-tie", f"{parts}; {note}", evidence)


def _fault(arm: ReadArm) -> str:
    assert arm.first is not None
    one = arm.first
    found = f"{arm.faults} of {arm.tokens} tokens are not what the target gives, the first {one.token} at token {one.place}"
    if math.isinf(one.off):
        return f"{found}, behind an end of text"
    return f"{found} instead of {one.first_choice}, {one.off:.2g} below in logits where rounding explains {one.bound:.2g}"


def _by_control(group: Group, partings: Partings, level: float, parts: str) -> Finding:
    """Compare with how plain decoding parts from itself, by which parts earlier. If it never does it explains nothing."""
    assert partings.control is not None
    n, (earlier, later) = len(partings.speculative), partings.earlier
    p_value, finds = sign_test(earlier, later), found_share(n, level, (earlier + later) / n)
    evidence: dict[str, Any] = {"earlier": earlier, "later": later, "p_value": p_value, "finds_share": finds}
    parts += f", the control at {partings.counts(partings.control)}; earlier than it {earlier} times, later {later} times "
    parts += f"(p {p_value:.2g})"
    if p_value > level and any(partings.control):
        if finds > MUST_FIND_SHARE:
            return Finding(NOT_TESTED, f"{parts}; {n} prompts are too few to tell, record 50 or more", evidence)
        note = f"no more than the control; a fault that shows at {100 * finds:.0f} % of prompts or more would likely be found"
        return Finding("no difference found", f"{parts}: {note}", evidence)
    pairs = [(row[PLAIN], row[SPECULATIVE]) for row in group.rows]
    texts = swap_tests(features_of(pairs, group.by_ids, group.prompts), np.array(group.prompts), level)
    other = [one for one in texts if one.p_value <= level]
    evidence |= {"texts": {one.name: one.p_value for one in texts}}
    if other:
        shown = ", ".join(f"{one.name} p {one.p_value:.2g}" for one in other)
        kind = f"its texts differ in kind ({shown}); rounding does that only where it leans one way at a tie that prompts share"
        return Finding("bug", f"{parts}; and {kind}, which --target tells", evidence)
    note = "the control does not explain it: a fault, or rounding in another dtype or order; --target tells which"
    return Finding("unresolved", f"{parts}: {note}", evidence)


def _shown(group: Group, parting: Parting, target: LocalTarget | None) -> dict[str, Any]:
    """Return a place with what stands around it, as text where there is one, or the target's tokenizer knows it."""
    place, plain, other = parting
    if plain.text is not None and other.text is not None and plain.text != other.text:
        at = max(0, first_difference(plain.text, other.text) - BEFORE)
        said = [repr(one[at : at + AROUND]) for one in (plain.text, other.text)]
    else:
        at = max(0, place - BEFORE // 4)
        ids = [(one.ids or ())[at : at + AROUND // 4] for one in (plain, other)]
        said = [str(list(one)) if target is None else repr(target.tokenizer.decode(list(one))) for one in ids]
    return {"prompt": plain.prompt_shown, group.unit: place, "plain": said[0], "speculative": said[1]}
