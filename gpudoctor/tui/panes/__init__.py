"""The panes of the screen: one module for each tab or part of a tab."""
