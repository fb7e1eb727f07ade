"""``azd env``: the values of the chosen environment, in ``azd`` of the state.

``deployed`` has the outputs of the last deployment to the resource group, if there is one.
"""

from __future__ import annotations

from tests.infra.stand_ins import Call, Refused, Rules, State


def _set(state: State, call: Call) -> None:
    """Takes NAME VALUE: azure-dev, ``cli/azd/cmd/env.go``."""
    name, value = call.words[3:5]
    state.setdefault("azd", {})[name] = value


def _refresh(state: State, _: Call) -> str:
    """``cli/azd/cmd/env.go``, ``infra/provisioning/bicep`` and ``infra/deployment_manager.go``."""
    values = state.setdefault("azd", {})
    if not values.get("AZURE_RESOURCE_GROUP"):
        raise Refused("initializing provisioning manager: no default response for prompt")
    if not state.get("deployed"):
        raise Refused(
            f"getting deployment: retrieving deployment: '{values['AZURE_ENV_NAME']}': "
            "no deployments found"
        )
    values.update(state["deployed"])
    return "Refreshing environment (azd env refresh)\n"


def _values(state: State, call: Call) -> object:
    """It may ask which environment is meant: ``cli/azd/cmd/env.go``."""
    if "--no-prompt" not in call.words:
        raise Refused("? Select an environment to use:")
    return state.get("azd", {})


RULES: Rules = {
    "azd env refresh": _refresh,
    "azd env set": _set,
    "azd env get-values": _values,
}
