"""PPD, Table 3 (catalogue 2): latency and throughput of the real pipeline, and what became of the saving it could have made."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from harness.core.experiment import Comparison, Experiment, MethodSpec, comparison_id, plain_arms
from harness.core.settings import Settings
from harness.measures.pairing import steps_of, wrong
from harness.measures.pipelines import UNITS, UNTIMED, Account, account, untimed
from harness.measures.statistics import Missing, NotReached
from harness.papers.ppd.setup import PAPER, SIZES, decoding, depth_of, heads_of, model_notes, remark
from harness.tables import published
from harness.tables.base import TIME_SHARE
from harness.tables.engine import Arm, Column, Known, Result, Row, Section, near_ties, row_name, table
from harness.tables.finding import FASTER, by_columns, order, side
from harness.tables.published import Printed, Published
from kernels.inputs import SamplingSpec

ROLE = "llama-2-13b"
GREEDY = "greedy"
SHOWN = "CNN/DM"  # what the timelines are taken from; answers to questions are too short for them
NUM_TOKENS = 128
MOST_TOLD = 2  # of the plans that an adaptive pipeline chose, the most frequent ones
# Column title -> quantity of harness.measures.pipelines.
PRINTED = {"match rate": "match_rate", "latency": "latency_s", "throughput": "throughput"}
SAVED = {"speed-up": "speedup", "Theorem 4.1": "theorem_frac", "attainable": "attainable_frac", "saved": "saved_frac"}
SHARES = {"reached": "reached_frac", "break-even": "break_even_rate", "greedy round": "plain_round_ms", "round": "round_ms"}
PARTS = {"layers": "layers_ms", "early head": "early_head_ms", "head": "head_ms"}
LOSSES = {
    "slower layers": "slower_layers_ms",
    "slower head": "slower_head_ms",
    "request": "post_ms",
    "waiting": "wait_ms",
    "hand-over": "adopt_ms",
}
COLUMNS = {**PRINTED, **SAVED, **SHARES, **PARTS, **LOSSES}
DERIVED = ("theorem_frac", "attainable_frac", "reached_frac", "break_even_rate", "slower_layers_ms", "slower_head_ms")
SAVINGS = ("attainable_frac", "saved_frac", "reached_frac")
THROUGHPUT, SPEEDUP = "throughput_tok_per_s", "speed-up"
PUBLISHED = {"match rate": "match_rate_pct", "latency": "latency_s", "throughput": THROUGHPUT, SPEEDUP: SPEEDUP}


@dataclass(frozen=True)
class _Method:
    """A row of the table and the method behind it; ``key`` is (method, k) of the paper's row, None where it has no such row."""

    name: str
    method: MethodSpec | None
    key: tuple[str, str] | None


def arms_of(settings: Settings) -> list[_Method]:
    """Greedy, the paper's two rows with the model's own head, the same with trained ones, and the plan that adapts itself."""
    depth = depth_of(settings, ROLE)
    pipeline = MethodSpec.of("ppd", early_layer=-(-depth // 2), candidates=1)
    batched = pipeline.change(candidates=3, execution="batched")
    rows = [
        _Method(GREEDY, None, ("greedy", "")),
        _Method("PPD, k = 1, N", pipeline, ("greedy_ppd", "1")),
        _Method("PPD, k = 3, N", batched, ("greedy_ppd", "3")),
    ]
    trained = heads_of(settings, ROLE)
    if isinstance(trained, Missing):
        return rows
    adaptive = batched.change(early_layer=None, candidates=None, heads=trained)
    return [
        *rows,
        _Method("PPD, k = 1, Y", pipeline.change(heads=trained), None),
        _Method("PPD, k = 3, Y", batched.change(heads=trained), None),
        _Method("PPD, adaptive, Y", adaptive, None),
    ]


def comparison(settings: Settings, dataset: str) -> Comparison:
    """Plain decoding on all threads and on one, then every pipeline; all interleaved."""
    base = decoding(settings, dataset, ROLE, SamplingSpec(), settings.limit or SIZES[settings.profile].timed_limit).replace(
        batch_size=1,
        repeats=settings.repeats or 1,
        max_new_tokens=NUM_TOKENS,
        comparison=comparison_id(PAPER, "pipeline", settings.models),
        replicas=settings.replicas,
    )
    methods = [arm.method for arm in arms_of(settings) if arm.method is not None]
    return Comparison((*plain_arms(base, methods[0]), *(base.replace(method=method) for method in methods)))


def datasets() -> list[str]:
    return list(dict.fromkeys(row["dataset"] for row in published.read(PAPER, "table_3")))


def shown_arm(settings: Settings, candidates: int) -> Experiment:
    """The arm that the timelines are drawn from: with trained heads where there are any."""
    arms = [arm for arm in comparison(settings, SHOWN).arms if arm.method.values.get("candidates") == candidates]
    return arms[-1]


def sections(settings: Settings) -> list[Section]:
    """A data set's greedy row, then its pipelines."""
    return [section for dataset in datasets() for section in _sections(settings, dataset)]


def _sections(settings: Settings, dataset: str) -> list[Section]:
    experiments, rows = comparison(settings, dataset).arms, arms_of(settings)
    plains = [arm for arm in experiments if arm.method.name == "autoregressive"]
    names = tuple(f"{GREEDY} {number}" for number in range(len(plains)))
    methods = {row.name: next(arm for arm in experiments if arm.method == row.method) for row in rows if row.method is not None}
    arms = {**dict(zip(names, plains, strict=True)), **methods}
    keys = {row.name: None if row.key is None else (dataset, row.key) for row in rows}
    greedy = Row(row_name(dataset, GREEDY), names[0], keys[GREEDY])
    shown = tuple(Row(row_name(dataset, name), name, keys[name]) for name in methods)
    depth = depth_of(settings, ROLE)
    return [Section(arms, (greedy,), _greedy_columns(names)), Section(arms, shown, _pipeline_columns(names, depth))]


def _printed(key: tuple[str, tuple[str, str]], metric: str) -> Published:
    """Return the paper's number; the speed-up, which it does not print, is its throughput over greedy decoding's."""
    rows = {(row["dataset"], (row["method"], row["k"])): row for row in published.read(PAPER, "table_3")}
    if key not in rows:
        return None
    if metric != SPEEDUP:
        return published.value(rows[key], metric)
    over, own = (published.value(rows[at], THROUGHPUT) for at in ((key[0], (GREEDY, "")), key))
    assert isinstance(over, Printed)
    assert isinstance(own, Printed)
    return Printed(f"{own / over:.2f}", "derived", own.place)


def _greedy_columns(plains: tuple[str, ...]) -> list[Column]:
    """The plain arms at their best: the faster rounds of one thread and of all, and the faster prompts."""
    found = _accounting(plains, 1)

    def which(known: Known, row: Row) -> str:
        best = found(known, row)
        if not isinstance(best, Account):
            return ""
        threads = "one thread" if known[plains[best.baseline]][0].num_threads == 1 else "all threads"
        return "; ".join(filter(None, (f"the faster of one thread and all: {threads}", remark(*known[row.arm]))))

    named = {"latency": "baseline_latency_s", "throughput": "baseline_throughput"}
    return [
        Column(title, _quantity(found, name, 1), UNITS[name], published=PUBLISHED[title], reads=plains, remark=which)
        for title, name in named.items()
    ]


def _pipeline_columns(plains: tuple[str, ...], depth: int) -> list[Column]:
    found = _accounting(plains, depth)
    return [
        Column(
            title,
            _quantity(found, name, depth),
            TIME_SHARE if name in SAVINGS else UNITS[name],
            published=PUBLISHED.get(title),
            reads=plains,
            remark=_run_remark if title == SPEEDUP else lambda known, row: "",
            kind="derived" if name in DERIVED else "measured",
        )
        for title, name in COLUMNS.items()
    ]


def _run_remark(known: Known, row: Row) -> str:
    """Say which outputs part at a near-tie, and what a plan that adapts itself chose."""
    experiment, records = known[row.arm]
    told = [near_ties(known, row)]
    if experiment.method.values.get("early_layer") is None:
        guessed = [(step.early_layer, len(step.candidates)) for one in records for step in steps_of(one) if step.candidates]
        counted = Counter(guessed).most_common(MOST_TOLD)
        told += [f"layer {layer}, k = {k} in {count} of {len(guessed)} rounds" for (layer, k), count in counted]
    return "; ".join(filter(None, told))


def _accounting(plains: tuple[str, ...], depth: int) -> Callable[[Known, Row], Account | Missing | None]:
    """Account for the row's arm beside the plain ones; the columns of a row share the result."""

    def compared(*arms: Arm) -> Account | Missing | None:
        own, *others = (records for _, records in arms)
        return account(others, own, depth)

    return lambda known, row: known.once(compared, row.arm, *plains)


def _quantity(found: Callable[[Known, Row], Account | Missing | None], name: str, depth: int) -> Callable[[Known, Row], Result]:
    def quantity(known: Known, row: Row) -> Result:
        result = found(known, row)
        own = known[row.arm][1]
        if isinstance(result, Missing) and name in UNTIMED and not wrong(own, own):
            return untimed(own, depth).get(name)
        if not isinstance(result, Account):
            return result
        if name == "reached_frac" and name not in result.estimates:
            return NotReached("the layers that matches spare are not clearly worth what the early head costs: nothing to reach")
        return result.estimates.get(name)

    return quantity


def latency_note(settings: Settings) -> str:
    if settings.fixed_length:
        return f"latency: seconds for a prompt and {NUM_TOKENS} tokens behind it (EOS is ignored, as in the paper)."
    return (
        f"latency: seconds for a prompt and its text, which ends at EOS or after {NUM_TOKENS} tokens. The paper's is of "
        f"{NUM_TOKENS} tokens always (here with FIXED_LENGTH=1). throughput and speed-up have prompts too, which weigh more in "
        "short texts; saved leaves them out."
    )


def notes(settings: Settings) -> list[str]:
    return [
        latency_note(settings),
        "match rate: of this very run, over all tokens but one at the length limit, for which nothing is begun; an EOS counts, "
        "though its match spares nothing. The early layer is half the depth, but that of adaptive.",
        "N: the model's own head reads the early layer; Y: a head trained for it. The paper does not say which its Table 3 "
        "has; its match rates are near those of N in its Table 5. k = 3 is one sub-process with a batch of three, not three "
        "of them.",
        "Shares are of greedy decoding's time a token, prompts apart; Theorem 4.1's, its saving at this run's matches, of "
        "the layers alone: it counts no heads. attainable: layers spared x a layer's time - the early head, which lies on "
        "the critical path. saved: as measured. reached: saved / attainable. break-even: the match rate from which on "
        "anything is attainable, the median of the texts'. It is high where a model is small and its vocabulary large: a head "
        "then costs as much as many layers.",
        "ms a token: attainable - saved = slower layers + slower head + request + waiting + hand-over; round = layers + "
        "both heads + the last three. slower layers: the main process's layers take longer while another process computes "
        "(shared caches, memory and power) and on fewer threads than greedy decoding's where that is faster on all of them; "
        "what is done between rounds is in them. Greedy decoding's head is taken to cost what the cheaper of the pipeline's "
        "two does, on all threads as much less as its rounds. waiting: a sub-process of k candidates runs k rows, which "
        "takes longer than the one row that the main process runs.",
        "Greedy decoding is the faster of one thread and all, its prompts and its rounds each; the pipeline reads prompts on "
        "all threads and decodes with one a process. speed-up: prompts included.",
        "adaptive: early layer and k follow from match rates and times measured on the warm-up and the first two texts; the "
        "forward passes that measure them are in its latency, throughput and speed-up.",
        *model_notes(settings, [ROLE, "heads"]),
    ]


PIPELINE = table(
    number=2,
    paper=PAPER,
    paper_number=3,
    title="latency and throughput of the real pipeline",
    row_heads=("dataset", "method"),
    columns=[Column(title) for title in COLUMNS],
    blocks=(tuple(PRINTED), tuple(SAVED), tuple(SHARES), tuple(PARTS), tuple(LOSSES)),
    sections=sections,
    published=_printed,
    first_notes=notes,
    findings=(
        side("speed-up", 1, "the pipeline", FASTER, "than greedy decoding", "pipelines"),
        order(by_columns("saved", "Theorem 4.1"), "the time saved", "as measured", "as Theorem 4.1 promises", "pipelines"),
    ),
)
