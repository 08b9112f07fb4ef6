"""What a method is called in tables and audits, and which experiments share a verdict on exactness."""

from harness.core.experiment import Experiment, MethodSpec
from kernels.inputs import SamplingSpec


def shown_sampling(sampling: SamplingSpec) -> str:
    filters = (("top-k", sampling.top_k), ("top-p", sampling.top_p))
    shown = "".join(f", {name} {value:g}" for name, value in filters if value is not None)
    return "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}{shown}"


def label_of(method: MethodSpec, numbers: bool = True) -> str:
    """A method with what is plugged into it, as far as that is not the default; ``numbers``: with its rule's."""
    parts, values = [method.name], method.values
    if method.drafter is not None:
        encoder = values.get("encoder", "own")
        parts.append(method.drafter.kind + (f" ({encoder} encoder)" if encoder != "own" else ""))
    if method.rule is not None:
        rule = method.rule.name
        set_by = {"lenience": " {lenience:g}", "top-beta": " beta {beta} tau {tau:g}"} if numbers else {}
        parts.append(rule + set_by.get(rule, "").format(**values))
        parts += [f"schedule {values['schedule']}"] if values["schedule"] != "constant" else []
        parts += ["printed cap"] if values.get("cap", "released") != "released" else []
    if "execution" in values:
        parts.append(values["execution"] + (", trained heads" if method.heads is not None else ""))
    parts += [f"{values['num_beams']} beams"] if values.get("num_beams", 1) > 1 else []
    return " / ".join(parts)


def key_of(experiment: Experiment) -> tuple[str, ...]:
    """What two experiments share if one's verdict is the other's: everything that is plugged in, and whether tokens are drawn.

    Models, sizes and numbers (gamma, lenience) are left out: they move speeds and distances, not whether a path is exact.
    """
    method, values = experiment.method, experiment.method.values
    plugged = () if method.drafter is None else (method.drafter.kind, values.get("encoder", "own"))
    rule = () if method.rule is None else (method.rule.name, values.get("cap", "released"))
    execution = (values["execution"],) if "execution" in values else ()
    beams = ("beams",) if values.get("num_beams", 1) > 1 else ()
    return (method.name, *plugged, *rule, *execution, *beams, "greedy" if experiment.sampling.greedy else "sampled")
