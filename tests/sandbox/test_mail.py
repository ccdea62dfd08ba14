"""MAIL takes messages over real SMTP, and honours no keys."""

import asyncio
from email.message import EmailMessage

import aiosmtplib
import pytest

from tests.sandbox.driver import Driver, eventually, message


async def test_message_is_received_with_identity_and_key(sandbox: Driver) -> None:
    await sandbox.mail("INV-1", key="m1")

    (received,) = (await sandbox.http.get("/mail/messages")).json()["messages"]

    assert received["at"].endswith("Z")
    assert {name: received[name] for name in ("from", "to", "subject", "identity", "key")} == {
        "from": "billing@example.com",
        "to": ["ada@example.com"],
        "subject": "Invoice",
        "identity": "INV-1",
        "key": "m1",
    }
    assert await sandbox.counts("mail", "INV-1") == (1, 1, 0)
    (call,) = await sandbox.calls("mail")
    assert (call["method"], call["op"], call["key"]) == ("DATA", "apply", "m1")
    assert (call["answered"], call["status"]) == (True, 250)


async def test_key_sent_twice_is_two_messages(sandbox: Driver) -> None:
    await sandbox.mail(key="m1")
    await sandbox.mail(key="m1")

    assert await sandbox.counts("mail", "INV-1") == (2, 2, 0)


async def test_connection_is_cut_before_the_250_and_the_message_stands(sandbox: Driver) -> None:
    await sandbox.turn("mail", drop_response=1)

    with pytest.raises(aiosmtplib.SMTPServerDisconnected):
        await sandbox.mail()

    assert await sandbox.counts("mail", "INV-1") == (1, 1, 0)
    assert [call["answered"] for call in await sandbox.calls("mail")] == [False]


@pytest.mark.parametrize("status", [451, 550])
@pytest.mark.parametrize("applied", [False, True])
async def test_message_fails_with_its_code(sandbox: Driver, status: int, *, applied: bool) -> None:
    await sandbox.turn("mail", fail={"status": status, "times": 1, "applied": applied})

    with pytest.raises(aiosmtplib.SMTPDataError) as failed:
        await sandbox.mail(key="m1")

    assert failed.value.code == status
    assert await sandbox.counts("mail", "INV-1") == ((1, 1, 0) if applied else (0, 0, 0))
    await sandbox.mail(key="m2")


async def test_message_lands_after_its_client_has_gone(sandbox: Driver) -> None:
    await sandbox.turn("mail", apply_after_ms=1200)

    with pytest.raises(aiosmtplib.SMTPTimeoutError):
        await sandbox.mail(patience_s=0.2)

    assert await sandbox.counts("mail", "INV-1") == (0, 0, 0)
    await eventually(lambda: _stands(sandbox))
    assert [call["answered"] for call in await sandbox.calls("mail")] == [False]


async def _stands(sandbox: Driver) -> bool:
    return await sandbox.counts("mail", "INV-1") == (1, 1, 0)


@pytest.mark.parametrize(
    ("only", "is_hit"),
    [
        ({"method": "DATA"}, True),
        ({"op": "apply"}, True),
        ({"identity": "INV-1"}, True),
        ({"identity": "INV-2"}, False),
        ({"op": "undo"}, False),
    ],
)
async def test_only_aims_the_knobs(sandbox: Driver, only: dict[str, str], *, is_hit: bool) -> None:
    await sandbox.turn("mail", drop_response=1, only=only)

    sending = asyncio.gather(sandbox.mail("INV-1"), return_exceptions=True)

    assert isinstance((await sending)[0], aiosmtplib.SMTPServerDisconnected) is is_hit


async def test_one_connection_carries_several_messages(sandbox: Driver) -> None:
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=sandbox.smtp_port) as smtp:
        for number in range(3):
            await smtp.send_message(message(f"INV-{number}", f"m{number}"))

    assert [call["identity"] for call in await sandbox.calls("mail")] == ["INV-0", "INV-1", "INV-2"]


async def test_identity_is_decoded_and_a_message_without_one_is_its_own(sandbox: Driver) -> None:
    plain = EmailMessage()
    plain["From"] = "a@example.com"
    plain["To"] = "b@example.com"

    await sandbox.mail("Rechnung/Müller", key="m1")
    await aiosmtplib.send(plain, hostname="127.0.0.1", port=sandbox.smtp_port)

    first, second = (await sandbox.truth())["effects"]
    assert first["identity"] == "Rechnung/Müller"
    assert second["identity"].startswith("msg_")
    assert second["keys"] == []


async def test_message_that_is_too_large_is_refused(sandbox: Driver) -> None:
    large = message("INV-1", "m1")
    large.set_content("x" * 70 + "\n" * 2_000_000)

    with pytest.raises(aiosmtplib.SMTPException):
        await aiosmtplib.send(large, hostname="127.0.0.1", port=sandbox.smtp_port)
    assert await sandbox.counts("mail", "INV-1") == (0, 0, 0)


async def test_malformed_header_does_no_harm(sandbox: Driver) -> None:
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=sandbox.smtp_port) as smtp:
        await smtp.sendmail(
            "a@example.com", ["b@example.com"], b"Subject: \xff\xfe\x00\r\nX-Identity: INV-\xe4\r\n\r\nhello"
        )

    (effect,) = (await sandbox.truth())["effects"]
    assert effect["identity"].startswith("INV-")
