"""``foretoken bench``: time our loops against those of transformers on the zoo, passes of models, kernels; results/bench/."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from harness.core import environment
from harness.core.errors import UsageError
from harness.core.experiment import ZOO, ModelSpec
from harness.core.settings import RESULTS, model_name, source_of
from harness.models.names import pin_model
from harness.report.bench import FAMILIES, Row, Sizes, plan, rows
from harness.report.passes import (
    NOTES,
    Passes,
    as_markdown,
    as_meetings,
    as_page,
    draw_cost,
    measure_passes,
    read_passes,
    to_json,
)
from harness.run.kernels import BASELINE, KernelRow, Setting, bench_setting, check_kernels
from harness.run.runner import Runner
from harness.tables.files import write_whole
from harness.zoo.build import ensure
from harness.zoo.cache import is_complete, model_folder
from harness.zoo.recipes import recipe_for, recipe_hash, scale_of
from kernels.products.matrix import meeting_time
from kernels.verify.check import Report
from kernels.verify.traffic import bandwidth, empty_launch_s


def execute(args: argparse.Namespace) -> int:
    if args.what != "kernels" and args.device != "cpu":
        raise UsageError(f"device {args.device!r}: loops and passes are timed on a CPU; use --device cpu, or time kernels")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.target is not None:
        return _execute_own(args)
    if args.what == "kernels":
        return _execute_kernels(args)
    if args.what != "passes" and args.tokens <= args.gamma:
        raise UsageError(f"tokens {args.tokens}: expected more than gamma ({args.gamma}), or no round drafts that many")
    source, families = source_of(args.data, args.profile), [args.only] if args.only else list(FAMILIES)
    names = [name for family in families for name in FAMILIES[family].models]
    if args.dry_run:
        _print_models(names, args.profile, source)
        return 0
    if args.what != "passes":
        _time_loops(families, args, source)
    if args.what != "loops":
        ensure(names, scale_of(args.profile), source)
        specs = [pin_model(ModelSpec(name=f"{ZOO}{name}"), args.profile, source) for name in names]
        _time_passes(specs, f"{args.profile}-{Path(source).name}", args)
    return 0


def _execute_own(args: argparse.Namespace) -> int:
    """Time the passes of a model of one's own."""
    if args.what in ("loops", "kernels") or args.only:
        other = f"--only {args.only}" if args.only else args.what
        raise UsageError(f"--target {args.target} with {other}: of a model of one's own only passes are timed; leave one out")
    name, source = model_name(args.target), source_of(args.data, args.profile)
    spec = pin_model(ModelSpec(name=name), args.profile, source)
    if args.dry_run:
        print(f"{spec.name} {spec.revision}")
        return 0
    if spec.zoo_name is not None:
        ensure([spec.zoo_name], scale_of(args.profile), source)
    _time_passes([spec], spec.short.replace(":", "-"), args)
    return 0


def _print_models(names: list[str], profile: str, source: str) -> None:
    scale = scale_of(profile)
    for name in names:
        digest = recipe_hash(name, scale, source)
        steps = recipe_for(name, scale, source).steps
        state = "cached" if is_complete(model_folder(name, digest)) else f"to train: {steps} steps"
        print(f"{name:20s} {digest}  {state}")


def _time_loops(families: Sequence[str], args: argparse.Namespace, source: str) -> None:
    found: list[Row] = []
    sizes = Sizes(args.gamma, args.prompts, args.repeats, args.tokens)
    runner = Runner(args.records, args.quiet, args.again)
    meetings = [meeting_time()]
    for family in families:
        comparisons = plan(FAMILIES[family], sizes, args.profile, source, args.threads)
        for row in rows(comparisons, args.gamma, runner, args.examples):
            print(row.as_text(), flush=True)
            found.append(row)
            meetings.append(meeting_time())
    if (threads := torch.get_num_threads()) > 1:
        print(f"{threads} threads meet in {as_meetings(meetings)} now, before and behind every row; earlier records may differ")
    name = "-".join(("loops", args.profile, Path(source).name, *([args.only] if args.only else [])))
    path = _write(found, meetings, sizes, name)
    missed = sum(not row.met for row in found)
    print(f"{len(found) - missed} of {len(found)} goals met; written: {path}")


def _write(found: list[Row], meetings: list[float | None], sizes: Sizes, name: str) -> Path:
    """Write the rows with what they were made of, and how long threads took to meet."""
    path = RESULTS / "bench" / f"{name}.json"
    document = {
        "environment": {**environment.describe(), "threads": torch.get_num_threads()},
        "sizes": asdict(sizes),
        "meeting_s": meetings,
        "rows": [row.as_dict() for row in found],
    }
    return write_whole(path, json.dumps(document, indent=1) + "\n")


def _time_passes(specs: Sequence[ModelSpec], label: str, args: argparse.Namespace) -> None:
    """Record the passes of every model, and write what the records say: records, a table and a figure."""
    folder, threads = RESULTS / "bench", torch.get_num_threads()
    name, records = f"passes-{label}-{args.dtype}-{threads}-threads", list[Passes]()
    for spec in specs:
        found = measure_passes(spec, args.dtype)
        print(as_markdown(found), flush=True)
        records += found
    path = write_whole(folder / f"{name}.json", to_json({**environment.describe(), "threads": threads}, records))
    table = write_whole(folder / f"{name}.md", as_page(read_passes(path)))
    print(f"{NOTES}\nwritten: {', '.join(map(str, [path, table, *draw_cost(read_passes(path), folder, name)]))}")


def _execute_kernels(args: argparse.Namespace) -> int:
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {args.device!r}: no CUDA device here; use --device cpu")
    if args.cold and args.device != "cpu":
        raise UsageError(f"--cold with --device {args.device}: only a CPU's caches are swept; leave one of the two out")
    settings, names = _settings(args), [BASELINE, *(name for name in args.kernels if name != BASELINE)]
    if args.dry_run:
        print("\n".join([*(setting.as_text() for setting in settings), f"kernels: {', '.join(names)}"]))
        return 0
    reports = check_kernels(names, args.rows, args.dtype, args.device)
    for report in reports.values():
        print(report.as_text(), flush=True)
    limit, empty_s = bandwidth(args.device), empty_launch_s(args.device)
    print(f"memory bandwidth {limit / 1e9:.1f} GB/s, empty call {empty_s * 1e6:.2f} us")
    rows: list[KernelRow] = []
    for setting in settings:
        print(setting.as_text(), flush=True)
        for row in bench_setting(setting, names, reports, args.repeats, limit, empty_s):
            print(f"  {row.as_text()}", flush=True)
            rows.append(row)
    verdicts = [row.met for row in rows if row.met is not None]
    print(f"{sum(verdicts)} of {len(verdicts)} goals met, by the upper end of the interval")
    print(f"written: {_write_kernels(rows, reports, limit, empty_s, args)}")
    return int(any(not report.passed for report in reports.values()))


def _settings(args: argparse.Namespace) -> list[Setting]:
    return [
        Setting(
            batch=batch,
            gamma=args.gamma,
            vocab_size=vocab_size,
            acceptance=alpha,
            top_k=top_k,
            dtype=args.dtype,
            device=args.device,
            cold=args.cold,
        )
        for batch in args.batch
        for vocab_size in args.vocab
        for top_k in map(_top_k, args.top_ks)
        for alpha in map(_acceptance, args.acceptance)
    ]


def _top_k(text: str) -> int | None:
    if text == "none" or (text.isdigit() and int(text)):
        return None if text == "none" else int(text)
    raise UsageError(f'top-k {text!r}: expected a number from 1 on, or "none" where no token is left out')


def _acceptance(text: str) -> float | None:
    try:
        value = None if text == "all" else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 < value < 1:
        raise UsageError(f'acceptance {text!r}: expected a number between 0 and 1, or "all" where every draft stands')
    return value


def _write_kernels(
    rows: Sequence[KernelRow], reports: dict[str, Report], limit: float, empty_s: float, args: argparse.Namespace
) -> Path:
    """Write one file a device (with so many threads, if it is the CPU) and dtype: rows, checks, hardware, versions."""
    where = f"cpu-{torch.get_num_threads()}-threads" if args.device == "cpu" else args.device.replace(":", "")
    path = RESULTS / "bench" / f"kernels-{where}-{args.dtype}{'-cold' if args.cold else ''}.json"
    document = {
        "environment": {**environment.describe(args.device), "threads": torch.get_num_threads(), "triton": version("triton")},
        "bandwidth_bytes_per_s": limit,
        "empty_call_s": empty_s,
        "checks": {name: asdict(report) for name, report in reports.items()},
        "rows": [row.as_dict() for row in rows],
    }
    return write_whole(path, json.dumps(document, indent=1) + "\n")
