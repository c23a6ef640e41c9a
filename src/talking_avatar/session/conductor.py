"""Drives one engine stream and one timeline, in three loops over shared state.

    plan      decides and submits chunks while there is room; rewinds when plans changed
    collect   waits for the engine's chunks, in order (`Pipeline.collect`)
    present   hands each frame over when it is due

All three, and every call from outside, run on one event loop, and change state only between
awaits. What to say is decided by `TurnMachine`, when by `Pacer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf

import anyio

from talking_avatar.cost import Meter
from talking_avatar.engine.base import FPS, AvatarStream, Controls, EngineInfo
from talking_avatar.errors import SessionClosed, SessionError
from talking_avatar.pacing import LATE_S, Pacer, missed_cause
from talking_avatar.session.declick import Declicker
from talking_avatar.session.gestures import Gesture, GestureName
from talking_avatar.session.outlet import Outlet
from talking_avatar.session.pipeline import Pipeline
from talking_avatar.session.results import Results
from talking_avatar.stats import StatsRecorder
from talking_avatar.tape import Samples
from talking_avatar.turn import TurnMachine
from talking_avatar.turn_plan import FramePlan, Outcome
from talking_avatar.types import ClockMode, Frame, PixelFormat, Position, TurnResult

_DRAIN_FRAMES = 2 * FPS
"""How long a turn that was handed out whole waits for the far end to say that it was played."""


class Conductor:
    """One session's engine stream and timeline.

    Args:
        stream: A fresh one.
        info: Of its engine.
        outlet: Whoever takes the frames.
        clock: Whether frames leave when they are due, or as soon as they are made and taken.
        pixel_format: What `Frame.image` shall be.
        stats, meter: Told of everything.
        on_stall: Called when the timeline had to wait.
    """

    def __init__(
        self,
        stream: AvatarStream,
        info: EngineInfo,
        outlet: Outlet,
        *,
        clock: ClockMode,
        pixel_format: PixelFormat,
        stats: StatsRecorder,
        meter: Meter,
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_stall = on_stall
        self._info = info
        self._outlet = outlet
        self._is_live = clock == "live"
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._machine = TurnMachine(
            frames_per_chunk=info.frames_per_chunk, lookahead_samples=info.lookahead_samples
        )
        self._pacer = Pacer(info, start=self._loop.time())
        self._pipeline = Pipeline(
            stream,
            info,
            pixel_format=pixel_format,
            pacer=self._pacer,
            meter=meter,
            on_arrival=self._note_arrival,
        )
        self._meter = meter
        self._results = Results(stats, lambda: meter.tally(self._loop.time()), meter.usage_of)
        self._declicker = Declicker()
        self._blocked_at = -inf  # when the loop last ran us late
        self._controls = Controls()
        self._gestures: list[Gesture] = []
        self._wanted_frames = 0  # unpaced: idle motion that was asked for
        self._error: Exception | None = None
        self._is_over = False
        self._to_plan = asyncio.Event()
        self._to_present = asyncio.Event()
        self._moved = asyncio.Event()  # replaced when the timeline has moved

    # -- from outside

    @property
    def machine(self) -> TurnMachine:
        return self._machine

    @property
    def outlet(self) -> Outlet:
        return self._outlet

    @property
    def controls(self) -> Controls:
        return self._controls

    @controls.setter
    def controls(self, controls: Controls) -> None:
        self._controls = controls

    def check_running(self) -> None:
        """Raise why the session cannot be used here, if so: it has ended, or is another loop's."""
        if not _is_running_here(self._loop):
            raise SessionError(
                "a session belongs to the event loop that started it: from another thread, pass "
                "its coroutines to asyncio.run_coroutine_threadsafe(..., loop)"
            )
        if self._error is not None:
            raise self._error.with_traceback(None)  # or it would grow with every caller
        if self._is_over:
            raise SessionClosed("the session has ended: start a new one")

    def open_turn(self, result: asyncio.Future[TurnResult], voice_agent_s: float | None) -> int:
        """Begin a turn; its result will be set exactly once."""
        self.check_running()
        turn_id = self._machine.open()
        self._results.expect(turn_id, result, voice_agent_s)
        return turn_id

    def takes_speech(self, turn_id: int) -> bool:
        return self._machine.takes_speech(turn_id)

    def push(self, turn_id: int, samples: Samples) -> None:
        self._machine.push(turn_id, samples, self._loop.time())
        self._to_plan.set()

    def flush(self, turn_id: int) -> None:
        self._machine.flush(turn_id)
        self._to_plan.set()

    def end(self, turn_id: int) -> None:
        self._machine.end(turn_id)
        self._settle(self._machine.next_frame - self._is_live)
        self._to_plan.set()

    async def wait_for_room(self, turn_id: int, max_samples: int) -> None:
        """Wait until no more than ``max_samples`` of a turn wait to be shown."""
        while self._machine.backlog(turn_id) > max_samples and not self._is_over:
            await self._moved.wait()

    def cut(self, turn_ids: Collection[int]) -> None:
        """End turns at once, by what is known now of how much was played."""
        self._finish(self._cut(turn_ids))

    async def interrupt(self) -> Position:
        """End all turns; give the position played of the first, as the far end knows it."""
        outcomes = self._cut(self._machine.turn_ids)
        try:
            await self._outlet.interrupt()  # also what waits there of turns that are over
        finally:
            results = self._finish(outcomes)
        if not results:
            return Position(0.0, "handed_out")
        return Position(results[0].played_s, results[0].source)

    def _cut(self, turn_ids: Collection[int]) -> list[Outcome]:
        self._machine.cut(turn_ids)
        outcomes = self._machine.take_outcomes()
        self._outlet.mute([outcome.turn_id for outcome in outcomes])
        self._to_plan.set()
        self._wake_waiters()
        return outcomes

    def _wake_waiters(self) -> None:
        """Let those who wait for the timeline to move look again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def pause(self) -> None:
        self._machine.pause()
        self._to_plan.set()

    def resume(self) -> None:
        self._machine.resume(self._loop.time())
        self._to_plan.set()

    def gesture(self, name: GestureName) -> None:
        first_frame = self._machine.next_chunk * self._info.frames_per_chunk
        self._gestures.append(Gesture(name, first_frame))

    async def idle(self, num_frames: int) -> None:
        """Wait until ``num_frames`` more have left; an unpaced timeline moves for it."""
        until = self._machine.next_frame + num_frames
        self._wanted_frames = max(self._wanted_frames, until)
        self._to_plan.set()
        self._to_present.set()
        while self._machine.next_frame < until:
            self.check_running()
            await self._moved.wait()

    # -- the loops

    async def run(self, started: asyncio.Event) -> None:
        """Drive until cancelled; set ``started`` when the first frame is there.

        Raises:
            EngineFailed: The engine raised.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._plan_loop)
            tasks.start_soon(self._pipeline.collect)
            tasks.start_soon(
                self._present_live if self._is_live else self._present_unpaced, started
            )

    def end_all(self, error: Exception | None) -> None:
        """The session is over: cut every turn, and let everyone who waits go on."""
        self._is_over, self._error = True, error
        outcomes = self._cut(self._machine.turn_ids)
        self._machine.close()
        self._finish(outcomes)

    async def _plan_loop(self) -> None:
        while True:
            self._to_plan.clear()
            now = self._loop.time()
            if self._machine.wants_rewind(now):
                await self._rewind(now)
            if not self._has_room or not self._submit_next():
                await self._wait_to_plan()

    @property
    def _has_room(self) -> bool:
        """Whether another chunk may be planned: as many as the pipeline holds, beyond the screen.

        No more, so that what was rendered in vain at a barge-in, and what a ring cache must spare
        for chunks not yet shown, stays bounded.
        """
        depth = self._info.pipeline_depth
        num_ahead = self._machine.next_chunk - self._begun_chunks
        return num_ahead < depth and len(self._pipeline.unfinished) < depth

    @property
    def _begun_chunks(self) -> int:
        """Chunks of which at least one frame was shown."""
        return -(-self._machine.next_frame // self._info.frames_per_chunk)

    def _submit_next(self) -> bool:
        machine, now = self._machine, self._loop.time()
        at_frame = machine.next_chunk * self._info.frames_per_chunk
        is_idle_wanted = self._is_live or at_frame < self._wanted_frames
        if not is_idle_wanted and not machine.has_speech_to_plan:
            return False
        is_due = self._is_live and now >= self._pacer.plan_by(machine.next_chunk)
        plan = machine.plan(now, is_due=is_due, may_be_silent=is_idle_wanted)
        if plan is None:
            return False
        self._pipeline.submit(plan, self._controls_at(at_frame))
        return True

    async def _wait_to_plan(self) -> None:
        """Wait for an event, or for the time at which the next chunk must be planned."""
        timer = None
        if self._is_live and self._has_room:
            timer = self._loop.call_at(
                self._pacer.plan_by(self._machine.next_chunk), self._to_plan.set
            )
        try:
            await self._to_plan.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _rewind(self, now: float) -> None:
        """Drop the chunks whose plan changed, as many as can be without a stall."""
        machine = self._machine
        kept = self._begun_chunks - 1
        if self._is_live:  # else nothing is due, and what nobody wants would only be in the way
            kept = self._pacer.keep(
                next_frame=machine.next_frame, now=now, unfinished=self._pipeline.unfinished
            )
        if not machine.is_muted:  # only silence gives way: speech that is planned stays so
            kept = max(kept, machine.last_speech_frame // self._info.frames_per_chunk)
        machine.drop_after(kept)
        await self._pipeline.rewind(kept)

    def _controls_at(self, frame: int) -> Controls:
        if not self._gestures:
            return self._controls
        middle = frame + (self._info.frames_per_chunk - 1) / 2
        angles = [(gesture, gesture.head_at(middle, FPS)) for gesture in self._gestures]
        self._gestures = [gesture for gesture, head in angles if head is not None]
        heads = [self._controls.head, *(head for _, head in angles if head is not None)]
        yaw, pitch, roll = (sum(angle) for angle in zip(*heads, strict=True))
        return replace(self._controls, head=(yaw, pitch, roll))

    def _note_arrival(self) -> None:
        self._to_present.set()
        self._to_plan.set()

    async def _present_live(self, started: asyncio.Event) -> None:
        await self._wait_until_ready(0, self._info.pipeline_depth)
        self._pacer.begin(self._loop.time())
        started.set()
        while True:
            frame = self._machine.next_frame
            due = self._pacer.due(frame)
            await self._sleep_until(due)
            woken = self._loop.time()
            if woken - due > LATE_S:
                self._blocked_at = woken
                await asyncio.sleep(0)  # let what came while the loop was held be collected
            if self._pipeline.is_ready(frame):
                await self._show(frame, due, woken)
            else:
                await self._stall(frame, due)

    async def _sleep_until(self, when: float) -> None:
        left = when - self._loop.time()
        if left > 0:
            await asyncio.sleep(left)

    async def _wait_until_ready(self, frame: int, num_chunks: int) -> None:
        while not self._pipeline.is_ready(frame, num_chunks):
            self._to_present.clear()
            await self._to_present.wait()

    async def _stall(self, frame: int, due: float) -> None:
        """Picture and sound wait together until the frame is there; then its time is set anew."""
        await self._wait_until_ready(frame, 1)
        chunk = self._pipeline.chunk_of(frame)
        lead_s = self._info.pipeline_depth * self._info.chunk_s
        cause = missed_cause(
            due=due,
            ready=chunk.ready,
            decode_s=chunk.decode_s,
            was_blocked=self._blocked_at >= due - lead_s,
        )
        if cause is None:
            return
        self._stats.missed(cause)
        await self._wait_until_ready(frame, self._pacer.refill_chunks)
        stall = self._pacer.stall(frame, self._loop.time())
        if stall is not None:
            self._stats.stalled(stall)
            self._on_stall()
            self._machine.note_stall(stall.num_frames)

    async def _present_unpaced(self, started: asyncio.Event) -> None:
        started.set()
        while True:
            frame = self._machine.next_frame
            is_wanted = self._machine.last_speech_frame >= frame or frame < self._wanted_frames
            if is_wanted and self._pipeline.is_ready(frame):
                await self._show(frame, None, self._loop.time())
                self._settle(frame + 1)
            else:
                self._to_present.clear()
                await self._to_present.wait()

    async def _show(self, frame: int, due: float | None, woken: float) -> None:
        """Hand over the next frame; count it, and finish what ended before it."""
        now = self._loop.time()
        plan = self._machine.show()
        self._note_first_frame(plan, frame, now)
        sound = self._declicker.sound(plan)
        self._stats.left(now, len(sound))
        self._meter.note_speech(plan.num_speech)
        await self._outlet.hand_over(
            Frame(
                index=frame,
                image=self._pipeline.take(frame),
                audio=sound,
                pts=frame / FPS,
                turn_id=plan.turn_id,
                speaking=plan.num_speech > 0,
            ),
            due=due,
            woken=woken,
        )
        self._settle(frame)
        self._to_plan.set()
        self._wake_waiters()

    # -- results

    def _note_first_frame(self, plan: FramePlan, frame: int, now: float) -> None:
        if plan.turn_id is not None and plan.num_speech and not plan.start:
            self._results.note_first_frame(
                plan.turn_id,
                self._pipeline.chunk_of(frame),
                first_push=self._machine.first_push_at(plan.turn_id),
                pts=frame / FPS,
                now=now,
            )

    def _settle(self, elapsed_frames: int) -> None:
        """Finish the turns that were played whole.

        Args:
            elapsed_frames: Frames handed out whose time is over.
        """
        if not self._results:
            return
        position = self._outlet.played_position(elapsed_frames)
        played = float(elapsed_frames)
        if position.source != "handed_out":
            self._results.note_played(position, self._loop.time())
            if self._is_live:  # else time stands still when the last frame has left: who waits?
                played = max(position.seconds * FPS, played - _DRAIN_FRAMES)
        self._machine.settle(played)
        self._finish(self._machine.take_outcomes())

    def _finish(self, outcomes: list[Outcome]) -> list[TurnResult]:
        if not outcomes:
            return []
        position = self._outlet.played_position(self._machine.next_frame)
        return self._results.finish(outcomes, position, self._error)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs in this thread
        return False
