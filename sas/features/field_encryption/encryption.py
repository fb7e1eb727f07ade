"""Secret fields: encrypted before anything is written, decrypted just before an agent is called.

At rest, in the store and in every message of ours, ``{"$encrypted": "<key id>:<base64>"}`` stands
in place of each secret field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sas.codec.orders import Submission
from sas.codec.strict import MalformedError, Reason, parse
from sas.domain.order import Details
from sas.domain.workflow import WorkflowError
from sas.engine.hooks import Encryption
from sas.features.field_encryption import paths
from sas.features.field_encryption.paths import ENCRYPTED, Path
from sas.ports import Business, DecryptionError, KeyMissingError, KeyRing

SECRET_LENGTH_MIN = 3
"""A shorter text is not looked for in what is told: it would be found in every sentence."""


class FieldEncryption(Encryption):
    """Knows which fields are secret, by workflow, and the keys.

    Without fields it changes nothing.
    """

    def __init__(
        self, secret: Mapping[str, Sequence[str]] | None = None, ring: KeyRing | None = None
    ) -> None:
        """Check the fields' paths.

        Raises:
            WorkflowError: a path is none.
        """
        self._ring = ring
        self._paths: dict[str, tuple[Path, ...]] = {}
        for workflow, texts in (secret or {}).items():
            try:
                self._paths[workflow] = paths.parse_paths(texts)
            except ValueError as wrong:
                raise WorkflowError(f"secret_fields of workflow {workflow!r}: {wrong}") from None

    @classmethod
    def of(cls, business: Business, ring: KeyRing | None) -> FieldEncryption:
        """Return the privacy of a business.

        Raises:
            WorkflowError: a path that is none.
        """
        return cls(business.secret_fields, ring)

    def has_secrets(self, workflow: str) -> bool:
        """Return whether orders of a workflow have, or once had, secret fields."""
        return workflow in self._paths

    def protect(self, submission: Submission, workflow: str) -> tuple[str, str]:
        """See ``Encryption.protect``: the secret fields encrypted, the hash signed."""
        if workflow not in self._paths:
            return submission.payload, submission.content_hash
        return self._encrypted(submission, workflow), self._keys.sign(submission.content_hash)

    def is_same(self, details: Details, submission: Submission) -> bool:
        """See ``Encryption.is_same``."""
        if details.content_hash == submission.content_hash:
            return True
        if self._ring is None:
            return False
        try:
            return self._ring.is_signed(submission.content_hash, details.content_hash)
        except DecryptionError:
            raise MalformedError(
                Reason.ORDER_ID_TAKEN,
                f"order_id {details.order_id!r} was submitted before. The key that signed its "
                "content is gone, so the two cannot be compared: give every order an id of its own",
            ) from None

    def encrypt_input(self, workflow: str, order_id: str, text: str) -> str:
        """See ``Encryption.encrypt_input``.

        A field that comes encrypted, as the operator was shown it, is kept if it is this order's.
        """
        if workflow not in self._paths:
            return text
        value = parse(text.encode())
        kept = set()
        for holder, key, at in paths.encrypted_places(value):
            encrypted = paths.encrypted_text(holder[key])
            try:
                self._keys.decrypt(encrypted or "", paths.about(order_id, at))
            except DecryptionError as wrong:
                raise MalformedError(Reason.INVALID_ORDER, _not_taken(at, wrong)) from None
            kept.add(at)
        return self._encrypt(workflow, order_id, value, kept)

    def decrypt(self, workflow: str, order_id: str, value: Any) -> tuple[Any, tuple[str, ...]]:
        """See ``Encryption.decrypt``.

        A field that is still in plain, from before it was named, is secret as well.
        """
        if workflow not in self._paths:
            return value, ()
        secret: list[str] = []
        for holder, key, at in list(paths.encrypted_places(value)):
            encrypted = paths.encrypted_text(holder[key])
            opened = self._keys.decrypt(encrypted or "", paths.about(order_id, at))
            holder[key] = json.loads(opened)
            secret += paths.texts_in(holder[key])
        for path in self._paths[workflow]:
            try:
                found = [holder[key] for holder, key, _ in paths.places(value, path)]
            except MalformedError:  # an operator's input of long ago
                continue
            secret += [text for inner in found for text in paths.texts_in(inner)]
        return value, _searchable(secret)

    def secrets_of(self, content: bytes, workflow: str) -> tuple[str, ...]:
        """Return the texts that are secret in an order's content in plain.

        Raises:
            MalformedError: a secret field is not where it should be.
        """
        if workflow not in self._paths:
            return ()
        value = parse(content)
        found = [
            text
            for path in self._paths[workflow]
            for holder, key, _ in paths.places(value, path)
            for text in paths.texts_in(holder[key])
        ]
        return _searchable(found)

    @property
    def _keys(self) -> KeyRing:
        if self._ring is None:
            text = "it needs a key, and SAS_ENCRYPTION_KEYS is missing: give it back"
            raise KeyMissingError(text, "any")
        return self._ring

    def _encrypted(self, submission: Submission, workflow: str) -> str:
        value = parse(submission.payload.encode())
        if next(paths.encrypted_places(value), None) is not None:
            raise MalformedError(
                Reason.INVALID_ORDER,
                f"the order holds a member {ENCRYPTED!r}: send the field as it is, for it is "
                "encrypted here",
            )
        return self._encrypt(workflow, submission.order_id, value, set())

    def _encrypt(self, workflow: str, order_id: str, value: Any, kept: set[paths.Place]) -> str:
        for path in self._paths[workflow]:
            for holder, key, at in paths.places(value, path):
                if at not in kept:
                    text = json.dumps(holder[key], ensure_ascii=False)
                    holder[key] = {ENCRYPTED: self._keys.encrypt(text, paths.about(order_id, at))}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _searchable(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts worth redacting, longest first, so that none hides part of another."""
    worth = {text for text in texts if len(text.strip()) >= SECRET_LENGTH_MIN}
    return tuple(sorted(worth, key=lambda text: (-len(text), text)))


def _not_taken(at: paths.Place, why: DecryptionError) -> str:
    return (
        f"{'.'.join(map(str, at))} is encrypted and cannot be taken for this place of this order: "
        f"{why}; give the field as it is, or as `sas show --json --content` shows it here"
    )
