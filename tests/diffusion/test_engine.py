"""The engine behind the seam, on a CPU, with the tiny model."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from talking_avatar import AvatarSession, FileTransport
from talking_avatar.config import DiffusionConfig
from talking_avatar.engine import open_engine
from talking_avatar.engine.base import ChunkTicket, Controls, Engine, SpeechWindow
from talking_avatar.engine.diffusion import opening
from talking_avatar.engine.diffusion.conditioning.controls import control_numbers
from talking_avatar.engine.diffusion.conditioning.photo import DiffusionAvatar
from talking_avatar.engine.diffusion.denoise import Denoiser
from talking_avatar.engine.diffusion.ranks.rendezvous import RankFailed
from talking_avatar.engine.diffusion.stream import DiffusionStream, _Failure
from talking_avatar.engine.diffusion.weights.checkpoint import random_weights
from talking_avatar.engine.diffusion.weights.save import save_checkpoint
from talking_avatar.errors import (
    CheckpointError,
    ChunkDropped,
    EngineBusy,
    EngineError,
    EngineFailed,
    OutOfMemory,
)

PORTRAIT = files("talking_avatar.assets") / "portrait.jpg"
TINY = DiffusionConfig(
    model="tiny", weights="random", devices=("cpu", "cpu"), precision="fp32", kv_precision="fp32"
)

BLINKS_AT_ONCE = 5
"""A seed whose first blink is within three chunks, and not where seed 0 has it."""


@asynccontextmanager
async def opened(config: DiffusionConfig = TINY) -> AsyncIterator[tuple[Any, DiffusionAvatar]]:
    engine: Any = await open_engine(config)
    try:
        yield engine, await engine.prepare(str(PORTRAIT))
    finally:
        await engine.aclose()


@dataclass(frozen=True)
class Shared:
    """An engine that several tests use; each opens its own streams."""

    engine: Any
    avatar: DiffusionAvatar


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    async def begin() -> Shared:
        engine: Any = await open_engine(TINY)
        return Shared(engine, await engine.prepare(str(PORTRAIT)))

    opened = asyncio.run(begin())  # nothing of an engine belongs to an event loop
    yield opened
    asyncio.run(opened.engine.aclose())


def window(engine: Engine, chunk: int, *, loudness: float = 0.1) -> SpeechWindow:
    size = engine.info.chunk_samples + engine.info.lookahead_samples
    draw = np.random.default_rng(chunk)
    samples = (loudness * draw.standard_normal(size)).astype(np.float32)
    return SpeechWindow(chunk, samples, size, speaking=True)


async def make(engine: Engine, stream: Any, chunks: range, **options: float) -> list[np.ndarray]:
    """Make chunks with the pipeline full."""
    images, waiting = [], list[ChunkTicket]()
    for chunk in chunks:
        waiting.append(stream.submit(window(engine, chunk, **options), Controls()))
        if len(waiting) == engine.info.pipeline_depth:
            images.append((await waiting.pop(0).frames()).images)
    return [*images, *[(await ticket.frames()).images for ticket in waiting]]


async def test_photo_and_speech_to_frames(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    info = engine.info
    assert (info.width, info.height, info.frames_per_chunk, info.pipeline_depth) == (128, 192, 4, 2)
    assert info.step_s > 0
    assert info.decode_s > 0
    assert info.devices[0].name == "cpu"
    assert avatar.warnings == ()
    stream = await engine.open_stream(avatar, seed=3)
    images = await make(engine, stream, range(9))
    assert all(i.shape == (4, 192, 128, 3) and i.dtype == np.uint8 for i in images)
    assert all(i.flags.writeable and i.flags.owndata for i in images), "the receiver owns them"
    same = await make(engine, await engine.open_stream(avatar, seed=3), range(9))
    assert all(np.array_equal(a, b) for a, b in zip(images, same, strict=True))
    other = await make(engine, await engine.open_stream(avatar, seed=4), range(1))
    assert not np.array_equal(images[0], other[0])
    silent = await make(engine, await engine.open_stream(avatar, seed=3), range(3), loudness=0)
    assert not np.array_equal(images[2], silent[2]), "speech changes the picture"


async def test_busy_and_out_of_order(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    with pytest.raises(ValueError, match="chunk 1 submitted, 0 expected"):
        stream.submit(window(engine, 1), Controls())
    short = SpeechWindow(0, np.zeros(10, np.float32), 10, speaking=False)
    with pytest.raises(ValueError, match=r"samples have shape \(10,\), not \(6550,\)"):
        stream.submit(short, Controls())
    tickets = [stream.submit(window(engine, c), Controls()) for c in range(2)]
    with pytest.raises(EngineBusy, match="2 chunks are outstanding"):
        stream.submit(window(engine, 2), Controls())
    assert [(await t.frames()).chunk_index for t in tickets] == [0, 1]
    stream.submit(window(engine, 2), Controls())


async def test_rewind_drops_and_makes_the_same_again(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    first = await make(engine, stream, range(10))
    dropped = [stream.submit(window(engine, c), Controls()) for c in (10, 11)]
    await stream.rewind(5)
    for ticket in dropped:
        with pytest.raises(ChunkDropped):
            await ticket.frames()
    again = await make(engine, stream, range(6, 10))
    assert all(np.array_equal(a, b) for a, b in zip(again, first[6:], strict=True))
    with pytest.raises(ValueError, match="cannot rewind to chunk 2"):
        await stream.rewind(2)
    await stream.rewind(-1)
    assert np.array_equal((await make(engine, stream, range(1)))[0], first[0])


async def test_rewind_to_a_chunk_that_is_still_waiting(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    run, gate, made = Denoiser.run, threading.Event(), list[int]()

    def held(self: Denoiser, work: Any) -> Any:
        assert gate.wait(30)
        if threading.current_thread().name.endswith("rank-0"):
            made.append(work.slots.chunk)
        return run(self, work)

    monkeypatch.setattr(Denoiser, "run", held)
    kept, dropped = (stream.submit(window(engine, c), Controls()) for c in (0, 1))
    await stream.rewind(0)
    gate.set()
    with pytest.raises(ChunkDropped):
        await dropped.frames()
    assert (await kept.frames()).chunk_index == 0
    assert len(await make(engine, stream, range(1, 3))) == 2
    assert made == [0, 1, 2], "what was dropped while it waited costs nothing"


async def test_every_chunk_back_to_the_promised_depth_can_be_returned_to(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    await make(engine, stream, range(9))
    await stream.rewind(8 - (2 * engine.info.pipeline_depth + 2))
    await make(engine, stream, range(3, 5))


async def test_two_streams_do_not_disturb_each_other(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    alone = await make(engine, await engine.open_stream(avatar, seed=1), range(4))
    streams = [await engine.open_stream(avatar, seed=s) for s in (1, 2)]
    both = await asyncio.gather(*(make(engine, s, range(4)) for s in streams))
    assert all(np.array_equal(a, b) for a, b in zip(alone, both[0], strict=True))
    assert not np.array_equal(both[0][3], both[1][3])


async def test_decoder_and_ranks_work_at_the_same_time(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder holds chunk 0 until chunk 1 is being denoised: in turn, this would never end."""
    engine, avatar = shared.engine, shared.avatar
    second_began = threading.Event()
    run, decode = Denoiser.run, DiffusionStream._decode

    def watched_run(self: Denoiser, work: Any) -> Any:
        if work.slots.chunk == 1:
            second_began.set()
        return run(self, work)

    def waiting_decode(self: Any, order: Any, *rest: Any) -> None:
        if order.window.chunk_index == 0:
            assert second_began.wait(30)
        decode(self, order, *rest)

    monkeypatch.setattr(Denoiser, "run", watched_run)
    monkeypatch.setattr(DiffusionStream, "_decode", waiting_decode)
    stream = await engine.open_stream(avatar)
    assert len(await make(engine, stream, range(2))) == 2


async def test_a_failing_rank_is_named_and_the_start_is_always_a_way_back(
    shared: Shared,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, avatar = shared.engine, shared.avatar
    run = Denoiser.run

    def failing(self: Denoiser, work: Any) -> Any:
        if work.slots.chunk == 3 and threading.current_thread().name.endswith("rank-1"):
            raise ZeroDivisionError("a cosmic ray")
        return run(self, work)

    stream = await engine.open_stream(avatar)
    first = await make(engine, stream, range(3))
    with monkeypatch.context() as patch:
        patch.setattr(Denoiser, "run", failing)
        tickets = [stream.submit(window(engine, c), Controls()) for c in (3, 4)]
        message = r"failed at chunk 3: rank 1 of 2: ZeroDivisionError\('a cosmic ray'\)"
        with pytest.raises(EngineFailed, match=message) as caught:
            await tickets[0].frames()
        assert isinstance(caught.value.__cause__, RankFailed)
        with pytest.raises(EngineFailed, match="rank 1 of 2"):
            await tickets[1].frames()
        await stream.rewind(3)  # to the chunk that failed: that is no way back
        with pytest.raises(EngineFailed, match="a cosmic ray"):
            await stream.submit(window(engine, 4), Controls()).frames()
    await stream.rewind(2)
    after = await make(engine, stream, range(3, 5))
    fresh = await make(engine, await engine.open_stream(avatar), range(5))
    assert all(np.array_equal(a, b) for a, b in zip([*first, *after], fresh, strict=True))


def test_a_failure_within_a_reset_has_only_the_start_as_a_way_back() -> None:
    plain, torn = (_Failure(5, ValueError(), is_torn=t) for t in (False, True))
    assert [plain.ends_at(chunk) for chunk in (6, 5, 4, -1)] == [False, False, True, True]
    assert [torn.ends_at(chunk) for chunk in (6, 5, 4, -1)] == [False, False, False, True]


async def test_a_failing_decoder_fails_its_chunk(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    decoder = engine._parts.decoder

    def broken(latent: Any, state: Any) -> Any:
        raise torch.OutOfMemoryError("no room for frames")

    monkeypatch.setattr(decoder, "decode", broken)
    ticket = stream.submit(window(engine, 0), Controls())
    later = stream.submit(window(engine, 1), Controls())
    for waiting in (ticket, later):
        with pytest.raises(OutOfMemory, match="no room for frames"):
            await waiting.frames()
    monkeypatch.undo()
    await stream.rewind(-1)
    assert len(await make(engine, stream, range(2))) == 2


def engine_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("talking-avatar")}


async def ended(before: set[threading.Thread]) -> bool:
    """Wait until no thread of an engine is left but those of before."""
    for _ in range(3_000):
        if not engine_threads() - before:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_closing_leaves_no_threads_and_no_open_ticket() -> None:
    before = engine_threads()
    async with opened() as (engine, avatar):
        stream = await engine.open_stream(avatar)
        tickets = [stream.submit(window(engine, c), Controls()) for c in range(2)]
        await engine.aclose()
        for ticket in tickets:
            with pytest.raises(ChunkDropped):
                await ticket.frames()
        await stream.aclose()
        with pytest.raises(EngineError, match="the stream is closed"):
            stream.submit(window(engine, 2), Controls())
        with pytest.raises(EngineError, match="the engine is closed"):
            await engine.open_stream(avatar)
    assert not engine_threads() - before


@pytest.mark.parametrize("step", ["loading", "warming up"])
async def test_opening_can_be_cancelled(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being loaded cannot be stopped; once loaded, it is closed."""
    before, began, go_on = engine_threads(), threading.Event(), threading.Event()
    room, name = (opening, "fill_rank") if step == "loading" else (Denoiser, "run")
    original = getattr(room, name)

    def held(*args: Any, **options: Any) -> Any:
        began.set()
        assert go_on.wait(30)
        return original(*args, **options)

    monkeypatch.setattr(room, name, held)
    work = asyncio.create_task(open_engine(TINY))
    assert await asyncio.to_thread(began.wait, 30)
    work.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await ended(before)


async def test_closing_can_be_cancelled_and_the_model_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even for one who keeps the engine, a stream and a ticket."""
    before, began, go_on = engine_threads(), threading.Event(), threading.Event()
    run = Denoiser.run

    def held(self: Denoiser, work: Any) -> Any:
        began.set()
        assert go_on.wait(30)
        return run(self, work)

    engine: Any = await open_engine(TINY)
    avatar = await engine.prepare(str(PORTRAIT))
    stream = await engine.open_stream(avatar)
    monkeypatch.setattr(Denoiser, "run", held)
    ticket = stream.submit(window(engine, 0), Controls())
    assert await asyncio.to_thread(began.wait, 30)
    model = weakref.ref(engine._parts.models[0])
    cache = weakref.ref(stream._denoisers[0].cache)
    for closing in (stream.aclose, engine.aclose):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(closing(), 0.01)
    with pytest.raises(ChunkDropped):
        await ticket.frames()
    go_on.set()
    assert await ended(before)
    await engine.aclose()
    await stream.aclose()
    gc.collect()
    assert (model(), cache()) == (None, None)


async def test_what_begins_while_the_engine_closes_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on = threading.Event(), threading.Event()
    start = Denoiser.__init__

    def held(self: Denoiser, *args: Any, **options: Any) -> None:
        began.set()
        assert go_on.wait(30)
        start(self, *args, **options)

    engine: Any = await open_engine(TINY)
    avatar = await engine.prepare(str(PORTRAIT))
    monkeypatch.setattr(Denoiser, "__init__", held)
    opened_late = asyncio.create_task(engine.open_stream(avatar))
    assert await asyncio.to_thread(began.wait, 30)
    prepared_late = asyncio.create_task(engine.prepare(str(PORTRAIT)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.aclose())
    await asyncio.sleep(0)
    go_on.set()
    for late in (opened_late, prepared_late):
        with pytest.raises(EngineError, match="is closed"):
            await late
    await closing


async def test_each_chunk_is_decoded_from_the_state_of_the_one_before(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, avatar = shared.engine, shared.avatar
    decoder = engine._parts.decoder
    decode, taken, given = decoder.decode, [], []

    def watched(latent: Any, state: Any) -> Any:
        frames, after = decode(latent, state)
        taken.append(state)
        given.append(after)
        return frames, after

    stream = await engine.open_stream(avatar)
    opening_state = stream._states[-1]
    monkeypatch.setattr(decoder, "decode", watched)
    await make(engine, stream, range(3))
    await stream.rewind(0)
    await make(engine, stream, range(1, 3))
    assert [id(state) for state in taken] == [
        id(state) for state in (opening_state, given[0], given[1], given[0], given[3])
    ]
    await stream.aclose()


async def test_controls_and_seed_reach_the_ranks(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, avatar = shared.engine, shared.avatar
    run, seen = Denoiser.run, list[torch.Tensor]()

    def watched(self: Denoiser, work: Any) -> Any:
        if threading.current_thread().name.endswith("rank-0"):
            seen.append(work.controls)
        return run(self, work)

    monkeypatch.setattr(Denoiser, "run", watched)
    stream = await engine.open_stream(avatar, seed=BLINKS_AT_ONCE)
    asked = Controls(gaze=(0.5, -0.25), mouth_gain=1.5, emotion="happy")
    for chunk in range(3):
        await stream.submit(window(engine, chunk), asked if chunk == 2 else Controls()).frames()
    wanted = [control_numbers(asked if c == 2 else Controls(), c, BLINKS_AT_ONCE) for c in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True))
    assert not torch.equal(seen[2], control_numbers(Controls(), 2, BLINKS_AT_ONCE))
    assert any(bool(controls[:4].any()) for controls in seen), "the seed decides when it blinks"
    await stream.aclose()


async def test_a_latent_that_is_not_finite_is_no_picture(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    run = Denoiser.run
    with monkeypatch.context() as patch:
        patch.setattr(Denoiser, "run", lambda self, work: run(self, work) * float("inf"))
        ticket = stream.submit(window(engine, 0), Controls())
        with pytest.raises(EngineFailed, match=r"chunk 0: 768 of 768 values .* not finite"):
            await ticket.frames()
    await stream.rewind(-1)
    assert len(await make(engine, stream, range(1))) == 1


async def test_a_decoder_that_cannot_begin_or_encode(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_args: Any) -> None:
        raise torch.OutOfMemoryError("no room for its past")

    parts = shared.engine._parts
    monkeypatch.setattr(parts.decoder, "start", exhausted)
    with pytest.raises(OutOfMemory, match="could not open a stream: no room for its past"):
        await shared.engine.open_stream(shared.avatar)
    monkeypatch.setattr(parts.encoder, "encode_photo", exhausted)
    with pytest.raises(OutOfMemory, match="photo could not be encoded"):
        await shared.engine.prepare(str(PORTRAIT))


async def test_another_engines_avatar_is_refused(shared: Shared) -> None:
    with pytest.raises(TypeError, match="str was not prepared by a diffusion engine"):
        await shared.engine.open_stream("a face")


@pytest.mark.parametrize(
    ("precision", "kv_precision"), [("bf16", "bf16"), ("fp8", "fp8"), ("fp32", "bf16")]
)
async def test_every_precision_runs(precision: str, kv_precision: str) -> None:
    config = TINY.model_copy(
        update={"precision": precision, "kv_precision": kv_precision, "devices": ("cpu",)}
    )
    async with opened(config) as (engine, avatar):
        images = await make(engine, await engine.open_stream(avatar), range(2))
        assert images[1].std() > 0


async def test_a_checkpoint_folder_of_another_arrangement(tiny_wan: Any, tmp_path: Path) -> None:
    """Text, no conditioning tokens, norms across ranks: all of it comes from the folder."""
    save_checkpoint(random_weights(tiny_wan, 1), tmp_path / "wan", precision="fp32")
    config = DiffusionConfig(
        checkpoint=tmp_path / "wan", devices=("cpu",) * 3, precision="fp32", kv_precision="fp32"
    )
    async with opened(config) as (engine, avatar):
        assert engine.info.lookahead_samples == 0
        assert engine.info.controls == frozenset()
        images = await make(engine, await engine.open_stream(avatar), range(2))
        assert images[1].shape == (4, 192, 128, 3)
    wrong = config.model_copy(update={"model": "avatar-57b"})
    wrong.model_fields_set.add("model")
    with pytest.raises(CheckpointError, match="another model"):
        await open_engine(wrong)


async def test_a_closed_stream_holds_nothing(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    caches = []
    for _ in range(5):
        stream = await engine.open_stream(avatar)
        await make(engine, stream, range(1))
        caches += [weakref.ref(denoiser.cache) for denoiser in stream._denoisers]
        await stream.aclose()
        await stream.aclose()
    gc.collect()
    assert [cache() for cache in caches] == [None] * 10


async def test_what_a_stream_remembers_is_bounded(shared: Shared) -> None:
    engine, avatar = shared.engine, shared.avatar
    stream = await engine.open_stream(avatar)
    await make(engine, stream, range(12))
    assert sorted(stream._states) == [-1, *range(5, 12)]
    assert sorted(stream._histories) == [-1, *range(5, 12)]
    await stream.aclose()


async def test_a_session_from_photo_and_speech_to_a_file(shared: Shared, tmp_path: Path) -> None:
    """A turn that is cut, then one that is whole; the engine outlives the session."""
    speech = (0.1 * np.sin(np.arange(24_000) / 20)).astype(np.float32)
    path = tmp_path / "out.mp4"
    session = AvatarSession(
        str(PORTRAIT), engine=shared.engine, transport=FileTransport(path), clock="unpaced"
    )
    async with session:
        cut = asyncio.create_task(session.say(speech, sample_rate=24_000))
        await asyncio.sleep(0.05)
        await session.interrupt()
        assert (await cut).interrupted
        whole = await session.say(speech, sample_rate=24_000)
        assert not whole.interrupted
        assert whole.played_s == pytest.approx(1.0, abs=0.05)
    with av.open(str(path)) as video:
        stream = video.streams.video[0]
        frames = sum(1 for _ in video.decode(stream))
        assert (stream.width, stream.height) == (128, 192)
        assert frames >= 24
    again = await shared.engine.open_stream(shared.avatar)
    assert len(await make(shared.engine, again, range(1))) == 1


@pytest.fixture
def _no_threads_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before + 1  # asyncio's own helper thread


@pytest.mark.usefixtures("_no_threads_left")
async def test_what_cannot_be_opened() -> None:
    with pytest.raises(CheckpointError, match="avatar-small has no checkpoint to load"):
        await open_engine(DiffusionConfig())
    with pytest.raises(ValueError, match="no model is called 'huge'"):
        await open_engine(DiffusionConfig(model="huge", weights="random"))
    with pytest.raises(CheckpointError, match="flow"):
        await open_engine(DiffusionConfig(model="avatar-small", weights="random"))
    with pytest.raises(OutOfMemory, match=r"avatar-57b needs \d+\.\d GB on cpu"):
        await open_engine(DiffusionConfig(model="avatar-57b", weights="random", precision="fp32"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"devices": ()}, ValueError, "devices is empty"),
        ({"devices": ("gpu",)}, ValueError, "device 'gpu': write"),
        ({"devices": ("cpu", "cuda")}, ValueError, "device 'cuda': write"),
        ({"decoder_device": "meta"}, ValueError, "device 'meta': write"),
        ({"devices": ("cuda:512",)}, EngineError, "device 'cuda:512' is not here: torch .* sees"),
        ({"decoder_device": "cuda:512"}, EngineError, "device 'cuda:512' is not here"),
    ],
)
@pytest.mark.usefixtures("_no_threads_left")
async def test_devices_that_are_not_there(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await open_engine(TINY.model_copy(update=change))


@pytest.mark.usefixtures("_no_threads_left")
async def test_memory_that_runs_out_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_args: Any, **_options: Any) -> None:
        raise torch.OutOfMemoryError("no room for layer 7")

    monkeypatch.setattr(opening, "fill_rank", exhausted)
    with pytest.raises(OutOfMemory, match=r"tiny could not be loaded: rank \d of 2.*layer 7"):
        await open_engine(TINY)


@pytest.mark.parametrize("missing", ["torch", "safetensors"])
def test_without_its_extra_the_engine_says_how_to_get_it(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import asyncio\n"
        "from talking_avatar import DiffusionConfig, MissingDependency, open_engine\n"
        "try:\n"
        "    asyncio.run(open_engine(DiffusionConfig()))\n"
        "except MissingDependency as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"needs {missing}" in done.stdout, done.stderr
    assert 'pip install "talking-avatar[diffusion]"' in done.stdout
