"""A travel-expense claim: two steps in parallel, then a manager approves, then it is paid."""

from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import msgspec

from sas import Call, Saga

MINUTES = timedelta(minutes=3)
DAYS = timedelta(days=2)
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an employee claims."""

    employee: Text
    receipt: Text
    amount: Decimal


class Scan(msgspec.Struct, frozen=True):
    """A receipt that was read."""

    scan: str
    total: Decimal


class Booked(msgspec.Struct, frozen=True):
    """What a service has booked."""

    number: str


class Approval(msgspec.Struct, frozen=True):
    """What the manager allows."""

    allowed: Decimal


claims = Saga("claim", Claim)
scanner = claims.service("SCANNER_URL")
budget = claims.service("BUDGET_URL")
office = claims.service("OFFICE_URL")
bank = claims.service("BANK_URL")


@claims.step(time_allowed=MINUTES)
async def scan(call: Call[Claim]) -> Scan:
    """Read the receipt, which takes the scanner a minute."""
    return await scanner.post(call, "/scans", {"receipt": call.order.receipt}, Scan)


@scan.undo
async def discard(call: Call[Claim], scanned: Scan | None) -> None:
    """Discard the scan, by its name if it is known."""
    await scanner.delete(call, f"/scans/{scanned.scan}" if scanned else "/scans")


@claims.step()
async def reserve(call: Call[Claim]) -> Booked:
    """Reserve the amount in the budget."""
    return await budget.post(call, "/reservations", {"amount": call.order.amount}, Booked)


@reserve.undo
async def release(call: Call[Claim]) -> None:
    """Give the reservation back."""
    await budget.delete(call, "/reservations")


@claims.step(after=(scan, reserve), agent="approver")
async def approve(call: Call[Claim], scanned: Scan, reserved: Booked) -> Approval:
    """Ask the manager, who has two days. This has nothing to undo."""
    body = {"total": scanned.total, "reserved": reserved.number, "answer_to": call.callback(DAYS)}
    await office.post(call, "/approvals", body)
    call.wait_for_callback(DAYS, "waits for the manager")


@claims.step(after=approve)
async def pay(call: Call[Claim], approval: Approval) -> Booked:
    """Pay what was allowed."""
    body = {"to": call.order.employee, "scan": call.result(scan).scan, "amount": approval.allowed}
    return await bank.post(call, "/payments", body, Booked)


@pay.undo
async def take_back(call: Call[Claim]) -> None:
    """Take the payment back."""
    await bank.delete(call, "/payments")
