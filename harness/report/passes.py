"""The time of one pass of a model by its number of rows, beside what reading its weights once takes.

Verifying n drafts is a pass of n + 1 rows. Decoding is as fast as memory where a pass takes no longer than reading what it
needs; verifying is free (Leviathan, Theorem 3.8) where n rows take as long as one. Numbers come from records of raw times.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.core.files import made, parsed
from harness.core.messages import is_memory
from harness.core.text import markdown_lines
from harness.measures.pairing import MAX_DRIFT
from harness.measures.statistics import Estimate, drift, median
from harness.models.fit import Models
from harness.models.loading import LoadedModel
from harness.run.instruments import held_bytes, with_peak
from harness.run.kernels import time_on_cpu
from harness.tables import style
from kernels.products.matrix import meeting_time
from methods.models.base import Stack
from methods.models.general import GENERAL
from methods.models.weights import Product
from methods.session import ModelSession
from methods.types import Inputs

ROWS = (1, 2, 4, 6, 8)
CACHED = (100, 400)  # tokens behind which passes are timed, where the model's position limit allows
TURNS = 40  # in each, every number of rows is timed once
PROMPT_TURNS = 10  # how often a prompt is read
READ_SHAPE = (1 << 14, 1 << 13)  # of the fp32 matrix by which the bandwidth is measured: 512 MiB, more than caches hold
READS = 30
HEADS = ("cached tokens", "rows", "ms", "MB read", "of the bandwidth", "over one row")
MARKERS = "osD^v"  # another number of them than of colours, so that few models look alike
NOTES = """\
ms: the median of the turns with its 95 % interval; a turn times every number of rows once, in a random order. Over one row: the
median of the turns' ratios. MB read: the matrices of the layers and of the head with their biases, and the cached keys and
values, each once; no embeddings, norms or activations. Above 100 % of the bandwidth the processor's caches hold some of it, or
memory became faster meanwhile.
Bandwidth: reading a matrix of 512 MiB in a sum or in a product with a vector, the best of many, just before. Threads meet some
ten times a layer: cores that share no cache take several times as long for it, and for all numbers that they hand over.
Reading a prompt is one pass over all of its tokens, or the encoder's over a source of as many, of sound over all that
it hears."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The passes of a model behind ``cached`` tokens. ``seconds[i][turn]`` is a pass of ``rows[i]`` rows; turns are paired.
    ``prompt_seconds`` is what reading a prompt of as many tokens takes, or encoding a source (of sound its whole length).

    A pass reads ``weight_bytes`` and ``cache_bytes[i]``. Once loaded, the model holds ``parameter_bytes`` and tensors of
    ``beside_bytes`` more, a second copy of its weights for one; a session adds tensors of ``session_bytes``. ``peak_bytes`` is
    the most by which the process grew while the session was opened and ran. ``bandwidth`` is bytes read a second.
    ``meeting_s`` are seconds in which the threads meet, before the passes and behind them; None where that is unknown.
    """

    model: str
    revision: str | None
    dtype: str
    threads: int
    products: str
    bandwidth: float | None
    cached: int
    rows: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    prompt_seconds: tuple[float, ...]
    weight_bytes: int
    cache_bytes: tuple[int, ...]
    parameter_bytes: int
    beside_bytes: int
    session_bytes: int
    peak_bytes: int | None
    meeting_s: tuple[float | None, float | None] = (None, None)

    @property
    def turns(self) -> int:
        return len(self.seconds[0])

    def time(self, rows: int) -> Estimate:
        """Return the seconds of a pass."""
        return median(np.array(self.seconds[self.rows.index(rows)]), "s")

    @property
    def prompt_time(self) -> Estimate:
        """Return the seconds of reading a prompt."""
        return median(np.array(self.prompt_seconds), "s")

    def read_bytes(self, rows: int) -> int:
        return self.weight_bytes + self.cache_bytes[self.rows.index(rows)]

    def share(self, rows: int) -> float | None:
        """Return the share of the bandwidth that a pass of median time has."""
        return None if self.bandwidth is None else self.read_bytes(rows) / self.time(rows).value / self.bandwidth

    def cost(self, rows: int) -> Estimate:
        """Return the time of a pass over that of one row in the same turn."""
        one, own = (np.array(self.seconds[self.rows.index(count)]) for count in (1, rows))
        return median(own / one, "x")


def measure_passes(spec: ModelSpec, dtype: str) -> list[Passes]:
    """Load a pinned model on the CPU and time its passes behind as many cached tokens as its position limit allows.

    Raises:
        UsageError: the model cannot be loaded, decodes no tokens, or has no room for a pass.
    """
    before = held_bytes()
    model = Models("cpu", dtype).get(spec)
    beside, limit, most = held_bytes() - before - model.size_bytes, model.stack.position_limit, max(ROWS)
    if limit is not None and limit <= most:
        raise UsageError(f"model {spec.name}: its position limit is {limit}; expected more than the {most} rows of a pass")
    allowed = [cached for cached in CACHED if limit is None or cached + most <= limit]
    return [_measured(model, spec, dtype, cached, beside) for cached in allowed or [(limit or 0) - most]]


def _measured(model: LoadedModel, spec: ModelSpec, dtype: str, cached: int, beside: int) -> Passes:
    tokens = torch.zeros(1, max(ROWS), dtype=torch.long)

    def run(session: ModelSession, rows: int) -> None:
        session.extend(tokens[:, :rows])
        session.rewind([rows])

    def opened() -> ModelSession:
        session = open_session(model, cached)
        run(session, max(ROWS))
        return session

    def passes_of(rows: int) -> Callable[[int], object]:
        return lambda _: run(session, rows)

    bandwidth = reading_bandwidth()  # a shared machine's changes within minutes
    before = held_bytes()
    session, peak = with_peak("cpu", opened)
    added = held_bytes() - before
    meeting = meeting_time()
    seconds = time_on_cpu([passes_of(rows) for rows in ROWS], 1, TURNS)[:, :, 0]
    meeting_s = meeting, meeting_time()
    other, inputs = model.session(), prompt_of(model, cached)
    prompt_seconds = time_on_cpu([lambda _: other.prefill(inputs)], 1, PROMPT_TURNS)[0, :, 0]
    return Passes(
        model=spec.name,
        revision=spec.revision,
        dtype=dtype,
        threads=torch.get_num_threads(),
        products=model.stack.computed_by,
        bandwidth=bandwidth,
        cached=cached,
        rows=ROWS,
        seconds=tuple(tuple(round(one, 7) for one in own) for own in seconds.tolist()),
        prompt_seconds=tuple(round(one, 7) for one in prompt_seconds.tolist()),
        weight_bytes=weight_bytes(model.stack),
        cache_bytes=tuple(cache_bytes(session, cached + rows) for rows in ROWS),
        parameter_bytes=model.size_bytes,
        beside_bytes=beside,
        session_bytes=added,
        peak_bytes=peak,
        meeting_s=meeting_s,
    )


def open_session(model: LoadedModel, cached: int) -> ModelSession:
    """Return a session with so many tokens in its cache; a source has as many too, as far as its limit allows."""
    session = model.session()
    session.prefill(prompt_of(model, cached))
    if model.stack.encodes_prompts:
        session.run_layers(session.embed(torch.zeros(1, cached, dtype=torch.long)), 0, session.num_layers)
    return session


def prompt_of(model: LoadedModel, length: int) -> Inputs:
    """Return a prompt of which so many tokens are cached, or a source of as many, as far as its limit allows."""
    stack = model.stack
    features = None if stack.feature_shape is None else torch.zeros(1, *stack.feature_shape)
    limit = stack.source_limit or length
    return Inputs(((0,) * (min(length, limit) if stack.encodes_prompts else length + 1),), features)


def weight_bytes(stack: Stack) -> int:
    """Return the bytes of the matrices, with biases, that a pass reads: of the layers, all their experts, and of the head."""
    if isinstance(stack, GENERAL):
        tables = [one for one in stack.model.modules() if isinstance(one, torch.nn.Embedding)]
        left_out = {id(table.weight) for table in tables} - {id(stack.model.get_output_embeddings().weight)}
        return sum(one.nbytes for one in stack.model.parameters() if id(one) not in left_out)
    found = [stack.project, *(part for layer in stack.layers for part in layer if isinstance(part, Product))]
    return sum(one.read_bytes for one in found)


def cache_bytes(session: ModelSession, length: int) -> int:
    """Return the bytes of the keys and values of so many tokens, and of the source's where there is one."""
    stack, encoded = session.stack, session.encoded
    heads = stack.num_kv_heads * length + (0 if encoded is None else stack.num_heads * encoded.shape[1])
    return 2 * stack.num_layers * heads * stack.head_dim * stack.dtype.itemsize


def reading_bandwidth() -> float | None:
    """Measure bytes a second of reading far more than a cache holds. None where memory has no room for that.

    The faster of a sum and a product with a vector: torch's library makes that at 60 % of the sum's speed on an AMD processor.
    A copy, which also writes, moves a quarter less (``kernels.verify.traffic``), and a pass hardly writes.
    """
    try:
        matrix = torch.ones(READ_SHAPE)
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        return None
    vector, seconds = torch.ones(READ_SHAPE[1]), []
    for _ in range(READS):
        for read in (matrix.sum, partial(torch.mv, matrix, vector)):
            start = perf_counter()
            read()
            seconds.append(perf_counter() - start)
    return matrix.nbytes / min(seconds)


def to_json(environment: dict[str, str | int], records: Sequence[Passes]) -> str:
    return json.dumps({"environment": environment, "records": [asdict(one) for one in records]}, indent=1) + "\n"


def read_passes(path: Path) -> list[Passes]:
    """Return the records of a file as ``to_json`` wrote it."""
    return [made(Passes, one) for one in parsed(path.read_bytes())["records"]]


def as_markdown(records: Sequence[Passes]) -> str:
    """Format the passes of one model: what it is, a line for each number of rows, and its memory."""
    first = records[0]
    read = [("unknown" if one.bandwidth is None else f"{one.bandwidth / 1e9:.1f} GB/s") for one in records]
    bandwidth = " and ".join(dict.fromkeys(read))
    lines = markdown_lines(HEADS, [_line(one, rows) for one in records for rows in one.rows])
    memory = f"Memory: parameters {_mb(first.parameter_bytes)}, the loaded model's other tensors {_mb(first.beside_bytes)}"
    prompts = [
        f"a prompt of {one.cached} tokens {one.prompt_time.mapped(lambda seconds: seconds * 1e3).as_text('.2f')} ms"
        for one in records
    ]
    sessions = [
        f"a session of {one.cached} tokens adds {_mb(one.session_bytes)}, while opened and run at most {_mb(one.peak_bytes)}"
        for one in records
    ]
    meetings = as_meetings([seconds for one in records for seconds in one.meeting_s])
    threads = f"threads {first.threads}" if first.threads == 1 else f"threads {first.threads} that meet in {meetings}"
    kind = f"{first.dtype}, {threads}, turns {first.turns}, memory bandwidth {bandwidth}, products {first.products}"
    warnings = [
        f"While passes behind {one.cached} tokens were timed, the time of one row changed by {change:+.0%}: time them again."
        for one in records
        if abs(change := drift(np.array(one.seconds[one.rows.index(1)]))) > MAX_DRIFT
    ]
    below = [f"Reading takes: {', '.join(prompts)}.", f"{'; '.join([memory, *sessions])}."]
    return "\n".join([f"{first.model}: {kind}", "", *lines, "", *below, *warnings]) + "\n"


def as_page(records: Sequence[Passes]) -> str:
    """Format the passes of all models."""
    names = dict.fromkeys(one.model for one in records)
    return "\n".join([*(as_markdown([one for one in records if one.model == name]) for name in names), NOTES, ""])


def as_meetings(seconds: Sequence[float | None]) -> str:
    """Say in how many microseconds threads met, the shortest and the longest of some measurements."""
    known = [f"{one * 1e6:.2f}" for one in sorted(one for one in seconds if one is not None)]
    return f"{' to '.join(dict.fromkeys([known[0], known[-1]]))} us" if known else "unknown time"


def _line(one: Passes, rows: int) -> list[str]:
    share = one.share(rows)
    cost = "1" if rows == 1 else one.cost(rows).as_text(".2f")
    shown_share = "unknown" if share is None else f"{share:.0%}"
    time = one.time(rows).mapped(lambda seconds: seconds * 1e3).as_text(".2f")
    return [str(one.cached), str(rows), time, f"{one.read_bytes(rows) / 1e6:.2f}", shown_share, cost]


def _mb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e6:.2f} MB"


def draw_cost(records: Sequence[Passes], folder: Path, name: str) -> list[Path]:
    """Draw verify cost by n: the time of n rows over that of one, a panel for each number of cached tokens."""
    names = list(dict.fromkeys(one.model for one in records))
    looks = {model: (MARKERS[i % len(MARKERS)], style.COLOURS[i % len(style.COLOURS)], "-") for i, model in enumerate(names)}
    lengths = sorted({one.cached for one in records})
    with style.look():
        figure = style.new_figure(4.6 * len(lengths) + 0.6, 4.2)
        panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
        for axes, cached in zip(panels, lengths, strict=True):
            shown = [one for one in records if one.cached == cached]
            lines = {one.model: {rows: one.cost(rows) for rows in one.rows} for one in shown}
            style.draw_lines(axes, lines, looks, markersize=5, elinewidth=0.8)
            axes.axhline(1, color="black", lw=1, ls=":")
            axes.set(title=f"Verify cost behind {cached} tokens", xlabel="n, rows of the pass", xticks=records[0].rows)
        panels[0].set_ylabel("time of n rows over one row")
        panels[0].set_ylim(bottom=0)
        handles = [
            style.legend_line(marker=mark, color=colour, ls=line, label=style.printable(ModelSpec(name=model).short))
            for model, (mark, colour, line) in looks.items()
        ]
        free = style.legend_line(color="black", lw=1, ls=":", label="free (Theorem 3.8)")
        style.legends_beside(figure, panels[-1], ("model", [*handles, free]))
        first = records[0]
        style.footnote(figure, f"On a CPU, threads {first.threads}. Bars: 95 % intervals over {first.turns} turns.")
        return style.save(figure, folder, name)
