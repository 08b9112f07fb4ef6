"""A signature covers every field, and a description survives JSON."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.regress import pinned_set
from methods.sampling import Sampling

BASE = Experiment(
    task="text",
    target=ModelSpec(name="zoo:gpt-target"),
    method=MethodSpec(name="speculative", drafter=DrafterSpec(kind="model", model=ModelSpec(name="zoo:gpt-draft"))),
    overlap=(DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-gpt")),),
)


def changed(value: Any) -> Any:
    """A different valid value of the same kind."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return value[:-1] if value else ("x",)
    raise AssertionError(f"no variant of {value!r}")


def variants(thing: Any) -> list[Any]:
    """Every copy of a description that differs in one field, nested ones included."""
    found = []
    for field in fields(thing):
        value = getattr(thing, field.name)
        if is_dataclass(value):
            found += [replace(thing, **{field.name: inner}) for inner in variants(value)]
        elif field.name == "dtype":
            found.append(replace(thing, dtype="float64"))
        elif field.name == "overlap":
            found.append(replace(thing, overlap=()))
        elif field.name == "top_p":
            found.append(replace(thing, top_p=0.5))
        elif field.name == "inner":
            found.append(replace(thing, inner=DrafterSpec(kind="copy")))
        else:
            found.append(replace(thing, **{field.name: changed(value)}))
    return found


def test_signature_covers_every_field() -> None:
    all_variants = variants(BASE)
    assert len(all_variants) >= 35
    signatures = {variant.signature for variant in all_variants} | {BASE.signature}
    assert len(signatures) == len(all_variants) + 1


def test_signature_keeps_full_precision() -> None:
    close = [BASE.replace(sampling=Sampling(temperature=t)) for t in (0.1, 0.1 + 1e-15)]
    assert close[0].signature != close[1].signature


def test_description_survives_json() -> None:
    experiment = BASE.replace(sampling=Sampling(temperature=0.7, top_k=5), leniences=(1.0, 0.3))
    assert Experiment.from_dict(json.loads(experiment.to_json())) == experiment


def test_unknown_field_is_refused() -> None:
    with pytest.raises(UsageError, match="'colour'"):
        Experiment.from_dict({"colour": 1})


@pytest.mark.parametrize("name", ["speculative", "speculative-beam", "drafter-alone"])
def test_gamma_zero_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="gamma 0"):
        BASE.replace(method=replace(BASE.method, name=name, gamma=0))


@pytest.mark.parametrize(("field", "value"), [("limit", 0), ("repeats", 0), ("batch_size", -1), ("dtype", "int4")])
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{field} {value!r}"):
        BASE.replace(**{field: value})


def test_a_comparison_shares_what_makes_it_fair() -> None:
    with pytest.raises(UsageError, match="arms differ in seed"):
        Comparison((BASE, BASE.replace(seed=1)))


def test_what_was_recorded_before_a_field_came_keeps_its_signature() -> None:
    """Signatures from before scales, untrained models and profiling were fields."""
    assert BASE.signature == "188edb5d53cb0c5e"
    pinned = {"t5-sampled": "c1094b9547ceb49d", "ppd-greedy": "1715206e08aa7cec", "specdec-relaxed-batch": "2b48010be4ced7ac"}
    assert {name: comparison.arms[-1].signature for name, comparison in pinned_set().items() if name in pinned} == pinned
    assert "scale" not in BASE.to_json()
    assert "scale" not in repr(BASE.method)


def test_a_later_field_that_is_set_is_part_of_all_that_tells_experiments_apart() -> None:
    scaled = BASE.replace(method=replace(BASE.method, rule="sigmoid", scale=1e4, half_logits=True), profiled=True)
    untrained = scaled.replace(target=ModelSpec(name="zoo:gpt-target", untrained=True))
    assert len({BASE.signature, scaled.signature, untrained.signature}) == 3
    assert "scale=10000.0, half_logits=True" in repr(scaled.method)
    for experiment in (scaled, untrained):
        assert Experiment.from_dict(json.loads(experiment.to_json())) == experiment


def test_plain_arms_beside_rules_of_different_scales_are_different() -> None:
    """Their times belong to one comparison each."""
    methods = [replace(BASE.method, rule="sigmoid", scale=scale) for scale in (None, 1e3, 1e4)]
    assert len({repr(method) for method in methods}) == 3
