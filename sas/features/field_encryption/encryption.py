"""Field encryption: secret fields are encrypted before any write, and decrypted just before a call.

In the store and in every internal message, ``{"$encrypted": "<key id>:<base64>"}`` replaces each
secret field.
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
from sas.ports import DecryptionError, KeyMissingError, KeyRing

SECRET_LENGTH_MIN = 3
"""Shorter texts are not redacted: they would be found in every sentence."""


class FieldEncryption(Encryption):
    """Knows the secret fields of each workflow, and the keys. Without fields it changes nothing."""

    def __init__(
        self, secret: Mapping[str, Sequence[str]] | None = None, ring: KeyRing | None = None
    ) -> None:
        """Parse the paths of the secret fields.

        Raises:
            WorkflowError: a path is wrong.
        """
        self._ring = ring
        self._paths: dict[str, tuple[Path, ...]] = {}
        for workflow, texts in (secret or {}).items():
            try:
                self._paths[workflow] = paths.parse_paths(texts)
            except ValueError as wrong:
                raise WorkflowError(f"secret_fields of workflow {workflow!r}: {wrong}") from None

    def has_secrets(self, workflow: str) -> bool:
        """See ``Encryption.has_secrets``."""
        return workflow in self._paths

    def protect(self, submission: Submission, workflow: str, name: str) -> tuple[str, str]:
        """See ``Encryption.protect``: encrypts the secret fields and signs the hash."""
        if workflow not in self._paths:
            return submission.payload, submission.content_hash
        encrypted = self._encrypted(submission, workflow, name)
        return encrypted, self._keys.sign(submission.content_hash)

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
                "content is gone, so the two cannot be compared: give every order its own id",
            ) from None

    def encrypt_input(self, details: Details, text: str) -> str:
        """See ``Encryption.encrypt_input``.

        The operator may send an encrypted field of the order back as it was shown; it is kept.
        """
        if details.workflow not in self._paths:
            return text
        value = parse(text.encode())
        of = (details.order_id, details.submission)
        kept = set()
        for holder, key, at in paths.encrypted_places(value):
            encrypted = paths.encrypted_text(holder[key])
            try:
                self._keys.decrypt(encrypted or "", paths.about(*of, at))
            except DecryptionError as wrong:
                raise MalformedError(Reason.INVALID_ORDER, _not_taken(at, wrong)) from None
            kept.add(at)
        return self._encrypt(details.workflow, of, value, kept)

    def decrypt(
        self, workflow: str, order_id: str, submission: str, value: Any
    ) -> tuple[Any, tuple[str, ...]]:
        """See ``Encryption.decrypt``.

        A field that was stored before it was named as secret is not encrypted, but secret too.
        """
        if workflow not in self._paths:
            return value, ()
        secret: list[str] = []
        for holder, key, at in list(paths.encrypted_places(value)):
            encrypted = paths.encrypted_text(holder[key])
            about = paths.about(order_id, submission, at)
            plain = self._keys.decrypt(encrypted or "", about)
            holder[key] = json.loads(plain)
            secret += paths.texts_in(holder[key])
        for path in self._paths[workflow]:
            try:
                found = [holder[key] for holder, key, _ in paths.places(value, path)]
            except MalformedError:  # an old input of an operator
                continue
            secret += [text for inner in found for text in paths.texts_in(inner)]
        return value, _searchable(secret)

    def secrets_of(self, content: bytes, workflow: str) -> tuple[str, ...]:
        """Return the secret texts in the decrypted content of an order.

        Raises:
            MalformedError: a secret field is in the wrong place.
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
            text = "it needs a key, and SAS_ENCRYPTION_KEYS is missing: set it again"
            raise KeyMissingError(text, "any")
        return self._ring

    def _encrypted(self, submission: Submission, workflow: str, name: str) -> str:
        value = parse(submission.payload.encode())
        if next(paths.encrypted_places(value), None) is not None:
            raise MalformedError(
                Reason.INVALID_ORDER,
                f"the order holds a member {ENCRYPTED!r}: send the field in plain text; it is "
                "encrypted here",
            )
        return self._encrypt(workflow, (submission.order_id, name), value, set())

    def _encrypt(
        self, workflow: str, of: tuple[str, str], value: Any, kept: set[paths.Place]
    ) -> str:
        """Return the value as JSON, encrypted for one order and its submission (``of``)."""
        for path in self._paths[workflow]:
            for holder, key, at in paths.places(value, path):
                if at not in kept:
                    text = json.dumps(holder[key], ensure_ascii=False)
                    holder[key] = {ENCRYPTED: self._keys.encrypt(text, paths.about(*of, at))}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _searchable(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts to redact, longest first, because one may contain another."""
    worth = {text for text in texts if len(text.strip()) >= SECRET_LENGTH_MIN}
    return tuple(sorted(worth, key=lambda text: (-len(text), text)))


def _not_taken(at: paths.Place, why: DecryptionError) -> str:
    return (
        f"{'.'.join(map(str, at))} is encrypted, and not for this place of this order: {why}; give "
        "the field in plain text, or as `sas show --json --content` shows it here"
    )
