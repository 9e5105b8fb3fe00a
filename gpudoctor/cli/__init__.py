"""The command line: one file a command, with its options, its request and the writing of its output. No logic.

A command's file imports the room that does the work when it runs: its options cost no command more than themselves.
`argparse` is used here only.
"""
