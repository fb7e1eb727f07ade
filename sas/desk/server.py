"""The server of the desk: its pages and its forms, on 127.0.0.1 only.

Pages draw the records of ``sas.operate`` and decide nothing. The overview and the inboxes are drawn
from what ``Watch`` and ``Inboxes`` last read in the background. A list loads those orders of its
page that are under way, and the page of an order loads that order. If the store does not answer for
``ANSWER_S``, the page says so.

Only a POST changes an order or a queue. Its form names the seq of the order that the operator saw.
If the order has changed since, the command is refused, because the operator did not see the change.
A cancel is carried out nevertheless. Each page listens on ``/live``, and loads itself again when
something that it shows has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from aiohttp import web
from aiohttp.typedefs import Middleware
from markupsafe import escape
from yarl import URL

from sas.codec.payloads import decode_order
from sas.desk import charts, listing, page
from sas.desk.content import compact
from sas.desk.guard import HEADERS, STATIC, Guard, Handler
from sas.desk.inboxes import Inboxes, InboxView
from sas.desk.sending import CommandGroup, Sender
from sas.desk.watch import SHOWN_MAX, Watch
from sas.domain.messages import Verb
from sas.domain.order import Order
from sas.domain.queues import Queues
from sas.domain.texts import command, shortened, visible
from sas.domain.workflow import Workflows
from sas.features.claim_check import ClaimCheck
from sas.operate import commands, finding, inputs, orders, redriving, why
from sas.operate.commands import Intent
from sas.operate.errors import CommandError, NotPossibleError, UsageError
from sas.operate.messages import path_of
from sas.operate.redriving import PlannedMove
from sas.ports import OperatorBus, PayloadCodec, StateStore, UnavailableError, UndeliverableError
from sas.telemetry.tracing import logger

log = logger(__name__)
HERE = Path(__file__).parent
FORM_BYTES_MAX = 256 * 1024
LIVE_EVERY_S = 0.5
PATIENCE_S = 3
"""After so many seconds, every page says that the background waits for the store."""
ANSWER_S = 8
"""After so many seconds, a page gives up waiting for the store, and says so."""
UNDER_WAY_MAX = 1000
"""Most orders under way that are loaded to choose those of one workflow."""
GROUP_ORDERS_MAX = 1000
"""Most orders that one form resubmits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a desk needs: the store and the bus, and who the operator is (``by``).

    ``where`` names the system on each page. With ``workflows`` the pages name every agent, with
    ``codec`` they show encrypted content.
    """

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
    """What an operator typed, so that a refused form still has it.

    ``problem`` says why it was refused; ``stale`` means that the order changed since it was shown.
    """

    verb: str = ""
    step: str = ""
    code: str = ""
    reason: str = ""
    text: str | None = None
    problem: str = ""
    stale: bool = False


@dataclass(kw_only=True)
class Desk:
    """The pages."""

    office: Office
    watch: Watch
    inboxes: Inboxes
    sender: Sender

    def __post_init__(self) -> None:
        self.guard = Guard(self._refused)
        empty = self.watch.picture
        self._charts = empty.version, *charts.of(empty)

    def app(self) -> web.Application:
        """Return the application with all its pages."""
        place = self.guard.place
        app = web.Application(
            middlewares=[self.guard.middleware(), self._errors()], client_max_size=FORM_BYTES_MAX
        )
        app.add_routes(
            [
                web.get("/login", self.login),
                web.get("/static/{name}", self.static),
                web.get(place, self.overview),
                web.get(f"{place}live", self.live),
                web.get(f"{place}orders", self.orders),
                web.post(f"{place}orders", self.resubmit_many),
                web.get(f"{place}order", self.order),
                web.post(f"{place}order", self.act),
                web.get(f"{place}inbox", self.inbox),
                web.get(f"{place}resend", self.resend),
                web.post(f"{place}resend", self.resend),
                web.get(f"{place}sent", self.sent),
            ]
        )
        return app

    # -- Pages --------------------------------------------------------------------------------

    async def overview(self, _request: web.Request) -> web.Response:
        """Show the state of the whole system."""
        picture = self.watch.picture
        if self._charts[0] != picture.version:
            self._charts = picture.version, *charts.of(picture)
        return self._page(
            "overview.html",
            active="overview",
            rates=self._charts[1],
            times=self._charts[2],
            shown=SHOWN_MAX,
        )

    async def orders(self, request: web.Request) -> web.Response:
        """List orders."""
        query, picture = listing.Query.read(request.query), self.watch.picture
        if query.workflow and query.state in {"under-way", "all"}:
            rows = await self.watch.loaded(picture.under_way[:UNDER_WAY_MAX])
            picture = replace(picture, under_way=rows)
        rows_known = chain(picture.in_error, picture.under_way, picture.finished.values())
        workflows = {row.workflow for row in rows_known}
        part = listing.list_page(picture, query, self.inboxes.refused())
        is_group = query.fingerprint and not query.text
        group = [row for row in picture.in_error if is_group and query.matches(row)]
        return self._page(
            "list.html",
            active="orders",
            query=query,
            listing=replace(part, rows=await self.watch.loaded(part.rows)),
            group=group[:GROUP_ORDERS_MAX],
            states=listing.STATE_FILTERS,
            workflows=sorted(workflows - {""}),
        )

    async def order(self, request: web.Request) -> web.Response:
        """Show one order."""
        office, order_id = self.office, request.query.get("id", "")
        try:
            order = await finding.load(office.store, order_id)
        except NotPossibleError:
            queued = await orders.queued(office.bus, office.queues, order_id)
            return self._page("queued.html", active="orders", order=queued)
        group = self.sender.find(request.query.get("sent", ""))
        return await self._order_page(order, Form(), request.query, group)

    async def _order_page(
        self,
        order: Order,
        form: Form,
        query: Mapping[str, str],
        group: CommandGroup | None = None,
        *,
        status: int = 200,
    ) -> web.Response:
        """Show an order, with the text of a form that was refused, and the result of a command."""
        office, now = self.office, self.office.now()
        story = await orders.explain(
            office.store,
            office.bus if "where" in query else None,
            order,
            await office.store.journal(order.order_id),
            queues=office.queues,
            now=now,
            workflows=office.workflows,
        )
        failed_steps = [step.name for step in order.steps if finding.is_failed(step)]
        editing = form.text is not None or ("edit" in query and bool(failed_steps))
        whole = await self._whole(order) if editing or "content" in query else order
        text = form.text
        if editing and text is None:
            text = page.shown(page.editable(whole, failed_steps[0] if failed_steps else None))
        return self._page(
            "order.html",
            status=status,
            active="orders",
            order=order,
            story=story,
            view=page.view(story, office.workflows, now),
            form=form,
            group=group,
            where_asked="where" in query,
            whole=whole if "content" in query else None,
            editing=editing,
            text=text,
            live=_query({"order": order.order_id, "sent": group.key if group else ""}),
        )

    async def inbox(self, request: web.Request) -> web.Response:
        """Show the messages of one kind in the queues for an operator."""
        box = self._box(request)
        return self._page("inbox.html", active=box.name, box=box)

    def _box(self, request: web.Request) -> InboxView:
        box = self.inboxes.boxes.get(request.query.get("name", ""))
        if box is None:
            raise NotPossibleError("there is no such inbox: go back to the overview")
        return box

    async def sent(self, request: web.Request) -> web.Response:
        """Show the results of a group of commands."""
        group = self.sender.find(request.query.get("key", ""))
        if group is None:
            raise NotPossibleError("these commands were sent too long ago: look at the orders")
        return self._page("sent.html", active="overview", group=group, live=f"sent={group.key}")

    # -- Forms --------------------------------------------------------------------------------

    async def act(self, request: web.Request) -> web.Response:
        """Send one command for one order, if the order is still as the operator saw it."""
        order_id, fields = request.query.get("id", ""), await request.post()
        form = Form(
            verb=str(fields.get("verb", "")),
            step=str(fields.get("step", "")),
            code=str(fields.get("code", "")),
            reason=str(fields.get("reason", "")),
            text=str(fields["input"]) if "input" in fields else None,
        )
        order = await finding.load(self.office.store, order_id)
        try:
            intent = await self._intent(form, order)
            # A cancel is valid even if the order has changed.
            seq = None if intent.verb is Verb.CANCEL else _seq(str(fields.get("seq", "")))
            form.stale = seq not in {None, order.seq}
            plan = await commands.plan_one(self.office.store, order_id, intent, seq=seq)
            group = await self.sender.send(plan)
        except CommandError as error:
            form.problem = str(error)
            return await self._order_page(order, form, {}, status=409)
        raise web.HTTPSeeOther(URL(f"{_address(order_id)}&sent={group.key}", encoded=True))

    async def _intent(self, form: Form, order: Order) -> Intent:
        try:
            verb = Verb(form.verb)
        except ValueError:
            raise UsageError(f"there is no verb {form.verb!r}: load the page again") from None
        reason = inputs.check_text(form.reason, "the reason")
        step = form.step or None
        if verb is Verb.CALLBACK and form.code.strip():
            fault = inputs.refusal_by_hand(form.code, reason)
            return Intent(verb=verb, by=self.office.by, step=step, fault=fault, reason=reason)
        if verb not in {Verb.RESUBMIT, Verb.SKIP, Verb.CALLBACK}:
            at_once = verb is Verb.UNDO  # the page shows the cancel beside it
            return Intent(verb=verb, by=self.office.by, reason=reason, at_once=at_once)
        text = form.text
        if verb is Verb.RESUBMIT and text is not None:
            text = _edited(text, page.shown(page.editable(await self._whole(order), step)))
        codec = self.office.codec
        content = inputs.checked_input(text.encode(), "the input", codec) if text else None
        return Intent(verb=verb, by=self.office.by, step=step, input=content, reason=reason)

    async def _whole(self, order: Order) -> Order:
        """Return an order with its content, decoded if the desk has the codec."""
        whole = await ClaimCheck(self.office.store).fetch_all(order)
        return decode_order(whole, self.office.codec)

    async def resubmit_many(self, request: web.Request) -> web.Response:
        """Resubmit orders that failed alike until ``at``, the time of the last that was shown.

        Those that failed later, or once more, were not seen, and stay as they are.
        """
        fields, store = await request.post(), self.office.store
        shown = listing.Query.read(request.query)
        reason = inputs.check_text(str(fields.get("reason", "")), "the reason")
        try:
            at = datetime.fromisoformat(str(fields.get("at", "")))
        except ValueError:
            raise UsageError("the form names no time: load the page again") from None
        query = finding.OrderQuery(
            state="error",
            workflow=shown.workflow or None,
            fingerprint=shown.fingerprint,
            limit=GROUP_ORDERS_MAX,
        )
        intent = Intent(verb=Verb.RESUBMIT, by=self.office.by, reason=reason)
        plan = await commands.plan_many(store, query, intent)
        plan.acts = [act for act in plan.acts if act.since and act.since <= at]
        if not plan.acts:
            reasons = [act.problem for act in plan.others] or ["none of them is in Error any more"]
            raise NotPossibleError(f"nothing was sent: {reasons[0]}")
        group = await self.sender.send(plan)
        raise web.HTTPSeeOther(f"sent?key={group.key}")

    async def resend(self, request: web.Request) -> web.Response:
        """Say what a resend of a message would do (GET), or do it if nothing has changed (POST).

        The page of a POST that is loaded again sends nothing: its message is not there any more.
        """
        box, office = self._box(request), self.office
        place, message_id = request.query.get("queue", ""), request.query.get("id", "")
        message = box.find(place, message_id) if box.resends else None
        if message is None:
            raise NotPossibleError("this message is not in that queue: look at the inbox again")
        move = await redriving.plan_one(
            office.bus,
            office.store,
            queues=office.queues,
            path=path_of(place),
            message_id=message_id,
        )
        row = move.row
        removed: bool | None = None
        if request.method == "POST":
            if row.to != (await request.post()).get("target"):
                raise NotPossibleError(f"nothing was sent: it would go to {row.to} now")
            removed = await self._moved(move)
            self.inboxes.forget(message)
        return self._page(
            "resend.html",
            active=box.name,
            box=box,
            message=message,
            row=row,
            removed=removed,
            live="" if removed is None else None,  # the page of a POST cannot load itself again
        )

    async def _moved(self, move: PlannedMove) -> bool:
        """Send a message again and remove it; return whether it was removed."""
        try:
            async with aclosing(redriving.carry_out(self.office.bus, [move])) as moving:
                async for removed in moving:
                    return removed
        except UndeliverableError as error:
            raise NotPossibleError(f"nothing was sent: {error}") from None
        raise NotPossibleError("nothing was sent: it is gone, or another reader has it")

    # -- Around -------------------------------------------------------------------------------

    async def login(self, request: web.Request) -> web.Response:
        """Check the link that the terminal printed, and give this browser its cookie."""
        answer = self.guard.log_in(request)
        if answer is None:
            return self._refused(
                403,
                "This link was used, or is old. If somebody else used it, stop the desk. Otherwise "
                "open the newest link that `sas desk` printed, or press Enter in its terminal for "
                "a new one.",
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
        """Send a page an event each time that what it shows has changed (server-sent events)."""
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        answer.headers.update(HEADERS)
        await answer.prepare(request)
        state = await self._state(request)
        with suppress(ConnectionError, UnavailableError):
            while True:
                await asyncio.sleep(LIVE_EVERY_S)
                new_state = await self._state(request)
                if new_state != state:
                    await answer.write(b"data: changed\n\n")
                    state = new_state
        return answer

    async def _state(self, request: web.Request) -> object:
        """Return a value that changes when the page of a request would show something else."""
        group = self.sender.find(request.query.get("sent", ""))
        progress = (group.pending, group.results) if group else None
        order_id = request.query.get("order")
        if order_id is None:
            read_at = [box.read_at for box in self.inboxes.boxes.values()]
            return self.watch.picture.version, self._waited_s(), read_at, progress
        order = await self.office.store.load(order_id)
        errors = [step.last_error for step in order.steps] if order else []
        return order, errors, progress

    def _page(self, template: str, *, status: int = 200, **context: Any) -> web.Response:
        """Draw a template. Every page shows the menu and the name of the operator."""
        base = {
            "picture": self.watch.picture,
            "boxes": self.inboxes.boxes,
            "token": self.guard.form_token,
            "by": self.office.by,
            "now": self.office.now(),
            "where": self.office.where,
            "waited_s": self._waited_s(),
            "live": "",
        }
        text = _TEMPLATES.get_template(template).render(base | context)
        return web.Response(text=text, content_type="text/html", status=status)

    def _waited_s(self) -> int:
        """Return for how long the store has not answered, if a reader should know it."""
        waited_s = self.watch.waited_s
        return waited_s if waited_s >= PATIENCE_S else 0

    def _refused(self, status: int, why: str) -> web.Response:
        text = _TEMPLATES.get_template("refused.html").render(why=why)
        return web.Response(text=text, content_type="text/html", status=status)

    def _errors(self) -> Middleware:
        """Return the middleware that shows an error as a page with a sentence."""

        @web.middleware
        async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                is_page = request.method == "GET" and not request.path.endswith("/live")
                async with asyncio.timeout(ANSWER_S if is_page else None):
                    return await handler(request)
            except TimeoutError:
                return self._problem(503, f"the state store has not answered for {ANSWER_S} s")
            except web.HTTPSeeOther as redirect:
                return web.Response(status=303, headers={"Location": str(redirect.location)})
            except web.HTTPException as error:
                return self._problem(error.status, error.reason)
            except (CommandError, UnavailableError) as error:
                statuses: Mapping[type, int] = {UsageError: 400, NotPossibleError: 404}
                return self._problem(statuses.get(type(error), 503), str(error))
            except Exception as error:
                log.exception("the page %s failed", request.path)
                return self._problem(500, f"this page cannot be shown: {error!r}")

        return errors

    def _problem(self, status: int, text: str) -> web.Response:
        return self._page("problem.html", status=status, active="", text=text)


def _edited(text: str, original: str) -> str:
    """Return the input that an operator typed; empty if it is the same JSON as the original."""
    return "" if compact(text) == compact(original) else compact(text)


def _seq(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError("the form names no seq: load the page again")
    return int(text)


def _address(order_id: str) -> str:
    """Return the address of an order's page, as a link. Its id may have any characters."""
    return f"order?{_query({'id': order_id})}"


def _query(values: Mapping[str, str]) -> str:
    return urlencode(values, errors="replace")


def _clock(at: datetime | None, exact: bool = False) -> str:
    if at is None:
        return "-"
    return at.astimezone(UTC).isoformat(" ", "milliseconds" if exact else "seconds")[:-6]


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a template draws may be of anybody. Only what is markup already (``|e``, ``|shown``) is
    # drawn as it is: the fields of forms, which must not change, and texts of several lines.
    finalize=lambda value: visible(value) if type(value) is str else value,
)
_TEMPLATES.globals["command"] = command
_TEMPLATES.filters |= {
    "ago": lambda at, now: why.spelled(now - at),
    "ahead": lambda at, now: why.spelled(at - now),
    "clock": _clock,
    "iso": lambda at: at.astimezone(UTC).isoformat(timespec="milliseconds"),
    "spelled": why.spelled,
    "shown": lambda content: escape(page.shown(content)),
    "address": _address,
    "urlencode": _query,
    "shortened": shortened,
    "tone": lambda state: state.lower() if state else "unknown",
}


@asynccontextmanager
async def serving(office: Office, port: int = 0) -> AsyncIterator[Desk]:
    """Serve the desk on 127.0.0.1 while the block runs. Port 0 means any free port."""
    agents = sorted(office.workflows.agents()) if office.workflows else []
    watch = Watch(office.store, office.now)
    inboxes = Inboxes(
        store=office.store,
        bus=office.bus,
        queues=office.queues,
        watch=watch,
        now=office.now,
        agents=agents,
    )
    sender = Sender(office.store, office.bus, office.queues)
    desk = Desk(office=office, watch=watch, inboxes=inboxes, sender=sender)
    # What is no HTTP may come from anybody: nothing of it is written to the operator's terminal.
    silent = logging.getLogger(f"{__name__}.requests")
    silent.setLevel(logging.CRITICAL)
    runner = web.AppRunner(desk.app(), access_log=None, logger=silent, shutdown_timeout=0.5)
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
