"""Route templates as ASP.NET writes them: `orders/{id:int}/{page?}/{*rest}`."""

import re
from dataclasses import dataclass

from devstack.functions.errors import IndexingError

_CONSTRAINTS = {
    "int": r"[+-]?\d+",
    "long": r"[+-]?\d+",
    "bool": r"(?i:true|false)",
    "alpha": r"[A-Za-z]+",
    "guid": r"[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}",
    "decimal": r"[+-]?\d+(?:\.\d+)?",
    "double": r"[+-]?\d+(?:\.\d+)?",
    "float": r"[+-]?\d+(?:\.\d+)?",
    "datetime": r"[^/]+",
}
_PARAMETER = re.compile(
    r"\{(?P<star>\*{0,2})(?P<name>\w+)(?P<constraints>(?::[^{}:=?]+)*)"
    r"(?:=(?P<default>[^{}?]*))?(?P<optional>\?)?\}"
)
_LENGTH = re.compile(r"(?P<kind>length|minlength|maxlength)\((?P<low>\d+)(?:,(?P<high>\d+))?\)")


@dataclass(frozen=True)
class Route:
    """One template, ready to be matched; the most literal routes are tried first."""

    template: str
    pattern: re.Pattern[str]
    defaults: dict[str, str]
    rank: tuple[int, ...]

    def match(self, path: str) -> dict[str, str] | None:
        """The route's values in `path` (no slash at either end), or None."""
        found = self.pattern.fullmatch(path)
        if found is None:
            return None
        return self.defaults | {k: v for k, v in found.groupdict().items() if v is not None}


def compile_route(function: str, prefix: str, template: str) -> Route:
    """Make a route of a function's template, under the host's prefix.

    Raises:
        IndexingError: the template is wrong or uses a constraint unknown here.
    """
    segments = [part for part in f"{prefix}/{template}".split("/") if part]
    pattern = ""
    defaults: dict[str, str] = {}
    taken: set[str] = set()
    rank: list[int] = []
    for number, segment in enumerate(segments):
        text, optional, weight = _segment(function, template, segment, defaults, taken)
        slash = "/" if number else ""
        pattern += f"(?:{slash}{text})?" if optional else f"{slash}{text}"
        rank.append(weight)
    return Route(template, re.compile(pattern, re.IGNORECASE), defaults, tuple(rank))


def _segment(
    function: str, template: str, segment: str, defaults: dict[str, str], taken: set[str]
) -> tuple[str, bool, int]:
    """The pattern of one segment, whether it may be missing, and its rank (less is first)."""
    text, position, optional, weight = "", 0, False, 0
    for match in _PARAMETER.finditer(segment):
        text += re.escape(segment[position : match.start()])
        position = match.end()
        _check_name(function, template, match["name"], taken)
        star = bool(match["star"])
        inner = ".*" if star else _constraint(function, template, match["constraints"])
        text += f"(?P<{match['name']}>{inner})"
        if match["default"] is not None:
            defaults[match["name"]] = match["default"]
        optional = optional or star or bool(match["optional"]) or match["default"] is not None
        weight = max(weight, 3 if star else 1 if match["constraints"] else 2)
    rest = segment[position:]
    if "{" in rest or "}" in rest:
        raise IndexingError(
            f"Function {function}: the route {template!r} is not understood at {segment!r}; write "
            "{name}, {name:int}, {name?} or {*name}."
        )
    return text + re.escape(rest), optional, weight


def _check_name(function: str, template: str, name: str, taken: set[str]) -> None:
    if not name.isidentifier():
        raise IndexingError(
            f"Function {function}: in the route {template!r} {name!r} is no name: begin with a "
            "letter."
        )
    if name in taken:
        raise IndexingError(
            f"Function {function}: the route {template!r} names {name!r} twice: rename one."
        )
    taken.add(name)


def _constraint(function: str, template: str, constraints: str) -> str:
    inner = "[^/]+"
    for one in filter(None, constraints.split(":")):
        length = _LENGTH.fullmatch(one)
        if length is not None and int(length["low"]) <= int(length["high"] or length["low"]):
            low, high = length["low"], length["high"] or length["low"]
            bounds = {"length": f"{low},{high}", "minlength": f"{low},", "maxlength": f"1,{low}"}
            inner = f"[^/]{{{bounds[length['kind']]}}}"
        elif one.lower() in _CONSTRAINTS:
            inner = _CONSTRAINTS[one.lower()]
        else:
            raise IndexingError(
                f"Function {function}: the route {template!r} uses the constraint {one!r}, which "
                f"this host does not know; it knows {', '.join(sorted(_CONSTRAINTS))} and lengths."
            )
    return inner
