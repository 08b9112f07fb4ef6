"""A signature covers every field, and a description survives JSON."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.experiment import (
    UNSIGNED,
    Comparison,
    DrafterSpec,
    Experiment,
    MethodSpec,
    ModelSpec,
    OverlapProbe,
    RuleSpec,
    ScheduleSpec,
)
from kernels.inputs import SamplingSpec
from methods.parts import RULES
from methods.specdec.options import TopBetaOptions

BASE = Experiment(
    task="text",
    target=ModelSpec(name="zoo:gpt-target"),
    method=MethodSpec.of("speculative", drafter=DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))),
    replicas=3,
    replica=0,
    probes=(OverlapProbe(drafter=DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-gpt"))),),
)

OTHER = {"nameRuleSpec": "exact", "nameScheduleSpec": "heuristic", "kindDrafterSpec": "copy", "nameMethodSpec": "someones"}


def changed(value: Any, declared: Any) -> Any:
    """A different valid value of the same kind."""
    if value is None:
        return "x" if declared == str | None else 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return value[:-1] if value else ("x",)
    raise AssertionError(f"no variant of {value!r}")


OTHER_NAMES = {"dtype": "float64", "attention": "eager"}


def variants(thing: Any) -> list[Any]:
    """Every copy of a description that differs in one field, nested ones included."""
    found = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if is_dataclass(value):
            found += [replace(thing, **{field.name: inner}) for inner in variants(value)]
        elif field.name in OTHER_NAMES:
            found.append(replace(thing, **{field.name: OTHER_NAMES[field.name]}))
        elif field.name in UNSIGNED:
            continue
        elif field.name in ("name", "kind") and field.name + thing.__class__.__name__ in OTHER:
            found.append(replace(thing, **{field.name: OTHER[field.name + thing.__class__.__name__], "options": None}))
        elif field.name == "top_p":
            found.append(replace(thing, top_p=0.5))
        elif field.name == "heads":
            continue  # of ppd
        elif field.name == "inner":
            found.append(replace(thing, inner=DrafterSpec(kind="copy")))
        else:
            found.append(replace(thing, **{field.name: changed(value, field.type)}))
    return found


def test_signature_covers_every_field() -> None:
    all_variants = variants(BASE)
    assert len(all_variants) >= 30
    signatures = {variant.signature for variant in all_variants} | {BASE.signature}
    assert len(signatures) == len(all_variants) + 1


def test_data_whose_fingerprint_is_known_have_one_signature_wherever_they_lie() -> None:
    planned = [BASE.replace(source=source) for source in ("/here", "/there", "toy", "hub")]
    assert len({one.signature for one in planned}) == 4
    pinned = [one.replace(source_fingerprint="0123") for one in planned]
    assert [one.signature == pinned[0].signature for one in pinned] == [True, True, False, False]
    assert pinned[0].signature == pinned[0].portable.signature != pinned[0].replace(source_fingerprint="4567").signature


def test_signature_keeps_full_precision() -> None:
    close = [BASE.replace(sampling=SamplingSpec(temperature=t)) for t in (0.1, 0.1 + 1e-15)]
    assert close[0].signature != close[1].signature


def test_description_survives_json() -> None:
    experiment = BASE.replace(sampling=SamplingSpec(temperature=0.7, top_k=5), limit=7)
    assert Experiment.from_dict(json.loads(experiment.to_json())) == experiment.replace(probes=())


def test_unknown_field_is_refused() -> None:
    with pytest.raises(UsageError, match="'colour'"):
        Experiment.from_dict({"colour": 1})


@pytest.mark.parametrize("name", ["speculative", "speculative-beam", "drafter-alone"])
def test_gamma_zero_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="gamma 0"):
        MethodSpec.of(name, drafter=BASE.method.drafter, gamma=0)


@pytest.mark.parametrize(("field", "value"), [("limit", 0), ("repeats", 0), ("batch_size", -1), ("dtype", "int4")])
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{field} {value!r}"):
        BASE.replace(**{field: value})


def test_a_comparison_shares_what_makes_it_fair() -> None:
    with pytest.raises(UsageError, match="arms differ in seed"):
        Comparison((BASE, BASE.replace(seed=1)))


def test_options_may_be_given_as_names_or_as_an_object() -> None:
    short = MethodSpec.of("speculative", drafter=BASE.method.drafter, rule="top-beta", beta=5, gamma=4)
    rule = RuleSpec("top-beta", TopBetaOptions(beta=5))
    long = MethodSpec(
        name="speculative", drafter=BASE.method.drafter, rule=rule, schedule=ScheduleSpec("constant", {"gamma": 4})
    )
    assert short == long
    assert (short.gamma, short.values["beta"], short.values["tau"]) == (4, 5, 1.0)
    assert short.change(rule="lenience", lenience=0.3).values == {
        "method": "speculative",
        "drafter": "model",
        "schedule": "constant",
        "gamma": 4,
        "rule": "lenience",
        "lenience": 0.3,
        "as_described": False,
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MethodSpec.of("speculative", gamma=3, beta=2), "beta: no part of"),
        (lambda: MethodSpec.of("beam", num_beams=2, rule="top-1"), "rule: method 'beam' takes none"),
        (lambda: RuleSpec("top-beta", {"betta": 2}), "TopBetaOptions field 'betta'.*expected one of cap, beta, tau, score"),
        (lambda: RuleSpec("top-beta", {"beta": "2"}), "Expected `int`, got `str` - at `\\$.beta`"),
        (lambda: RuleSpec("top-1", {"cap": "felt"}), "cap 'felt': expected one of released, printed"),
        (lambda: RuleSpec("top-1", TopBetaOptions()), "'top-1' has others; expected TopOneOptions"),
        (lambda: RuleSpec("exact", {"scale": 2.0}), "field 'scale'.*expected none"),
        (lambda: ScheduleSpec("optimal"), "expected --alpha and --cost"),
        (lambda: RuleSpec("lenience", {"lenience": 2.0}), "expected 0 < lenience <= 1"),
    ],
)
def test_options_that_a_part_does_not_have_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_options_of_a_part_that_is_not_known_here_are_kept() -> None:
    """Records of a plug-in are read where it is not installed."""
    method = replace(BASE.method, rule=RuleSpec("someones", {"least": 0.2}))
    experiment = BASE.replace(method=method)
    assert Experiment.from_dict(json.loads(experiment.to_json())) == experiment.replace(probes=())
    assert experiment.method.values["least"] == 0.2


def test_an_integer_in_the_place_of_a_float_changes_no_signature() -> None:
    rules = [MethodSpec.of("speculative", rule="top-beta", tau=tau) for tau in (2, 2.0)]
    assert len({BASE.replace(method=rule).signature for rule in rules}) == 1


def test_plans_are_made_without_torch() -> None:
    """Specifications, options and names of all parts."""
    code = "import sys, harness.core.experiment, harness.core.records, methods.parts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_plug_ins_options_are_pickled_by_name() -> None:
    """The class of its options is made in each process anew."""

    def build(least: float = 0.2) -> None: ...

    RULES["mine"] = build  # type: ignore[assignment]
    try:
        method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), rule="mine", least=0.5)
        found = pickle.loads(pickle.dumps(method))
        assert found == method
        assert found.rule.options.least == 0.5
    finally:
        del RULES["mine"]


WHOLE = BASE.replace(replica=None, limit=8, retrained=True)


def test_replicas_divide_the_examples_and_have_trainings_of_their_own() -> None:
    parts = WHOLE.divided()
    assert [(part.replica, part.limit) for part in parts] == [(0, 3), (1, 3), (2, 2)]
    assert [part.target.name for part in parts] == ["zoo:gpt-target", "zoo:gpt-target@1", "zoo:gpt-target@2"]
    assert [one.name for one in parts[1].draft_models] == ["zoo:gpt-draft@1", "zoo:ngram-gpt@1"]
    assert {part.method.drafter.label for part in parts if part.method.drafter} == {"gpt-draft"}, "one name for all trainings"
    assert {part.overlap[0].label for part in parts} == {WHOLE.overlap[0].label}
    assert len({part.signature for part in parts}) == 3
    assert all(part.divided() == (part,) for part in parts)
    assert [part.target for part in WHOLE.replace(retrained=False).divided()] == [WHOLE.target] * 3
    assert len(WHOLE.replace(limit=2).divided()) == 2, "no replica without an example"


def test_every_example_is_of_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.run import prompts

    monkeypatch.setattr(prompts, "_examples", lambda task, source, fingerprint, limit, seed: tuple(range(limit)))
    shares = [prompts.examples_of(part) for part in WHOLE.divided()]
    assert shares == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert prompts.examples_of(WHOLE.replace(replicas=1)) == tuple(range(8))
