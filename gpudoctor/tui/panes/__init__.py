"""The panes of the screen and what they show, one tab or part each."""
