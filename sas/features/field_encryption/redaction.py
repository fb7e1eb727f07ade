"""Redaction: refusals and errors of the business's code never quote a secret field.

They become journal rows, alerts, notifications and log lines. A secret text in one of them is
replaced. The text of a bug is withheld; only its type and its place in the code are reported.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sas.engine.hooks import Encryption, redact
from sas.features.field_encryption.encryption import FieldEncryption
from sas.ports import (
    Agent,
    AwaitCallback,
    Business,
    Call,
    RefusedError,
    StillRunning,
    TransientError,
)


class WithheldError(Exception):
    """The business's code failed for an order with secret fields. Its text may quote them, so only
    the place in the code is named.
    """


class RedactingAgent:
    """An agent whose answers and errors are redacted. See ``sas.ports.Agent``."""

    def __init__(self, name: str, agent: Agent) -> None:
        self._name = name
        self._agent = agent

    async def do(self, call: Call) -> Any:
        """See ``Agent.do``."""
        return await self._redacted(self._agent.do, call)

    async def undo(self, call: Call) -> Any:
        """See ``Agent.undo``."""
        return await self._redacted(self._agent.undo, call)

    async def close(self) -> None:
        """See ``Agent.close``."""
        await self._agent.close()

    async def _redacted(self, attempt: Callable[[Call], Awaitable[Any]], call: Call) -> Any:
        if not call.secrets:
            return await attempt(call)
        try:
            result = await attempt(call)
        except Exception as error:  # noqa: BLE001  raised again, redacted
            failed = redacted_error(error, f"agent {self._name}", call.secrets)
        else:
            if isinstance(result, StillRunning | AwaitCallback):
                return replace(result, note=redact(result.note, call.secrets))
            return result
        raise failed  # outside of the handler: its context would still hold the text


def redacted_error(error: Exception, who: str, secrets: Sequence[str]) -> Exception:
    """Return the same error without the secrets."""
    if isinstance(error, RefusedError):
        return RefusedError(redact(error.code, secrets), redact(str(error), secrets))
    if isinstance(error, TransientError):
        return TransientError(
            redact(str(error), secrets),
            error.retry_after,
            redact(error.kind, secrets),
            answered=error.answered,
            error_answer=error.error_answer,
        )
    return withheld_error(error, who)


def redacted(business: Business, encryption: Encryption) -> Business:
    """Return a business whose agents and checks quote no secret field of an order."""
    if not isinstance(encryption, FieldEncryption):
        return business
    checks = {
        workflow: _redacted_check(check, workflow, encryption)
        if encryption.has_secrets(workflow)
        else check
        for workflow, check in business.checks.items()
    }
    agents = {name: RedactingAgent(name, agent) for name, agent in business.agents.items()}
    return replace(business, agents=agents, checks=checks)


def _redacted_check(
    check: Callable[[bytes], object], workflow: str, encryption: FieldEncryption
) -> Callable[[bytes], object]:
    def checked(content: bytes) -> None:
        secrets = encryption.secrets_of(content, workflow)
        try:
            check(content)
        except ValueError as wrong:
            failed: Exception = ValueError(redact(str(wrong), secrets))
        except Exception as bug:  # noqa: BLE001  raised again, redacted
            failed = withheld_error(bug, f"the check of workflow {workflow}")
        else:
            return
        raise failed  # outside of the handler: its context would still hold the text

    return checked


def withheld_error(error: Exception, who: str) -> WithheldError:
    """Return an error that names only the type of a bug and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f"{Path(last.filename).name}, line {last.lineno}" if last else "an unknown place"
    return WithheldError(
        f"{who} raised {type(error).__name__} ({where}); its text is withheld, because the order "
        "has secret fields"
    )
