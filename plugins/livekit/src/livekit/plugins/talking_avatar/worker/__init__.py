"""A program that renders the avatars of agents elsewhere: one engine, many rooms.

python -m livekit.plugins.talking_avatar.worker --photo face.jpg
"""

from .dispatcher import Dispatcher, WorkerOptions

__all__ = ["Dispatcher", "WorkerOptions"]
