"""Posts a body to an address outside: one attempt, without redirects."""

from __future__ import annotations

from collections.abc import Mapping

TIME_S = 10.0
ANSWER_SHOWN_MAX = 200


async def post(url: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return why a body was not taken; "" if the answer was a success.

    The text never holds the address: it may have a secret in it.
    """
    import aiohttp  # noqa: PLC0415  # 0.1 s that a cold start need not wait for

    timeout = aiohttp.ClientTimeout(total=TIME_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            if 200 <= answer.status < 300:
                return ""
            said = await answer.content.read(ANSWER_SHOWN_MAX)
            text = " ".join(said.decode(errors="replace").split())
            return f"answered {answer.status}" + (f": {text}" if text else "")
    except TimeoutError:
        return f"did not answer within {TIME_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as broken:
        return f"could not be reached ({type(broken).__name__})"
