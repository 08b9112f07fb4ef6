"""Run the generation loops of transformers in turns with a method, on the same models and prompts, and tell which is faster.

A peer is one of the ways in which transformers decodes: "generate" (no drafts; beams where the run has beams),
"assistant" (the run's draft model), "prompt-lookup", "early-exit:LAYER" (the target's own first layers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, comparison_id
from harness.core.records import Record
from harness.core.text import text_table
from harness.measures.of_run import speedup, tokens_per_step
from harness.measures.statistics import Estimate, Missing
from harness.run.refusals import EXIT, LOOKUP

EXPECTED = f"expected generate, assistant, {LOOKUP} or {EXIT}:LAYER"
Arm = tuple[Experiment, Sequence[Record]]


@dataclass(frozen=True)
class _Peer:
    """One arm of transformers: its speed-up over plain decoding, and ours over it (its seconds a token over ours)."""

    name: str
    experiment: Experiment
    audit: Mapping[str, Any]
    over_plain: Estimate | Missing | None
    ours_over_it: Estimate | Missing | None
    tokens_per_step: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("over_plain", "ours_over_it", "tokens_per_step")}
        refused = [number.why for number in numbers.values() if isinstance(number, Missing)]
        shown = {name: number.as_dict() if isinstance(number, Estimate) else None for name, number in numbers.items()}
        return {
            "name": self.name,
            "signature": self.experiment.signature,
            **shown,
            "refused": next(iter(refused), None),
            "audit": dict(self.audit),
        }


def peer_method(name: str, method: MethodSpec, draft: DrafterSpec | None) -> MethodSpec:
    """Return the method of a peer. It shares gamma, schedule, beams and draft model with ``method``.

    Raises:
        UsageError: no such name, or no draft model for an assistant.
    """
    if name == "generate":
        return MethodSpec.of("transformers", num_beams=method.num_beams)
    if name == "assistant":
        if draft is None:
            raise UsageError("peer 'assistant': transformers drafts with a model of its own kind; give --draft")
        return _assisted(draft.alone, method, schedule=_schedule(method))
    if name == LOOKUP:
        return _assisted(DrafterSpec(kind=LOOKUP), method)
    kind, _, layer = name.partition(":")
    if kind != EXIT or not layer.isdigit() or int(layer) < 1:
        raise UsageError(f"peer {name!r}: {EXPECTED}")
    return _assisted(DrafterSpec(kind=EXIT), method, schedule=_schedule(method), early_layer=int(layer))


def _assisted(drafter: DrafterSpec, method: MethodSpec, **fields: Any) -> MethodSpec:
    num_beams = method.num_beams
    return MethodSpec.of("transformers", drafter=drafter, gamma=method.gamma or 5, num_beams=num_beams, **fields)


def _schedule(method: MethodSpec) -> str:
    return method.values.get("schedule", "constant")


def with_peers(comparison: Comparison, names: Sequence[str]) -> tuple[Comparison, dict[str, Experiment]]:
    """The arms of a run, and those of its peers by name: each says what it took turns with, so that times of other runs are
    never mixed with these."""
    plain, method = comparison.arms[0], comparison.arms[-1].method
    draft = next((one for one in (method.drafter, *plain.overlap) if one is not None and one.is_model), None)
    chosen = {name: peer_method(name, method, draft) for name in names}
    assisted = [name for name, one in chosen.items() if one.drafter is not None]
    if assisted and plain.batch_size > 1:
        raise UsageError(
            f"batch_size {plain.batch_size}: transformers' assisted generation (peer {assisted[0]!r}) has no batches and would "
            "decode row by row beside ours; expected 1, or peer generate"
        )
    if not chosen:
        return comparison, {}
    together = comparison_id("run", f"{method.name} and peers", method, *chosen.values())
    own = Comparison(tuple(arm.replace(comparison=together) for arm in comparison.arms))
    bare = own.arms[0].replace(probes=())
    return own, {name: bare.replace(method=one) for name, one in chosen.items()}


def measured(
    plain: Arm,
    ours: Sequence[Record],
    peers: Mapping[str, Arm],
    audit: Callable[[Comparison, list[list[Record]]], Mapping[str, Any]],
) -> list[_Peer]:
    """Compute the speeds of every peer. ``audit`` checks an arm's outputs against its guarantee, given the plain arm's."""
    found = []
    for name, (experiment, records) in peers.items():
        over_plain = speedup(plain[1], records)
        over_it = over_plain if isinstance(over_plain, Missing) else speedup(records, ours)
        verdict = audit(Comparison((plain[0], experiment)), [list(plain[1]), list(records)])
        found.append(_Peer(name, experiment, verdict, over_plain, over_it, tokens_per_step(records)))
    return found


def as_text(peers: Sequence[_Peer], ours: str, over_plain: Estimate | Missing | None, rounds: Estimate | None) -> str:
    """Format a table with a line for each peer, the run itself first."""
    own = ("" if number is None else _shown(number) for number in (over_plain, rounds))  # plain decoding has neither
    rows = [("", "ours over it", "over plain", "tokens a round", "audit"), (ours, "", *own, "")]
    for peer in peers:
        numbers = (_shown(peer.ours_over_it), _shown(peer.over_plain), _shown(peer.tokens_per_step))
        rows.append((f"transformers {peer.name}", *numbers, str(peer.audit["verdict"])))
    reasons = dict.fromkeys(reason for peer in peers if (reason := peer.as_dict()["refused"]) is not None)
    return "\n".join([*text_table(rows), *reasons])


def _shown(number: Estimate | Missing | None) -> str:
    if not isinstance(number, Estimate):
        return "unknown" if number is None else "refused"
    return number.as_text(".3g")
