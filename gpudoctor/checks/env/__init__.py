"""env.*: environment variables and software that decide what a training sees."""
