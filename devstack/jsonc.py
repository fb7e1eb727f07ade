"""JSON as Microsoft's tools read it: comments and trailing commas are allowed."""

import json
import re
from pathlib import Path
from typing import Any

from devstack.errors import DevstackError

# A string is matched first, so that `//` inside one is no comment.
_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(\s*[}\]])', re.DOTALL)


def loads(text: str) -> Any:
    """Parse JSON text with comments.

    Raises:
        json.JSONDecodeError: the text is no JSON even without its comments.
    """

    def drop(match: re.Match[str]) -> str:
        token = match.group()
        # Newlines stay, so that an error names the right line.
        return token if token.startswith('"') else re.sub(r"[^\n]", " ", token)

    bare = _TRAILING_COMMA.sub(lambda m: m.group(1) or m.group(2), _TOKENS.sub(drop, text))
    return json.loads(bare)


def load_object(path: Path) -> dict[str, Any]:
    """Read a file that must hold one JSON object.

    Raises:
        DevstackError: the file cannot be read, is no JSON, or holds something else.
    """
    try:
        found = loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DevstackError(f"{path} cannot be read ({reason}): check the path.") from error
    except UnicodeDecodeError as error:
        raise DevstackError(f"{path} is not UTF-8 text: save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        raise DevstackError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError:
        raise DevstackError(
            f"{path} nests too deep: write it as Microsoft's examples do."
        ) from None
    except ValueError:
        raise DevstackError(f"{path} holds a number of too many digits: shorten it.") from None
    if not isinstance(found, dict):
        raise DevstackError(f"{path} must hold a JSON object ({{...}}), not {_kind(found)}.")
    return found


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number or null")
