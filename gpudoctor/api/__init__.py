"""One check of one node, for programs: its request, configuration and load. No argparse, no printing, no `sys.exit`.

`functions` is what `import gpudoctor` offers. `node_check` turns a request into a report.
"""
