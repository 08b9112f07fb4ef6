"""A paper's experiments under a user's settings: the models that fill its roles, plain decoding, and the same with a draft."""

from collections.abc import Mapping
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, Probe
from harness.core.settings import Settings
from harness.measures.statistics import Missing

Roles = Mapping[str, Mapping[str, str | Missing]]

CAPTIONS_FOR_NEWS = "Image captions are translated here (Multi30k's test2016), news in the paper (WMT14)."


class UnknownRole(UsageError):
    """A role was filled that this table or figure does not have."""

    def __init__(self, role: str, known: list[str]) -> None:
        super().__init__(f"model role {role!r}: expected one of {', '.join(known)}")
        self.role = role


def role_model(roles: Roles, settings: Settings, role: str) -> str | Missing:
    """The name of the model in ``role``; ``roles`` are a paper's, by profile."""
    if settings.profile not in roles:
        raise UsageError(f"profile {settings.profile!r}: expected one of {', '.join(roles)}")
    known = roles[settings.profile]
    chosen = dict(settings.models)
    if unknown := sorted(set(chosen) - set(known)):
        raise UnknownRole(unknown[0], list(known))
    return chosen.get(role, known[role])


def needed_model(roles: Roles, settings: Settings, role: str) -> str:
    """Return the model of a target's role, without which nothing can be planned.

    Raises:
        UsageError: the profile has none for this role.
    """
    name = role_model(roles, settings, role)
    if isinstance(name, Missing):
        raise UsageError(f"target {role!r} in profile {settings.profile!r}: {name.why}; name one for that role")
    return name


def plain_decoding(settings: Settings, *, num_threads: int | None = None, **values: Any) -> Experiment:
    """Plain decoding as the user's settings have it; ``values`` are the paper's, ``num_threads`` where the user has none."""
    return Experiment(
        method=MethodSpec(name="autoregressive"),
        source=settings.source,
        profile=settings.profile,
        seed=settings.seed,
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads or num_threads,
        graphs=settings.graphs,
        **values,
    )


def with_draft(
    plain: Experiment | Missing,
    drafter: DrafterSpec | Missing,
    *,
    method: str = "speculative",
    probes: tuple[Probe, ...] | None = None,
    **options: Any,
) -> Experiment | Missing:
    """Return the same experiment by a method that drafts, with other ``probes`` if some are given.

    What is missing is returned where the plain experiment or the drafter is.
    """
    if isinstance(plain, Missing):
        return plain
    if isinstance(drafter, Missing):
        return drafter
    spec = MethodSpec.of(method, drafter=drafter, **options)
    return plain.replace(method=spec, probes=plain.probes if probes is None else probes)
