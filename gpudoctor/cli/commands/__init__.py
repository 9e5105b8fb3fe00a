"""One module per command, of its name: its options, its request and the writing of its output."""
