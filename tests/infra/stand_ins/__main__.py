"""What one of the commands does: ``main`` is called with its argv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.infra.stand_ins import (
    Call,
    Refused,
    Rules,
    az_ad,
    az_functionapp,
    az_resources,
    azd_deploy,
    azd_env,
    changing,
    gh,
)

RULES: Rules = {
    **az_ad.RULES,
    **az_functionapp.RULES,
    **az_resources.RULES,
    **azd_deploy.RULES,
    **azd_env.RULES,
    **gh.RULES,
}
"""The rules of all modules. No rule for a call: it fails, so a test names all it needs."""


def main(argv: list[str]) -> None:
    """Answer one call."""
    directory = Path(argv[0]).resolve().parent
    takes = "--input" in argv or argv[1:3] in (["secret", "set"], ["variable", "set"])
    reads = takes and not sys.stdin.isatty()
    call = Call([Path(argv[0]).name, *argv[1:]], sys.stdin.read() if reads else "")
    text = " ".join(call.words)
    with changing(directory / "state.json") as state:
        state["calls"].append([call.words, call.stdin])
        begins = max((words for words in RULES if text.startswith(words)), key=len, default=None)
        if begins is None:
            sys.exit(f"no rule of the stand-ins for: {text}")
        try:
            answer = RULES[begins](state, call)
        except Refused as refusal:
            sys.exit(f"ERROR: {refusal}")
    if answer is not None:
        sys.stdout.write(answer if isinstance(answer, str) else json.dumps(answer))
