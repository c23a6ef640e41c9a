"""From what one frame of sound asks to what a mouth can do: closures, silence, pace, loudness.

Takes: `HeardShape`s in order. Gives: `MouthShape`s.
Never opens lips without a voice, never jumps: lips cross at most `_OPEN_STEP` of their widest gap
in one frame opening and `_CLOSE_STEP` closing, so that any mouth is shut in three frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from talking_avatar.engine.portrait.face import MouthShape
from talking_avatar.engine.portrait.speech import HeardShape

_OPEN_STEP, _CLOSE_STEP = 0.55, 0.50
_OTHER_STEP = 0.38
_GAIN_STEP = 0.06
_TREMBLE, _MOVE = 0.02, 0.18
"""Change in one frame that is smoothed, and from which it is followed at once."""
_REST, _PRESS_STEP = 0.70, 0.70
"""How firmly lips lie on each other without a voice; 1 on m, b and p, which last two frames."""
_SILENT_DB, _SPEECH_DB = -49.0, -42.0
"""Absolute, of the loudest 25 ms in view: noise at -60 dB, breath and the sounds of a room leave
lips shut, whatever they sound like. Speech at -35 dBFS has peaks near -30."""
_FREE, _TOUCHING = 0.18, 0.36
"""Probability of a closure up to which lips are free, and from which they touch."""
_PARTED, _SHUT = 0.6, 0.25
"""Likewise of a voice."""


def ramp(value: float, low: float, high: float) -> float:
    """0 up to ``low``, 1 from ``high``, straight between; ``low`` may be the larger one."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def approach(value: float, goal: float, up: float, down: float) -> float:
    """Go to ``goal``, by at most so much a frame."""
    return min(value + up, max(value - down, goal))


def follow(value: float, goal: float, up: float = _OTHER_STEP, down: float = _OTHER_STEP) -> float:
    """Go to ``goal``: all the way when it is far, half the way when it is near.

    So a vowel that is held does not tremble, and a closure is not late.
    """
    part = 0.5 + 0.5 * ramp(abs(goal - value), _TREMBLE, _MOVE)
    return approach(value, value + part * (goal - value), up, down)


def awake(heard: HeardShape, *, speaking: bool) -> float:
    """Whether a voice is there at all, 0 to 1."""
    voice = ramp(heard.voice, _SHUT, _PARTED)
    return voice * ramp(heard.peak_db, _SILENT_DB, _SPEECH_DB) * float(speaking)


@dataclass(frozen=True, slots=True)
class Mouth:
    """What a mouth remembers: where it is, and the gain that holds."""

    shape: MouthShape = field(default_factory=lambda: MouthShape(press=_REST))
    gain: float = 1.0


def step_mouth(state: Mouth, heard: HeardShape, *, gain: float, speaking: bool) -> Mouth:
    """Advance by a frame.

    Args:
        state: The frame before.
        heard: What the sound asks for.
        gain: Of the opening, as the controls want it.
        speaking: Whether a turn sounds; without one lips close, whatever is heard.
    """
    gain = approach(state.gain, min(2.0, max(0.0, gain)), _GAIN_STEP, _GAIN_STEP)
    voice = awake(heard, speaking=speaking)
    effort = 0.84 + 0.26 * ramp(heard.loudness_db, -22.0, -2.0)
    drive = voice * gain * effort
    free = ramp(heard.closure, _TOUCHING, _FREE)
    was = state.shape
    gap = min(1.0, max(0.0, heard.open) * drive) * free
    firm = max(voice * (1.0 - free), (1.0 - voice) * _REST)
    shape = MouthShape(
        close=1.0,
        open=follow(was.open, gap, _OPEN_STEP, _CLOSE_STEP)
        if gap > 0.0
        else approach(was.open, 0.0, 0.0, _CLOSE_STEP),
        jaw=follow(was.jaw, min(1.0, max(0.0, heard.jaw) * drive)),
        spread=follow(was.spread, voice * min(1.0, max(-1.0, heard.spread))),
        # Lips that press together draw back a little.
        pucker=follow(was.pucker, voice * min(1.0, max(0.0, heard.pucker)) * (0.5 + 0.5 * free)),
        teeth_on_lip=follow(was.teeth_on_lip, voice * ramp(heard.teeth_on_lip, 0.08, 0.5)),
        tongue=follow(was.tongue, voice * min(1.0, max(0.0, heard.tongue))),
        press=follow(was.press, firm, _PRESS_STEP, _PRESS_STEP),
    )
    return Mouth(shape, gain)
