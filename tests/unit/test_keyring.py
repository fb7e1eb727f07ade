from __future__ import annotations

import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sas.adapters.keyring import AesKeyRing
from sas.config import SettingError, read_config
from sas.ports import DecryptionError, KeyRing

RNG = random.Random(1)  # noqa: S311  the same keys each time
OLD, NEW, OTHER = ((name, RNG.randbytes(32)) for name in ("old", "new", "old"))
ENV = {"ServiceBus": "Endpoint=sb://x", "SAS_TABLES": "UseDevelopmentStorage=true"}


@given(st.text(), st.text())
def test_what_was_encrypted_for_a_place_is_decrypted_there(text: str, about: str) -> None:
    ring: KeyRing = AesKeyRing([NEW])
    assert ring.decrypt(ring.encrypt(text, about), about) == text


def test_the_same_text_encrypts_differently_each_time_and_is_not_in_the_result() -> None:
    ring = AesKeyRing([NEW])
    encrypted = {ring.encrypt("4111111111111111", "here") for _ in range(50)}
    assert len(encrypted) == 50
    for one in encrypted:
        name, _, data = one.partition(":")
        assert name == "new"
        assert b"4111" not in base64.b64decode(data)
        assert len(base64.b64decode(data)) == 12 + 16 + 16


def test_the_first_key_encrypts_and_all_of_them_decrypt() -> None:
    before, after = AesKeyRing([OLD]), AesKeyRing([NEW, OLD])
    assert after.decrypt(before.encrypt("x", "here"), "here") == "x"
    assert after.encrypt("x", "here").startswith("new:")
    with pytest.raises(
        DecryptionError, match="needs the key 'new', which is not in SAS_ENCRYPTION"
    ):
        before.decrypt(after.encrypt("x", "here"), "here")


@pytest.mark.parametrize("at", [0, 5, 11, 12, 20, -1])
def test_what_was_changed_is_not_decrypted(at: int) -> None:
    ring = AesKeyRing([NEW])
    data = bytearray(base64.b64decode(ring.encrypt("4111", "here").partition(":")[2]))
    data[at] ^= 1
    with pytest.raises(DecryptionError, match="was changed or moved"):
        ring.decrypt("new:" + base64.b64encode(data).decode(), "here")


def test_what_was_encrypted_for_one_place_or_under_one_id_is_decrypted_in_no_other() -> None:
    ring = AesKeyRing([OLD, ("copy", OLD[1])])
    encrypted = ring.encrypt("4111", "here")
    for text, about in ((encrypted, "there"), (encrypted.replace("old:", "copy:"), "here")):
        with pytest.raises(DecryptionError):
            ring.decrypt(text, about)
    with pytest.raises(DecryptionError, match="another one with the same id"):
        AesKeyRing([OTHER]).decrypt(encrypted, "here")


@pytest.mark.parametrize("encrypted", ["", "new", "new:", "new:!!!", "new:AAAA", ":AAAA", "new:é"])
def test_what_never_was_encrypted_is_not_decrypted(encrypted: str) -> None:
    with pytest.raises(DecryptionError):
        AesKeyRing([NEW]).decrypt(encrypted, "here")


def test_a_signature_is_compared_under_the_key_that_made_it() -> None:
    before, after = AesKeyRing([OLD]), AesKeyRing([NEW, OLD])
    signature = before.sign("hash")
    assert before.sign("hash") == signature
    assert after.is_signed("hash", signature)
    assert not after.is_signed("other", signature)
    assert not AesKeyRing([OTHER]).is_signed("hash", signature)
    assert after.sign("hash") != signature
    for never in ("hash", "", "hmac-sha256:old:", "hmac-sha256:old:zz"):
        assert not after.is_signed("hash", never)
    with pytest.raises(DecryptionError, match="'old', which is not in SAS_ENCRYPTION_KEYS"):
        AesKeyRing([NEW]).is_signed("hash", signature)


def test_a_ring_without_a_key_is_none() -> None:
    with pytest.raises(ValueError, match="needs at least one key"):
        AesKeyRing([])


def text_of(*keys: tuple[str, bytes]) -> str:
    return ",".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in keys)


def test_keys_are_read_from_their_setting_in_its_order() -> None:
    assert read_config(ENV).encryption_keys == ()
    assert read_config({**ENV, "SAS_ENCRYPTION_KEYS": " "}).encryption_keys == ()
    config = read_config({**ENV, "SAS_ENCRYPTION_KEYS": text_of(NEW, OLD).replace(",", " , ")})
    assert config.encryption_keys == (NEW, OLD)
    assert repr(NEW[1])[2:9] not in repr(config)
    assert text_of(NEW)[4:] not in repr(config)


def test_a_reference_that_the_platform_did_not_resolve_says_what_to_grant() -> None:
    text = "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/keys)"
    with pytest.raises(SettingError, match=r"not resolved: let the app's identity read"):
        read_config({**ENV, "SAS_ENCRYPTION_KEYS": text})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "key 1: give an id"),
        (text_of(("short", b"s" * 31)), "key 1: give an id"),
        (text_of(NEW) + ",", "key 2: give an id"),
        (text_of(NEW, ("two words", NEW[1])), "key 2: give an id"),
        (text_of(("", NEW[1])), "key 1: give an id"),
        ("new:" + "%" * 44, "key 1: give an id"),
        (text_of(OLD, OTHER), "key 2: its id or the key itself is given twice"),
        (text_of(OLD, ("copy", OLD[1])), "key 2: its id or the key itself is given twice"),
    ],
)
def test_keys_that_cannot_be_are_refused_without_being_quoted(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=f"SAS_ENCRYPTION_KEYS, {why}") as refused:
        read_config({**ENV, "SAS_ENCRYPTION_KEYS": text})
    for part in text.split(","):
        secret = part.partition(":")[2]
        assert not secret or secret not in str(refused.value)
