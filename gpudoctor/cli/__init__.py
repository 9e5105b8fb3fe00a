"""The command line: one file per command, with its options, its request and the writing of its output. No logic.

Each file imports the code that does the work only when its command runs, to keep start-up fast. `argparse` is used only
here.
"""
