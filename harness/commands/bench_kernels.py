"""``foretoken bench kernels``: every verification kernel on the same rounds, checked before it is timed."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.options import RESULTS, positive
from harness.errors import UsageError
from harness.experiment import DTYPES

if TYPE_CHECKING:
    from harness.kernel_bench import KernelRow, Setting
    from kernels.verify.check import Report

KERNEL_NAMES = ("transformers", "baseline", "exact", "sigmoid", "sigmoid-released", "fused")
GOAL, GOAL_ALL = 0.5, 0.8  # of the baseline's time, for the fused kernel on a CPU; the second where every draft stands


def add_kernel_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--batch", type=positive("--batch"), nargs="+", default=[1], help="rows of a batch (default: 1)")
    parser.add_argument(
        "--vocab", type=positive("--vocab"), nargs="+", default=[32000, 151936], help="vocabularies (default: 32000 151936)"
    )
    parser.add_argument(
        "--acceptance",
        nargs="+",
        default=["0.7", "0.8", "all"],
        help='sum of min(p, q) of the models, or "all" where every draft stands (default: 0.7 0.8 all)',
    )
    parser.add_argument("--kernels", nargs="+", choices=KERNEL_NAMES, default=list(KERNEL_NAMES), help="default: all")
    parser.add_argument("--rows", type=positive("--rows"), default=300, help="random rounds of a kernel's check (default: 300)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--cold", action="store_true", help="sweep the caches near the cores before each call (CPU only)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the logits (default: float32)")


def execute_kernels(args: argparse.Namespace) -> int:
    import torch

    from harness.kernel_bench import BASELINE, bench_setting, check_kernels
    from harness.kernel_traffic import bandwidth, empty_launch_s

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {args.device!r}: no CUDA device here; use --device cpu")
    if args.cold and args.device != "cpu":
        raise UsageError(f"--cold with --device {args.device}: only a CPU's caches are swept; leave one of the two out")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
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
            print(f"  {row.as_text()}{_verdict(row)}", flush=True)
            rows.append(row)
    print(f"written: {_write(rows, reports, limit, empty_s, args)}")
    return int(any(not report.passed for report in reports.values()))


def _settings(args: argparse.Namespace) -> "list[Setting]":
    from harness.kernel_bench import Setting

    return [
        Setting(
            batch=batch,
            gamma=args.gamma,
            vocab_size=vocab_size,
            acceptance=alpha,
            dtype=args.dtype,
            device=args.device,
            cold=args.cold,
        )
        for batch in args.batch
        for vocab_size in args.vocab
        for alpha in map(_acceptance, args.acceptance)
    ]


def _acceptance(text: str) -> float | None:
    try:
        value = None if text == "all" else float(text)
    except ValueError:
        value = -1.0
    if value is not None and not 0 < value < 1:
        raise UsageError(f'acceptance {text!r}: expected a number between 0 and 1, or "all" where every draft stands')
    return value


def _verdict(row: "KernelRow") -> str:
    """The goal of the CPU path, beside what it is held against."""
    if row.kernel != "fused" or row.ratio is None or row.setting.device != "cpu":
        return ""
    goal = GOAL_ALL if row.setting.acceptance is None else GOAL
    return f" (goal <= {goal}: {'met' if row.ratio.value <= goal else 'MISSED'})"


def _write(
    rows: "Sequence[KernelRow]", reports: "dict[str, Report]", limit: float, empty_s: float, args: argparse.Namespace
) -> Path:
    """One file a device (with so many threads, if it is the CPU) and dtype: the rows with their checks, hardware, versions."""
    from dataclasses import asdict
    from importlib.metadata import version

    import torch

    from harness import environment

    where = f"cpu-{torch.get_num_threads()}-threads" if args.device == "cpu" else args.device.replace(":", "")
    path = RESULTS / "bench" / f"kernels-{where}-{args.dtype}{'-cold' if args.cold else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "environment": {**environment.describe(args.device), "threads": torch.get_num_threads(), "triton": version("triton")},
        "bandwidth_bytes_per_s": limit,
        "empty_call_s": empty_s,
        "checks": {name: asdict(report) for name, report in reports.items()},
        "rows": [row.as_dict() for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf8")
    return path
