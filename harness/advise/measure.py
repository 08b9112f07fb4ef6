"""Run what advice rests on, by the ordinary runner: a look, a pilot, and the best predictions beside plain decoding.

    look    plain decoding of every second example: how long one takes, what each drafter that is known yet would have drafted,
            texts that n-grams are counted on, and what the target's head would say after some of its layers: early exit, and
            at most what PPD could reach
    pilot   of the other examples some: plain decoding with each drafter's overlap, and each drafter with a sweeping gamma
    check   of the same others more, so also such as the pilot has not seen: plain decoding, the three best predictions, and PPD
            where what it could reach at most is more than any of them

How much each records follows from records alone, so that a run that was killed goes on where it stopped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.advise.predict import GAMMAS, MOST_DRAFTS, Cell, Pilot, Pipeline
from harness.advise.rounds import paired_batches
from harness.core.errors import UsageError
from harness.core.experiment import (
    Comparison,
    DrafterSpec,
    EarlyProbe,
    Experiment,
    MethodSpec,
    ModelSpec,
    OverlapProbe,
    comparison_id,
)
from harness.core.records import Record
from harness.measures.pairing import incomparable, succeeded
from harness.measures.statistics import Missing
from harness.models.fit import Models
from harness.run.build import build_drafter
from harness.run.prompts import examples_of
from harness.run.runner import Runner, pin
from methods.cores import num_cores
from methods.options import NGRAM_TABLE
from methods.ppd.plans import MOST_CANDIDATES
from methods.ppd.theory import Costs, expected_latency
from methods.speculative.ngram import NGramTable
from methods.speculative.theory import walltime_factor

SHARES = {"look": 0.15, "pilot": 0.28, "check": 0.45}  # of the time; the rest loads models and counts
MOST_EXAMPLES = 200
LOOKED_AT, TRIED = 0, 1  # replicas, by which examples are parted in two halves: one is looked at, by the other advice is tried
FIRST = 2  # batches, by which a stage learns how long an example takes
EXITS = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the depth, where early exit is looked at
AHEAD = (1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of the depth, where PPD may predict; Algorithm 2 needs half of it
PROCESSES = 2  # of PPD, at least
WHOLE_ONLY = "its layers only run together, graphs are on, or it is an encoder-decoder"
PROBED = 1.3  # what overlaps and records of the pilot cost, over what decoding costs
LOOK = 0.3  # what each probe of the look costs, over what decoding costs


@dataclass(frozen=True)
class Arms:
    """What a stage recorded: its arms, plain decoding first, and their records."""

    experiments: tuple[Experiment, ...]
    records: tuple[list[Record], ...]

    @property
    def plain(self) -> list[Record]:
        return self.records[0]

    def refusal(self, arm: int) -> Missing | None:
        """Say why times of an arm must not be compared with plain decoding's."""
        return incomparable(self.plain, self.records[arm])


class Stages:
    """The stages of advice on one plain experiment; ``seconds`` is the time for all."""

    def __init__(self, plain: Experiment, seconds: float, runner: Runner) -> None:
        self.seconds, self.runner = seconds, runner
        self.plain = plain.replace(replicas=2, replica=TRIED, probes=())
        self.num_checked = 0
        self.available = len(examples_of(pin(self.plain.replace(limit=MOST_EXAMPLES))))
        if not self.available:
            raise UsageError(
                f"data {plain.source}: one prompt; expected 2 or more, since half are looked at and half are tried"
            )

    @property
    def batch_size(self) -> int:
        return self.plain.batch_size

    def look(self, layers: Sequence[int], drafters: Sequence[DrafterSpec]) -> Arms:
        """Decode texts that no other stage sees, with each drafter's overlap, and what the target's head would say after
        each of ``layers``."""
        early = (EarlyProbe(layers=tuple(layers)),) if layers else ()
        probes = (*early, *(OverlapProbe(drafter=one) for one in drafters))
        plain = self.plain.replace(replica=LOOKED_AT, comparison=comparison_id("advise", "look"), probes=probes)
        return self._run((plain,), SHARES["look"] / (1 + LOOK * len(probes)), max(1, self.available), "look")

    def pilot(self, drafters: Sequence[DrafterSpec]) -> Arms:
        """Measure acceptance and costs of every drafter."""
        plain = self.plain.replace(comparison=comparison_id("advise", "pilot", *drafters))
        probed = plain.replace(probes=tuple(OverlapProbe(drafter=one) for one in drafters))
        sweeps = [MethodSpec.of("speculative", drafter=one, schedule="sweep", gamma=MOST_DRAFTS) for one in drafters]
        arms = (probed, *(plain.replace(method=one) for one in sweeps))
        return self._run(arms, SHARES["pilot"] / PROBED, max(1, self.available // 2), "pilot")

    def check(self, cells: Sequence[Cell], seen: int, pipeline: Pipeline | None = None) -> Arms:
        """Run predictions, and PPD last where there is a plan for it, beside plain decoding.

        They run on what the pilot saw (``seen`` examples) and on at least a batch more.
        """
        methods = [MethodSpec.of("speculative", drafter=cell.drafter, gamma=cell.gamma) for cell in cells]
        if pipeline is not None:
            methods.append(MethodSpec.of("ppd", early_layer=pipeline.early_layer, candidates=pipeline.candidates))
        plain = self.plain.replace(comparison=comparison_id("advise", "check", *methods))
        arms = (plain, *(plain.replace(method=one) for one in methods))
        found = self._run(arms, SHARES["check"], self.available, "check", seen + self.batch_size)
        self.num_checked = len(found.plain)
        return found

    def _run(self, arms: Sequence[Experiment], share: float, most: int, name: str, least: int = 1) -> Arms:
        """Record a few batches, and then as many as their seconds leave time for."""
        limit, recorded = max(FIRST * self.batch_size, least), Arms((), ())
        for _ in range(2):
            limit = min(limit, most)
            pinned = Comparison(tuple(pin(arm.replace(limit=limit)) for arm in arms))
            self.runner.run(pinned, f"{name}, batch {self.batch_size}" if self.batch_size > 1 else name)
            recorded = Arms(pinned.arms, tuple(self.runner.records(arm) for arm in pinned.arms))
            refuse_failures(recorded, name)
            limit = max(limit, affordable(recorded.records, self.seconds * share, self.batch_size))
        return recorded


def affordable(arms: Sequence[Sequence[Record]], seconds: float, batch_size: int) -> int:
    """Return how many examples, whole batches of them, all arms decode in so many seconds."""
    each = sum(sum(row.wall_s or 0.0 for row in arm) / len(arm) for arm in map(succeeded, arms) if arm)
    return batch_size * int(seconds / each / batch_size)


def refuse_failures(arms: Arms, name: str) -> None:
    """UsageError where an arm has nothing to measure. Of PPD, which no flag leaves out, the answer says so."""
    for experiment, records in zip(arms.experiments, arms.records, strict=True):
        failed = None if experiment.method.is_pipeline else all_failed(records)
        if failed is not None:
            what = "plain decoding" if experiment.method.drafter is None else f"drafter {experiment.method.drafter.label}"
            raise UsageError(f"{name}: {failed.why} ({what}); leave it out, or mend it")


def all_failed(records: Sequence[Record]) -> Missing | None:
    """Say so where an arm has nothing to measure."""
    if succeeded(records):
        return None
    return Missing(f"all examples failed, the first with {next((row.error for row in records), 'nothing recorded')}")


def pilots(arms: Arms, looked: Sequence[Record] = ()) -> dict[str, Pilot | Missing]:
    """Return each drafter's pilot by its label, or why its times must not be used; ``looked`` is the look's plain decoding."""
    found: dict[str, Pilot | Missing] = {}
    for index, experiment in enumerate(arms.experiments[1:], start=1):
        drafter = experiment.method.drafter
        assert drafter is not None
        refusal, size = arms.refusal(index), experiment.batch_size
        if refusal is None and not paired_batches(arms.plain, arms.records[index], size):
            refusal = Missing(
                f"batch {size}: none was decoded whole by both arms, in each a row failed; give a smaller --batch"
            )
        found[drafter.label] = refusal or Pilot(arms.plain, arms.records[index], drafter, size, looked)
    return found


def check_drafters(plain: Experiment, drafters: Sequence[DrafterSpec], runner: Runner) -> None:
    """Load target and drafts, and make every drafter once: what does not fit is refused before anything is decoded."""
    pinned = pin(plain.replace(probes=tuple(OverlapProbe(drafter=one) for one in drafters)))

    def make(models: Models) -> None:
        target = models.get(pinned.target)
        for drafter in pinned.overlap:
            build_drafter(drafter, target, models)

    runner.with_models(pinned, make)


def counted(records: Sequence[Record], plain: Experiment, folder: Path, runner: Runner) -> DrafterSpec:
    """Count pairs of tokens in outputs of the target, and return the drafter that reads them."""
    vocab_size = runner.with_models(plain, lambda models: models.get(plain.target).vocab_size)
    table = NGramTable.count([row.tokens or () for row in succeeded(records)], vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{NGRAM_TABLE}"
    table.save(partial)
    partial.replace(folder / NGRAM_TABLE)
    return DrafterSpec(kind="bigram", model=ModelSpec(name=str(folder.resolve())))


@dataclass(frozen=True)
class Depth:
    """The target's layers, and how many of them its head costs as much as.

    ``tried``: where it may exit early; ``ahead``: where PPD may predict.
    """

    num_layers: int
    head_layers: float
    tried: tuple[int, ...]
    ahead: tuple[int, ...] = ()

    @property
    def probed(self) -> tuple[int, ...]:
        return tuple(sorted({*self.tried, *self.ahead}))


def depth_of(plain: Experiment, runner: Runner) -> Depth:
    """Ask the loaded target. Nothing is tried where layers only run together, with graphs, and for encoder-decoders."""
    pinned = pin(plain)

    def ask(models: Models) -> Depth:
        target = models.get(pinned.target)
        stack, layers = target.stack, target.stack.num_layers
        able = stack.runs_layers_alone and not stack.parts and not target.is_encoder_decoder and not plain.graphs
        tried = sorted({max(1, round(layers * share)) for share in EXITS} - {layers}) if able else []
        ahead = sorted({math.ceil(layers * share) for share in AHEAD} - {layers}) if able else []
        body = stack.model.num_parameters(exclude_embeddings=True) if able else 1
        return Depth(layers, stack.head_weight.numel() * layers / body, tuple(tried), tuple(ahead))

    return runner.with_models(pinned, ask)


def early_exit(look: Sequence[Record], depth: Depth) -> DrafterSpec | Missing:
    """Return the target's first layers as a drafter, as many as promise most by Theorem 3.8 at the look's match rate.

    A draft costs its share of layers and the head. The theorem takes verifying as free, so that what does not pay by it pays
    nowhere.
    """
    if not depth.tried:
        return Missing(WHOLE_ONLY)
    whole, promised = depth.num_layers + depth.head_layers, dict[int, float]()
    for layer in depth.tried:
        alpha, cost_ratio = _match_rate(look, layer, 1), (layer + depth.head_layers) / whole
        promised[layer] = float(np.max(walltime_factor(alpha, np.array(GAMMAS), cost_ratio)))
    best = max(promised, key=lambda layer: promised[layer])
    if promised[best] <= 1:
        found = ", ".join(f"{promise:.2f} behind layer {layer}" for layer, promise in promised.items())
        return Missing(f"cannot pay, even if verifying were free (Theorem 3.8): {found}")
    return DrafterSpec(kind="first-layers", options={"draft_layers": best})


def _match_rate(look: Sequence[Record], layer: int, candidates: int) -> float:
    """Return how often the token is among the likeliest ``candidates`` of a layer, by the target's own head."""
    ranks = [rank for row in succeeded(look) for one in row.early if one.layer == layer for rank in one.ranks]
    return float(np.mean(np.array(ranks) < candidates))


def pipelined(look: Sequence[Record], depth: Depth, batch_size: int) -> Pipeline | Missing:
    """Return the plan of PPD that promises most by Theorem 4.1 with the costs of heads, of the layers that were looked at.

    Processes that begin tokens early cost nothing in it, neither time to start them nor cores that the main process would have
    had: what does not pay by it pays nowhere. More candidates cost nothing either, so there are as many as cores.
    """
    if not depth.ahead:
        return Missing(WHOLE_ONLY)
    if batch_size > 1:
        return Missing("it decodes one row at a time; give --batch 1")
    if num_cores() < PROCESSES:
        return Missing(f"it needs {PROCESSES} cores and more; here is one")
    length = float(np.mean([len(row.tokens or ()) for row in succeeded(look)]))
    if length < 1:
        return Missing("the look's texts are empty")
    candidates, head = min(MOST_CANDIDATES, num_cores() - 1), depth.head_layers
    costs, plain = Costs(early_head=head, final_head=head), length * (depth.num_layers + head)
    found = list[Pipeline]()
    for layer in depth.ahead:
        rate = _match_rate(look, layer, candidates)
        speed = plain / float(expected_latency(depth.num_layers, layer, length, rate, costs))
        found.append(Pipeline(layer, candidates, rate, speed))
    best = max(found, key=lambda one: one.speed)
    if best.speed <= 1:
        behind = ", ".join(f"{one.speed:.2f} behind layer {one.early_layer} (match rate {one.match_rate:.2f})" for one in found)
        return Missing(f"cannot pay, even if its processes were free (Theorem 4.1 with the cost of heads): {behind}")
    return best


def unseen(arms: Arms, pilot: Arms) -> Arms:
    """Return what an arm recorded of examples that the pilot did not decode."""
    known = {row.example for row in pilot.plain}
    return replace(arms, records=tuple([row for row in own if row.example not in known] for own in arms.records))
