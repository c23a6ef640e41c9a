"""The document says what the code does: its examples, tables and numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

import talking_avatar_websocket
from talking_avatar_websocket._limits import DEFAULT_RATES, Limits
from talking_avatar_websocket._messages import (
    CLIENT_MESSAGES,
    SERVER_MESSAGES,
    ErrorCode,
    FloorReason,
    Message,
    Stats,
    parse_client,
    parse_server,
)
from talking_avatar_websocket._packets import CODEC_IDS
from talking_avatar_websocket._protocol import CLOSE_CODES

PAGE = Path(__file__).parents[3] / "docs" / "websocket-protocol.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


def examples(page: str) -> list[str]:
    """Give every JSON object with a type in the page."""
    found = []
    for start in (match.start() for match in re.finditer(r'\{"type": "', page)):
        depth = 0
        for end in range(start, len(page)):
            depth += {"{": 1, "}": -1}.get(page[end], 0)
            if depth == 0:
                found.append(page[start : end + 1].replace("{…}", "null").replace("\n", " "))
                break
    return found


def test_every_example_is_a_message(page: str) -> None:
    texts = examples(page)
    assert len(texts) > 25
    for text in texts:
        fields = json.loads(text)
        client, server = parse_client(text), parse_server(text)
        message = client or server
        assert isinstance(message, Message), text
        unknown = set(fields) - set(type(message).model_fields)
        assert not unknown, f"{text} has fields that nobody reads: {unknown}"


def test_every_message_is_in_the_page(page: str) -> None:
    for model in (*CLIENT_MESSAGES, *SERVER_MESSAGES):
        kind = model.model_fields["type"].default
        assert f"`{kind}`" in page or f'"type": "{kind}"' in page, kind


def test_every_field_is_in_the_page(page: str) -> None:
    for model in (*CLIENT_MESSAGES, *SERVER_MESSAGES):
        for field in model.model_fields:
            assert f'"{field}"' in page or f"`{field}`" in page, f"{model.__name__}.{field}"


def test_every_figure_is_explained(page: str) -> None:
    for field in Stats.model_fields:
        assert field == "type" or f"`{field}`" in page, field


def test_errors_and_close_codes(page: str) -> None:
    for code in get_args(ErrorCode):
        assert f"`{code}`" in page, code
    for code, number in CLOSE_CODES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{code}` |"))
        assert str(number) in row
    for reason in get_args(FloorReason):
        assert f"`{reason}`" in page, reason


def test_codecs(page: str) -> None:
    names = {"vp8": "VP8", "h264": "H.264", "jpeg": "JPEG", "opus": "Opus", "pcm": "PCM"}
    row = next(line for line in page.splitlines() if line.startswith("| 1 | 1 | codec |"))
    for name, number in CODEC_IDS.items():
        assert f"{number} {names[name]}" in row


def test_limits(page: str) -> None:
    limits = Limits()
    plain = re.sub(r"\s+", " ", page)
    for text in (
        f"sockets (**{limits.max_connections}**)",
        f"more than **{limits.max_waiting}** clients",
        f"one character (**{limits.max_viewers}**)",
        f"within **{limits.open_timeout_s:g} s** of the TCP",
        f"message of the client, within **{limits.hello_timeout_s:g} s**",
        f"After **{limits.heartbeat_s:g} s** of silence",
        f"most **{limits.max_message_bytes // 1024} KiB**",
        f"characters (**{limits.max_text_chars:,}**)",
        f"where **{limits.max_texts}** wait",
        f"**{limits.max_photo_bytes // 2**20} MiB**",
        f"within **{limits.photo_timeout_s:g} s**",
        f"before **{limits.max_input_s:g} s**",
        f"longer than **{limits.max_video_lag_s:g} s** is dropped",
        f"longer than **{limits.max_audio_lag_s:g} s** is dropped",
        f"**{limits.max_queue_bytes // 2**20} MiB** of media",
        f"**{limits.max_queued_controls}** control messages",
        f"nothing for **{limits.stuck_s:g} s**",
        f"waits **{limits.flush_timeout_s:g} s**",
    ):
        assert text in plain, text


def test_rates(page: str) -> None:
    rows = {
        "any": "| anything |",
        "audio": "| microphone packets |",
        "photo": "| pieces of a photo |",
        "feedback": "| `played`, `flushed`, `feedback` |",
        "control": "| `interrupt`, `pause`",
        "text": "| `say_text` |",
        "floor": "| `request_floor`",
        "key_frame": "| `need_key` |",
    }
    for group, start in rows.items():
        rate = DEFAULT_RATES[group]  # type: ignore[index]
        row = next(line for line in page.splitlines() if line.startswith(start))
        assert row.endswith(f"| {rate.per_s:g} | {rate.burst} |"), row
        for model in CLIENT_MESSAGES:
            kind = model.model_fields["type"].default
            if model.rate == group and kind != "hello":
                assert f"`{kind}`" in row, f"{kind} is counted as {group}"


def test_the_public_names_exist() -> None:
    for name in talking_avatar_websocket.__all__:
        assert hasattr(talking_avatar_websocket, name), name
