"""Break the edge with Azure on purpose, and see which test finds it.

    python -m tools.edge_mutants                # a table in markdown
    python -m tools.edge_mutants --only "If-Match"

``tools.mutants`` plays the simulation, which has a store and a bus in memory. So it says nothing
about the adapters and the functions. Each mutant here changes one place of those, in a copy of the
code. The tests that concern the place then run against the real SDKs, Azurite and our broker, until
one fails. First they all run on a copy that is not changed: they must pass there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.mutants import Mutant, copy_code

ALSO_COPIED = ("function_app.py", "local.settings.json", "docs")
TIME_S = 300
_STORE, _BUS = "tests/contract/test_store_", "tests/contract/test_bus_"
_CONTRACT, _INDEXES = f"{_STORE}contract.py", f"{_STORE}indexes.py"
_OUTCOMES, _PURGE = f"{_STORE}outcomes.py", f"{_STORE}purge.py"
_APP = "tests/unit/test_function_app.py"
_RAISES = f"{_APP}::test_what_an_actor_raises_reaches_the_host"
_TRANSACTION = "sas/adapters/transaction.py"
_GROUP = "sas/adapters/group_transaction.py"
_TABLE_STORE = "sas/adapters/table_store.py"
_TABLE = "sas/adapters/table.py"
_SERVICE_BUS = "sas/adapters/servicebus.py"
_FUNCTIONS = "sas/functions.py"


@dataclass(frozen=True, slots=True)
class EdgeMutant(Mutant):
    """A mutant, and the tests that concern its place: files, or single tests."""

    tests: tuple[str, ...]


EDGE = (
    EdgeMutant(
        "no If-Match on the state row: the order is not fenced",
        _TRANSACTION,
        'return Operation("update", row, change.before.token)',
        'return Operation("update", row)',
        (_CONTRACT, _PURGE),
    ),
    EdgeMutant(
        "If-Match is * in our own transactions",
        _GROUP,
        'head += f"If-Match: {etag}\\r\\n"',
        'head += "If-Match: *\\r\\n"',
        (_CONTRACT, _PURGE),
    ),
    EdgeMutant(
        "no match condition in the transactions of the SDK",
        _TRANSACTION,
        'options |= {"etag": self.etag, "match_condition": MatchConditions.IfNotModified}',
        "pass",
        (_CONTRACT, _PURGE),
    ),
    EdgeMutant(
        "no match condition when one row is replaced",
        _TABLE,
        "            etag=etag,\n            match_condition=MatchConditions.IfNotModified,\n",
        "",
        (f"{_STORE}shared_values.py", _INDEXES),
    ),
    EdgeMutant(
        "a new order overwrites the one that is there",
        _TRANSACTION,
        'return Operation("create", row)',
        'return Operation("upsert", row)',
        (_CONTRACT, _PURGE),
    ),
    EdgeMutant(
        "the row of the cause is not in the transaction",
        _TRANSACTION,
        "    if entry.cause is not None:\n        made.append",
        "    if False:\n        made.append",
        (_CONTRACT,),
    ),
    EdgeMutant(
        "the row of the cause may be there already",
        _TRANSACTION,
        'Operation("create", _cause_row',
        'Operation("upsert", _cause_row',
        (_CONTRACT,),
    ),
    EdgeMutant(
        "new due rows are not in the transaction",
        _TRANSACTION,
        '    made += [Operation("upsert", due_row(added)) for added in '
        "_by_key(change.due_added())]\n",
        "",
        (_INDEXES,),
    ),
    EdgeMutant(
        "old due rows are not deleted",
        _TRANSACTION,
        "    made += [deletion(keys.due(gone)) for gone in _by_key(change.due_removed())]\n",
        "",
        (_INDEXES,),
    ),
    EdgeMutant(
        "a due row is deleted under another key than it was written with",
        _TRANSACTION,
        "deletion(keys.due(gone)) for gone",
        'deletion(keys.due(gone) + "0") for gone',
        (_INDEXES,),
    ),
    EdgeMutant(
        "the out row is not in the transaction",
        _TRANSACTION,
        "    if change.out_at is not None:\n",
        "    if False:\n",
        (_INDEXES,),
    ),
    EdgeMutant(
        "the rows of a transition are written in two transactions",
        _TABLE_STORE,
        "                    etags = await self.table.transact(partition, left)\n",
        "                    etags = await self.table.transact(partition, left[:-1])\n"
        "                    await self.table.transact(partition, left[-1:])\n",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "a large result is not written",
        _TRANSACTION,
        "    if has_own_row(step.result) and step.result != old:\n",
        "    if False:\n",
        (f"{_STORE}sizes.py", "tests/unit/test_rows_transaction.py"),
    ),
    EdgeMutant(
        "412 counts as a success",
        _TABLE_STORE,
        "is_index_delete:\n                        raise ConflictError(",
        "is_index_delete:\n"
        "                        return replace(change.after, token=OVERTAKEN)\n"
        "                        raise ConflictError(",
        (_CONTRACT,),
    ),
    EdgeMutant(
        "a refusal of our own repeated transaction counts as a rival's",
        _TABLE_STORE,
        "RefusedTransactionError as refused:\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n"
        "                        return replace(change.after, token=token)\n",
        "RefusedTransactionError as refused:\n",
        (_CONTRACT, _OUTCOMES),
    ),
    EdgeMutant(
        "a commit without an answer counts as written",
        _TABLE_STORE,
        "UnknownOutcomeError as unknown:\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n",
        "UnknownOutcomeError as unknown:\n"
        "                    token = OVERTAKEN\n"
        "                    if token:\n",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "a rival's commit of this seq counts as ours",
        _TABLE_STORE,
        'if journal.get("CommitId") != entry.commit_id:',
        "if False:",
        (_CONTRACT, _OUTCOMES),
    ),
    EdgeMutant(
        "an order that changed between two pages is taken as read",
        _TABLE_STORE,
        "if len(pages) == 1 or await self._has_token(partition, order_id, token):",
        "if True:",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "an empty page is the end of a list",
        _TABLE,
        "            if page is None:\n",
        "            if not page:\n",
        (_CONTRACT,),
    ),
    EdgeMutant(
        "503 is not tried again",
        _TABLE,
        "                    if error.status_code not in BUSY:\n",
        "                    if True:\n",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "503 is an empty answer",
        _TABLE,
        "            except ResourceNotFoundError:\n                return None\n"
        "            self.meter",
        "            except HttpResponseError:\n                return None\n"
        "            self.meter",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "503 to a transaction counts as refused for good",
        _TABLE,
        "            if error.status_code in BUSY:\n                raise UnknownOutcomeError",
        "            if False:\n                raise UnknownOutcomeError",
        (_OUTCOMES,),
    ),
    EdgeMutant(
        "a refused operation within a transaction counts as written",
        _GROUP,
        "        if not 200 <= status < 300:\n",
        "        if False:\n",
        (_CONTRACT,),
    ),
    EdgeMutant(
        "an answer that was cut off counts as written",
        _GROUP,
        "    if len(answers) != count:\n",
        "    if False:\n",
        ("tests/unit/test_group_transaction.py", f"{_STORE}transactions.py"),
    ),
    EdgeMutant(
        "a purge removes an order that an operator changed meanwhile",
        "sas/adapters/table_purge.py",
        'guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)',
        'guard = Operation("delete", {"RowKey": keys.state(order.order_id)})',
        (_PURGE,),
    ),
    EdgeMutant(
        "a message has no MessageId",
        _SERVICE_BUS,
        "        message_id=message.message_id,\n        content_type",
        "        content_type",
        (f"{_BUS}contract.py",),
    ),
    EdgeMutant(
        "a scheduled message is sent at once",
        _SERVICE_BUS,
        "        scheduled_enqueue_time_utc=message.scheduled_at,\n",
        "",
        (f"{_BUS}contract.py",),
    ),
    EdgeMutant(
        "messages that do not fit the batch are dropped",
        _SERVICE_BUS,
        "        del pending[: taken or 1]\n",
        "        del pending[:]\n",
        (f"{_BUS}contract.py",),
    ),
    EdgeMutant(
        "a send without an acknowledgement counts as sent",
        _SERVICE_BUS,
        "            except ServiceBusError:\n"
        "                await self._try_to_send(queue, pending)\n",
        "            except ServiceBusError:\n                pass\n",
        (f"{_BUS}troubles.py",),
    ),
    EdgeMutant(
        "a bus that is away counts as sent",
        _SERVICE_BUS,
        "            raise BusUnavailableError(why(queue, error)) from error\n        finally:",
        "            return\n        finally:",
        (f"{_BUS}contract.py", f"{_BUS}errors.py"),
    ),
    EdgeMutant(
        "a full or disabled queue counts as one that never takes the message",
        _SERVICE_BUS,
        "        except NEVER as error:\n",
        "        except (*NEVER, *LATER) as error:\n",
        (f"{_BUS}errors.py", f"{_BUS}troubles.py"),
    ),
    EdgeMutant(
        "a message is completed although its function failed",
        _FUNCTIONS,
        "            await self.application().receive(handler(self.application()), delivery)\n",
        "            try:\n"
        "                await self.application().receive(handler(self.application()), delivery)\n"
        "            except Exception:\n"
        "                pass\n",
        (_RAISES,),
    ),
    EdgeMutant(
        "a message is completed before its transition is committed",
        _FUNCTIONS,
        "            await self.application().receive(handler(self.application()), delivery)\n",
        "            import asyncio\n"
        "            asyncio.ensure_future(\n"
        "                self.application().receive(handler(self.application()), delivery)\n"
        "            )\n",
        (_RAISES,),
    ),
    EdgeMutant(
        "a dead letter comes without its source",
        _FUNCTIONS,
        "                source_queue=message.dead_letter_source,\n",
        "",
        (_APP,),
    ),
    EdgeMutant(
        "replies go to the handler of wakes",
        _FUNCTIONS,
        "lambda app: app.scheduler.handle_reply)",
        "lambda app: app.scheduler.handle)",
        (_APP,),
    ),
    EdgeMutant(
        "a message of the urgent lane is put back on the ordinary one",
        _FUNCTIONS,
        "                queue=queue_named(queue, self.application().context.queues),\n",
        '                queue=queue_named(queue.removesuffix("-urgent"), '
        "self.application().context.queues),\n",
        (_APP,),
    ),
)
"""Mutants of the adapters of Table Storage and Service Bus, and of the functions."""


def found_by(mutant: Mutant | None, tests: Iterable[str]) -> str | None:
    """Run tests on a copy of the code with a mutant in it; return the first one that fails.

    Raises:
        RuntimeError: pytest ran no test, or broke.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = Path(name)
        copy_code(copy, *ALSO_COPIED)
        if mutant is not None:
            mutant.apply(copy)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        command += [f"--timeout={TIME_S}", *tests]
        ran = subprocess.run(  # noqa: S603  our own interpreter
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    found = re.search(r"^FAILED tests/\w+/(\w+)\.py::(\w+)", ran.stdout, re.MULTILINE)
    if ran.returncode == 1 and found is not None:
        return f"{found[1]}::{found[2]}"
    if ran.returncode != 0:
        raise RuntimeError(f"pytest ended with {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr}")
    return None


HEAD = "| mutant of the edge | found by |\n|---|---|"


def row(mutant: Mutant, found: str | None) -> str:
    """Return a row of the table: the mutant, and the test that finds it."""
    return f"| {mutant.name} | {found or '**none**'} |"


def main() -> int:
    """Hunt the mutants one after the other and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="mutants with one of these texts")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in EDGE if any(one in mutant.name for one in arguments.only)]
    if not chosen:
        parser.error("no mutant has one of these texts")
    broken = found_by(None, sorted({test for mutant in chosen for test in mutant.tests}))
    if broken is not None:
        print(f"{broken} fails on the code as it is: repair that first", file=sys.stderr)
        return 1
    print(HEAD, flush=True)
    missed = 0
    for mutant in chosen:
        found = found_by(mutant, mutant.tests)
        missed += found is None
        print(row(mutant, found), flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} were found", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
