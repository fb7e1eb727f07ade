"""Reading transfers and dispositions, which are nearly all that a broker reads.

A peer writes each transfer of a link as the one before, but for the delivery's number and tag, and
each disposition but for the number. So what is left of a frame without these is looked up among
what was read before, and only a frame of a new shape is decoded field by field. A shape is learned
only from a frame whose bytes are where they are taken for: any frame reads as it would without.
"""

import struct
from typing import Any, NamedTuple

from devstack.servicebus.amqp import decode, frames

_MOST_SHAPES = 256
_LONGEST_SHAPE = 64
_SHORTEST_BODY = 15
_U32 = struct.Struct(">I").unpack_from
#: How the bodies of nearly all transfers and dispositions begin.
TRANSFER_HEAD = bytes((0, 0x53, frames.TRANSFER))
DISPOSITION_HEAD = bytes((0, 0x53, frames.DISPOSITION))
_UINT8, _UINT32, _BINARY8 = 0x52, 0x70, 0xA0


class Transfer(NamedTuple):
    """What transfers of one shape have in common. Field by field as AMQP 1.0, part 2.7.5."""

    handle: int | None
    message_format: Any
    settled: Any
    more: Any
    receiver_settles: Any
    state: Any
    resume: Any
    aborted: Any


class Disposition(NamedTuple):
    """What dispositions of one shape have in common. See AMQP 1.0, part 2.7.6."""

    role: Any
    last: Any
    settled: Any
    state: Any


_transfers: dict[bytes, Transfer] = {}
_dispositions: dict[bytes, Disposition] = {}


def read_transfer(body: bytes, position: int) -> tuple[Transfer, Any, int]:
    """Read the transfer whose list is at ``position``: its shape, its delivery id, where its
    payload begins. Raises DecodeError.
    """
    if position != 3 or len(body) < _SHORTEST_BODY:
        return _transfer(body, position)
    at = 7 if body[6] < 0x50 else 8  # behind the handle
    if body[at] == _UINT32:
        delivery_id, tag = _U32(body, at + 1)[0], at + 5
    else:
        delivery_id, tag = body[at + 1], at + 2
    end = 5 + body[4]
    shape = body[3 : at + 1] + body[tag : tag + 2] + body[tag + 2 + body[tag + 1] : end]
    known = _transfers.get(shape)
    if known is not None and len(body) >= end:
        return known, delivery_id, end
    found = _transfer(body, position)
    if _has_number(body, at) and body[tag] == _BINARY8:
        _learn(_transfers, shape, found[0])
    return found


def read_disposition(body: bytes, position: int) -> tuple[Disposition, Any]:
    """Read the disposition whose list is at ``position``: its shape and its first delivery.

    Raises DecodeError.
    """
    if position != 3 or len(body) < _SHORTEST_BODY:
        return _disposition(body, position)
    at = 7 if body[6] < 0x50 else 8  # behind the role
    if body[at] == _UINT32:
        first, behind = _U32(body, at + 1)[0], at + 5
    else:
        first, behind = body[at + 1], at + 2
    shape = body[3 : at + 1] + body[behind:]
    known = _dispositions.get(shape)
    if known is not None:
        return known, first
    found = _disposition(body, position)
    if _has_number(body, at):
        _learn(_dispositions, shape, found[0])
    return found


def _transfer(body: bytes, position: int) -> tuple[Transfer, Any, int]:
    fields, end = decode.fields(body, position)
    handle, delivery_id, _, *others, _ = frames.padded(fields, 11)
    return Transfer(handle if isinstance(handle, int) else None, *others), delivery_id, end


def _disposition(body: bytes, position: int) -> tuple[Disposition, Any]:
    fields, _ = decode.fields(body, position)
    role, first, *others, _ = frames.padded(fields, 6)
    return Disposition(role, *others), first


def _has_number(body: bytes, at: int) -> bool:
    """Whether the list is a short one whose first field ends, and second is a number, at ``at``."""
    return body[3] == 0xC0 and 0x40 <= body[6] < 0x60 and body[at] in {_UINT8, _UINT32}


def _learn(shapes: dict[bytes, Any], shape: bytes, found: Any) -> None:
    if len(shape) <= _LONGEST_SHAPE:
        if len(shapes) >= _MOST_SHAPES:
            shapes.clear()
        shapes[shape] = found
