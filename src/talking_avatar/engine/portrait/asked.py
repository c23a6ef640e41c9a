"""What the caller asks of the face, followed smoothly: a control may step, a face may not.

Takes: `Controls`, frame by frame. Gives: the values that hold now. Its state is a frozen value.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from talking_avatar.engine.base import FPS, Controls, Emotion


@dataclass(frozen=True, slots=True)
class Expression:
    """What an emotion does to the face."""

    smile: float = 0.0
    brow: float = 0.0
    pitch: float = 0.0
    spread: float = 0.0


EXPRESSIONS: dict[Emotion, Expression] = {
    "neutral": Expression(),
    "happy": Expression(smile=0.65, brow=0.15, spread=0.12),
    "sad": Expression(smile=-0.5, brow=-0.25, pitch=2.0),
    "surprised": Expression(brow=0.9, pitch=-1.0),
    "angry": Expression(smile=-0.3, brow=-0.8, pitch=1.2),
}


@dataclass(frozen=True, slots=True)
class Spring:
    """A value drawn to a goal by a critically damped spring: no jump, no overshoot."""

    value: float = 0.0
    speed: float = 0.0

    def step(self, goal: float, reach_s: float) -> Spring:
        """Advance by a frame, exactly.

        Args:
            goal: Where to.
            reach_s: Time to cover about 90 % of the way.
        """
        rate = 3.9 / reach_s
        offset = self.value - goal
        drive = (self.speed + rate * offset) / FPS
        fade = exp(-rate / FPS)
        return Spring(goal + (offset + drive) * fade, (self.speed - rate * drive) * fade)


REST = Spring()


@dataclass(frozen=True, slots=True)
class Asked:
    """The controls as they are obeyed: smoothed. Weights say how much of an override holds."""

    yaw: Spring = REST
    pitch: Spring = REST
    roll: Spring = REST
    blink: Spring = REST
    blink_weight: Spring = REST
    gaze_x: Spring = REST
    gaze_y: Spring = REST
    gaze_weight: Spring = REST
    smile: Spring = REST
    brow: Spring = REST
    expression_pitch: Spring = REST
    spread: Spring = REST

    def step(self, controls: Controls) -> Asked:
        """Follow the controls by a frame."""
        strength = min(1.0, max(0.0, controls.emotion_strength))
        mood = EXPRESSIONS[controls.emotion]
        yaw_goal, pitch_goal, roll_goal = controls.head
        blink = self.blink.value if controls.blink is None else controls.blink
        gaze = controls.gaze or (self.gaze_x.value, self.gaze_y.value)
        return Asked(
            yaw=self.yaw.step(yaw_goal, 0.7),
            pitch=self.pitch.step(pitch_goal, 0.7),
            roll=self.roll.step(roll_goal, 0.7),
            blink=self.blink.step(blink, 0.12),
            blink_weight=self.blink_weight.step(float(controls.blink is not None), 0.12),
            gaze_x=self.gaze_x.step(gaze[0], 0.16),
            gaze_y=self.gaze_y.step(gaze[1], 0.16),
            gaze_weight=self.gaze_weight.step(float(controls.gaze is not None), 0.16),
            smile=self.smile.step(strength * mood.smile, 0.5),
            brow=self.brow.step(strength * mood.brow, 0.5),
            expression_pitch=self.expression_pitch.step(strength * mood.pitch, 0.6),
            spread=self.spread.step(strength * mood.spread, 0.5),
        )
