"""Many nodes, on an engine that people already run; it places the processes, gpudoctor runs in each."""
