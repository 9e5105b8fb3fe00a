"""The only place that starts, talks to and ends processes. Nothing of the node is read here, and nothing judged.

`spawn` and `forked` start them, `die_with_parent` ties them to the process that started them, `ending` ends them
without fail, `pipes` carries lines, `command` runs a program to its end.
"""
