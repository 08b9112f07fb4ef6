"""``foretoken audit``, ``foretoken check-plugin`` and ``foretoken plugins``: is it exact, and what is plugged in?

An audit checks that exact methods are exact, and measures how far off lossy ones are. A contract holds a part, of a plug-in or
of ours, against what its kind must satisfy. Both end with status 1 where something is broken.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import harness.papers  # noqa: F401 - whose tables plug-ins add to
from harness.cli.captured import execute_captured
from harness.core import environment, plugins
from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.core.files import short_hash
from harness.core.settings import checked_device, model_name, source_of
from harness.core.text import text_table
from harness.exact.contracts import check_entry, find_entries
from harness.exact.document import build_document, summarise, write_document
from harness.exact.run import audit, hash_audited_code, models_of
from harness.exact.subjects import SIZES, Sizes, Subject, own_subjects, zoo_subjects
from harness.models.names import hears
from harness.run.own_data import evaluated_source, left_out_line
from harness.run.refusals import check_attention


def execute_audit(args: argparse.Namespace) -> int:
    _refuse_unread_flags(args)
    if args.captured or args.endpoint is not None:
        return execute_captured(args)
    if args.task is None:
        args.task = "librispeech-clean" if args.target and hears(ModelSpec(name=model_name(args.target))) else "text"
    source, usual = _source(args), SIZES["own" if args.target else args.scale]
    where = {"device": checked_device(args.device), "dtype": args.dtype, "graphs": args.graphs == "on"}
    where |= {"attention": args.attention} if args.attention else {}
    sizes = replace(usual, samples=args.samples or usual.samples, prompts=args.prompts or usual.prompts)
    everything = _subjects(args, source, sizes, where)
    subjects = _chosen(args, everything)
    if args.dry_run:
        print("\n".join(subject.name for subject in subjects))
        return 0
    name, models, code = _name(args), models_of(everything), hash_audited_code()
    identity = json.dumps([code, models, repr(sizes), source, args.seed, where, args.task], sort_keys=True)
    folder = args.records / f"audit-{name}-{short_hash(identity, 12)}"
    workers = args.workers if args.workers or where["device"] == "cpu" else 0
    found, controls = audit(subjects, sizes, folder, args.quiet, workers, controls_on=everything)
    facts = {
        "command": _command(args),
        "code": code,
        "seed": args.seed,
        "environment": environment.describe(args.device),
        "models": models,
    }
    document = build_document(name, subjects, found, controls, sizes, facts)
    for row in document["red"]:
        print(f"red: {row}: {found[row]['verdict']}")
    for control in document["controls_missed"]:
        print(f"control missed: {control}")
    if sizes.samples < usual.samples and any("missed_by" in controls[name] for name in document["controls_missed"]):
        print(f"samples {sizes.samples}: too few to find these faults; leave --samples out for the usual {usual.samples}")
    print(summarise(document))
    if args.only is None:
        print("written: " + ", ".join(map(str, write_document(document, args.output))), file=sys.stderr)
    return 0 if document["passed"] else 1


def _refuse_unread_flags(args: argparse.Namespace) -> None:
    """UsageError for flags that what is audited, captures or pairs of models, does not read."""
    if args.attention is not None and args.draft is None:
        raise UsageError("audit: --attention is read with --target and --draft alone; leave it out")
    if args.captured or args.endpoint is not None:
        if args.graphs == "on":
            raise UsageError("audit: --graphs has no meaning for captures and endpoints: others decoded them; leave it out")
        return
    if args.plain is not None or args.speculative is not None or args.json:
        raise UsageError(
            "audit: --plain, --speculative and --json are read with --captured or --endpoint alone; leave them out"
        )
    if (args.target is None) != (args.draft is None):
        raise UsageError("audit: --target and --draft belong together; give both, or neither to audit the zoo")
    if args.target is not None:
        check_attention(args.attention, args.dtype, [ModelSpec(name=model_name(one)) for one in (args.target, args.draft)])


def _subjects(args: argparse.Namespace, source: str, sizes: Sizes, where: dict[str, Any]) -> list[Subject]:
    """Return everything that can be audited, decoded ``where`` it was asked for."""
    if args.target:
        subjects = own_subjects(model_name(args.target), model_name(args.draft), args.task, source, sizes, args.seed)
    else:
        subjects = zoo_subjects(args.scale, source, sizes, args.seed)
    return [replace(one, plain=one.plain.replace(**where)) for one in subjects]


def _chosen(args: argparse.Namespace, everything: Sequence[Subject]) -> Sequence[Subject]:
    """Return what was asked for by name, as far as it can be decoded as asked."""
    subjects = [one for one in everything if (args.only or "") in one.name]
    if not subjects:
        raise UsageError(f"only {args.only!r}: no subject's name holds that; `foretoken audit --dry-run` lists them")
    return _with_static_form(subjects) if args.graphs == "on" else subjects


def _name(args: argparse.Namespace) -> str:
    """Return the name of an audit's files, which any system can have."""
    name = Path(args.target).name.replace(":", "-") if args.target else f"zoo-{args.scale}"
    name += "".join(f"-{one}" for one, usual in ((args.device.split(":")[0], "cpu"), (args.dtype, "float32")) if one != usual)
    return name + ("-graphs" if args.graphs == "on" else "") + (f"-{args.attention}" if args.attention else "")


def _source(args: argparse.Namespace) -> str:
    """Return the rows that are decoded: the zoo learns from the rest of any data, your own pair may have learned from none."""
    if args.target is not None:
        source = source_of(args.data, "toy", args.field, args.config, args.split)
        models = [ModelSpec(name=model_name(one)) for one in (args.target, args.draft)]
        tested = evaluated_source(source, args.task, models)
        for line in left_out_line(tested):
            print(f"foretoken: {line}", file=sys.stderr)
        return tested
    if args.field or args.config is not None or args.split is not None:
        raise UsageError("audit: --field, --config and --split are read with --target or --endpoint alone; leave them out")
    return source_of(args.data)


def _with_static_form(subjects: Sequence[Subject]) -> list[Subject]:
    """Return the subjects that can be run with graphs; say how many cannot. UsageError where none can."""
    found = [one for one in subjects if one.has_static_form]
    if not found:
        raise UsageError(f"graphs: none of {len(subjects)} subjects has a static form; expected --graphs off")
    if left := len(subjects) - len(found):
        print(
            f"foretoken: note: graphs: {left} of {len(subjects)} subjects have no static form and are left out", file=sys.stderr
        )
    return found


def _command(args: argparse.Namespace) -> str:
    """Models by their names alone, so that no machine's folders enter a file."""
    if args.target is None:
        flags = [f"--scale {args.scale}"]
    else:
        flags = [f"--target {Path(args.target).name}", f"--draft {Path(args.draft).name}", f"--task {args.task}"]
    flags += [f"--data {Path(args.data).name}"] if args.data != "toy" else []
    flags += [f"--field {field}" for field in args.field]
    given = dict.fromkeys(("config", "split", "samples", "prompts")) | {"device": "cpu", "dtype": "float32"}
    given |= {"graphs": "off", "attention": None, "seed": 0}
    flags += [f"--{name} {getattr(args, name)}" for name, default in given.items() if getattr(args, name) != default]
    return " ".join(["foretoken audit", *flags])


def execute_plugins(args: argparse.Namespace) -> int:
    plugins.load(args.files, strict=False)
    kinds = ("file", *plugins.NAMES)
    found = sorted(plugins.known(), key=lambda plugin: kinds.index(plugin.kind))
    if args.json:
        print(json.dumps([asdict(plugin) for plugin in found], ensure_ascii=False))
        return 0
    if not found:
        print("no plug-in: no installed package has an entry point of foretoken's; CONTRIBUTING.md shows how to write one")
        return 0
    heads = ("kind", "name", "from", "version", "object or file", "state")
    rows = [heads, *(_row(plugin) for plugin in found)]
    print("\n".join(text_table(rows)))
    return 0


def execute_check(args: argparse.Namespace) -> int:
    """Run the contract of its kind on a plug-in or on a part of ours; status 1 where it is broken."""
    num_checks = num_broken = 0
    for entry in find_entries(args.subject):
        print(f"{entry.kind} {entry.name} ({entry.label})")
        for finding in check_entry(entry):
            num_checks += 1
            num_broken += not finding.passed
            note = f": {finding.note}" if finding.note else ""
            print(f"  {'ok  ' if finding.passed else 'FAIL'}  {finding.check}{note}", flush=True)
    print(f"contract {'broken' if num_broken else 'kept'}: {num_checks - num_broken} of {num_checks} checks passed")
    return 1 if num_broken else 0


def _row(plugin: plugins.Plugin) -> tuple[str, ...]:
    state = f"broken: {plugin.error}" if plugin.error else f"sha256 {plugin.digest}"
    return (plugin.kind, plugin.name, plugin.origin, plugin.version or "-", plugin.where, state)
