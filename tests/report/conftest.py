"""The command line and a model small enough to be planned in a blink."""

from command_line import folder, mlp, shardplan

__all__ = ["folder", "mlp", "shardplan"]
