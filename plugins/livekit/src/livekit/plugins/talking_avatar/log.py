"""The plugin's logger; its level and handlers belong to the application."""

import logging

logger = logging.getLogger("livekit.plugins.talking_avatar")
