"""Tables and matrices of measurements, which the text report, the HTML page and the TUI render."""
