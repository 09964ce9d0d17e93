"""The command line, in a folder of its own."""

from command_line import folder, shardplan

__all__ = ["folder", "shardplan"]
