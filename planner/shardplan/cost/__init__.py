"""Cost models: seconds and bytes of collectives, local compute and memory."""
