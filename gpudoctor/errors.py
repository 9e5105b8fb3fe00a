"""The errors that are the user's to mend; caught once, in `exits.py`."""


class UserError(Exception):
    """One clear line: what is wrong, where (file, key, device), and the way out.

    Raised anywhere below the command line for bad arguments, unreadable sources and bad
    configuration. It ends the run with exit code 2 and never shows a traceback.
    """
