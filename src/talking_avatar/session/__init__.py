"""`AvatarSession`: what an application awaits.

The parts behind it, from the outside in:

    avatar_session   the public surface
    owner            the one task that everything lives in: opens, runs, closes
    turn_handle      one turn as its speaker sees it: push, end, result
    sources          whatever `say` takes -> chunks of PCM in a stated format
    conductor        three loops that drive engine and timeline: plan, collect, present
    pipeline         the chunks that the engine was given and that are not wholly shown
    results          who waits for which turn, and what they get
    outlet           whoever takes the frames: a reader, a transport, or nobody
    declick          speech of a frame -> int16, without a click where speech stops in a gap
    gestures         a nod as head angles over time

All decisions are made in `talking_avatar.turn` and `talking_avatar.pacing`, which do not wait.
"""

from __future__ import annotations

from talking_avatar.session.avatar_session import AvatarSession
from talking_avatar.session.outlet import FrameReader
from talking_avatar.session.turn_handle import Turn

__all__ = ["AvatarSession", "FrameReader", "Turn"]
