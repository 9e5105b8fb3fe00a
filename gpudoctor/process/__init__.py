"""The only place that starts, talks to and ends processes. It reads and judges nothing of the node.

`spawn` and `forked` start processes, `die_with_parent` ends them with the process that started them, `ending` ends
them reliably, `pipes` transfers lines, `command` runs a program to its end. Of this process itself: `own_program`,
`signals`, `exit_codes`, and the `private_folder` of its files.
"""
