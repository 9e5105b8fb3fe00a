"""Tables and matrices of what was measured, made once and drawn by the text report, the page and the screen."""
