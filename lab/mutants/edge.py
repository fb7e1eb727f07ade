"""Mutants of the adapters and the functions. The tests named with each of them find it.

The simulation has a store and a bus in memory, so it says nothing about these places. Their tests
run over the real SDKs, Azurite and our broker.
"""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_STORE, _BUS = "tests/contract/test_store_", "tests/contract/test_bus_"
_CONTRACT, _INDEXES = f"{_STORE}contract.py", f"{_STORE}indexes.py"
_OUTCOMES, _PURGE = f"{_STORE}outcomes.py", f"{_STORE}purge.py"
_APP = "tests/unit/test_function_app.py"
_RAISES = f"{_APP}::test_what_an_actor_raises_reaches_the_host"
_TRANSACTION = "sas/adapters/tables/operations.py"
_GROUP = "sas/adapters/tables/group_transaction.py"
_TABLE_STORE = "sas/adapters/tables/store.py"
_TABLE = "sas/adapters/tables/table.py"
_SERVICE_BUS = "sas/adapters/servicebus.py"
_FUNCTIONS = "sas/functions.py"


EDGE = (
    Mutant(
        name="no If-Match on the state row: the order is not fenced",
        path=_TRANSACTION,
        old='return Operation("update", row, change.before.token)',
        new='return Operation("update", row)',
        tests=(_CONTRACT, _PURGE),
    ),
    Mutant(
        name="If-Match is * in a transaction",
        path=_GROUP,
        old='head += f"If-Match: {etag}\\r\\n"',
        new='head += "If-Match: *\\r\\n"',
        tests=(_CONTRACT, _PURGE),
    ),
    Mutant(
        name="a row of a newer format is read",
        path="sas/ports/platform.py",
        old="    if number > newest:\n",
        new="    if False:\n",
        tests=(f"{_STORE}versions.py",),
    ),
    Mutant(
        name="no match condition when one row is replaced",
        path=_TABLE,
        old="            etag=etag,\n            match_condition=MatchConditions.IfNotModified,\n",
        new="",
        tests=(_INDEXES,),
    ),
    Mutant(
        name="a new order overwrites the one that is there",
        path=_TRANSACTION,
        old='return Operation("create", row)',
        new='return Operation("upsert", row)',
        tests=(_CONTRACT, _PURGE),
    ),
    Mutant(
        name="the row of the cause is not in the transaction",
        path=_TRANSACTION,
        old="    if entry.cause is not None:  # 5.\n        batch.append",
        new="    if False:\n        batch.append",
        tests=(_CONTRACT,),
    ),
    Mutant(
        name="the row of the cause may be there already",
        path=_TRANSACTION,
        old='Operation("create", _cause_row',
        new='Operation("upsert", _cause_row',
        tests=(_CONTRACT,),
    ),
    Mutant(
        name="new due rows are not in the transaction",
        path=_TRANSACTION,
        old='    batch += [Operation("upsert", due_row(due)) for due in '
        "_by_key(change.due_added())]\n",
        new="",
        tests=(_INDEXES,),
    ),
    Mutant(
        name="old due rows are not deleted",
        path=_TRANSACTION,
        old="    batch += [deletion(keys.due(due)) for due in _by_key(change.due_removed())]\n",
        new="",
        tests=(_INDEXES,),
    ),
    Mutant(
        name="a due row is deleted under another key than it was written with",
        path=_TRANSACTION,
        old="deletion(keys.due(due)) for due in _by_key(change.due_removed())",
        new='deletion(keys.due(due) + "0") for due in _by_key(change.due_removed())',
        tests=(_INDEXES,),
    ),
    Mutant(
        name="the out row is not in the transaction",
        path=_TRANSACTION,
        old="    if change.out_at is not None:  # 7.\n",
        new="    if False:\n",
        tests=(_INDEXES,),
    ),
    Mutant(
        name="the rows of a transition are written in two transactions",
        path=_TABLE_STORE,
        old="                    etags = await self.table.transact(partition, batch)\n",
        new="                    etags = await self.table.transact(partition, batch[:-1])\n"
        "                    await self.table.transact(partition, batch[-1:])\n",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="a large result is not written",
        path=_TRANSACTION,
        old="    if has_own_row(step.result) and step.result != old:\n",
        new="    if False:\n",
        tests=(f"{_STORE}sizes.py", "tests/unit/test_rows_transaction.py"),
    ),
    Mutant(
        name="412 counts as a success",
        path=_TABLE_STORE,
        old="is_deletion:\n                        raise ConflictError(",
        new="is_deletion:\n"
        "                        return replace(change.after, token=OVERTAKEN_ETAG)\n"
        "                        raise ConflictError(",
        tests=(_CONTRACT,),
    ),
    Mutant(
        name="a refusal of our own repeated transaction counts as a rival's",
        path=_TABLE_STORE,
        old="RefusedTransactionError as refusal:\n"
        "                    # 5. and 6. Refused, perhaps because our first attempt is written.\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n"
        "                        return replace(change.after, token=token)\n",
        new="RefusedTransactionError as refusal:\n",
        tests=(_CONTRACT, _OUTCOMES),
    ),
    Mutant(
        name="a commit without an answer counts as written",
        path=_TABLE_STORE,
        old="UnknownOutcomeError as error:\n"
        "                    # 5. and 6. The answer is lost, but the transaction may be written.\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n",
        new="UnknownOutcomeError as error:\n"
        "                    token = OVERTAKEN_ETAG\n"
        "                    if token:\n",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="a rival's commit of this seq counts as ours",
        path=_TABLE_STORE,
        old='if journal.get("CommitId") != entry.commit_id:',
        new="if False:",
        tests=(_CONTRACT, _OUTCOMES),
    ),
    Mutant(
        name="an order that changed between two pages is taken as read",
        path=_TABLE_STORE,
        old="if len(pages) == 1 or await self._has_token(partition, order_id, token):",
        new="if True:",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="an empty page is the end of a list",
        path=_TABLE,
        old="            if page is None:\n",
        new="            if not page:\n",
        tests=(_CONTRACT,),
    ),
    Mutant(
        name="503 is not tried again",
        path=_TABLE,
        old="                    if error.status_code not in BUSY:\n",
        new="                    if True:\n",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="503 is an empty answer",
        path=_TABLE,
        old="            except ResourceNotFoundError:\n                return None\n"
        "            self.meter",
        new="            except HttpResponseError:\n                return None\n"
        "            self.meter",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="503 to a transaction counts as refused for good",
        path=_TABLE,
        old="            if error.status_code in BUSY:\n                raise UnknownOutcomeError",
        new="            if False:\n                raise UnknownOutcomeError",
        tests=(_OUTCOMES,),
    ),
    Mutant(
        name="a refused operation within a transaction counts as written",
        path=_GROUP,
        old="        if not 200 <= status < 300:\n",
        new="        if False:\n",
        tests=(_CONTRACT,),
    ),
    Mutant(
        name="an answer that was cut off counts as written",
        path=_GROUP,
        old="    if len(answers) != count:  # 4.\n",
        new="    if False:\n",
        tests=("tests/unit/test_group_transaction.py", f"{_STORE}transactions.py"),
    ),
    Mutant(
        name="a purge removes an order that an operator changed meanwhile",
        path="sas/adapters/tables/purge.py",
        old='guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)',
        new='guard = Operation("delete", {"RowKey": keys.state(order.order_id)})',
        tests=(_PURGE,),
    ),
    Mutant(
        name="a message has no MessageId",
        path=_SERVICE_BUS,
        old="        message_id=message.message_id,\n        content_type",
        new="        content_type",
        tests=(f"{_BUS}contract.py",),
    ),
    Mutant(
        name="a scheduled message is sent at once",
        path=_SERVICE_BUS,
        old="        scheduled_enqueue_time_utc=message.scheduled_at,\n",
        new="",
        tests=(f"{_BUS}contract.py",),
    ),
    Mutant(
        name="messages that do not fit the batch are dropped",
        path=_SERVICE_BUS,
        old="        del pending[:size]  # 3. The broker has them.\n",
        new="        del pending[:]\n",
        tests=(f"{_BUS}contract.py",),
    ),
    Mutant(
        name="a send without an acknowledgement counts as sent",
        path=_SERVICE_BUS,
        old="            except ServiceBusError:  # 4. The acknowledgement is lost.\n"
        "                await self._try_to_send(queue, pending)\n",
        new="            except ServiceBusError:\n                pass\n",
        tests=(f"{_BUS}troubles.py",),
    ),
    Mutant(
        name="a bus that is away counts as sent",
        path=_SERVICE_BUS,
        old="            raise _sorted(queue, error, pending[0]) from error  # 6.\n",
        new="            if isinstance(error, NEVER):\n"
        "                raise _sorted(queue, error, pending[0]) from error\n",
        tests=(f"{_BUS}contract.py", f"{_BUS}errors.py"),
    ),
    Mutant(
        name="a full or disabled queue counts as one that never takes the message",
        path=_SERVICE_BUS,
        old="    if isinstance(error, NEVER) or _no_such_queue(error):\n",
        new="    if isinstance(error, (*NEVER, *LATER)) or _no_such_queue(error):\n",
        tests=(f"{_BUS}errors.py", f"{_BUS}troubles.py"),
    ),
    Mutant(
        name="a message is completed although its function failed",
        path=_FUNCTIONS,
        old="            await application.receiver.receive(handler(application), delivery)\n",
        new="            try:\n"
        "                await application.receiver.receive(handler(application), delivery)\n"
        "            except Exception:\n"
        "                pass\n",
        tests=(_RAISES,),
    ),
    Mutant(
        name="a message is completed before its transition is committed",
        path=_FUNCTIONS,
        old="            await application.receiver.receive(handler(application), delivery)\n",
        new="            import asyncio\n"
        "            asyncio.ensure_future(\n"
        "                application.receiver.receive(handler(application), delivery)\n"
        "            )\n",
        tests=(_RAISES,),
    ),
    Mutant(
        name="a dead letter comes without its source",
        path=_FUNCTIONS,
        old="                source_queue=message.dead_letter_source,\n",
        new="",
        tests=(_APP,),
    ),
    Mutant(
        name="a message of the urgent lane is put back on the ordinary one",
        path=_FUNCTIONS,
        old="                queue=queue_named(queue, application.context.queues),\n",
        new='                queue=queue_named(queue.removesuffix("-urgent"), '
        "application.context.queues),\n",
        tests=(_APP,),
    ),
    Mutant(
        name="a message that fails is never poison",
        path="sas/engine/receiver.py",
        old="failures = _number(delivery, FAILURES) + 1",
        new="failures = 1",
        tests=("tests/unit/test_receiver.py",),
    ),
)
