"""Values of settings of a mesh plan, as files write them: 2, 2.., 2..3, a name or several, true or false."""

from __future__ import annotations

import re

from costmodel.mesh.framework_rules import DEGREES, FACTS, FLAGS, NAMES, Span, Values
from planner.core.errors import did_you_mean
from planner.schema.common import fail

_RANGE = re.compile(r"(\d{1,6})\.\.(\d{1,6})?")


def setting_values(name: str, value: bool | int | str | tuple[str, ...], at: str = "when") -> Values:
    """The values of a setting that a file names.

    Parameters
    ----------
    name : str
        Of `DEGREES`, `NAMES`, `FLAGS` or `FACTS`.
    value : bool, int, str or tuple of str
    at : str
        The key that it stands under.

    Raises
    ------
    ValueError
        It cannot have that value.

    Examples
    --------
    >>> setting_values("tp", 8), setting_values("pp", "2.."), setting_values("schedule", "1f1b"), setting_values("offload_optimizer", False)
    (Span(low=8, high=8), Span(low=2, high=inf), ('1f1b',), False)
    """
    if name in DEGREES:
        found = _RANGE.fullmatch(str(value))
        if isinstance(value, bool) or (found is None and not isinstance(value, int)):
            fail(f"{name} cannot be {value!r} (expected a number, or a range as 2.. or 2..3)", at=at)
        if found is None:
            return Span(int(str(value)), int(str(value)))
        return Span(int(found[1])) if found[2] is None else Span(int(found[1]), int(found[2]))
    known = NAMES.get(name) or FACTS.get(name)
    if known:
        names = value if isinstance(value, tuple) else (str(value),)
        unknown = [text for text in names if text not in known]
        if unknown:
            fail(f"{name} cannot be '{unknown[0][:60]}' (known: {', '.join(known)})", at=at)
        return names
    if not isinstance(value, bool):
        fail(f"{name} is true or false, not {value!r}", at=at)
    return bool(value)


def plan_settings(settings: dict[str, bool | int | str], at: str = "settings") -> dict[str, Values]:
    """Settings of a mesh plan by their names.

    Raises
    ------
    ValueError
        One that no plan has, or that cannot have its value.
    """
    named = (*DEGREES, *NAMES, *FLAGS)
    for name in settings:
        if name not in named:
            hint = did_you_mean(name, named) or f" (known: {', '.join(named)})"
            fail(f"'{name[:60]}' is no setting of a plan{hint}", at=at)
    return {name: setting_values(name, value, at) for name, value in settings.items()}
