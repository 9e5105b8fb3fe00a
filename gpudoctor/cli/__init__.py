"""The command line: one module a command. What a command does lives in the room that does it."""
