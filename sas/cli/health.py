"""``sas circuits`` and ``sas incidents``: show faults of the system, which affect many orders."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from sas.cli import application, output
from sas.cli import arguments as args
from sas.cli.arguments import Subcommand, Work
from sas.cli.output import Record
from sas.codec.record import to_line
from sas.config import read_queues
from sas.domain.ids import key_time
from sas.features.circuit_breaker.guard import breakers
from sas.features.circuit_breaker.rules import Breaker, BreakerState
from sas.features.incidents import rules
from sas.features.incidents.board import active_incidents
from sas.features.incidents.rules import ActiveIncident
from sas.operate import letters
from sas.operate.errors import UsageError
from sas.ports import StateStore

# -- sas circuits -----------------------------------------------------------------------------

CIRCUITS = """\
Show the circuit of each agent's remote service. All instances share it.

  closed      calls go out
  open        no call goes out; after the moment shown one request probes the service
  half-open   one request probes the service, the others wait; the probe ends at the moment shown

Since: when the circuit closed, or first opened. Rounds: how often it opened since it last closed.
Why: the failure that opened it. Circuits that never opened are shown for the agents that you or the
app name.

  sas circuits
  sas circuits payment shipping --json
"""


def _add_circuits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agents", nargs="*", metavar="AGENT", help="only these (default: all)")
    application.add_argument(parser)
    args.add_json(parser, "JSON lines instead of a table")


def _circuits(arguments: argparse.Namespace) -> Work:
    app_agents = application.agents_if_any(arguments.app)

    async def show(store: StateStore) -> int:
        shared = await breakers(store).all()
        names = sorted(arguments.agents or {*app_agents, *shared})
        _check_agents(names, {*app_agents, *shared, *letters.agents_here(read_queues(os.environ))})
        circuits = {name: shared[name].value if name in shared else Breaker() for name in names}
        records = [_circuit_record(name, breaker) for name, breaker in circuits.items()]
        if arguments.json:
            _print_json(records)
        elif not records:
            output.say("no circuit ever opened here")
        else:
            for record in records:
                record["Why"] = record["Why"] or ("-" if record["Since"] else "never opened")
            _print_table(("Agent", "State", "Since", "Until", "Rounds", "Why"), records)
            counts = Counter(breaker.state for breaker in circuits.values())
            output.say(
                ", ".join(
                    f"{counts[state]:,} {state.value}" for state in BreakerState if counts[state]
                )
            )
        return 0

    return show


def _check_agents(names: Sequence[str], known_agents: set[str]) -> None:
    """Refuse the name of an agent that is not known here, because it may be mistyped.

    Raises:
        UsageError: a name is not known.
    """
    unknown_names = [name for name in names if name not in known_agents]
    if unknown_names:
        raise UsageError(
            f"there is no circuit of an agent {unknown_names[0]!r}: known are "
            f"{', '.join(sorted(known_agents)) or 'none'}. The app names those that never opened: "
            f"{application.HOW}"
        )


def _circuit_record(name: str, breaker: Breaker) -> Record:
    return {
        "Agent": name,
        "State": breaker.state.value,
        "Since": breaker.since,
        "Until": breaker.until,
        "Rounds": breaker.rounds,
        "Why": breaker.why,
        "Prober": breaker.prober,
    }


# -- sas incidents ----------------------------------------------------------------------------

INCIDENTS = """\
Show the incidents of the system: faults that affect many orders, not one. An alert on
operator-alerts says when an incident begins, from time to time while it lasts, and when it is over.

  not-picked-up   steps are ready and no scheduler claims them
  not-runnable    a workflow version that orders need is not deployed
  breaker-open    a remote service failed; no calls go out to it (see sas circuits)
  agent-failing   an agent or a check has a bug; steps or orders wait for the deploy that mends it
  waiting         steps of a workflow rest longer than its threshold before they are tried again
  queue-delay     steps ran out of time while their messages waited in a queue
  unreadable      content of orders cannot be decoded (SAS_PAYLOAD_KEYS), or rows were changed

LastSeen is when the incident was last seen. State is active, or over until the alert that says so
is sent. Alerts counts the alerts sent.

  sas incidents
  sas incidents --json
"""


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    args.add_json(parser, "JSON lines instead of a table")


def _incidents(arguments: argparse.Namespace) -> Work:
    async def show(store: StateStore) -> int:
        incident_list = await incidents(store)
        now = output.now()
        records = [_incident_record(incident, now) for incident in incident_list]
        if arguments.json:
            _print_json(records)
        elif records:
            fields = ("Kind", "About", "State", "Since", "LastSeen", "Alerts")
            _print_table(fields, records, [[incident.text] for incident in incident_list])
        else:
            output.say("no incident is active")
        return 0

    return show


async def incidents(store: StateStore) -> list[ActiveIncident]:
    """Return the active incidents, and those that are over and whose last alert is not sent."""
    shared = await active_incidents(store).all()
    return [incident.value for incident in shared.values() if incident.value is not None]


def _incident_record(incident: ActiveIncident, now: datetime) -> Record:
    return {
        "Kind": incident.kind.value,
        "About": incident.scope,
        "State": "over" if rules.is_over(incident, now) else "active",
        "Since": incident.since,
        "LastSeen": incident.last_seen,
        "Alerts": incident.alerts_sent,
        "AlertedAt": incident.last_alert_at,
        "NextAlertAt": rules.next_alert_at(incident),
        "Orders": list(incident.orders),
        "Text": incident.text,
    }


def _print_json(records: Sequence[Record]) -> None:
    for record in records:
        times = {name: key_time(at) for name, at in record.items() if isinstance(at, datetime)}
        output.say(to_line(record | times))


def _print_table(
    fields: Sequence[str], records: Sequence[Record], below: Sequence[Sequence[str]] = ()
) -> None:
    rows = [[_cell(record[name]) for name in fields] for record in records]
    for line in output.table(fields, rows, below):
        output.say(line)


def _cell(value: object) -> str:
    return output.time_of(value) if isinstance(value, datetime | None) else str(value)


VERBS = (
    Subcommand.with_store(
        "circuits",
        "show which remote services are not called, and why",
        description=CIRCUITS,
        add_arguments=_add_circuits,
        prepare=_circuits,
    ),
    Subcommand.with_store(
        "incidents",
        "show what is wrong with the system right now",
        description=INCIDENTS,
        add_arguments=_add_incidents,
        prepare=_incidents,
    ),
)
