"""Where the screen gets its data from: child processes, recordings, saved reports."""
