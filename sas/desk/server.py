"""The server of the desk: its pages and its forms, on 127.0.0.1 only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

import jinja2
from aiohttp import web
from aiohttp.typedefs import Middleware

from sas.codec.payloads import decode_order
from sas.desk import charts, listing, page
from sas.desk.content import compact
from sas.desk.guard import HEADERS, STATIC, Guard, Handler
from sas.desk.inboxes import Inbox, Inboxes
from sas.desk.sending import Seen, Sender, Sent
from sas.desk.watch import LOADS_MAX, Watch, row_of
from sas.domain.messages import Verb
from sas.domain.order import Order, OrderState
from sas.domain.queues import Queues
from sas.domain.workflow import Workflows
from sas.features.claim_check import ClaimCheck
from sas.operate import commands, finding, letters, redriving, why
from sas.operate.commands import Intent, refusal
from sas.operate.errors import CommandError, NotPossibleError, UsageError
from sas.operate.redriving import PlannedMove
from sas.ports import OperatorBus, PayloadCodec, StateStore, UnavailableError, UndeliverableError
from sas.telemetry.tracing import logger

log = logger(__name__)
HERE = Path(__file__).parent
FORM_BYTES_MAX = 256 * 1024
LIVE_EVERY_S = 0.5
MANY_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a desk needs: the store and the bus of the operator, and who the operator is."""

    store: StateStore
    bus: OperatorBus
    queues: Queues
    by: str
    where: str = ""
    workflows: Workflows | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    codec: PayloadCodec | None = None


@dataclass(kw_only=True)
class Form:
    """What an operator typed, so that a refused form still has it."""

    verb: str = ""
    step: str = ""
    reason: str = ""
    text: str | None = None
    problem: str = ""
    stale: bool = False


@dataclass(kw_only=True)
class Desk:
    """The pages. ``many`` has the orders that were shown in groups, with the seqs shown.

    ``resent`` has what became of messages that were sent again.
    """

    office: Office
    watch: Watch
    inboxes: Inboxes
    sender: Sender
    many: dict[str, Mapping[str, Seen]] = field(default_factory=dict)
    resent: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.guard = Guard(self._refused)
        empty = self.watch.picture
        self._charts = empty.version, *charts.of(empty)

    def app(self) -> web.Application:
        """Return the application with all its pages."""
        made = web.Application(
            middlewares=[self.guard.middleware(), self._errors()], client_max_size=FORM_BYTES_MAX
        )
        made.add_routes(
            [
                web.get("/", self.overview),
                web.get("/login", self.login),
                web.get("/static/{name}", self.static),
                web.get("/live", self.live),
                web.get("/orders", self.orders),
                web.get("/orders/{order_id}", self.order),
                web.post("/orders/{order_id}", self.act),
                web.get("/failures", self.failures),
                web.post("/failures", self.resubmit_many),
                web.get("/inbox/{name}", self.inbox),
                web.get("/inbox/{name}/resend", self.resend),
                web.post("/inbox/{name}/resend", self.resend),
                web.get("/sent/{key}", self.sent),
            ]
        )
        return made

    # -- Pages --------------------------------------------------------------------------------

    async def overview(self, _request: web.Request) -> web.Response:
        """Show how the whole system is."""
        picture = self.watch.picture
        if self._charts[0] != picture.version:
            self._charts = picture.version, *charts.of(picture)
        return self._page(
            "overview.html",
            active="overview",
            rates=self._charts[1],
            times=self._charts[2],
            open_circuits=[
                (name, one) for name, one in sorted(picture.circuits.items()) if why.is_open(one)
            ],
            states=[(state, self._count(state)) for state in OrderState],
        )

    def _count(self, state: OrderState) -> int:
        """Return how many orders are in a state. Refused ones that never began are counted too."""
        picture, refused = self.watch.picture, self.inboxes.refused()
        if state is not OrderState.REJECTED or not refused:
            return picture.counts.get(state, 0)
        return listing.listed(picture, listing.Query(state="rejected"), refused).total

    async def orders(self, request: web.Request) -> web.Response:
        """List orders."""
        query = listing.Query.read(request.query)
        picture = self.watch.picture
        every = (picture.in_error, picture.under_way, *picture.blocks)
        names = {workflow for block in every for _, workflow in block.counts}
        return self._page(
            "list.html",
            active="orders",
            query=query,
            found=listing.listed(picture, query, self.inboxes.refused()),
            states=listing.STATES,
            ages=listing.AGES,
            workflows=sorted(names - {""}),
        )

    async def order(self, request: web.Request) -> web.Response:
        """Show one order."""
        order_id = request.match_info["order_id"]
        try:
            order = await finding.load(self.office.store, order_id)
        except NotPossibleError:
            own = [one for one in self.inboxes.boxes["rejected"].items if one.order_id == order_id]
            if not own:
                raise
            return self._page("rejected.html", active="orders", order_id=order_id, items=own)
        sent = self.sender.find(request.query.get("sent", ""))
        return await self._order_page(order, Form(), request.query, sent)

    async def _order_page(
        self,
        order: Order,
        form: Form,
        query: Mapping[str, str],
        sent: Sent | None = None,
        status: int = 200,
    ) -> web.Response:
        store = self.office.store
        journal = await store.journal(order.order_id)
        found = page.view(
            order,
            journal,
            now=self.office.now(),
            circuits=self.watch.picture.circuits,
            workflows=self.office.workflows,
        )
        content = form.text is not None or "content" in query or "edit" in query
        whole = await self._whole(order) if content else order
        step, read = found.waits.step, None
        if "where" in query and step is not None:
            agents = {found.waits.agent} if found.waits.agent else set()
            paths = letters.waiting_paths(order, step, self.office.queues, agents)
            read = await letters.read(self.office.bus, paths)
        failed = [one.step for one in found.steps if one.failed]
        editing = form.text is not None or ("edit" in query and bool(failed))
        text = form.text
        if editing and text is None:
            text = page.shown(page.editable(whole, failed[0].name if failed else None))
        return self._page(
            "order.html",
            status=status,
            active="orders",
            view=found,
            order=order,
            form=form,
            sent=sent,
            whole=whole if "content" in query else None,
            editing=editing,
            text=text,
            failed=failed,
            read=read,
            place=letters.place_of(order, step, read.letters) if read and step else None,
            said=lambda message: why.sent(order, message),
            changed=lambda one: why.change(order, one),
            live=urlencode(
                {"order": order.order_id, "sent": sent.key if sent else ""}, errors="replace"
            ),
        )

    async def failures(self, request: web.Request) -> web.Response:
        """Show the orders that failed alike, and what it would do to resubmit them."""
        name = request.query.get("fingerprint", "")
        wanted = finding.OrderQuery(state="error", fingerprint=name, limit=MANY_MAX)
        found = [one async for one in finding.each(self.office.store, wanted)]
        step = name.partition("/")[0]
        intent = Intent(verb=Verb.RESUBMIT, by=self.office.by, step=step)
        possible = [one for one in found if not refusal(one, intent)]
        key = uuid4().hex
        self.many[key] = {one.order_id: Seen.of(one, intent) for one in possible}
        for old in list(self.many)[:-50]:
            del self.many[old]
        return self._page(
            "failures.html",
            active="overview",
            name=name,
            step=step,
            key=key,
            rows=[row_of(one) for one in possible],
            left=len(found) - len(possible),
            most=MANY_MAX,
        )

    async def inbox(self, request: web.Request) -> web.Response:
        """Show the messages of one kind in the queues for an operator."""
        box = self._box(request)
        return self._page("inbox.html", active=box.name, box=box)

    def _box(self, request: web.Request) -> Inbox:
        box = self.inboxes.boxes.get(request.match_info["name"])
        if box is None:
            raise NotPossibleError("there is no such inbox: go back to the overview")
        return box

    async def sent(self, request: web.Request) -> web.Response:
        """Show what became of many commands."""
        sent = self.sender.find(request.match_info["key"])
        if sent is None:
            raise NotPossibleError("these commands were sent too long ago: look at the orders")
        return self._page("sent.html", active="overview", sent=sent, live=f"sent={sent.key}")

    # -- Forms --------------------------------------------------------------------------------

    async def act(self, request: web.Request) -> web.Response:
        """Send one command for one order, if the order is still as the operator saw it."""
        order_id, given = request.match_info["order_id"], await request.post()
        form = Form(
            verb=str(given.get("verb", "")),
            step=str(given.get("step", "")),
            reason=str(given.get("reason", "")),
            text=str(given["input"]) if "input" in given else None,
        )
        order = await finding.load(self.office.store, order_id)
        try:
            intent = await self._intent(form, order)
            seen, shown = Seen.of(order, intent), _seq(str(given.get("seq", "")))
            if intent.verb is Verb.CANCEL:
                seen = replace(seen, seq=None)  # a cancel is right even if the order changed
            elif shown != order.seq:
                form.stale = True
                changed = await commands.what_changed(self.office.store, order, shown)
                raise NotPossibleError(f"nothing was sent: {changed}")
            if why_not := refusal(order, intent):
                raise NotPossibleError(f"nothing was sent: {why_not}")
            sent = await self.sender.send(intent, {order_id: seen}, self.office.now())
        except CommandError as wrong:
            form.problem = str(wrong)
            return await self._order_page(order, form, {}, status=409)
        raise web.HTTPSeeOther(f"{_address(order_id)}?sent={sent.key}")

    async def _intent(self, form: Form, order: Order) -> Intent:
        try:
            verb = Verb(form.verb)
        except ValueError:
            raise UsageError(f"there is no verb {form.verb!r}: load the page again") from None
        reason = commands.check_reason(form.reason, "the reason")
        step = form.step or None
        if verb not in {Verb.RESUBMIT, Verb.SKIP}:
            return Intent(verb=verb, by=self.office.by, reason=reason)
        text = form.text
        if verb is Verb.RESUBMIT and text is not None:
            text = _edited(text, page.editable(await self._whole(order), step))
        codec = self.office.codec
        given = commands.checked_input(text.encode(), "the input", codec) if text else None
        return Intent(verb=verb, by=self.office.by, step=step, input=given, reason=reason)

    async def _whole(self, order: Order) -> Order:
        """Return an order with its content, decoded where the desk has the codec."""
        whole = await ClaimCheck(self.office.store).fetch_all(order)
        return decode_order(whole, self.office.codec)

    async def resubmit_many(self, request: web.Request) -> web.Response:
        """Resubmit the orders of a group, each if it is still as it was shown."""
        given = await request.post()
        reason = commands.check_reason(str(given.get("reason", "")), "the reason")
        step = str(given.get("step", "")) or None
        seen = self.many.pop(str(given.get("key", "")), None)
        if not seen:
            raise NotPossibleError("this group was sent already, or is too old: look at it again")
        intent = Intent(verb=Verb.RESUBMIT, by=self.office.by, step=step, reason=reason)
        sent = await self.sender.send(intent, seen, self.office.now())
        raise web.HTTPSeeOther(f"/sent/{sent.key}")

    async def resend(self, request: web.Request) -> web.Response:
        """Say what sending a message again would do (GET), or do it, if that is still so (POST)."""
        given = await request.post() if request.method == "POST" else request.query
        box = self._box(request)
        if done := self.resent.get(str(given.get("done", ""))):
            return self._page("resend.html", active=box.name, box=box, done=True, **done)
        path, message_id = str(given.get("queue", "")), str(given.get("id", ""))
        item = box.find(path, message_id) if box.resends else None
        if item is None:
            raise NotPossibleError("this message is not in that queue: look at the inbox again")
        office = self.office
        plan = await redriving.plan_one(
            office.bus, office.store, queues=office.queues, path=path, message_id=message_id
        )
        if plan.move.message is None:
            raise NotPossibleError("this message can only be removed")
        said: dict[str, Any] = {"item": item, "target": plan.move.message.queue}
        if request.method != "POST":
            said["resubmits"] = plan.resubmits(office.queues)
            return self._page("resend.html", active=box.name, box=box, done=False, **said)
        if said["target"] != given.get("target"):
            raise NotPossibleError(f"nothing was sent: it would go to {said['target']} now")
        key, said["removed"] = uuid4().hex, await self._moved(plan)
        self.resent = dict([*self.resent.items(), (key, said)][-50:])
        self.inboxes.forget(item)
        raise web.HTTPSeeOther(f"/inbox/{box.name}/resend?done={key}")

    async def _moved(self, plan: PlannedMove) -> bool:
        """Send and remove; return whether it was removed."""
        try:
            async with aclosing(self.office.bus.move(plan.path, [plan.move])) as moving:
                async for removed in moving:
                    return removed
        except UndeliverableError as refused:
            raise NotPossibleError(f"nothing was sent: {refused}") from None
        raise NotPossibleError("nothing was sent: it is gone, or another reader has it")

    # -- Around -------------------------------------------------------------------------------

    async def login(self, request: web.Request) -> web.Response:
        """Take the link of the terminal, and give this browser its cookie."""
        answer = self.guard.log_in(request)
        if answer is None:
            return self._refused(
                403,
                "This link was used, or is old. Open the newest link that `sas desk` printed, or "
                "press Enter in its terminal for a new one.",
            )
        return answer

    async def static(self, request: web.Request) -> web.Response:
        """Return a file of the package."""
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        body = await asyncio.to_thread((HERE / "static" / name).read_bytes)
        return web.Response(body=body, content_type=STATIC[name], charset="utf-8")

    async def live(self, request: web.Request) -> web.StreamResponse:
        """Tell a page each time that what it shows has changed (server-sent events)."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        answer.headers.update(HEADERS)
        await answer.prepare(request)
        known = await self._state(request)
        with suppress(ConnectionError, UnavailableError):
            while True:
                await asyncio.sleep(LIVE_EVERY_S)
                now = await self._state(request)
                if now != known:
                    await answer.write(b"data: changed\n\n")
                    known = now
        return answer

    async def _state(self, request: web.Request) -> object:
        """Return something that differs once the page of a request would show something else."""
        sent = self.sender.find(request.query.get("sent", ""))
        pending = (sent.pending, sent.failed) if sent else None
        order_id = request.query.get("order")
        if order_id is None:
            read = [box.read_at for box in self.inboxes.boxes.values()]
            return self.watch.picture.version, read, pending
        order = await self.office.store.load(order_id)
        errors = [step.last_error for step in order.steps] if order else []
        return order, errors, pending

    def _page(self, template: str, status: int = 200, **said: Any) -> web.Response:
        base = {
            "picture": self.watch.picture,
            "boxes": self.inboxes.boxes,
            "token": self.guard.form_token,
            "by": self.office.by,
            "now": self.office.now(),
            "where": self.office.where,
            "live": "",
            "loads_max": LOADS_MAX,
        }
        text = _TEMPLATES.get_template(template).render(base | said)
        return web.Response(text=text, content_type="text/html", status=status)

    def _refused(self, status: int, why: str) -> web.Response:
        text = _TEMPLATES.get_template("refused.html").render(why=why)
        return web.Response(text=text, content_type="text/html", status=status)

    def _errors(self) -> Middleware:
        @web.middleware
        async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPSeeOther as elsewhere:
                return web.Response(status=303, headers={"Location": str(elsewhere.location)})
            except web.HTTPException as wrong:
                return self._problem(wrong.status, wrong.reason)
            except (CommandError, UnavailableError) as wrong:
                kinds: Mapping[type, int] = {UsageError: 400, NotPossibleError: 404}
                status = kinds.get(type(wrong), 503)
                return self._problem(status, str(wrong))
            except Exception as broken:
                log.exception("the page %s failed", request.path)
                return self._problem(500, f"this page cannot be shown: {broken!r}")

        return errors

    def _problem(self, status: int, text: str) -> web.Response:
        return self._page("problem.html", status=status, active="", text=text)


def _edited(text: str, original: str) -> str:
    """Return the input that an operator typed; empty if it says the same as the original."""
    return "" if compact(text) == compact(original) else compact(text)


def _seq(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError("the form names no seq: load the page again")
    return int(text)


def _address(order_id: str) -> str:
    return f"/orders/{quote(order_id, safe='', errors='replace')}"


def _clock(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at else "-"


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "ago": lambda at, now: why.spelled(now - at) if at else "",
    "ahead": lambda at, now: why.spelled(at - now),
    "clock": _clock,
    "iso": lambda at: at.astimezone(UTC).isoformat(timespec="milliseconds"),
    "spelled": why.spelled,
    "shown": page.shown,
    "address": _address,
    "tone": lambda state: state.value.lower() if state else "unknown",
}


@asynccontextmanager
async def serving(office: Office, port: int = 0) -> AsyncIterator[Desk]:
    """Serve the desk on 127.0.0.1 as long as this lasts. Port 0 takes a free one."""
    agents = sorted(office.workflows.agents()) if office.workflows else []
    watch = Watch(office.store, office.now)
    inboxes = Inboxes(bus=office.bus, queues=office.queues, now=office.now, agents=agents)
    sender = Sender(office.store, office.bus, office.queues, watch)
    desk = Desk(office=office, watch=watch, inboxes=inboxes, sender=sender)
    runner = web.AppRunner(desk.app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    background: list[asyncio.Task[None]] = []
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        desk.guard.port = runner.addresses[0][1]
        background = [asyncio.create_task(watch.run()), asyncio.create_task(inboxes.run())]
        yield desk
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await sender.close()
        await runner.cleanup()
