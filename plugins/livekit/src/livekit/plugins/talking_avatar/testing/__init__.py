"""What tests and a first look need: an agent without any account, and rooms without a server.

`RoomServer` needs ``aiortc``: ``pip install livekit-plugins-talking-avatar[dev]``.
"""

from .scripted import SECONDS_PER_WORD, ScriptedLLM, ScriptedSTT, ToneTTS

__all__ = ["SECONDS_PER_WORD", "ScriptedLLM", "ScriptedSTT", "ToneTTS"]
