"""What these tests share with those that run before each commit."""

from tests.unit.cli.conftest import folder, here, rooms

__all__ = ["folder", "here", "rooms"]
