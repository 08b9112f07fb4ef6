"""transformers' own generation beside what a run was asked for: the same models and prompts, in turns, and which is faster.

A peer is a way of transformers to decode by one of four names: "generate" (no drafts; beams where the run has beams),
"assistant" (the run's draft model), "prompt-lookup", "early-exit:LAYER" (the target's own first layers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.assisted import EXIT, LOOKUP
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec
from harness.measures import speedup, tokens_per_step
from harness.pairing import Refused
from harness.records import Record
from harness.statistics import Estimate

EXPECTED = f"expected generate, assistant, {LOOKUP} or {EXIT}:LAYER"
Arm = tuple[Experiment, Sequence[Record]]


@dataclass(frozen=True)
class Peer:
    """One arm of transformers': how it stands to plain decoding, and ours to it (seconds a token of it over those of ours)."""

    name: str
    experiment: Experiment
    audit: Mapping[str, Any]
    over_plain: Estimate | Refused | None
    ours_over_it: Estimate | Refused | None
    tokens_per_step: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("over_plain", "ours_over_it", "tokens_per_step")}
        refused = [number.reason for number in numbers.values() if isinstance(number, Refused)]
        shown = {name: number.as_dict() if isinstance(number, Estimate) else None for name, number in numbers.items()}
        return {
            "name": self.name,
            "signature": self.experiment.signature,
            **shown,
            "refused": next(iter(refused), None),
            "audit": dict(self.audit),
        }


def peer_method(name: str, method: MethodSpec, draft: DrafterSpec | None) -> MethodSpec:
    """What a name stands for beside ``method``, whose gamma, schedule, beams and draft model it shares.

    Raises:
        UsageError: no such name, or no draft model for an assistant.
    """
    if name == "generate":
        return MethodSpec(name="transformers", num_beams=method.num_beams)
    if name == "assistant":
        if draft is None:
            raise UsageError("peer 'assistant': transformers drafts with a model of its own kind; give --draft")
        return _assisted(draft, method, schedule=method.schedule)
    if name == LOOKUP:
        return _assisted(DrafterSpec(kind=LOOKUP), method)
    kind, _, layer = name.partition(":")
    if kind != EXIT or not layer.isdigit() or int(layer) < 1:
        raise UsageError(f"peer {name!r}: {EXPECTED}")
    return _assisted(DrafterSpec(kind=EXIT), method, schedule=method.schedule, early_layer=int(layer))


def _assisted(drafter: DrafterSpec, method: MethodSpec, **fields: Any) -> MethodSpec:
    return MethodSpec(name="transformers", drafter=drafter, gamma=method.gamma, num_beams=method.num_beams, **fields)


def with_peers(comparison: Comparison, names: Sequence[str]) -> tuple[Comparison, dict[str, Experiment]]:
    """The arms of a run, and those of its peers by name: each says what it took turns with, so that times of other runs are
    never mixed with these."""
    plain, method = comparison.arms[0], comparison.arms[-1].method
    draft = next((one for one in (method.drafter, *plain.overlap) if one is not None and one.kind == "model"), None)
    chosen = {name: peer_method(name, method, draft) for name in names}
    if not chosen:
        return comparison, {}
    beside = " beside ".join(map(repr, chosen.values()))
    own = Comparison(tuple(arm.replace(beside=f"{arm.beside} beside {beside}".strip()) for arm in comparison.arms))
    bare = plain.replace(overlap=(), leniences=(1.0,), early=())
    return own, {name: bare.replace(method=one, beside=f"{method!r} beside {beside}") for name, one in chosen.items()}


def measured(
    plain: Arm,
    ours: Sequence[Record],
    peers: Mapping[str, Arm],
    audit: Callable[[Comparison, list[list[Record]]], Mapping[str, Any]],
) -> list[Peer]:
    """``audit`` holds an arm's outputs against its guarantee, the plain arm's beside them."""
    found = []
    for name, (experiment, records) in peers.items():
        over_plain = speedup(plain[1], records)
        over_it = over_plain if isinstance(over_plain, Refused) else speedup(records, ours)
        verdict = audit(Comparison((plain[0], experiment)), [list(plain[1]), list(records)])
        found.append(Peer(name, experiment, verdict, over_plain, over_it, tokens_per_step(records)))
    return found


def as_text(peers: Sequence[Peer], ours: str, over_plain: Estimate | Refused | None, rounds: Estimate | None) -> str:
    """A line a peer, the run itself first."""
    own = ("" if number is None else _shown(number) for number in (over_plain, rounds))  # plain decoding has neither
    rows = [("", "ours over it", "over plain", "tokens a round", "audit"), (ours, "", *own, "")]
    for peer in peers:
        numbers = (_shown(peer.ours_over_it), _shown(peer.over_plain), _shown(peer.tokens_per_step))
        rows.append((f"transformers {peer.name}", *numbers, str(peer.audit["verdict"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    reasons = dict.fromkeys(reason for peer in peers if (reason := peer.as_dict()["refused"]) is not None)
    return "\n".join([*lines, *reasons])


def _shown(number: Estimate | Refused | None) -> str:
    if not isinstance(number, Estimate):
        return "unknown" if number is None else "refused"
    return f"{number.value:.3g}" + ("" if number.low is None else f" [{number.low:.3g}, {number.high:.3g}]")
