"""``python -m talking_avatar`` is the ``talking-avatar`` command."""

from talking_avatar.cli import main

if __name__ == "__main__":
    main()
