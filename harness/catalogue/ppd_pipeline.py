"""PPD, Table 3 (catalogue 2): latency and throughput of the real pipeline, and what became of the saving it could have made."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, cell_of, row_name
from harness.catalogue.ppd_setup import PAPER, decoding, depth_of, heads_of, model_notes
from harness.catalogue.roles import Absent
from harness.experiment import Comparison, Experiment, MethodSpec, plain_arms
from harness.pairing import Refused, num_near_ties
from harness.pipelines import UNITS, Account, account
from harness.records import Record
from harness.statistics import Estimate
from methods.sampling import Sampling

ROLE = "llama-2-13b"
SHOWN = "SQUAD"  # what the timelines are taken from
NUM_TOKENS = 128
LIMIT = {"toy": 20, "test": 2, "small": 20, "paper": 100}
# Column title -> quantity of harness.pipelines.
PRINTED = {"match rate": "match_rate", "latency": "latency_s", "throughput": "throughput"}
SAVED = {"speed-up": "speedup", "Theorem 4.1": "theorem_frac", "attainable": "attainable_frac", "saved": "saved_frac"}
SHARES = {"reached": "reached_frac", "greedy round": "plain_round_ms", "round": "round_ms"}
PARTS = {"layers": "layers_ms", "early head": "early_head_ms", "head": "head_ms"}
LOSSES = {
    "slower layers": "slower_layers_ms",
    "slower head": "slower_head_ms",
    "request": "post_ms",
    "waiting": "wait_ms",
    "hand-over": "adopt_ms",
}
COLUMNS = {**PRINTED, **SAVED, **SHARES, **PARTS, **LOSSES}
PUBLISHED = {"match rate": "match_rate_pct", "latency": "latency_s", "throughput": "throughput_tok_per_s"}


@dataclass(frozen=True)
class Arm:
    """A row of the table and the method behind it; ``key`` is (method, k) of the paper's row, None where it has no such row."""

    name: str
    method: MethodSpec | None
    key: tuple[str, str] | None


def arms_of(settings: Settings) -> list[Arm]:
    """Greedy, the paper's two rows with the model's own head, the same with trained ones, and the plan that adapts itself."""
    depth = depth_of(settings, ROLE)
    pipeline = MethodSpec(name="ppd", early_layer=-(-depth // 2), candidates=1)
    batched = replace(pipeline, candidates=3, execution="batched")
    rows = [
        Arm("greedy", None, ("greedy", "")),
        Arm("PPD, k = 1, N", pipeline, ("greedy_ppd", "1")),
        Arm("PPD, k = 3, N", batched, ("greedy_ppd", "3")),
    ]
    trained = heads_of(settings, ROLE)
    if isinstance(trained, Absent):
        return rows
    adaptive = replace(batched, early_layer=None, candidates=None, heads=trained)
    return [
        *rows,
        Arm("PPD, k = 1, Y", replace(pipeline, heads=trained), None),
        Arm("PPD, k = 3, Y", replace(batched, heads=trained), None),
        Arm("PPD, adaptive, Y", adaptive, None),
    ]


def comparison(settings: Settings, dataset: str) -> Comparison:
    """Plain decoding on all threads and on one, then every pipeline; all interleaved."""
    chosen = " ".join(f"{role}={name}" for role, name in settings.models)
    base = decoding(settings, dataset, ROLE, Sampling(), settings.limit or LIMIT[settings.profile]).replace(
        batch_size=1,
        repeats=settings.repeats or 1,
        max_new_tokens=NUM_TOKENS,
        ignore_eos=True,
        beside=f"ppd table 3 {chosen}".strip(),
    )
    methods = [arm.method for arm in arms_of(settings) if arm.method is not None]
    return Comparison((*plain_arms(base, methods[0]), *(base.replace(method=method, beside=chosen) for method in methods)))


def datasets() -> list[str]:
    return list(dict.fromkeys(row["dataset"] for row in published.read(PAPER, "table_3")))


def shown_arm(settings: Settings, candidates: int) -> Experiment:
    """The arm that the timelines are drawn from: with trained heads where there are any."""
    arms = [arm for arm in comparison(settings, SHOWN).arms if arm.method.candidates == candidates]
    return arms[-1]


def plan(settings: Settings) -> list[Comparison]:
    return [comparison(settings, dataset) for dataset in datasets()]


def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    depth, found = depth_of(settings, ROLE), []
    for dataset in datasets():
        experiments = comparison(settings, dataset).arms
        known = [(experiment, records_of(experiment)) for experiment in experiments]
        baselines = [pair for pair in known if pair[0].method.name == "autoregressive"]
        for arm in arms_of(settings):
            printed = _printed(dataset, arm.key)
            if arm.method is None:
                found += _greedy_cells(row_name(dataset, arm.name), printed, baselines)
            else:
                mine = next(pair for pair in known if pair[0].method == arm.method)
                found += _pipeline_cells(row_name(dataset, arm.name), printed, baselines, mine, depth)
    return found


def _printed(dataset: str, key: tuple[str, str] | None) -> dict[str, published.Published]:
    rows = [row for row in published.read(PAPER, "table_3") if (row["dataset"], (row["method"], row["k"])) == (dataset, key)]
    return {column: published.value(rows[0], name) for column, name in PUBLISHED.items()} if rows else {}


def _greedy_cells(
    row: str, printed: dict[str, published.Published], baselines: list[tuple[Experiment, list[Record]]]
) -> list[Cell]:
    """What the plain arms do at their best: the faster rounds of one thread and of all, and the faster prompts."""
    result = account([records for _, records in baselines], baselines[0][1], 1) if all(r for _, r in baselines) else None
    note = ""
    if isinstance(result, Account):
        threads = "one thread" if baselines[result.baseline][0].num_threads == 1 else "all threads"
        note = f"the faster of one thread and all: {threads}"
    return [
        cell_of(row, column, printed.get(column), baselines, _pick(result, quantity), UNITS[quantity], note=note)
        for column, quantity in (("latency", "baseline_latency_s"), ("throughput", "baseline_throughput"))
    ]


def _pipeline_cells(
    row: str,
    printed: dict[str, published.Published],
    baselines: list[tuple[Experiment, list[Record]]],
    mine: tuple[Experiment, list[Record]],
    depth: int,
) -> list[Cell]:
    known = [*baselines, mine]
    complete = all(records for _, records in known)
    result = account([records for _, records in baselines], mine[1], depth) if complete else None
    count = num_near_ties(mine[1])
    ties = f"{count} of {len(mine[1])} outputs part from greedy decoding's at a near-tie of two logits" if count else ""
    derived = ("theorem_frac", "attainable_frac", "reached_frac", "slower_layers_ms", "slower_head_ms")
    return [
        cell_of(
            row, column, printed.get(column), known, _pick(result, quantity), UNITS[quantity],
            "computed" if quantity in derived else "measured", ties if column == "speed-up" else "",
        )
        for column, quantity in COLUMNS.items()
    ]  # fmt: skip


def _pick(result: Account | Refused | None, name: str) -> Callable[[], Estimate | Refused | None]:
    if isinstance(result, Account) and name == "reached_frac" and name not in result.estimates:
        return lambda: Refused("what the matches spare may be no more than what the early head costs: nothing to reach")
    return lambda: result.estimates.get(name) if isinstance(result, Account) else result


def notes(settings: Settings) -> list[str]:
    return [
        "latency: seconds for 128 tokens after a prompt, the prompt included (EOS is ignored, as in the paper). match rate: "
        "of this very run, over all tokens but each text's last, for which nothing is begun. The early layer is half the "
        "depth.",
        "N: the model's own head reads the early layer; Y: a head trained for it. The paper does not say which its Table 3 "
        "has; its match rates are near those of N in its Table 5. k = 3 is one sub-process with a batch of three, not three "
        "of them.",
        "Shares are of greedy decoding's time a token, prompts apart. Theorem 4.1: its saving at this run's matches; it "
        "counts no heads. attainable: layers spared x a layer's time - the early head, which lies on the critical path. "
        "saved: as measured. reached: saved / attainable.",
        "ms a token: attainable - saved = slower layers + slower head + request + waiting + hand-over; round = layers + both "
        "heads + the last three. slower layers: the main process's layers take longer while another process computes (shared "
        "caches, memory and power) and on fewer threads than greedy decoding's where that is faster on all of them. Greedy "
        "decoding's head is taken to cost what the cheaper of the pipeline's two does; Theorem 4.1, without heads, is the most "
        "that is attainable.",
        "Greedy decoding is the faster of one thread and all, its prompts and its rounds each; the pipeline reads prompts on "
        "all threads and decodes with one a process. speed-up: prompts included.",
        "adaptive: early layer and k follow from match rates and times measured on the warm-up and the first two texts; its "
        "latency has the forward passes that measure them.",
        *model_notes(settings, [ROLE, "heads"]),
    ]


PIPELINE = Table(
    number=2,
    paper=PAPER,
    paper_number=3,
    title="latency and throughput of the real pipeline",
    row_heads=("dataset", "method"),
    blocks=(tuple(PRINTED), tuple(SAVED), tuple(SHARES), tuple(PARTS), tuple(LOSSES)),
    plan=plan,
    cells=cells,
    notes=notes,
)
