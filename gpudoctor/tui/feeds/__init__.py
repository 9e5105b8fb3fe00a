"""Where the screen gets its data: child processes and recordings."""
