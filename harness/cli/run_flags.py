"""The flags of ``foretoken run``, and which of them a run reads."""

import argparse
from dataclasses import fields
from typing import Any

from msgspec import convert

from harness.cli.options import add_common, add_engine, layer_list, positive, threads
from harness.core import plugins
from harness.core.errors import UsageError
from methods.options import options_class
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES

NOT_GIVEN = ("scale", "num_beams", "draft_beams")  # flags that are None where they are not given
REGISTRIES = {"method": METHODS, "schedule": SCHEDULES, "rule": RULES, "drafter": DRAFTERS}
PARTS = ("drafter", "rule", "schedule", "heads")


def takes_of(method: str) -> tuple[str, ...]:
    """The parts of a method; a plug-in's may read all."""
    entry = METHODS.get(method)
    return () if entry is None else getattr(options_class(entry), "takes", PARTS)


def option_types(kind: str, name: str | None) -> dict[str, Any]:
    """The options of a part by name, with their types; none for a part that is not known."""
    entry = REGISTRIES[kind].get(name or "")
    return {} if entry is None else {one.name: one.type for one in fields(options_class(entry))}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    add_engine(parser)
    _add_what(parser)
    _add_method(parser)
    _add_option(parser)
    _add_limits(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("task and models").add_argument
    add("--task", required=True, help="squad, wmt-en-de, ..., cnndm, xsum, text")
    add("--target", required=True, metavar="MODEL", help="a local folder, a Hub id, or zoo:NAME")
    add("--target-revision", metavar="COMMIT", help="pins a Hub id")
    add("--device-map", choices=("auto",), help="spread a target that is larger than a GPU over all of them (decoder-only)")
    add("--draft", metavar="MODEL", help="the draft model, likewise; for n-gram drafters the zoo's table")
    add("--draft-revision", metavar="COMMIT", help="pins a Hub id")
    add("--prompt-template", metavar="TEXT", help=r"with {field} of the task's inputs and \n for newlines")
    add("--chat-template", action="store_true", help="wrap the prompt in the tokenizer's chat template")


def early_layer(text: str) -> int | None:
    """An argparse type: a layer, or None for "auto"."""
    return None if text == "auto" else positive("--early-layer")(text)


def candidates(text: str) -> int | None:
    return None if text == "auto" else positive("--candidates")(text)


def _add_method(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("method and sampling").add_argument
    add(
        "--method",
        default="autoregressive",
        help="autoregressive, beam, drafter-alone, ppd, speculative, speculative-beam, or transformers (its own generate)",
    )
    add(
        "--drafter",
        help="model, block or blockwise (all with --draft), unigram, bigram, copy, random, hierarchical; of transformers also "
        "prompt-lookup and early-exit",
    )
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME",
        help="run transformers' own loop in turns with it: generate, assistant, prompt-lookup or early-exit:N (repeatable)",
    )
    add("--encoder", default="own", help="of drafter block: own (default), shared (the target's) or concurrent (beside it)")
    add("--inner-draft", metavar="MODEL", help="the hierarchical drafter's own draft model")
    add("--inner-gamma", type=positive("--inner-gamma"), default=2, help="how many tokens it drafts (default: 2)")
    add(
        "--rule",
        default="speculative-sampling",
        help="speculative-sampling, lenience, top-1, top-beta, or a kernel: baseline, exact, fused, sigmoid, sigmoid-released",
    )
    add("--lenience", type=float, default=1.0, help="l of rule lenience, 0 < l <= 1 (default: 1)")
    add("--as-described", action="store_true", help="the paper's printed form where it differs from what it must mean")
    add("--beta", type=positive("--beta"), default=3, help="of rule top-beta: among the target's best BETA (default: 3)")
    add("--tau", type=float, default=1.0, help="of rule top-beta: within TAU of its best log-probability (default: 1)")
    add("--score", default="verifier", help="of rule top-beta: verifier (default), or as_described (the drafter's, as printed)")
    add("--cap", default="released", help="of top-1 and top-beta: gamma + 1 tokens a round (released) or gamma (printed)")
    add("--scale", type=float, help="of rules sigmoid and sigmoid-released: alpha is -SCALE, beta SCALE (default: 1000)")
    add("--half-logits", action="store_true", help="of these rules: round both models' logits to fp16 first")
    add("--schedule", default="constant", help='constant, heuristic ("+2 / -1") or optimal (with --alpha and --cost)')
    add("--gamma", type=int, default=5, help="how many tokens to draft a round (default: 5)")
    add("--alpha", type=float, help="measured acceptance rate, for schedule optimal")
    add("--cost", type=float, help="measured draft/target cost ratio, for schedule optimal")
    add("--num-beams", type=positive("--num-beams"), help="width of beam search (default: 4; of transformers: 1, greedy)")
    add("--draft-beams", type=positive("--draft-beams"), help="draft width of speculative-beam (default: twice the width)")
    add(
        "--early-layer",
        type=early_layer,
        metavar="N",
        help="where ppd predicts, half the depth or more, or auto (default); the layers that early-exit drafts with",
    )
    add("--candidates", type=candidates, metavar="K", help="tokens that ppd begins early, or auto (default: 1)", default=1)
    add("--execution", default="process", help="of ppd: process (one a candidate), batched (one for all) or simulated")
    add(
        "--match-layers",
        type=layer_list("--match-layers"),
        default=(),
        metavar="N,N",
        help="measure PPD's match rate at these layers as well",
    )
    add("--heads", metavar="FOLDER", help="early heads that `foretoken heads` trained, or zoo:NAME (default: the model's own)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    add("--top-k", type=int, help="keep the k largest logits")
    add("--top-p", type=float, help="keep the nucleus of this mass")


def _add_option(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("options of plug-ins").add_argument
    text = "an option of the method, rule, schedule or drafter by its name, such as least=0.2 (repeatable)"
    add("--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    add("--repeats", type=positive("--repeats"), default=1, help="how often each example is run (default: 1)")
    add("--batch-size", type=positive("--batch-size"), default=1, help="rows decoded together (default: 1)")
    add("--max-new-tokens", type=positive("--max-new-tokens"), help="default: the task's own")
    add("--max-input-tokens", type=positive("--max-input-tokens"), help="cut a prompt's longest field down to this")
    add("--ignore-eos", action="store_true", help="always generate the full length")
    add("--memory", action="store_true", help="measure the peak of memory of every batch, by decoding once more")
    add("--threads", type=threads, help="CPU threads of torch (default: all cores)")


def read_options(args: argparse.Namespace, kind: str, name: str | None) -> dict[str, Any]:
    """What was given for the options of a part, by its flags or by --option; what was not given keeps its default."""
    known = option_types(kind, name)
    given = {one: getattr(args, one) for one in known if hasattr(args, one)}
    found = {one: value for one, value in given.items() if value is not None or one not in NOT_GIVEN}
    for option, text in _pairs(args):
        if option in known:
            try:
                found[option] = convert(text, known[option], strict=False)
            except ValueError as error:
                raise UsageError(f"option {option}={text}: of {kind} {name!r}; {error}") from error
    return found


def _pairs(args: argparse.Namespace) -> list[tuple[str, str]]:
    for pair in args.option:
        if "=" not in pair:
            raise UsageError(f"option {pair!r}: expected NAME=VALUE, for example least=0.2")
    return [(pair.split("=", 1)[0].replace("-", "_"), pair.split("=", 1)[1]) for pair in args.option]


def refuse_unread(args: argparse.Namespace, chosen: dict[str, str | None]) -> None:
    """UsageError for a flag whose value nothing of this run reads; ``chosen`` are the names of the method and its parts."""
    defaults, method = argparse.ArgumentParser(), chosen["method"] or ""
    _add_method(defaults)
    takes, read = takes_of(method), {one for kind, name in chosen.items() for one in option_types(kind, name)}
    for name, readers in _readers().items():
        given = getattr(args, name)
        if given == defaults.get_default(name) or name in read or plugins.find("method", method) is not None:
            continue
        kind = next((one for one in readers if one in takes or one == "drafter"), "method")
        if chosen[kind] in readers.get(kind, ()):
            continue
        taking = [one for one in METHODS if set(readers) & set(takes_of(one))] if kind == "method" else []
        values = sorted({*readers.get(kind, ()), *taking})
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(
            f"{flag} {given}: {kind} {chosen[kind]!r} does not read it; leave it out, or choose --{kind} {' or '.join(values)}"
        )
    if unread := [option for option, _ in _pairs(args) if option not in read]:
        raise UsageError(
            f"option {unread[0]}: no part of this run reads it; expected one of {', '.join(sorted(read)) or 'none'}"
        )


def _readers() -> dict[str, dict[str, list[str]]]:
    """For every flag that only some parts read: the names of these parts, by kind."""
    taken = {part: [one for one in METHODS if part in takes_of(one)] for part in ("rule", "schedule")}
    found: dict[str, dict[str, list[str]]] = {part: {"method": names} for part, names in taken.items()}
    found["inner_draft"] = {"drafter": ["hierarchical"]}
    defaults = argparse.ArgumentParser()
    _add_method(defaults)
    flags = {action.dest for action in defaults._actions}
    for kind, registry in REGISTRIES.items():
        for name in registry:
            for option in set(option_types(kind, name)) & flags:
                found.setdefault(option, {}).setdefault(kind, []).append(name)
    found.pop("lenience", None)  # choosing a lenience chooses its rule
    return found
