"""A file appears whole or not at all; what is in it is what was sent, in time and in color."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from talking_avatar.errors import TransportClosed
from talking_avatar.file_transport import FileTransport
from talking_avatar.media import decode_file
from talking_avatar.transport import MediaInfo, Transport
from talking_avatar.types import Frame, PixelFormat

WIDTH, HEIGHT = 192, 256
COLORS = [(220, 30, 30), (30, 200, 40), (30, 40, 210), (240, 240, 240), (200, 150, 120)]


def media(
    width: int = WIDTH, height: int = HEIGHT, pixel_format: PixelFormat = "rgb24"
) -> MediaInfo:
    return MediaInfo(
        width=width,
        height=height,
        pixel_format=pixel_format,
        fps=24,
        sample_rate=24_000,
        clock="unpaced",
    )


def chirps(num_frames: int) -> np.ndarray:
    """Give a sound that is like itself at lag 0 only."""
    noise = np.random.default_rng(2).normal(0, 1, num_frames * 1_000)
    smooth = np.convolve(noise, np.hanning(24), mode="same")
    return (8_000 * smooth / np.abs(smooth).max() * 3).clip(-32_768, 32_767).astype(np.int16)


def color_of(index: int) -> tuple[int, int, int]:
    return COLORS[index // 6 % len(COLORS)]


def frames(
    num_frames: int, width: int = WIDTH, height: int = HEIGHT, *, i420: bool = False
) -> Iterator[Frame]:
    sound = chirps(num_frames)
    for index in range(num_frames):
        image = np.full((height, width, 3), color_of(index), np.uint8)
        if i420:
            image = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420), np.uint8)
        audio = sound[index * 1_000 : (index + 1) * 1_000]
        yield Frame(index, image, audio, index / 24, 1, True)


async def write(path: Path, sent: Any, info: MediaInfo, **options: Any) -> None:
    transport = FileTransport(path, **options)
    await transport.open(info)
    for frame in sent:
        await transport.send(frame)
    await transport.aclose()


def pictures(path: Path) -> list[np.ndarray]:
    """Decode by the tags in the file, as a player does."""
    with av.open(str(path)) as container:
        return [
            np.asarray(cv2.cvtColor(frame.to_ndarray(format="yuv420p"), cv2.COLOR_YUV2RGB_I420))
            for frame in container.decode(video=0)
        ]


def test_it_is_a_transport() -> None:
    assert isinstance(FileTransport("a.mp4"), Transport)
    assert FileTransport("a.mp4").played_position() is None


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
async def test_sound_is_in_step_with_the_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    await write(path, frames(48), media())
    sound, sent = decode_file(path)[:48_000], chirps(48) / 2**15
    assert len(sound) == 48_000
    lags = range(-1_000, 1_001, 20)
    correlation = {
        lag: np.corrcoef(sound[1_000 + lag : 47_000 + lag], sent[1_000:47_000])[0, 1]
        for lag in lags
        if 1_000 + lag >= 0
    }
    assert max(correlation, key=correlation.__getitem__) == 0
    assert correlation[0] > 0.99


async def test_rate_size_duration_and_tags(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    await write(path, frames(30), media())
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        context = video.codec_context
        assert (video.codec.name, audio.codec.name) == ("h264", "aac")
        assert (context.width, context.height, context.pix_fmt) == (WIDTH, HEIGHT, "yuv420p")
        assert video.average_rate == Fraction(24, 1)
        assert video.frames == 30
        assert (audio.rate, audio.channels) == (24_000, 1)
        assert container.duration is not None
        assert abs(container.duration / 1e6 - 30 / 24) < 1 / 24
        assert context.color_range == 1, "limited"
        assert context.colorspace in (5, 6), "BT.601, either name of it"
        assert (context.color_primaries, context.color_trc) == (1, 1), "BT.709"
        times = [packet.pts for packet in container.demux(video) if packet.pts is not None]
    steps = np.diff(sorted(times))
    assert len(set(steps)) == 1


@pytest.mark.parametrize("i420", [False, True])
async def test_colors_are_what_was_sent(tmp_path: Path, i420: bool) -> None:
    path = tmp_path / "out.mp4"
    info = media(pixel_format="i420" if i420 else "rgb24")
    await write(path, frames(30, i420=i420), info, quality=8)
    decoded = pictures(path)
    assert len(decoded) == 30
    for index, picture in enumerate(decoded):
        np.testing.assert_allclose(picture[20:-20, 20:-20].mean((0, 1)), color_of(index), atol=4)


@pytest.mark.parametrize(("width", "height"), [(130, 178), (178, 130), (128, 128)])
async def test_any_even_size(tmp_path: Path, width: int, height: int) -> None:
    path = tmp_path / "out.mp4"
    await write(path, frames(6, width, height), media(width, height), quality=8)
    assert {picture.shape for picture in pictures(path)} == {(height, width, 3)}
    np.testing.assert_allclose(pictures(path)[3].mean((0, 1)), color_of(0), atol=4)


async def test_frames_left_out_keep_their_time(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    kept = [frame for frame in frames(24) if not 6 <= frame.index < 12]
    await write(path, kept, media())
    assert len(pictures(path)) == 18
    sound = decode_file(path)
    assert np.abs(sound[7_100:10_900]).max() < 0.02
    sent = chirps(24) / 2**15
    assert np.corrcoef(sound[13_000:24_000], sent[13_000:24_000])[0, 1] > 0.99


async def test_a_recording_may_begin_late_in_a_session(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    await write(path, (frame for frame in frames(36) if frame.index >= 12), media())
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 24
        assert container.duration is not None
        assert abs(container.duration / 1e6 - 1.0) < 1 / 24


async def test_nothing_has_the_name_until_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"the one before")
    transport = FileTransport(path)
    await transport.open(media())
    for frame in frames(12):
        await transport.send(frame)
    assert path.read_bytes() == b"the one before"
    await transport.aclose()
    assert len(pictures(path)) == 12
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]


async def test_a_discarded_recording_leaves_nothing(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.open(media())
    for frame in frames(12):
        await transport.send(frame)
    transport.discard()
    await transport.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_no_frame_no_file(tmp_path: Path) -> None:
    await write(tmp_path / "out.mp4", [], media())
    assert list(tmp_path.iterdir()) == []


async def test_closing_is_idempotent_and_needs_no_opening(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.aclose()
    await transport.aclose()
    with pytest.raises(TransportClosed, match="make a new FileTransport"):
        await transport.open(media())
    with pytest.raises(TransportClosed, match="not open"):
        await transport.send(next(frames(1)))


async def test_interruption_changes_nothing(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.open(media())
    for frame in frames(12):
        await transport.send(frame)
        await transport.interrupt()
    await transport.aclose()
    assert len(pictures(transport.path)) == 12


async def test_a_cancelled_send_loses_no_frame_that_was_taken(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.open(media())
    taken = 0
    for frame in frames(60):
        task = asyncio.ensure_future(transport.send(frame))
        await asyncio.sleep(0)
        if task.done():
            taken += 1
            continue
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        break
    await transport.aclose()
    assert 0 < taken == len(pictures(transport.path))


async def test_a_frame_that_cannot_be_written_closes_the_transport(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.open(media())
    broken = Frame(0, np.zeros((10, 10), np.uint8), np.zeros(1_000, np.int16), 0.0, None, False)

    async def send_until_it_fails() -> None:
        for _ in range(20):
            await transport.send(broken)
            await asyncio.sleep(0.001)

    with pytest.raises(TransportClosed, match=r"out\.mp4 cannot be written"):
        await send_until_it_fails()
    await transport.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_close_still_finishes_the_file(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "out.mp4")
    await transport.open(media())
    for frame in frames(12):
        await transport.send(frame)
    closing = asyncio.ensure_future(transport.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    for _ in range(500):
        if transport.path.exists():
            break
        await asyncio.sleep(0.01)
    assert len(pictures(transport.path)) == 12


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path / "none" / "out.mp4")
    with pytest.raises(FileNotFoundError):
        await transport.open(media())
    await transport.aclose()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("out.avi", {}),
        ("out", {}),
        ("out.mp4", {"quality": 52}),
        ("out.mp4", {"preset": "best"}),
        ("out.mp4", {"num_threads": 0}),
    ],
)
def test_what_cannot_be_is_refused_at_once(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        FileTransport(name, **options)
