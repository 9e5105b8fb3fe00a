"""The command line: from arguments to an exit code; `commands/` holds what each command adds. No logic.

Each command imports the code that does the work only when it runs, to keep start-up fast. `argparse` is used only here.
"""
