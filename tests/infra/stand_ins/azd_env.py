"""``azd env``: the values of the chosen environment, in ``azd`` of the state."""

from __future__ import annotations

from tests.infra.stand_ins import Call, Rules, State


def _set(state: State, call: Call) -> None:
    """Takes NAME VALUE: azure-dev, ``cli/azd/cmd/env.go``."""
    name, value = call.words[3:5]
    state.setdefault("azd", {})[name] = value


RULES: Rules = {
    "azd env set": _set,
    "azd env get-values": lambda state, _: state.get("azd", {}),
}
