"""The flags of ``foretoken run``, and which of them a run reads. Those of parts follow from the fields of their options."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from harness.cli.flag_types import layer_list, positive, several
from harness.cli.shared_flags import add, add_count, add_experiment
from harness.core import plugins
from harness.core.errors import UsageError
from methods.options import Part, options_class
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES

REGISTRIES = {"method": METHODS, "schedule": SCHEDULES, "rule": RULES, "drafter": DRAFTERS}
PARTS = ("drafter", "rule", "schedule", "heads")
AXES = ("temperature", "top_k", "top_p", "gamma", "drafter", "rule")  # flags of which several values make a grid
GRID = "several, with commas between, make a grid that ends in a table and a figure"
THEIRS = "of transformers also prompt-lookup and early-exit"


def is_grid(args: argparse.Namespace) -> bool:
    """Say whether several values were given for one of AXES."""
    return any(isinstance(getattr(args, name, None), tuple) for name in AXES)


def takes_of(method: str) -> tuple[str, ...]:
    """Return the parts of a method; a plug-in's may read all."""
    entry = METHODS.get(method)
    return () if entry is None else getattr(options_class(entry), "takes", PARTS)


def option_types(kind: str, name: str | None) -> dict[str, Any]:
    """Return the options of a part by name, with their types; none for a part that is not known."""
    entry = REGISTRIES[kind].get(name or "")
    return {} if entry is None else {one.name: one.type for one in fields(options_class(entry))}


class _Flag(NamedTuple):
    """The flag of an option: its help, type and defaults, and the names of the parts that read it, by kind."""

    texts: tuple[str, ...]
    type: Any
    least: int | None
    defaults: tuple[Any, ...]
    readers: dict[str, list[str]]

    @property
    def help(self) -> str:
        parts = [f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}" for kind, names in self.readers.items()]
        known = [f"{one:g}" if isinstance(one, float) else str(one) for one in self.defaults if one not in (None, False)]
        return f"of {' and '.join(parts)}: {'; '.join(self.texts)}" + (f" (default: {' or '.join(known)})" if known else "")


@cache
def _own_flags() -> dict[str, _Flag]:
    """The options that are declared for parts, which have a flag each; others, as of plug-ins, are given by --option."""
    found: dict[str, _Flag] = {}
    for kind, registry in REGISTRIES.items():
        for name, entry in registry.items():
            for one in fields(entry.options) if isinstance(entry, Part) and entry.options else ():
                flag = found.get(one.name, _Flag((), one.type, one.metadata["least"], (), {}))
                flag.readers.setdefault(kind, []).append(name)
                texts = tuple(dict.fromkeys((*flag.texts, one.metadata["help"])))
                found[one.name] = flag._replace(texts=texts, defaults=tuple(dict.fromkeys((*flag.defaults, one.default))))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser)
    models = parser.add_argument_group("task and models")
    _add_what(models.add_argument)
    add(models, "--attention")
    _add_data(parser.add_argument_group("own data, as they are"))
    _add_method(parser.add_argument_group("method and sampling").add_argument)
    _add_options(parser.add_argument_group("options of methods, drafters, rules and schedules").add_argument)
    _add_limits(parser.add_argument_group("limits"))


def _add_what(flag: Callable[..., Any]) -> None:
    flag("--task", required=True, help="squad, wmt-en-de, ..., cnndm, xsum, text")
    flag("--target", required=True, metavar="MODEL", help="a folder, a Hub id or zoo:NAME; rounded behind bf16: or int8:")
    flag("--target-revision", metavar="COMMIT", help="pins a Hub id")
    flag("--device-map", choices=("auto",), help="spread a target that is larger than a GPU over all of them (decoder-only)")
    flag("--draft", metavar="MODEL", help="the draft model, likewise; for n-gram drafters the zoo's table")
    flag("--draft-revision", metavar="COMMIT", help="pins a Hub id")
    flag("--inner-draft", metavar="MODEL", help="the hierarchical drafter's own draft model")
    flag("--heads", metavar="FOLDER", help="early heads that `foretoken heads` trained, or zoo:NAME (default: the model's own)")
    flag("--prompt-template", metavar="TEXT", help=r"with {field} of the task's inputs and \n for newlines")
    flag("--chat-template", action="store_true", help="wrap the prompt in the tokenizer's chat template")


def _add_data(group: argparse._ArgumentGroup) -> None:
    split = (
        "which rows are tested: whole (all; the default of one file), test (of one file 15 %, which `draft` and `heads` never "
        "train on), or a split of a folder or of hub:OWNER/NAME (default: test)"
    )
    add(group, "--field", "--config")
    group.add_argument("--split", metavar="NAME", help=split.replace("%", "%%"))


def _add_method(flag: Callable[..., Any]) -> None:
    peers = "run transformers' own loop in turns with it: generate, assistant, prompt-lookup or early-exit:N (repeatable)"
    layers = "measure PPD's match rate at these layers as well"
    flag("--method", default="autoregressive", help=f"{', '.join(METHODS)} (its own generate); default: autoregressive")
    drafters = f"{', '.join(DRAFTERS)} (model, tli, slem, block and blockwise with --draft, rounded without); {THEIRS}; {GRID}"
    flag("--drafter", type=several(str), help=drafters)
    rules = f"{', '.join(RULES)}; default: speculative-sampling; {GRID}"
    flag("--rule", type=several(str), default="speculative-sampling", help=rules)
    flag(
        "--schedule",
        default="constant",
        help='constant (default), heuristic ("+2 / -1"), optimal (with --alpha and --cost) or sweep (1 to gamma in turn)',
    )
    flag("--peer", action="append", default=[], metavar="NAME", help=peers)
    flag("--match-layers", type=layer_list, default=(), metavar="N,N", help=layers)
    flag("--temperature", type=several(float), default=0.0, help=f"0 is greedy (default: 0); {GRID}")
    flag("--top-k", type=several(int), help="keep the k largest logits; likewise")
    flag("--top-p", type=several(float), help="keep the nucleus of this mass; likewise")


class _Once(argparse.Action):
    """A flag that may be given once: of two values one would be dropped in silence."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            raise argparse.ArgumentError(self, "given twice; expected one value: run the command once for each")
        setattr(namespace, self.dest, values)


def _add_options(flag: Callable[..., Any]) -> None:
    """A flag that is not given is not among the arguments, so that a part keeps its own default."""
    for name, one in _own_flags().items():
        words = f"--{name.replace('_', '-')}"
        if one.type is bool:
            flag(words, action="store_true", default=argparse.SUPPRESS, help=one.help)
        else:
            value = words.lstrip("-").split("-")[-1].upper()
            read, text = (several(_converter(one)), f"{one.help}; {GRID}") if name == "gamma" else (_converter(one), one.help)
            flag(words, action=_Once, type=read, default=argparse.SUPPRESS, metavar=value, help=text)
    text = "an option of a plug-in's part by its name, such as least=0.2 (repeatable)"
    flag("--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def _converter(flag: _Flag) -> Callable[[str], Any]:
    """An argparse type of an option; "auto" leaves an integer that may be None to the part."""
    whole: Callable[[str], Any] = positive if flag.least == 1 else int
    if flag.type == int | None:
        return lambda text: None if text == "auto" else whole(text)
    return {int: whole, float: float, float | None: float}.get(flag.type, str)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    add_count(group, "--repeats", "how often each example is run", 1)
    add_count(group, "--batch-size", "rows decoded together", 1)
    add_count(group, "--max-new-tokens", "default: the task's own")
    add_count(group, "--max-input-tokens", "cut a prompt's longest field down to this")
    group.add_argument("--ignore-eos", action="store_true", help="always generate the full length")
    memory = "measure the peak of memory of every batch, by decoding once more"
    group.add_argument("--memory", action="store_true", help=memory)
    add(group, "--threads")


def read_options(args: argparse.Namespace, kind: str, name: str | None) -> dict[str, Any]:
    """Return what was given for the options of a part, by its flags or by --option; what was not given keeps its default."""
    from msgspec import convert

    known = option_types(kind, name)
    found = {one: getattr(args, one) for one in known if hasattr(args, one)}
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
    method = chosen["method"] or ""
    takes, read = takes_of(method), {one for kind, name in chosen.items() for one in option_types(kind, name)}
    for name, given, readers in _given(args):
        kind = next((one for one in readers if one in takes or one == "drafter"), "method")
        if name in read or plugins.find("method", method) is not None or chosen[kind] in readers.get(kind, ()):
            continue
        taking = [one for one in METHODS if set(readers) & set(takes_of(one))] if kind == "method" else []
        values = sorted({*readers.get(kind, ()), *taking})
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(
            f"{flag} {given}: {kind} {chosen[kind]!r} does not read it; leave it out, or choose --{kind} {' or '.join(values)}"
        )
    if unread := [option for option, _ in _pairs(args) if option not in read]:
        expected = f"expected one of {', '.join(sorted(read))}" if read else "leave it out"
        raise UsageError(f"option {unread[0]}: no part of this run reads it; {expected}")


def _given(args: argparse.Namespace) -> list[tuple[str, Any, dict[str, list[str]]]]:
    """Flags that only some parts read and whose value is not their default: the value, and those parts by kind."""
    found: list[tuple[str, Any, dict[str, list[str]]]] = []
    for name, default in (("rule", "speculative-sampling"), ("schedule", "constant")):
        if getattr(args, name) != default:
            found.append((name, getattr(args, name), {"method": [one for one in METHODS if name in takes_of(one)]}))
    if args.inner_draft is not None:
        found.append(("inner_draft", args.inner_draft, {"drafter": ["hierarchical"]}))
    for name, flag in _own_flags().items():  # choosing a lenience chooses its rule
        if name != "lenience" and getattr(args, name, flag.defaults[0]) not in flag.defaults:
            found.append((name, getattr(args, name), flag.readers))
    return found
