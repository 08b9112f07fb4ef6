"""Which model fills a role of a paper's experiments: the user's, else the profile's."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.catalogue.base import Settings
from harness.errors import UsageError


@dataclass(frozen=True)
class Absent:
    """A role that a profile cannot fill, and why."""

    why: str


Roles = Mapping[str, Mapping[str, str | Absent]]


class UnknownRole(UsageError):
    """A role was filled that this table or figure does not have."""

    def __init__(self, role: str, known: list[str]) -> None:
        super().__init__(f"model role {role!r}: expected one of {', '.join(known)}")
        self.role = role


def role_model(roles: Roles, settings: Settings, role: str) -> str | Absent:
    """The name of the model in ``role``; ``roles`` are a paper's, by profile."""
    if settings.profile not in roles:
        raise UsageError(f"profile {settings.profile!r}: expected one of {', '.join(roles)}")
    known = roles[settings.profile]
    chosen = dict(settings.models)
    if unknown := sorted(set(chosen) - set(known)):
        raise UnknownRole(unknown[0], list(known))
    return chosen.get(role, known[role])
