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
_TRANSACTION = "sas/adapters/transaction.py"
_GROUP = "sas/adapters/group_transaction.py"
_TABLE_STORE = "sas/adapters/table_store.py"
_TABLE = "sas/adapters/table.py"
_SERVICE_BUS = "sas/adapters/servicebus.py"
_FUNCTIONS = "sas/functions.py"


EDGE = (
    Mutant(
        "no If-Match on the state row: the order is not fenced",
        _TRANSACTION,
        'return Operation("update", row, change.before.token)',
        'return Operation("update", row)',
        (_CONTRACT, _PURGE),
    ),
    Mutant(
        "If-Match is * in a transaction",
        _GROUP,
        'head += f"If-Match: {etag}\\r\\n"',
        'head += "If-Match: *\\r\\n"',
        (_CONTRACT, _PURGE),
    ),
    Mutant(
        "a row of a newer format is read",
        "sas/ports/platform.py",
        "    if number > newest:\n",
        "    if False:\n",
        (f"{_STORE}versions.py",),
    ),
    Mutant(
        "no match condition when one row is replaced",
        _TABLE,
        "            etag=etag,\n            match_condition=MatchConditions.IfNotModified,\n",
        "",
        (f"{_STORE}shared_values.py", _INDEXES),
    ),
    Mutant(
        "a new order overwrites the one that is there",
        _TRANSACTION,
        'return Operation("create", row)',
        'return Operation("upsert", row)',
        (_CONTRACT, _PURGE),
    ),
    Mutant(
        "the row of the cause is not in the transaction",
        _TRANSACTION,
        "    if entry.cause is not None:\n        made.append",
        "    if False:\n        made.append",
        (_CONTRACT,),
    ),
    Mutant(
        "the row of the cause may be there already",
        _TRANSACTION,
        'Operation("create", _cause_row',
        'Operation("upsert", _cause_row',
        (_CONTRACT,),
    ),
    Mutant(
        "new due rows are not in the transaction",
        _TRANSACTION,
        '    made += [Operation("upsert", due_row(added)) for added in '
        "_by_key(change.due_added())]\n",
        "",
        (_INDEXES,),
    ),
    Mutant(
        "old due rows are not deleted",
        _TRANSACTION,
        "    made += [deletion(keys.due(gone)) for gone in _by_key(change.due_removed())]\n",
        "",
        (_INDEXES,),
    ),
    Mutant(
        "a due row is deleted under another key than it was written with",
        _TRANSACTION,
        "deletion(keys.due(gone)) for gone",
        'deletion(keys.due(gone) + "0") for gone',
        (_INDEXES,),
    ),
    Mutant(
        "the out row is not in the transaction",
        _TRANSACTION,
        "    if change.out_at is not None:\n",
        "    if False:\n",
        (_INDEXES,),
    ),
    Mutant(
        "the rows of a transition are written in two transactions",
        _TABLE_STORE,
        "                    etags = await self.table.transact(partition, left)\n",
        "                    etags = await self.table.transact(partition, left[:-1])\n"
        "                    await self.table.transact(partition, left[-1:])\n",
        (_OUTCOMES,),
    ),
    Mutant(
        "a large result is not written",
        _TRANSACTION,
        "    if has_own_row(step.result) and step.result != old:\n",
        "    if False:\n",
        (f"{_STORE}sizes.py", "tests/unit/test_rows_transaction.py"),
    ),
    Mutant(
        "412 counts as a success",
        _TABLE_STORE,
        "is_index_delete:\n                        raise ConflictError(",
        "is_index_delete:\n"
        "                        return replace(change.after, token=OVERTAKEN)\n"
        "                        raise ConflictError(",
        (_CONTRACT,),
    ),
    Mutant(
        "a refusal of our own repeated transaction counts as a rival's",
        _TABLE_STORE,
        "RefusedTransactionError as refused:\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n"
        "                        return replace(change.after, token=token)\n",
        "RefusedTransactionError as refused:\n",
        (_CONTRACT, _OUTCOMES),
    ),
    Mutant(
        "a commit without an answer counts as written",
        _TABLE_STORE,
        "UnknownOutcomeError as unknown:\n"
        "                    if (token := await self._our_token(partition, change)) is not None:\n",
        "UnknownOutcomeError as unknown:\n"
        "                    token = OVERTAKEN\n"
        "                    if token:\n",
        (_OUTCOMES,),
    ),
    Mutant(
        "a rival's commit of this seq counts as ours",
        _TABLE_STORE,
        'if journal.get("CommitId") != entry.commit_id:',
        "if False:",
        (_CONTRACT, _OUTCOMES),
    ),
    Mutant(
        "an order that changed between two pages is taken as read",
        _TABLE_STORE,
        "if len(pages) == 1 or await self._has_token(partition, order_id, token):",
        "if True:",
        (_OUTCOMES,),
    ),
    Mutant(
        "an empty page is the end of a list",
        _TABLE,
        "            if page is None:\n",
        "            if not page:\n",
        (_CONTRACT,),
    ),
    Mutant(
        "503 is not tried again",
        _TABLE,
        "                    if error.status_code not in BUSY:\n",
        "                    if True:\n",
        (_OUTCOMES,),
    ),
    Mutant(
        "503 is an empty answer",
        _TABLE,
        "            except ResourceNotFoundError:\n                return None\n"
        "            self.meter",
        "            except HttpResponseError:\n                return None\n"
        "            self.meter",
        (_OUTCOMES,),
    ),
    Mutant(
        "503 to a transaction counts as refused for good",
        _TABLE,
        "            if error.status_code in BUSY:\n                raise UnknownOutcomeError",
        "            if False:\n                raise UnknownOutcomeError",
        (_OUTCOMES,),
    ),
    Mutant(
        "a refused operation within a transaction counts as written",
        _GROUP,
        "        if not 200 <= status < 300:\n",
        "        if False:\n",
        (_CONTRACT,),
    ),
    Mutant(
        "an answer that was cut off counts as written",
        _GROUP,
        "    if len(answers) != count:\n",
        "    if False:\n",
        ("tests/unit/test_group_transaction.py", f"{_STORE}transactions.py"),
    ),
    Mutant(
        "a purge removes an order that an operator changed meanwhile",
        "sas/adapters/table_purge.py",
        'guard = Operation("delete", {"RowKey": keys.state(order.order_id)}, token)',
        'guard = Operation("delete", {"RowKey": keys.state(order.order_id)})',
        (_PURGE,),
    ),
    Mutant(
        "a message has no MessageId",
        _SERVICE_BUS,
        "        message_id=message.message_id,\n        content_type",
        "        content_type",
        (f"{_BUS}contract.py",),
    ),
    Mutant(
        "a scheduled message is sent at once",
        _SERVICE_BUS,
        "        scheduled_enqueue_time_utc=message.scheduled_at,\n",
        "",
        (f"{_BUS}contract.py",),
    ),
    Mutant(
        "messages that do not fit the batch are dropped",
        _SERVICE_BUS,
        "        del pending[: taken or 1]\n",
        "        del pending[:]\n",
        (f"{_BUS}contract.py",),
    ),
    Mutant(
        "a send without an acknowledgement counts as sent",
        _SERVICE_BUS,
        "            except ServiceBusError:\n"
        "                await self._try_to_send(queue, pending)\n",
        "            except ServiceBusError:\n                pass\n",
        (f"{_BUS}troubles.py",),
    ),
    Mutant(
        "a bus that is away counts as sent",
        _SERVICE_BUS,
        "            raise BusUnavailableError(why(queue, error)) from error\n        finally:",
        "            return\n        finally:",
        (f"{_BUS}contract.py", f"{_BUS}errors.py"),
    ),
    Mutant(
        "a full or disabled queue counts as one that never takes the message",
        _SERVICE_BUS,
        "        except NEVER as error:\n",
        "        except (*NEVER, *LATER) as error:\n",
        (f"{_BUS}errors.py", f"{_BUS}troubles.py"),
    ),
    Mutant(
        "a message is completed although its function failed",
        _FUNCTIONS,
        "            await application.receiver.receive(handler(application), delivery)\n",
        "            try:\n"
        "                await application.receiver.receive(handler(application), delivery)\n"
        "            except Exception:\n"
        "                pass\n",
        (_RAISES,),
    ),
    Mutant(
        "a message is completed before its transition is committed",
        _FUNCTIONS,
        "            await application.receiver.receive(handler(application), delivery)\n",
        "            import asyncio\n"
        "            asyncio.ensure_future(\n"
        "                application.receiver.receive(handler(application), delivery)\n"
        "            )\n",
        (_RAISES,),
    ),
    Mutant(
        "a dead letter comes without its source",
        _FUNCTIONS,
        "                source_queue=message.dead_letter_source,\n",
        "",
        (_APP,),
    ),
    Mutant(
        "replies go to the handler of wakes",
        _FUNCTIONS,
        "lambda app: app.scheduler.handle_reply)",
        "lambda app: app.scheduler.handle)",
        (_APP,),
    ),
    Mutant(
        "a message of the urgent lane is put back on the ordinary one",
        _FUNCTIONS,
        "                queue=queue_named(queue, self.application().context.queues),\n",
        '                queue=queue_named(queue.removesuffix("-urgent"), '
        "self.application().context.queues),\n",
        (_APP,),
    ),
)
